/* Native objects as userdata. The metatable of a class is found by its type's address in the
 * registry, which also is how an argument's type is checked: no name can be forged. In its __gc
 * userdata gets another metatable, with answers for finalizers that run after its own. */
#include <stdlib.h>

#include "open.h"

#define SCRATCH "sandbar.scratch"

static const char collected_key; /* in the metatable of what was collected: true */

struct lua_object {
    struct sb_object *object; /* one reference; NULL once finalized */
};

void sb_lua_new_metatable(lua_State *L, const char *name, const luaL_Reg *meta,
                          const luaL_Reg *methods)
{
    luaL_newmetatable(L, name);
    luaL_setfuncs(L, meta, 0);
    if (methods != NULL) {
        int n = 0;
        while (methods[n].name != NULL)
            n++;
        lua_createtable(L, 0, n);
        luaL_setfuncs(L, methods, 0);
        lua_setfield(L, -2, "__index");
    }
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
}

static struct lua_object *object_at(lua_State *L, int arg, const struct sb_object_type *type)
{
    struct lua_object *o = lua_touserdata(L, arg);
    if (o == NULL || !lua_getmetatable(L, arg))
        return NULL;
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, type);
    int same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? o : NULL;
}

/* ---- what was collected ---- */

static int nothing(lua_State *L)
{
    (void)L;
    return 0;
}

/* __index of one that was collected; upvalue: the class. */
static int collected_index(lua_State *L)
{
    const struct sb_lua_class *class = lua_touserdata(L, lua_upvalueindex(1));
    const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    const luaL_Reg *m = class->methods;
    const char *const *plain = class->plain;
    while (m->name != NULL && strcmp(m->name, name) != 0)
        m++;
    if (m->name == NULL)
        return 0;
    while (*plain != NULL && strcmp(*plain, name) != 0)
        plain++;
    lua_pushcfunction(L, *plain != NULL ? nothing : sb_lua_collected);
    return 1;
}

/* Pushes the metatable that userdata of the class gets in its __gc. */
static void push_collected(lua_State *L, const struct sb_lua_class *class)
{
    lua_createtable(L, 0, 5);
    lua_pushlightuserdata(L, (void *)class);
    lua_pushcclosure(L, collected_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, nothing);
    lua_setfield(L, -2, "__close");
    lua_pushstring(L, class->name);
    lua_setfield(L, -2, "__name");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pushboolean(L, 1);
    sb_lua_rawsetp(L, -2, &collected_key);
}

int sb_lua_is_collected(lua_State *L, int i)
{
    if (lua_type(L, i) != LUA_TUSERDATA || !lua_getmetatable(L, i))
        return 0;
    sb_lua_rawgetp(L, -1, &collected_key);
    int is = lua_toboolean(L, -1);
    lua_pop(L, 2);
    return is;
}

/* Upvalues: the class, its metatable for what was collected. */
static int object_gc(lua_State *L)
{
    const struct sb_lua_class *class = lua_touserdata(L, lua_upvalueindex(1));
    struct lua_object *o = object_at(L, 1, class->type);
    if (o == NULL)
        return 0;
    struct sb_object *object = o->object;
    o->object = NULL;
    if (object != NULL && class->collected != NULL && object->generation == sb_generation())
        class->collected(object);
    sb_object_unref(object);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_setmetatable(L, 1);
    return 0;
}

void sb_lua_register(lua_State *L, const struct sb_lua_class *class)
{
    static const luaL_Reg meta[] = {{NULL, NULL}};
    sb_lua_new_metatable(L, class->name, meta, class->methods);
    luaL_getmetatable(L, class->name);
    lua_pushlightuserdata(L, (void *)class);
    push_collected(L, class);
    lua_pushcclosure(L, object_gc, 2);
    lua_setfield(L, -2, "__gc");
    for (const luaL_Reg *m = class->methods; m->name != NULL; m++)
        if (strcmp(m->name, "close") == 0) {
            lua_pushcfunction(L, m->func);
            lua_setfield(L, -2, "__close");
        }
    lua_pushlightuserdata(L, (void *)class);
    lua_rawseti(L, -2, 1);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, class->type);
}

void sb_lua_weigh(lua_State *L, size_t bytes)
{
    size_t kilobytes = bytes / 1024;
    if (bytes > 4096)
        lua_gc(L, LUA_GCSTEP, (int)(kilobytes < 1024 ? kilobytes : 1024));
}

void sb_lua_push_object(lua_State *L, struct sb_object **object)
{
    if (*object == NULL) {
        lua_pushnil(L);
        return;
    }
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, (*object)->type);
    if (!lua_istable(L, -1))
        luaL_error(L, "no class for native objects of type '%s'", (*object)->type->name);
    lua_rawgeti(L, -1, 1);
    const struct sb_lua_class *class = lua_touserdata(L, -1);
    lua_pop(L, 1);
    sb_lua_weigh(L, class->weight);
    struct lua_object *o = sb_lua_newuserdata(L, sizeof *o, 0);
    o->object = NULL;
    lua_insert(L, -2);
    lua_setmetatable(L, -2);
    o->object = *object;
    *object = NULL;
}

void sb_lua_push_ref(lua_State *L, void *object)
{
    struct sb_object *borrowed = object;
    sb_lua_push_object(L, &borrowed);
    if (object != NULL)
        sb_object_ref(object);
}

void *sb_lua_test_object(lua_State *L, int arg, const struct sb_object_type *type)
{
    struct lua_object *o = object_at(L, arg, type);
    return o != NULL ? o->object : NULL;
}

void *sb_lua_check_object(lua_State *L, int arg, const struct sb_object_type *type)
{
    void *object = sb_lua_test_object(L, arg, type);
    if (object == NULL)
        sb_lua_typeerror(L, arg, type->name);
    return object;
}

/* ---- scratch ---- */

static int scratch_gc(lua_State *L)
{
    void **memory = luaL_testudata(L, 1, SCRATCH);
    if (memory == NULL)
        return 0;
    free(*memory);
    *memory = NULL;
    return 0;
}

void **sb_lua_new_scratch(lua_State *L)
{
    void **memory = sb_lua_newuserdata(L, sizeof *memory, 0);
    *memory = NULL;
    luaL_setmetatable(L, SCRATCH);
    return memory;
}

uint64_t sb_lua_check_ns(lua_State *L, int arg)
{
    lua_Number seconds = luaL_checknumber(L, arg);
    luaL_argcheck(L, seconds == seconds, arg, "not a number of seconds");
    return seconds <= 0 ? 0 : seconds < 9e9 ? (uint64_t)(seconds * 1e9) : (uint64_t)9e18;
}

void sb_lua_open_object(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__gc", scratch_gc}, {NULL, NULL}};
    sb_lua_new_metatable(L, SCRATCH, meta, NULL);
}
