/* What answers are made into: the error of an SB_ERROR, the row of many SB_PARTs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conn.h"

/* Text from the other side may end up in a terminal: control bytes become '?'. */
static void copy_text(char *to, size_t room, const struct sb_field_view *f)
{
    size_t n = f->len < room - 1 ? f->len : room - 1;
    for (size_t i = 0; i < n; i++)
        to[i] = (char)(f->data[i] < 0x20 || f->data[i] == 0x7f ? '?' : f->data[i]);
    to[n] = '\0';
}

void sb_error_from_fields(struct sb_error *err, const struct sb_reader *fields)
{
    struct sb_field_view f;
    uint64_t sys = sb_read_u64(fields, SB_F_ERRNO, 0);
    memset(err, 0, sizeof *err);
    err->kind = SB_ERR_INTERNAL;
    if (sb_read_find(fields, SB_F_KIND, &f))
        err->kind = sb_err_from_name((const char *)f.data, f.len);
    if (err->kind == SB_OK)
        err->kind = SB_ERR_INTERNAL;
    err->sys = sys < 4096 ? (int)sys : 0;
    if (sb_read_find(fields, SB_F_STEP, &f))
        copy_text(err->step, sizeof err->step, &f);
    if (sb_read_find(fields, SB_F_MESSAGE, &f))
        copy_text(err->message, sizeof err->message, &f);
    if (sb_read_find(fields, SB_F_PATH, &f)) {
        if (f.len >= sizeof err->path) {
            f.data += f.len - (sizeof err->path - 1);
            f.len = sizeof err->path - 1;
        }
        copy_text(err->path, sizeof err->path, &f);
    }
    if (err->message[0] == '\0' && err->sys != 0)
        strerror_r(err->sys, err->message,
                   sizeof err->message); /* the GNU form may answer elsewhere */
    if (err->message[0] == '\0')
        snprintf(err->message, sizeof err->message, "refused without a reason");
}

int sb_parts_add(struct sb_parts *parts, const void *fields, size_t len, uint32_t mark,
                 struct sb_error *err)
{
    uint32_t head = (uint32_t)len | mark;
    size_t want = parts->len + sizeof head + len;
    if (want > SB_PARTS_MAX)
        return sb_fail(err, SB_ERR_LIMIT_EXCEEDED, "the answer is longer than %u bytes",
                       SB_PARTS_MAX);
    if (want > parts->room) {
        size_t room = want < 4096 ? 4096 : want * 2;
        unsigned char *data = realloc(parts->data, room);
        if (data == NULL)
            return sb_fail_errno(err, ENOMEM, "receive", "an answer could not be stored");
        parts->data = data;
        parts->room = room;
    }
    memcpy(parts->data + parts->len, &head, sizeof head);
    if (len > 0)
        memcpy(parts->data + parts->len + sizeof head, fields, len);
    parts->len = want;
    return 0;
}
