/* Spares: started, waiting for their set-up. Starting pid 1 is most of a create's time, and nothing
 * of it depends on who asks as long as limits and host name are the usual ones. */
#include "spare.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "create.h"
#include "slot.h"
#include "trash.h"
#include "wire.h"

enum { RETRY_MS = 1000, END_MS = 3000, SET_UP_MS = 5000, KEEP_MS = 60000, FDS_EACH = 16 };

static struct {
    struct sb_box *box[SB_SPARES_MAX]; /* starting, ready or ending; NULL: free */
    int want;
    int alive_before; /* other sandboxes, when the stock was whole */
    int64_t used_ms;  /* the last time that the usual number would not have done */
    int64_t retry_ms;
} spares = {.want = SB_SPARES};

static int count(bool ready_only)
{
    int n = 0;
    for (int i = 0; i < SB_SPARES_MAX; i++)
        n += spares.box[i] != NULL && (!ready_only || spares.box[i]->greeted);
    return n;
}

/* A create found none that is ready. More of them help where more and more sandboxes live; whoever
 * destroys as many as he creates waits for the machine. */
static void missed(int alive)
{
    struct rlimit files;
    int more = 2 * spares.want;
    if (alive - spares.alive_before < spares.want || more > SB_SPARES_MAX)
        return;
    /* Of our descriptors they may have a quarter. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && (rlim_t)more * FDS_EACH <= files.rlim_cur / 4)
        spares.want = more;
}

int sb_spare_count(void)
{
    return count(true);
}

bool sb_spare_wanted(void)
{
    int n = count(false);
    if (n >= spares.want)
        spares.alive_before = sb_box_count() - n;
    return n < spares.want && !sup.leaving && sb_slot_pooled() > 0 && sb_slot_settled() &&
           sb_real_ms() >= spares.retry_ms;
}

bool sb_spare_low(void)
{
    return count(false) <= SB_SPARES_LOW;
}

int64_t sb_spare_due_ms(void)
{
    /* After the time of another try it is made, or waits for a slot, which has a time of its own. */
    if (count(false) < spares.want)
        return spares.retry_ms > sb_real_ms() ? spares.retry_ms : INT64_MAX;
    return spares.want > SB_SPARES ? spares.used_ms + KEEP_MS : INT64_MAX;
}

bool sb_spare_surplus(void)
{
    if (spares.want > SB_SPARES && sb_real_ms() >= spares.used_ms + KEEP_MS)
        spares.want = SB_SPARES;
    int n = 0;
    for (int i = 0; i < SB_SPARES_MAX; i++)
        n += spares.box[i] != NULL && !spares.box[i]->dying;
    return n > spares.want && !sup.leaving;
}

void sb_spare_shed(void)
{
    for (int i = SB_SPARES_MAX; i-- > 0;)
        if (spares.box[i] != NULL && !spares.box[i]->dying) {
            sb_guest_kill(spares.box[i], NULL);
            return;
        }
}

static void release(struct sb_box *b)
{
    for (int i = 0; i < SB_SPARES_MAX; i++)
        if (spares.box[i] == b)
            spares.box[i] = NULL;
}

void sb_spare_make(void)
{
    struct sb_failure f;
    struct sb_slot *s = sb_slot_take(&f);
    char id[sizeof s->dir_name + 1];
    spares.retry_ms = sb_real_ms() + RETRY_MS;
    if (s == NULL)
        return;
    snprintf(id, sizeof id, ".%s", s->dir_name);
    struct sb_box *b = sb_box_new(id);
    if (b == NULL) {
        sb_slot_drop(s);
        return;
    }
    b->spare = b->fresh = true;
    b->rec.state = SB_BOX_CREATING;
    sb_create_defaults(&b->rec);
    if (sb_boot_slot(b, s, &f) < 0) {
        sb_slot_drop(s); /* its directory with it */
        sb_box_forget(b);
        return;
    }
    b->record = s->record;
    b->user = s->user;
    s->record = s->user = -1;
    s->dir_name[0] = '\0';
    sb_slot_drop(s);
    for (int i = 0; i < SB_SPARES_MAX; i++)
        if (spares.box[i] == NULL) {
            spares.box[i] = b;
            break;
        }
    spares.retry_ms = 0;
}

void sb_spare_ready(struct sb_box *b)
{
    unsigned char buf[32];
    struct sb_packer p;
    sb_birth_give(b->birth);
    b->birth = NULL;
    b->step_due_ms = 0;
    sb_slot_booted(b->rec.boot);
    sb_pack_begin(&p, buf, sizeof buf, SB_G_SPARE, 0, 0);
    sb_wire_send(b->guest.fd, &p, NULL, 0); /* unread, it would only be slower */
}

void sb_spare_ended(struct sb_box *b)
{
    release(b);
    spares.retry_ms = sb_real_ms() + RETRY_MS;
    sb_trash_put(sup.prepared, b->rec.id + 1);
    sb_box_forget(b);
}

void sb_spare_drain(void)
{
    for (int i = 0; i < SB_SPARES_MAX; i++)
        if (spares.box[i] != NULL)
            sb_guest_kill(spares.box[i], NULL);
    for (int i = 0; i < SB_SPARES_MAX; i++) {
        struct sb_box *b = spares.box[i];
        if (b == NULL)
            continue;
        struct pollfd p = {b->proc.fd, POLLIN, 0};
        poll(&p, 1, END_MS);
        sb_boot_proc_ready(&b->proc, 0);
    }
}

