/* Making a sandbox run: from a directory and a slot to a cloned pid 1. What follows its hello is
 * guest.c's; what follows its end is life.c's. */
#include "box.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk.h"
#include "range.h"
#include "slot.h"
#include "spare.h"

enum { HELLO_MS = 5000, SHM_BYTES = 512 << 20 };

/* Puts a descriptor at its fixed number for the next child. */
static int place(int fd, int number)
{
    return dup3(fd, number, O_CLOEXEC) < 0 ? -1 : 0;
}

static void clear_places(int trees)
{
    for (int n = SB_FD_ROOT; n < SB_FD_TREE + trees; n++)
        dup3(sup.null, n, O_CLOEXEC);
}

static int place_all(const struct sb_slot *s, int control)
{
    if (place(s->layers.root, SB_FD_ROOT) < 0 || place(s->device, SB_FD_DEV) < 0 ||
        place(s->boot_id, SB_FD_BOOT_ID) < 0 || place(control, SB_FD_CONTROL) < 0 ||
        place(s->listener, SB_FD_LISTEN) < 0 || place(sup.image, SB_FD_IMAGE) < 0 ||
        place(s->note, SB_FD_NOTE) < 0)
        return -1;
    for (int i = 0; i < s->layers.trees; i++)
        if (place(s->layers.tree[i], SB_FD_TREE + i) < 0)
            return -1;
    return 0;
}

static void fill_birth(struct sb_birth *birth, const struct sb_box *b, const struct sb_slot *s,
                       struct sb_idmap *map)
{
    sb_slot_map(s->range, map);
    birth->user = s->user;
    birth->net = s->net;
    birth->cgroup = s->group.dir;
    birth->map = map;
    birth->trees = s->layers.trees;
    for (int i = 0; i < s->layers.trees; i++)
        birth->tree[i] = sb_base_tree[i];
    birth->processes = b->rec.limit_processes;
    birth->allow_setuid = b->rec.allow_setuid;
    /* What lies there is memory that no process's end gives back: some is left for processes. */
    const uint64_t shm = b->rec.limit_memory / 2;
    snprintf(birth->shm, sizeof birth->shm, "%llu",
             (unsigned long long)(shm == 0 || shm > SHM_BYTES ? SHM_BYTES : shm));
    birth->single = sup.mode == SB_MODE_SINGLE;
    memcpy(birth->note.magic, "SBBIRTH1", sizeof birth->note.magic);
    memcpy(birth->note.host_boot, sup.host_boot, sizeof birth->note.host_boot);
    birth->hostname = b->rec.hostname != NULL ? b->rec.hostname : SB_HOSTNAME;
}

/* What the running sandbox takes over from its slot, which ends here. */
static void take_over(struct sb_box *b, struct sb_slot *s)
{
    b->rec.range = s->range;
    s->range = -1;
    b->group = s->group;
    s->group.dir = -1;
    s->group.nfds = 0;
    s->group.name[0] = '\0';
    memcpy(b->rec.group, b->group.name, sizeof b->rec.group);
    memcpy(b->rec.boot, s->boot, sizeof b->rec.boot);
    s->boot[0] = '\0';
}

/* Clones pid 1 from a slot whose layers and listener are made. On failure nothing is left but the
 * directory; the slot stays the caller's. */
