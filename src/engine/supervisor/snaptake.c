/* How a snapshot comes to be (what it is: snapshot.c).
 *
 * Of a sandbox at rest nothing is copied: its uppers become a layer, and the sandbox and its copies get fresh ones
 * above it. The sandbox's record says so first; whoever finds it half done does the rest. The uppers of a running one
 * are copied while it stands still, since a mounted upper cannot change hands. Then come a sync, in a process of its own,
 * the snapshot's record, which says that it is whole, and a sync of that, before the asker hears of it. One sync is enough
 * if the files have been synced before, by a pause: what is new then are names, and they reach the disk in this order. */
#include "snaptake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conn.h"
#include "create.h"
#include "disk.h"
#include "freeze.h"
#include "job.h"
#include "slot.h"
#include "snapjob.h"
#include "snapone.h"
#include "snapshot.h"
#include "sync.h"
#include "template.h"
#include "trash.h"

/* So many layers are merged: each costs whatever stands on them time, and an overlay has SB_SEALED_MAX at most. */
enum { MERGE_FROM = 16 };

static void answer(struct sb_snapone *s, const struct sb_failure *f)
{
    struct sb_packer p;
    if (s->asker == NULL)
        return;
    if (f != NULL) {
        sb_conn_fail(s->asker, s->req, f);
    } else {
        sb_conn_begin(&p, SB_REPLY, s->req);
        sb_pack_str(&p, SB_F_SNAPSHOT, s->rec.id);
        sb_conn_send(s->asker, &p, NULL, 0);
    }
    s->asker = NULL;
}

static void failed(struct sb_snapone *s, const struct sb_failure *f)
{
    answer(s, f);
    sb_snapone_drop(s);
}

/* Nothing is below its layers. */
static int stand_alone(struct sb_record *r, struct sb_failure *f)
{
    free(r->base);
    free(r->rootfs);
    free(r->layers.data);
    r->rootfs = NULL;
    r->layers = (struct sb_list){NULL, 0};
    r->base = strdup(SB_TEMPLATE_EMPTY);
    return r->base != NULL ? 0 : sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
}

static int write_record(struct sb_snapone *s, struct sb_failure *f)
{
    sb_autofd int dir =
        openat(sup.snapshots, s->rec.id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 ||
        (s->env.len != 0 && sb_write_at(dir, "env", s->env.data, s->env.len, 0600) < 0) ||
        (s->note.len != 0 && sb_write_at(dir, "note", s->note.data, s->note.len, 0600) < 0) ||
        sb_record_write(&s->rec, dir) < 0)
        return sb_failed_errno(f, "record", "cannot write the snapshot's record");
    return 0;
}

/* It is whole: under its name, and on the snapshot's list. */
static int keep_layer(struct sb_snapone *s, struct sb_failure *f)
{
    char spare[sizeof s->half + sizeof SB_SNAPJOB_SPARE];
    snprintf(spare, sizeof spare, "%s/%s", s->half, SB_SNAPJOB_SPARE);
    if (sb_trash_put(sup.layers, spare) < 0 && errno != ENOENT)
        return sb_failed_errno(f, "snapshot", "cannot remove what was replaced");
    if (renameat(sup.layers, s->half, sup.layers, s->half + 1) < 0)
        return sb_failed_errno(f, "snapshot", "rename of a layer");
    struct sb_list all_in_one = {NULL, 0};
    const char *name = s->half + 1;
    if (sb_list_add(s->merge ? &all_in_one : &s->rec.layers, name, strlen(name)) < 0)
        return sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
    if (s->merge) {
        free(s->rec.layers.data);
        s->rec.layers = all_in_one;
    }
    s->half[0] = '\0';
    return 0;
}

/* A box at rest stands on the merged layer from now on. If that cannot be noted, the next snapshot tries again. */
static void exchange(const struct sb_snapone *s, struct sb_box *b)
{
    struct sb_list before = b->rec.layers, after = {NULL, 0};
    if (b->proc.fd >= 0 || b->rec.limit_disk != 0 || sb_list_copy(&after, &s->rec.layers) < 0)
        return;
    b->rec.layers = after;
    if (sb_box_save(b) < 0) {
        b->rec.layers = before;
        before = after;
    }
    b->on_disk = b->on_disk && !s->rec.owned;
    free(before.data);
    sb_snapshot_prune();
}

static void declare(struct sb_snapone *s)
{
    s->whole = true;
    answer(s, NULL);
}

static int start_sync(struct sb_snapone *s, struct sb_failure *f);