static bool fits(const struct sb_record *r)
{
    struct sb_record usual = {.state = SB_BOX_CREATING};
    sb_create_defaults(&usual);
    return !r->allow_setuid && r->limit_memory == 0 &&
           r->limit_processes == usual.limit_processes && r->limit_files == usual.limit_files &&
           (r->hostname == NULL || strcmp(r->hostname, SB_HOSTNAME) == 0);
}

/* Everything of the running pid 1 changes its owner. */
static void transplant(struct sb_box *b, struct sb_box *from)
{
    sb_loop_move(&b->proc, &from->proc);
    sb_loop_move(&b->guest, &from->guest);
    b->group = from->group;
    from->group = (struct sb_cgroup){.dir = -1};
    b->user = from->user;
    from->user = -1;
    b->greeted = from->greeted;
    b->birth = from->birth;
    from->birth = NULL;
    b->why = from->why;
    b->clone_at = from->clone_at;
    b->rec.range = from->rec.range;
    from->rec.range = -1;
    b->rec.epoch++;
    b->rec.pid1 = from->rec.pid1;
    b->rec.sub_uid = from->rec.sub_uid;
    b->rec.sub_gid = from->rec.sub_gid;
    b->rec.sub_count = from->rec.sub_count;
    b->rec.mode = from->rec.mode;
    memcpy(b->rec.boot, from->rec.boot, sizeof b->rec.boot);
    memcpy(b->rec.host_boot, from->rec.host_boot, sizeof b->rec.host_boot);
    memcpy(b->rec.group, from->rec.group, sizeof b->rec.group);
}

/* The one that is ready, else one that will be sooner than any that is begun now. */
static struct sb_box *choose(void)
{
    struct sb_box *best = NULL;
    for (int i = 0; i < SB_SPARES_MAX; i++) {
        struct sb_box *b = spares.box[i];
        if (b != NULL && !b->dying && (best == NULL || (b->greeted && !best->greeted)))
            best = b;
    }
    return best;
}

/* The one for this sandbox, or NULL. */
static struct sb_box *find(const struct sb_record *r)
{
    struct sb_box *from = fits(r) ? choose() : NULL;
    if (fits(r) && (from == NULL || !from->greeted))
        missed(sb_box_count() - count(false));
    return from;
}

/* pid 1 of `from` becomes that of `b`, and is set up once it has said hello. */
static void take(struct sb_box *b, struct sb_box *from)
{
    release(from);
    if (spares.want - count(false) > SB_SPARES)
        spares.used_ms = sb_real_ms();
    transplant(b, from);
    sb_box_forget(from);
    b->step_due_ms = sb_real_ms() + SET_UP_MS;
}

/* The usual case: the spare's directory, with all that is mounted of it, becomes the sandbox's. */
static int rename_whole(struct sb_box *b, struct sb_box *from, struct sb_failure *f)
{
    if (renameat2(sup.prepared, from->rec.id + 1, sup.boxes, b->rec.id, RENAME_NOREPLACE) < 0)
        return sb_boot_taken(b, f);
    b->record = from->record;
    from->record = -1;
    return 0;
}

/* The sandbox has a directory of its own: what pid 1 is found by goes there, the rest is thrown away. */
static int move_in(struct sb_box *b, const char *spare, struct sb_failure *f)
{
    static const char *const file[] = {"sock", "birth"};
    char path[40];
    sb_autofd int dir = sb_box_dir(b);
    int rc = dir < 0 ? sb_failed_errno(f, "directory", "open") : 0;
    for (size_t i = 0; rc == 0 && i < sizeof file / sizeof *file; i++) {
        snprintf(path, sizeof path, "%s/%s", spare, file[i]);
        unlinkat(dir, file[i], 0); /* to be replaced it would be flushed to the disk first */
        if (renameat(sup.prepared, path, dir, file[i]) < 0)
            rc = sb_failed(f, NULL, errno, "directory", "rename of %s", file[i]);
    }
    sb_trash_put(sup.prepared, spare);
    b->unrooted = true;
    return rc;
}

static int keep_env(struct sb_box *b, struct sb_failure *f)
{
    if (b->env.len == 0)
        return 0;
    sb_autofd int dir = sb_box_dir(b);
    return dir < 0 ? sb_failed_errno(f, "directory", "open") : sb_boot_keep_env(b, dir, f);
}

/* From here on its end is the answer to a failure, and cleans up. */
static int go(struct sb_box *b, int rc, const struct sb_failure *f)
{
    if (rc < 0) {
        b->why = *f;
        sb_guest_kill(b, NULL);
    } else if (b->greeted) {
        sb_guest_set_up(b); /* else once it says hello */
    }
    return 1;
}

int sb_spare_use(struct sb_box *b, struct sb_failure *f)
{
    char name[sizeof b->rec.id];
    bool usual = sb_record_plain(&b->rec);
    struct sb_box *from = find(&b->rec);
    if (from == NULL)
        return 0;
    if ((usual ? rename_whole(b, from, f) : sb_boot_make_dir(b, f)) < 0)
        return -1;
    snprintf(name, sizeof name, "%s", from->rec.id + 1);
    take(b, from);
    int rc = usual ? 0 : move_in(b, name, f);
    return go(b, rc == 0 ? keep_env(b, f) : rc, f);
}

int sb_spare_resume(struct sb_box *b)
{
    struct sb_failure f;
    char name[sizeof b->rec.id];
    struct sb_box *from = find(&b->rec);
    if (from == NULL)
        return 0;
    snprintf(name, sizeof name, "%s", from->rec.id + 1);
    take(b, from);
    b->rec.state = SB_BOX_CREATING;
    b->fresh = false;
    return go(b, move_in(b, name, &f), &f);
}
