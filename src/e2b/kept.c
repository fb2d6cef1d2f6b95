/* What is kept of an output. */
#include "e2b/kept.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/large.h"

static int keep(struct sb_kept *kept, const unsigned char *data, size_t len)
{
    if (kept->cap - kept->len < len) {
        size_t cap = kept->cap < 4096 ? 4096 : kept->cap;
        while (cap - kept->len < len)
            cap *= 2;
        unsigned char *more = sb_large_realloc(kept->data, cap);
        if (more == NULL)
            return -1;
        kept->data = more;
        kept->cap = cap;
    }
    sb_large_copy(kept->data + kept->len, data, len);
    kept->len += len;
    return 0;
}

int sb_keep_head(struct sb_kept *kept, const unsigned char *data, size_t len, size_t most)
{
    size_t room = most - kept->len, n = len < room ? len : room;
    kept->dropped += len - n;
    return n > 0 ? keep(kept, data, n) : 0;
}

/* Only the last `stay` bytes remain. */
static void drop(struct sb_kept *kept, size_t stay)
{
    if (kept->len <= stay)
        return;
    memmove(kept->data, kept->data + kept->len - stay, stay);
    kept->dropped += kept->len - stay;
    kept->len = stay;
}

/* Moving them each time would cost more. */
int sb_keep_tail(struct sb_kept *kept, const unsigned char *data, size_t len, size_t most)
{
    if (len > most) {
        kept->dropped += len - most;
        data += len - most;
        len = most;
    }
    if (kept->len + len > most + most / 2 + 65536)
        drop(kept, most - len);
    return keep(kept, data, len);
}

void sb_kept_trim(struct sb_kept *kept, size_t most)
{
    drop(kept, most);
}

void sb_kept_give(struct sb_kept *kept, size_t most, unsigned char **bytes, size_t *len)
{
    drop(kept, most);
    *bytes = kept->data;
    *len = kept->len;
    kept->data = NULL;
    kept->len = kept->cap = 0;
}
