#include "listing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool sb_listing_labels_match(const struct sb_box *b, const struct sb_wire_in *in)
{
    struct sb_reader walk = in->fields;
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1)
        if (v.tag == SB_F_LABEL && !sb_list_has(&b->rec.labels, v.data, v.len))
            return false;
    return true;
}

/* Those that match, to be sorted: filter first, then order, then page. */
struct selection {
    const struct sb_wire_in *in;
    struct sb_box **box;
    int n;
    char after[SB_ID_MAX + 1];
};

static void select_box(struct sb_box *b, void *arg)
{
    struct selection *s = arg;
    struct sb_reader walk = s->in->fields;
    struct sb_field_view v;
    const char *state = sb_record_state(&b->rec);
    bool any = false, match = false;
    if (b->rec.state == SB_BOX_CREATING || b->goal == SB_GOAL_DESTROY ||
        strcmp(b->rec.id, s->after) <= 0 || !sb_listing_labels_match(b, s->in))
        return;
    while (sb_read_field(&walk, &v) == 1)
        if (v.tag == SB_F_STATE) {
            any = true;
            match = match || (v.len == strlen(state) && memcmp(v.data, state, v.len) == 0);
        }
    if (!any || match)
        s->box[s->n++] = b;
}

static int by_id(const void *a, const void *b)
{
    return strcmp((*(struct sb_box *const *)a)->rec.id, (*(struct sb_box *const *)b)->rec.id);
}

int sb_listing(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct selection s = {.in = in};
    struct sb_field_view v;
    struct sb_packer p;
    if (sb_read_find(&in->fields, SB_F_AFTER, &v) && v.len != 0) {
        if (!sb_id_valid((const char *)v.data, v.len))
            return sb_failed(f, "InvalidArgument", 0, "after", "not a place in a list");
        memcpy(s.after, v.data, v.len);
    }
    uint64_t limit = sb_read_u64(&in->fields, SB_F_LIMIT, SB_LIST_DEFAULT);
    if (limit == 0 || limit > SB_LIST_MAX)
        limit = SB_LIST_MAX;
    s.box = calloc((size_t)sb_box_count() + 1, sizeof *s.box);
    if (s.box == NULL)
        return sb_failed(f, NULL, ENOMEM, "list", "memory");
    sb_box_each(select_box, &s);
    qsort(s.box, (size_t)s.n, sizeof *s.box, by_id);
    int n = (uint64_t)s.n > limit ? (int)limit : s.n;
    for (int i = 0; i < n && c->src.fd >= 0; i++) {
        sb_conn_begin(&p, SB_PART, in->head.req);
        sb_record_show(&s.box[i]->rec, &p);
        sb_conn_send(c, &p, NULL, 0);
    }
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    if (n < s.n)
        sb_pack_str(&p, SB_F_NEXT, s.box[n - 1]->rec.id);
    sb_conn_send(c, &p, NULL, 0);
    free(s.box);
    return 0;
}