int sb_boot_slot(struct sb_box *b, struct sb_slot *s, struct sb_failure *f)
{
    struct sb_idmap map;
    int pair[2];
    struct sb_birth *birth = sb_birth_take();
    if (birth == NULL)
        return sb_failed(f, NULL, ENOMEM, "clone", "memory");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        sb_birth_give(birth);
        return sb_failed_errno(f, "control", "socketpair");
    }
    fill_birth(birth, b, s, &map);
    int rc = place_all(s, pair[1]);
    if (rc < 0)
        sb_failed_errno(f, "descriptors", "dup");
    else if ((rc = sb_birth_start(birth)) < 0)
        sb_failed(f, NULL, birth->err, birth->step, "cannot start pid 1");
    clear_places(s->layers.trees);
    close(pair[1]);
    if (rc < 0) {
        close(pair[0]);
        sb_birth_give(birth);
        return -1;
    }
    b->birth = birth;
    b->clone_at = birth->clone_at;
    take_over(b, s);
    if (sb_loop_add(&b->proc, birth->pidfd, EPOLLIN, sb_boot_proc_ready) < 0 ||
        sb_guest_attach(b, pair[0]) < 0) {
        /* Only memory can be short here. */
        if (b->proc.fd < 0) {
            kill(birth->pid, SIGKILL); /* our child, not reaped: the pid is still its own */
            siginfo_t info;
            while (waitid(P_PID, (id_t)birth->pid, &info, WEXITED | __WALL) < 0 && errno == EINTR)
                ; /* it lives on the stack in `birth` until then */
            close(pair[0]);
            errno = ENOMEM;
            return sb_failed_errno(f, "loop", "epoll");
        }
        sb_guest_kill(b, "no memory to watch it");
    }
    b->step_due_ms = sb_real_ms() + HELLO_MS;
    b->rec.epoch++;
    memcpy(b->rec.host_boot, sup.host_boot, sizeof b->rec.host_boot);
    b->rec.sub_uid = sup.sub_uid;
    b->rec.sub_gid = sup.sub_gid;
    b->rec.sub_count = sup.sub_count;
    b->rec.mode = sup.mode;
    if (sb_ident_of(b->proc.fd, birth->pid, &b->rec.pid1) < 0) {
        sb_failed_errno(&b->why, "clone", "pid 1 has no identity");
        sb_guest_kill(b, NULL);
    }
    sb_range_note(b->rec.range, &b->rec.pid1);
    return 0;
}

int sb_boot_keep_env(struct sb_box *b, int dir, struct sb_failure *f)
{
    if (b->env.len != 0 && sb_write_at(dir, "env", b->env.data, b->env.len, 0600) < 0)
        return sb_failed_errno(f, "env", "cannot write");
    return 0;
}

int sb_boot_layers(struct sb_box *b, const struct sb_slot *s, int dir, const struct sb_template *t,
                   struct sb_layers *l, struct sb_failure *f)
{
    if (sb_disk_mount(b, dir, f) < 0)
        return -1;
    sb_slot_clean_works(b->disk >= 0 ? b->disk : dir);
    int rc = sb_layers_make(l, s, dir, b->disk, t, &b->rec.layers, b->rec.allow_setuid, f);
    sb_close(&b->disk);
    return rc;
}

/* Lets the slot carry layers and listener of the directory `dir`, which it was not prepared for. */
static int outfit(struct sb_box *b, struct sb_slot *s, int dir, const struct sb_template *t,
                  struct sb_failure *f)
{
    sb_layers_drop(&s->layers);
    sb_close(&s->listener);
    if (sb_boot_layers(b, s, dir, t, &s->layers, f) < 0)
        return -1;
    s->listener = sb_slot_listen(dir);
    if (s->listener < 0)
        return sb_failed_errno(f, "listener", "bind");
    sb_close(&s->note);
    s->note = sb_slot_note(dir);
    return s->note < 0 ? sb_failed_errno(f, "record", "cannot write the birth note") : 0;
}

int sb_boot_taken(struct sb_box *b, struct sb_failure *f)
{
    if (errno == EEXIST || errno == ENOTEMPTY)
        return sb_failed(f, "AlreadyExists", EEXIST, "id", "sandbox %s exists already", b->rec.id);
    return sb_failed_errno(f, "directory", "cannot make the sandbox's directory");
}

/* From the pool: the prepared directory becomes the sandbox's by one rename. */
static int create_prepared(struct sb_box *b, struct sb_slot *s, struct sb_failure *f, bool *made)
{
    if (renameat2(sup.prepared, s->dir_name, sup.boxes, b->rec.id, RENAME_NOREPLACE) < 0)
        return sb_boot_taken(b, f);
    *made = true;
    s->dir_name[0] = '\0';
    b->record = s->record;
    s->record = -1;
    if (sb_boot_keep_env(b, s->dir, f) < 0)
        return -1;
    if (b->rec.allow_setuid)
        return outfit(b, s, s->dir, &sb_base, f);
    return 0;
}