static int gave_up(struct sb_failure *f)
{
    return sb_failed(f, "Cancelled", 0, "snapshot", "nobody waits for it any more");
}

static void next(const char *box);

static void let_go(struct sb_snapone *s, bool stands)
{
    char box[sizeof s->box];
    memcpy(box, s->box, sizeof box);
    s->box[0] = '\0';
    if (stands)
        sb_freeze_copied(sb_box_find(box)); /* it goes on, or begins to */
    next(box);
}

/* The process that copies or syncs has ended. */
static void job_done(struct sb_source *src, uint32_t events)
{
    struct sb_snapone *s = SB_OWNER(src, struct sb_snapone, job);
    struct sb_box *b = s->box[0] != '\0' ? sb_box_find(s->box) : NULL;
    struct sb_failure f;
    bool stands = b != NULL && b->copied;
    int err = sb_sync_end(&s->sync, src), rc = 0;
    (void)events;
    if (s->unwanted)
        rc = gave_up(&f);
    else if (err != 0)
        rc = sb_failed(&f, NULL, err, "snapshot", "cannot copy the sandbox's files");
    if (rc == 0 && s->half[0] != '\0')
        rc = keep_layer(s, &f);
    if (rc == 0 && s->unsynced) { /* for which nobody has to stand still */
        s->unsynced = false;
        let_go(s, stands);
        if (start_sync(s, &f) < 0)
            failed(s, &f);
        return;
    }
    if (rc == 0 && !s->noted)
        rc = write_record(s, &f);
    if (rc == 0 && stands && s->merge)
        exchange(s, b);
    let_go(s, stands);
    /* A step of a build that is lost is made once more. */
    bool last = s->noted || s->rec.owned || s->rec.id[0] == '=';
    s->noted = true;
    if (rc == 0 && !last)
        rc = start_sync(s, &f);
    if (rc < 0)
        failed(s, &f);
    else if (last)
        declare(s);
}

static int start_job(struct sb_snapone *s, const struct sb_snapjob *j, struct sb_failure *f)
{
    pid_t pid = sb_snapjob_start(j);
    if (sb_job_watch(&s->job, pid, job_done) == 0)
        return 0;
    return sb_failed_errno(f, "snapshot", "cannot start the copy");
}

static int start_sync(struct sb_snapone *s, struct sb_failure *f)
{
    s->sync = sb_sync_start(sup.layers, false, -1, &s->job, job_done);
    return s->sync != NULL ? 0 : sb_failed_errno(f, "snapshot", "cannot start the sync");
}

/* Of one whose layers are there, `on_disk` or not; a temporary one need not outlast a power cut. */
static int note(struct sb_snapone *s, bool on_disk, struct sb_failure *f)
{
    s->noted = on_disk && s->env.len == 0 && s->note.len == 0;
    if ((s->noted || s->rec.owned) && write_record(s, f) < 0)
        return -1;
    if (!s->rec.owned)
        return start_sync(s, f);
    declare(s);
    return 0;
}

