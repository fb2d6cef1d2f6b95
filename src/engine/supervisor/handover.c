/* A library that finds a supervisor of an older release asks it to leave, and starts its own. Nothing is passed on:
 * sandboxes outlive their supervisor, the next one finds them by their records, and callers send again what was not
 * answered. So that they hardly have to, we leave in a moment in which nothing is under way. And not before the next
 * one waits for our place: those who lose us would start others, of our own release. */
#include "handover.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "box.h"
#include "conn.h"
#include "snapshot.h"

enum { PATIENCE_MS = 5000 };

static int64_t due_ms = INT64_MAX;

int sb_handover_ask(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    if (sb_read_u64(&in->fields, SB_F_RELEASE, 0) <= SB_RELEASE)
        return sb_failed(f, "Unsupported", 0, "hand-over", "this supervisor is not the older one");
    /* The newer one would not serve them. */
    if (sb_read_u64(&in->fields, SB_F_VERSION, 0) > SB_PROTO_VERSION + 1 && sb_conn_count() > 1)
        return sb_failed(f, "Busy", 0, "hand-over",
                         "other programs are connected, which speak protocol version %d",
                         SB_PROTO_VERSION);
    if (due_ms == INT64_MAX) {
        due_ms = sb_real_ms() + PATIENCE_MS;
        unlinkat(sup.v1, "sock", 0); /* who comes from now on waits for the next one */
        sb_conn_deafen();
    }
    sb_conn_done(c, in->head.req);
    return 0;
}

static void look(struct sb_box *b, void *arg)
{
    bool *busy = arg;
    if (b->spare)
        return;
    *busy = *busy || b->waiters != NULL || b->copied || b->dying || b->step_due_ms != 0 ||
            b->goal != SB_GOAL_NONE || b->rec.state == SB_BOX_CREATING ||
            b->rec.state == SB_BOX_STOPPING || b->rec.state == SB_BOX_FREEZING;
}

/* A supervisor that starts holds this lock while it waits for our end. */
static bool next_waits(void)
{
    sb_autofd int fd = openat(sup.v1, "boot.lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

bool sb_handover_begun(void)
{
    return due_ms != INT64_MAX;
}

bool sb_handover_ready(void)
{
    bool busy = sb_snapshot_busy();
    if (!sb_handover_begun())
        return false;
    sb_box_each(look, &busy);
    return !busy && next_waits();
}

int64_t sb_handover_due_ms(void)
{
    return due_ms;
}