int sb_boot_make_dir(struct sb_box *b, struct sb_failure *f)
{
    struct sb_template t;
    if (sb_template_open(&t, b->rec.base, b->rec.rootfs, f) < 0)
        return -1;
    int rc = mkdirat(sup.boxes, b->rec.id, 0700) < 0 ? sb_boot_taken(b, f) : 0;
    if (rc == 0) {
        sb_autofd int dir = sb_box_dir(b);
        if (dir < 0)
            rc = sb_failed_errno(f, "directory", "open");
        else if ((rc = sb_disk_place(b, dir, f)) == 0 && (rc = sb_disk_mount(b, dir, f)) == 0) {
            const int own = b->disk >= 0 ? b->disk : dir;
            rc = sb_slot_make_dirs(own, &t, f);
            if (rc == 0)
                rc = sb_layers_like(own, &b->rec.layers, f);
        }
        if (rc < 0)
            sb_life_remove(b);
    }
    sb_template_close(&t);
    return rc;
}

static int create_other(struct sb_box *b, struct sb_slot *s, struct sb_failure *f, bool *made)
{
    struct sb_template t;
    if (sb_boot_make_dir(b, f) < 0)
        return -1;
    *made = true;
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0)
        return sb_failed_errno(f, "directory", "open");
    if (sb_boot_keep_env(b, dir, f) < 0 || sb_template_open(&t, b->rec.base, b->rec.rootfs, f) < 0)
        return -1;
    int rc = outfit(b, s, dir, &t, f);
    sb_template_close(&t);
    return rc;
}

int sb_boot_create(struct sb_box *b, struct sb_failure *f)
{
    bool made = false, plain = sb_record_plain(&b->rec);
    int used = sb_spare_use(b, f);
    if (used != 0)
        return used < 0 ? -1 : 0;
    struct sb_slot *s = sb_slot_take(f);
    if (s == NULL)
        return -1;
    int rc = plain && s->dir_name[0] != '\0' ? create_prepared(b, s, f, &made)
                                             : create_other(b, s, f, &made);
    if (rc == 0)
        rc = sb_boot_slot(b, s, f);
    sb_slot_drop(s);
    if (rc < 0 && made)
        sb_life_remove(b);
    return rc;
}

static int same_ids(const struct sb_box *b, struct sb_failure *f)
{
    if (sb_record_same_ids(&b->rec))
        return 0;
    return sb_failed(f, "Unsupported", 0, "ids",
                     "the disk of sandbox %s was written with other user ids than there are now",
                     b->rec.id);
}

int sb_boot_resume(struct sb_box *b, struct sb_failure *f)
{
    struct sb_template t;
    size_t n = 0;
    if (same_ids(b, f) < 0)
        return -1;
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0)
        return sb_failed_errno(f, "directory", "open");
    b->on_disk = false;
    if (b->rec.seal[0] != '\0') { /* a snapshot was interrupted */
        if (sb_layers_seal(&b->rec, dir, f) < 0)
            return -1;
        b->rec.seal[0] = '\0';
    }
    free(b->env.data); /* of an attempt that failed */
    b->env.data = sb_read_at(dir, "env", SB_ENV_MAX, &n);
    b->env.len = b->env.data != NULL ? n : 0;
    if (b->env.data == NULL && errno != ENOENT)
        return sb_failed_errno(f, "env", "cannot read");
    if (sb_spare_resume(b) != 0)
        return 0;
    struct sb_slot *s = sb_slot_take(f);
    if (s == NULL)
        return -1;
    int rc = sb_template_open(&t, b->rec.base != NULL ? b->rec.base : "", b->rec.rootfs, f);
    if (rc == 0) {
        rc = outfit(b, s, dir, &t, f);
        sb_template_close(&t);
    }
    enum sb_state before = b->rec.state;
    b->rec.state = SB_BOX_CREATING;
    b->fresh = false;
    if (rc == 0)
        rc = sb_boot_slot(b, s, f);
    if (rc < 0)
        b->rec.state = before;
    sb_slot_drop(s);
    return rc;
}

void sb_boot_proc_ready(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, proc);
    siginfo_t info = {0};
    (void)events;
    /* ECHILD for one that an earlier supervisor cloned: its parent is another now. */
    int known =
        waitid(P_PIDFD, (id_t)src->fd, &info, WEXITED | WNOHANG | __WALL) == 0 && info.si_pid != 0;
    if (b->birth != NULL && b->birth->err != 0 && b->why.kind == NULL)
        sb_failed(&b->why, NULL, b->birth->err, b->birth->step, "pid 1 did not start");
    else if (known && b->why.kind == NULL)
        sb_failed(&b->why, "NotRunning", 0, "pid 1", "pid 1 ended %s %d",
                  info.si_code == CLD_EXITED ? "with status" : "by signal", info.si_status);
    sb_life_ended(b);
}
