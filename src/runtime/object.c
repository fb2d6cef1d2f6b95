/* Reference counts of native objects. */
#include "loop.h"
#include "op.h"

void sb_object_init(struct sb_object *object, const struct sb_object_type *type)
{
    object->type = type;
    object->refs = 1;
    object->generation = sb_generation();
}

void *sb_object_ref(void *object)
{
    ((struct sb_object *)object)->refs++;
    return object;
}

void sb_object_unref(void *object)
{
    struct sb_object *o = object;
    if (o != NULL && --o->refs == 0)
        o->type->destroy(o);
}
