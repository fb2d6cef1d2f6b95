/* Importing a rootfs. The copy may take long, so that a process of its own makes it, under a name that
 * nobody looks for; the rename at its end makes it whole.
 *
 * Owners: what belongs to the user himself is root's inside, the first sub-id is user 1's, and so on, as
 * other tools lay such trees out; an owner with no place inside becomes root. Owners are given before
 * modes, since giving a file away takes its set-id bits. Devices, sockets, what cannot be read and what
 * is mounted below the directory are left out; hard links become files of their own. */
#include "import.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "job.h"
#include "slot.h"
#include "template.h"
#include "trash.h"

enum { DEPTH_MAX = 200, KEEP_SECONDS = 7 * 86400, PREFIX = 3 };
static const char prefix[] = "fs-";

/* ---- the copy: in a process of its own ---- */

static uint32_t owner_on_disk(uint32_t id)
{
    uint32_t disk = sb_slot_disk_id(id);
    return disk != 0 ? disk : sb_slot_disk_id(0);
}

static int dress(int dir, const char *name, const struct stat *st)
{
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (sup.mode != SB_MODE_SINGLE && fchownat(dir, name, owner_on_disk(st->st_uid),
                                               owner_on_disk(st->st_gid), AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (!S_ISLNK(st->st_mode) && fchmodat(dir, name, st->st_mode & 07777, 0) < 0)
        return -1;
    return utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

static int copy_bytes(int from, int to)
{
    ssize_t n;
    do
        n = sendfile(to, from, NULL, 1 << 24);
    while (n > 0 || (n < 0 && errno == EINTR));
    return n < 0 ? -1 : 0;
}

/* Not to be read by this user: left out. */
static bool closed_to_us(void)
{
    return errno == EACCES || errno == EPERM || errno == ENOENT;
}

static int copy_entry(dev_t dev, int from, const char *name, int to, int depth);

static int copy_dir(dev_t dev, int from, int to, int depth)
{
    int list = fcntl(from, F_DUPFD_CLOEXEC, 0);
    DIR *d = list >= 0 ? fdopendir(list) : NULL;
    int rc = 0;
    if (d == NULL) {
        sb_close_at(&list);
        return -1;
    }
    errno = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = copy_entry(dev, from, e->d_name, to, depth);
    int err = errno;
    closedir(d);
    errno = err;
    return rc;
}

static int copy_link(int from, const char *name, int to)
{
    char target[4096];
    ssize_t n = readlinkat(from, name, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    return symlinkat(target, to, name);
}

static int copy_entry(dev_t dev, int from, const char *name, int to, int depth)
{
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return closed_to_us() ? 0 : -1;
    if (S_ISLNK(st.st_mode)) {
        if (copy_link(from, name, to) < 0)
            return -1;
    } else if (S_ISFIFO(st.st_mode)) {
        if (mkfifoat(to, name, 0600) < 0)
            return -1;
    } else if (S_ISREG(st.st_mode)) {
        sb_autofd int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (in < 0)
            return closed_to_us() ? 0 : -1;
        sb_autofd int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (out < 0 || copy_bytes(in, out) < 0)
            return -1;
    } else if (S_ISDIR(st.st_mode)) {
        if (depth == DEPTH_MAX) {
            errno = ELOOP;
            return -1;
        }
        if (mkdirat(to, name, 0700) < 0)
            return -1;
        sb_autofd int out = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (out < 0)
            return -1;
        sb_autofd int in = -1;
        if (st.st_dev == dev) { /* nothing is mounted here */
            in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (in < 0 && !closed_to_us())
                return -1;
        }
        if (in >= 0 && copy_dir(dev, in, out, depth + 1) < 0)
            return -1;
    } else {
        return 0;
    }
    return dress(to, name, &st);
}

int sb_import_tree(int from, int to)
{
    struct stat st;
    return fstat(from, &st) < 0 || copy_dir(st.st_dev, from, to, 0) < 0 ? errno : 0;
}

static void half_name(char *out, size_t size, const char *name, pid_t copier)
{
    snprintf(out, size, ".%s.%d", name, (int)copier);
}

/* 0 or an errno. */
static int import(int from, int templates, const char *name)
{
    char work[64];
    struct stat st;
    half_name(work, sizeof work, name, getpid());
    if (fstat(from, &st) < 0 || mkdirat(templates, work, 0700) < 0)
        return errno;
    sb_autofd int to = openat(templates, work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0 || copy_dir(st.st_dev, from, to, 0) < 0 || dress(templates, work, &st) < 0 ||
        renameat2(templates, work, templates, name, RENAME_NOREPLACE) < 0) {
        int err = errno;
        return err == EEXIST && faccessat(templates, name, F_OK, 0) == 0 ? 0 : err;
    }
    return 0;
}

/* ---- around it ---- */

int sb_import_name(const char *rootfs, char *name, size_t size, struct sb_failure *f)
{
    struct stat st;
    sb_autofd int dir = open(rootfs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) < 0)
        return sb_failed(f, NULL, errno, "template", "template.rootfs %s", rootfs);
    if (sb_template_check(dir, f) < 0)
        return -1;
    uint64_t what[6] = {
        st.st_dev, st.st_ino,    (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec,
        sup.mode,  sup.sub_count};
    snprintf(name, size, "%s%016llx", prefix, (unsigned long long)sb_hash(what, sizeof what, 0));
    return 0;
}

static void copied(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, proc);
    struct sb_failure f;
    pid_t copier;
    (void)events;
    sb_box_stir(b);
    int err = sb_job_end(src, &copier);
    b->dying = false;
    b->step_due_ms = 0;
    char half[64];
    half_name(half, sizeof half, b->rec.base, copier);
    sb_trash_put(sup.templates, half); /* there is none after a whole copy */
    if (b->goal == SB_GOAL_DESTROY) {
        sb_life_destroy(b);
        return;
    }
    int rc = err == 0 ? sb_boot_create(b, &f)
                      : sb_failed(&f, NULL, err, "import", "cannot copy %s", b->rec.rootfs);
    if (rc < 0) {
        sb_box_settle(b, &f);
        sb_box_forget(b);
    }
}

int sb_import_begin(struct sb_box *b, struct sb_failure *f)
{
    if (b->rec.rootfs == NULL || b->rec.base == NULL ||
        faccessat(sup.templates, b->rec.base, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    sb_autofd int from = sb_lift(open(b->rec.rootfs, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (from < 0)
        return sb_failed(f, NULL, errno, "template", "template.rootfs %s", b->rec.rootfs);
    pid_t pid = fork();
    if (pid == 0) {
        /* Both are numbered far above. Every other one would keep sockets and locks alive. */
        if (dup2(from, 3) != 3 || dup2(sup.templates, 4) != 4 || close_range(5, ~0U, 0) < 0)
            _exit(errno);
        setpriority(PRIO_PROCESS, 0, 5);
        _exit(import(3, 4, b->rec.base));
    }
    if (sb_job_watch(&b->proc, pid, copied) < 0)
        return sb_failed_errno(f, "import", "cannot start the copy");
    return 1;
}

void sb_import_prune(bool (*used)(const char *name))
{
    int copy = openat(sup.templates, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct stat st;
    if (d == NULL) {
        sb_close(&copy);
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        bool half = e->d_name[0] == '.' && strncmp(e->d_name + 1, prefix, PREFIX) == 0;
        if (!half && (strncmp(e->d_name, prefix, PREFIX) != 0 || used(e->d_name)))
            continue;
        if (fstatat(sup.templates, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            (half || st.st_ctim.tv_sec < time(NULL) - KEEP_SECONDS))
            sb_trash_put(sup.templates, e->d_name);
    }
    closedir(d);
}