/* A new layer, under its temporary name. */
static int make_layer(struct sb_snapone *s, struct sb_failure *f)
{
    uint64_t r;
    sb_random(&r, sizeof r);
    snprintf(s->half, sizeof s->half, ".%016llx", (unsigned long long)r);
    int fd = mkdirat(sup.layers, s->half, 0700) < 0
                 ? -1
                 : openat(sup.layers, s->half, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? sb_failed_errno(f, "snapshot", "cannot make a layer") : fd;
}

/* The box stands still, or a pause keeps it so: its uppers are copied. */
static int start_copy(struct sb_snapone *s, struct sb_box *b, struct sb_failure *f)
{
    sb_autofd int own = sb_box_dir(b);
    if (own < 0)
        return sb_failed_errno(f, "directory", "open");
    sb_autofd int disk = b->rec.limit_disk != 0 ? sb_disk_open(own) : -1;
    if (b->rec.limit_disk != 0 && disk < 0)
        return sb_failed_errno(f, "disk", "cannot mount the sandbox's disk");
    const int dir = disk >= 0 ? disk : own;
    sb_autofd int layer = make_layer(s, f);
    if (layer < 0)
        return -1;
    s->copies = true;
    s->unsynced = !s->rec.owned; /* a temporary one is not there after a power cut */
    const struct sb_snapjob j = {
        .box = dir, .layer = layer, .merge = s->merge ? &s->rec.layers : NULL, .copy = true};
    return start_job(s, &j, f);
}

/* A directory in the root of a box at rest becomes the layer, and that layer all there is. */
static int take_out(struct sb_snapone *s, struct sb_box *b, const char *subtree,
                    struct sb_failure *f)
{
    struct stat st;
    char path[SB_ID_MAX + 4];
    snprintf(path, sizeof path, "u/%s", subtree);
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0 || fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return sb_failed(f, "NotFound", ENOENT, "subtree", "sandbox %s has no directory /%s",
                         b->rec.id, subtree);
    s->merge = false;
    if (stand_alone(&s->rec, f) < 0)
        return -1;
    sb_autofd int layer = make_layer(s, f);
    if (layer < 0)
        return -1;
    const struct sb_snapjob j = {.box = dir, .layer = layer, .sync = true};
    if (renameat(dir, path, layer, "u") < 0)
        return sb_failed_errno(f, "subtree", "rename");
    sb_autofd int upper = openat(layer, "u", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (upper < 0 || sb_layers_plain(upper) < 0)
        return sb_failed_errno(f, "subtree", "owner and mode");
    return start_job(s, &j, f);
}

/* A box at rest: its uppers become the layer. */
static int seal(struct sb_snapone *s, struct sb_box *b, struct sb_failure *f)
{
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0)
        return sb_failed_errno(f, "directory", "open");
    if (b->rec.seal[0] == '\0') {
        uint64_t r;
        sb_random(&r, sizeof r);
        snprintf(b->rec.seal, sizeof b->rec.seal, "%016llx", (unsigned long long)r);
        int rc = mkdirat(sup.layers, b->rec.seal, 0700);
        if (rc == 0 && sb_list_add(&b->rec.layers, b->rec.seal, strlen(b->rec.seal)) < 0) {
            errno = ENOMEM;
            rc = -1;
        }
        if (rc < 0 || sb_box_save_quickly(b) < 0) {
            sb_failed_errno(f, "snapshot", "cannot seal the sandbox's files");
            sb_list_remove(&b->rec.layers, b->rec.seal);
            sb_trash_put(sup.layers, b->rec.seal);
            b->rec.seal[0] = '\0';
            return -1;
        }
    }
    if (sb_layers_seal(&b->rec, dir, f) < 0)
        return -1;
    b->rec.seal[0] = '\0';
    if (sb_box_save_quickly(b) < 0)
        return sb_failed_errno(f, "record", "cannot write the record");
    for (const char *e = NULL; (e = sb_list_next(&b->rec.layers, e)) != NULL;)
        if (!sb_list_has(&s->rec.layers, e, strlen(e)) &&
            sb_list_add(&s->rec.layers, e, strlen(e)) < 0)
            return sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
    if (!s->merge)
        return note(s, b->on_disk, f);
    sb_autofd int layer = make_layer(s, f);
    if (layer < 0)
        return -1;
    const struct sb_snapjob j = {dir, layer, &s->rec.layers, false, !s->rec.owned, false};
    if (start_job(s, &j, f) < 0)
        return -1;
    snprintf(s->box, sizeof s->box, "%s", b->rec.id); /* and until then it stays at rest */
    b->copied = true;
    return 0;
}

static struct sb_snapone *waiting_for(const struct sb_box *b)
{
    struct sb_snapone *s = sb_snapones;
    while (s != NULL && (!s->waiting || strcmp(s->box, b->rec.id) != 0))
        s = s->next;
    return s;
}

static struct sb_snapone *queued_for(const char *box)
{
    struct sb_snapone *s = sb_snapones;
    while (s != NULL && (!s->queued || strcmp(s->box, box) != 0))
        s = s->next;
    return s;
}

bool sb_snapshot_given_up(const struct sb_box *b)
{
    for (const struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        if (!s->unwanted && strcmp(s->box, b->rec.id) == 0)
            return false;
    return true;
}

void sb_snapshot_frozen(struct sb_box *b)
{
    struct sb_failure f;
    struct sb_snapone *s = waiting_for(b);
    if (s != NULL && (s->unwanted ? gave_up(&f) : start_copy(s, b, &f)) == 0) {
        s->waiting = false;
        return;
    }
    char box[sizeof b->rec.id];
    memcpy(box, b->rec.id, sizeof box);
    sb_freeze_copied(b);
    if (s != NULL)
        failed(s, &f);
    next(box);
}

void sb_snapshot_not_frozen(struct sb_box *b, const struct sb_failure *f)
{
    struct sb_snapone *s;
    while ((s = waiting_for(b)) != NULL || (s = queued_for(b->rec.id)) != NULL)
        failed(s, f);
    /* One that is being copied already stays as it is: pid 1 has ended, and nobody else moves anything. */
    for (s = sb_snapones, b->copied = false; s != NULL; s = s->next)
        b->copied = b->copied || strcmp(s->box, b->rec.id) == 0;
}

void sb_snapshot_box_gone(const struct sb_box *b)
{
    struct sb_failure f;
    struct sb_snapone *s, *after;
    sb_failed(&f, "NotFound", 0, "destroyed", "sandbox %s was destroyed", b->rec.id);
    for (s = sb_snapones; s != NULL; s = after) {
        after = s->next;
        if (strcmp(s->box, b->rec.id) != 0)
            continue;
        s->box[0] = '\0'; /* the next one of that id is another */
        if (s->waiting || s->queued) {
            failed(s, &f);
        } else if (s->copies) { /* a merge goes on: it needs nothing of the box's */
            answer(s, &f);
            sb_snapone_give_up(s);
        }
    }
}

static size_t count(const struct sb_list *l)
{
    size_t n = 0;
    for (const char *e = NULL; (e = sb_list_next(l, e)) != NULL;)
        n++;
    return n;
}

/* Begins with whatever the box's state allows. */
static int begin(struct sb_snapone *s, struct sb_box *b, const char *subtree, struct sb_failure *f)
{
    bool rests = b->proc.fd < 0 && (b->rec.state == SB_BOX_PAUSED || b->rec.state == SB_BOX_FAILED);
    s->merge = count(&b->rec.layers) + 1 >= MERGE_FROM;
    if (count(&b->rec.layers) >= SB_SEALED_MAX)
        return sb_failed(f, "LimitExceeded", 0, "snapshot",
                         "sandbox %s stands on %d snapshots already", b->rec.id, SB_SEALED_MAX);
    if (subtree != NULL && b->rec.limit_disk != 0)
        return sb_failed(f, "Unsupported", 0, "subtree",
                         "sandbox %s has a disk of its own (limits.disk)", b->rec.id);
    if (subtree != NULL)
        return rests ? take_out(s, b, subtree, f)
                     : sb_failed(f, "Busy", 0, "subtree", "sandbox %s is not at rest", b->rec.id);
    if (rests && b->rec.limit_disk == 0)
        return seal(s, b, f);
    snprintf(s->box, sizeof s->box, "%s", b->rec.id);
    if (rests || (b->rec.state == SB_BOX_PAUSED && b->rec.kept == SB_KEPT_MEMORY && !b->dying)) {
        b->copied = start_copy(s, b, f) == 0;
        return b->copied ? 0 : -1;
    }
    s->waiting = true;
    if (b->rec.state != SB_BOX_RUNNING || b->freeze_asked)
        return sb_failed(f, "Busy", 0, "snapshot", "sandbox %s is starting or being paused",
                         b->rec.id);
    if (sb_freeze_begin(b, f) < 0)
        return -1;
    b->copied = true;
    return 0;
}

/* What stood in the way of the box's next one has been wound down. */
static void next(const char *box)
{
    struct sb_snapone *s;
    while ((s = queued_for(box)) != NULL) {
        struct sb_failure f;
        struct sb_box *b = sb_box_find(box);
        s->queued = false;
        s->box[0] = '\0';
        if (s->unwanted)
            gave_up(&f);
        else if (b == NULL || b->dying || b->goal == SB_GOAL_DESTROY)
            sb_failed(&f, "NotRunning", 0, "snapshot", "sandbox %s is ending", box);
        else if (sb_snapone_describe(s, b, &f) == 0 && begin(s, b, NULL, &f) == 0)
            return;
        failed(s, &f);
    }
}

/* A new one in the list, by the name the request gives it. NULL: see *f. */
static struct sb_snapone *new_one(struct sb_conn *c, const struct sb_wire_in *in,
                                  struct sb_failure *f)
{
    char name[SB_ID_MAX + 1];
    struct sb_field_view v;
    if (sb_snapone_name(in, name, f) < 0)
        return NULL;
    if (mkdirat(sup.snapshots, name, 0700) < 0) {
        if (errno == EEXIST)
            sb_failed(f, "AlreadyExists", EEXIST, "snapshot", "there is a snapshot %s already",
                      name);
        else
            sb_failed_errno(f, "snapshot", "cannot make the snapshot's directory");
        return NULL;
    }
    struct sb_snapone *s = calloc(1, sizeof *s);
    if (s == NULL) {
        unlinkat(sup.snapshots, name, AT_REMOVEDIR);
        sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
        return NULL;
    }
    snprintf(s->rec.id, sizeof s->rec.id, "%s", name);
    s->job.fd = s->maker.fd = -1;
    s->asker = c;
    s->req = in->head.req;
    s->next = sb_snapones;
    sb_snapones = s;
    if (sb_read_find(&in->fields, SB_F_DATA, &v)) {
        s->note.data = malloc(v.len + 1);
        s->note.len = v.len;
        if (s->note.data == NULL) {
            sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
            s->asker = NULL;
            sb_snapone_drop(s);
            return NULL;
        }
        memcpy(s->note.data, v.data, v.len);
    }
    return s;
}

int sb_snapshot_import(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    sb_autofree char *path = NULL;
    if (sb_wire_string(&in->fields, SB_F_ROOTFS, 4095, &path) < 0 || path == NULL || *path != '/')
        return sb_failed(f, "InvalidArgument", 0, "rootfs", "not an absolute path");
    sb_autofd int from = sb_lift(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (from < 0)
        return sb_failed(f, NULL, errno, "template", "directory %s", path);
    struct sb_snapone *s = new_one(c, in, f);
    if (s == NULL)
        return -1;
    struct sb_record *r = &s->rec;
    r->state = SB_BOX_PAUSED;
    r->created_ms = sb_wall_ms();
    r->range = -1;
    r->mode = sup.mode;
    r->sub_uid = sup.sub_uid;
    r->sub_gid = sup.sub_gid;
    r->sub_count = sup.sub_count;
    sb_create_defaults(r);
    if (stand_alone(r, f) == 0) {
        sb_autofd int layer = make_layer(s, f);
        const struct sb_snapjob j = {.box = from, .layer = layer, .import = true, .sync = true};
        if (layer >= 0 && start_job(s, &j, f) == 0)
            return 0;
    }
    s->asker = NULL;
    sb_snapone_drop(s);
    return -1;
}

int sb_snapshot_take(struct sb_conn *c, const struct sb_wire_in *in, struct sb_box *b,
                     struct sb_failure *f)
{
    sb_autofree char *subtree = NULL;
    if (sb_wire_string(&in->fields, SB_F_SUBTREE, SB_ID_MAX, &subtree) < 0 ||
        (subtree != NULL && !sb_id_valid(subtree, strlen(subtree))))
        return sb_failed(f, "InvalidArgument", 0, "subtree", "not the name of a directory");
    if (b->copied && (subtree != NULL || !sb_snapshot_given_up(b)))
        return sb_failed(f, "Busy", 0, "snapshot", "another snapshot of sandbox %s is being taken",
                         b->rec.id);
    if (b->pause_next != SB_KEPT_NOTHING)
        return sb_failed(f, "Busy", 0, "snapshot", "sandbox %s is being paused", b->rec.id);
    struct sb_snapone *s = new_one(c, in, f);
    if (s == NULL)
        return -1;
    int rc = 0;
    if (sb_read_u64(&in->fields, SB_F_TEMPORARY, 0) != 0) {
        s->rec.owned = true;
        if (c->pidfd < 0 || sb_ident_of(c->pidfd, c->pid, &s->rec.owner) < 0 ||
            sb_snapone_watch(s, sb_lift(fcntl(c->pidfd, F_DUPFD_CLOEXEC, 0))) < 0)
            rc = sb_failed(f, "Closed", 0, "owner", "the owner has ended");
    }
    if (rc == 0 && b->copied) {
        s->queued = true;
        snprintf(s->box, sizeof s->box, "%s", b->rec.id);
        return 0;
    }
    if (rc == 0 && sb_snapone_describe(s, b, f) == 0 && begin(s, b, subtree, f) == 0)
        return 0;
    s->asker = NULL;
    sb_snapone_drop(s);
    return -1;
}

int sb_snapshot_give_up(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    char name[SB_ID_MAX + 1];
    if (sb_snapone_name(in, name, f) < 0)
        return -1;
    struct sb_snapone *s = sb_snapone_find(name);
    /* Others may wait for a step of a build. */
    if (s != NULL && s->asker == c && s->rec.id[0] != '=')
        sb_snapone_give_up(s);
    sb_conn_done(c, in->head.req);
    return 0;
}

void sb_snapshot_conn_gone(const struct sb_conn *c)
{
    for (struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        if (s->asker == c)
            s->asker = NULL;
}
