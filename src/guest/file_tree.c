/* Whole trees: list, copy, move, remove. */
#include "file.h"
#include "mem.h"

enum {
    DT_DIR = 4,
    PATH_LISTED = 32768, /* deeper entries could not be answered in a message */
};

static unsigned type_of(const struct statx *st)
{
    return st->stx_mode & 0170000;
}

/* ---- list ---- */

static void list_entry(struct walk *w, const char *name, int *enter)
{
    struct sb_packer p;
    struct statx st;
    int err = sys_statx(walk_dir(w), name, AT_SYMLINK_NOFOLLOW, &st);
    *enter = 0;
    if (err == -ENOENT)
        return; /* gone meanwhile */
    if (err < 0)
        file_fail(err, "stat", walk_path(w, name));
    file_begin(&p, SB_PART);
    entry_pack(&p, name, walk_path(w, name), &st, walk_dir(w), name);
    file_send(&p, -1);
    *enter = type_of(&st) == 0040000;
}

void tree_list(void)
{
    uint64_t depth = file_u64(SB_F_DEPTH, 1);
    struct walk w = {0};
    const char *name;
    unsigned type;
    int enter, err;
    int fd = sys_openat(AT_FDCWD, job.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    if (fd < 0)
        file_fail(fd, "open", job.path);
    err = walk_start(&w, fd, job.path);
    if (err < 0)
        file_fail(err, "read", job.path);
    while (w.depth > 0) {
        name = walk_next(&w, &type);
        if (name == NULL) {
            err = walk_leave(&w);
            if (err < 0)
                file_fail(err, "leave", job.path);
            continue;
        }
        list_entry(&w, name, &enter);
        /* A directory that cannot be read is an entry, and no reason to fail. */
        if (enter && (depth == 0 || w.depth < depth) && w.path_len < PATH_LISTED)
            walk_enter(&w, name);
    }
    file_done();
}

/* ---- remove ---- */

static long remove_one(int dir, const char *name)
{
    long err = SYS3(__NR_unlinkat, dir, name, 0);
    return err == -ENOENT ? 0 : err;
}

int tree_remove_at(int dir, const char *name, const char *path, const char **where)
{
    static struct walk w;
    const char *inner;
    unsigned type;
    long err = remove_one(dir, name);
    int fd;
    *where = path;
    if (err != -EISDIR && err != -EPERM)
        return (int)err;
    fd = sys_openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOTDIR)
        return (int)err;
    if (fd < 0) /* an empty one may go without having been read */
        return SYS3(__NR_unlinkat, dir, name, AT_REMOVEDIR) == 0 ? 0 : fd;
    memset(&w, 0, sizeof w);
    err = walk_start(&w, fd, path);
    if (err < 0)
        return (int)err;
    for (;;) {
        inner = walk_next(&w, &type);
        if (inner == NULL) {
            /* The name of this directory is the end of its path. */
            size_t len = w.path_len;
            char *own;
            if (w.depth == 1)
                break;
            *where = w.path;
            w.path[len] = '\0';
            err = walk_leave(&w);
            if (err < 0)
                return (int)err;
            own = w.path + w.path_len + 1;
            err = SYS3(__NR_unlinkat, walk_dir(&w), own, AT_REMOVEDIR);
            if (err < 0 && err != -ENOENT)
                return (int)err;
            continue;
        }
        err = type == DT_DIR ? -EISDIR : remove_one(walk_dir(&w), inner);
        if (err == -EISDIR || err == -EPERM) {
            long first = err;
            err = walk_enter(&w, inner);
            if (err == -ENOTDIR || err == -ELOOP)
                err = first == -EISDIR ? remove_one(walk_dir(&w), inner) : first;
            else if (err == -EACCES && SYS3(__NR_unlinkat, walk_dir(&w), inner, AT_REMOVEDIR) == 0)
                err = 0;
        }
        if (err < 0 && err != -ENOENT) {
            *where = walk_path(&w, inner);
            return (int)err;
        }
    }
    walk_end(&w);
    *where = path;
    err = SYS3(__NR_unlinkat, dir, name, AT_REMOVEDIR);
    return err == -ENOENT ? 0 : (int)err;
}

void tree_remove(void)
{
    const char *where = job.path;
    struct statx st;
    long err = sys_statx(AT_FDCWD, job.path, AT_SYMLINK_NOFOLLOW, &st);
    if (err < 0)
        file_fail((int)err, "stat", job.path);
    if (job.path[1] == '\0')
        file_fail(EBUSY, "remove", job.path);
    if (file_u64(SB_F_RECURSIVE, 0) != 0)
        err = tree_remove_at(AT_FDCWD, job.path, job.path, &where);
    else
        err = SYS3(__NR_unlinkat, AT_FDCWD, job.path, type_of(&st) == 0040000 ? AT_REMOVEDIR : 0);
    if (err < 0)
        file_fail((int)err, "remove", where);
    file_done();
}

/* ---- copy ---- */

static int copy_through_memory(int from, int to)
{
    for (;;) {
        unsigned char *at = guest.out;
        long n = sys_read(from, at, sizeof guest.out), m;
        if (n <= 0)
            return (int)n;
        for (; n > 0; at += m, n -= m) {
            m = sys_write(to, at, (size_t)n);
            if (m <= 0)
                return m == 0 ? -EIO : (int)m;
        }
    }
}

/* From here to the end. The kernel copies where it can; what it finds empty is read once more, since
 * some files tell no size. */
int copy_bytes(int from, int to)
{
    long n, total = 0;
    do {
        n = SYS6(__NR_copy_file_range, from, NULL, to, NULL, 1 << 30, 0);
        total += n > 0 ? n : 0;
    } while (n > 0 || n == -EINTR);
    if (total > 0 && n == 0)
        return 0;
    if (n == -ENOSPC || n == -EDQUOT || n == -EIO || n == -EFBIG)
        return (int)n;
    return copy_through_memory(from, to);
}

/* A move over file systems keeps owner and times too, as far as this user may. */
static void keep_owner(int dir, const char *name, const struct statx *st, int keep)
{
    if (keep)
        SYS5(__NR_fchownat, dir, name, st->stx_uid, st->stx_gid, AT_SYMLINK_NOFOLLOW);
}

static void keep_times(int dir, const char *name, const struct statx *st, int keep)
{
    struct sys_timespec times[2] = {{st->stx_atime.tv_sec, st->stx_atime.tv_nsec},
                                    {st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec}};
    if (keep)
        SYS4(__NR_utimensat, dir, name, times, AT_SYMLINK_NOFOLLOW);
}

/* One file that is not a directory, to a name that must not exist. */
static long copy_one(int dir, const char *name, int to_dir, const char *to, const struct statx *st,
                     int keep)
{
    unsigned type = type_of(st);
    int mode = (int)(st->stx_mode & (keep ? 07777 : 0777)), from, into;
    struct statx now;
    long err;
    if (type == 0120000) {
        char target[PATH_MAX + 1];
        long n = SYS4(__NR_readlinkat, dir, name, target, PATH_MAX);
        if (n < 0)
            return n;
        target[n] = '\0';
        err = SYS3(__NR_symlinkat, target, to_dir, to);
    } else if (type == 0100000) {
        from = sys_openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
        if (from < 0)
            return from;
        err = sys_fstat(from, &now);
        if (err == 0 && type_of(&now) != 0100000)
            err = -ENXIO;
        into = err < 0 ? (int)err
                       : sys_openat(to_dir, to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
        err = into;
        if (into >= 0) {
            err = copy_bytes(from, into);
            keep_owner(to_dir, to, st, keep);
            if (err == 0)
                err = SYS2(__NR_fchmod, into, mode);
            sys_close(into);
        }
        sys_close(from);
        if (err < 0)
            return err;
        keep_times(to_dir, to, st, keep);
        return 0;
    } else if (type == 0010000 || type == 0140000) {
        err = SYS4(__NR_mknodat, to_dir, to, type | (unsigned)mode, 0);
    } else {
        return -EPERM; /* devices */
    }
    if (err == 0) {
        keep_owner(to_dir, to, st, keep);
        keep_times(to_dir, to, st, keep);
    }
    return err;
}

static int same_place(const struct level *a, const struct level *b)
{
    return a->ino == b->ino && a->major == b->major && a->minor == b->minor;
}

static void copy_tree(int dir, const char *name, const char *path, int to_dir, const char *to,
                      int keep)
{
    struct walk from = {0}, into = {.bare = 1};
    struct statx st;
    const char *inner;
    unsigned type;
    long err;
    int fd = sys_openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        file_fail(fd, "open", path);
    err = SYS3(__NR_mkdirat, to_dir, to, 0700);
    if (err < 0)
        file_fail((int)err, "mkdir", job.path2);
    err = walk_start(&from, fd, path);
    if (err == 0) {
        fd = sys_openat(to_dir, to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        err = fd < 0 ? fd : walk_start(&into, fd, job.path2);
    }
    if (err < 0)
        file_fail((int)err, "open", path);
    while (from.depth > 0) {
        inner = walk_next(&from, &type);
        if (inner == NULL) {
            int mode;
            err = sys_fstat(walk_dir(&from), &st);
            mode = (int)(st.stx_mode & (keep ? 07777 : 0777));
            if (err == 0 && keep)
                SYS3(__NR_fchown, walk_dir(&into), st.stx_uid, st.stx_gid);
            if (err == 0)
                err = SYS2(__NR_fchmod, walk_dir(&into), mode);
            if (err == 0 && keep) {
                struct sys_timespec times[2] = {{st.stx_atime.tv_sec, st.stx_atime.tv_nsec},
                                                {st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec}};
                SYS4(__NR_utimensat, walk_dir(&into), NULL, times, 0);
            }
            from.path[from.path_len] = '\0';
            if (err < 0)
                file_fail((int)err, "chmod", from.path);
            err = walk_leave(&into);
            if (err == 0)
                err = walk_leave(&from);
            if (err < 0)
                file_fail((int)err, "leave", path);
            continue;
        }
        err = sys_statx(walk_dir(&from), inner, AT_SYMLINK_NOFOLLOW, &st);
        if (err == -ENOENT)
            continue;
        if (err == 0 && type_of(&st) == 0040000) {
            struct level here = {
                .ino = st.stx_ino, .major = st.stx_dev_major, .minor = st.stx_dev_minor};
            if (same_place(&here, &into.stack[0]))
                file_fail(EINVAL, "copy into itself", walk_path(&from, inner));
            err = walk_enter(&from, inner);
            if (err == -ENOENT)
                continue;
            if (err == 0)
                err = SYS3(__NR_mkdirat, walk_dir(&into), inner, 0700);
            if (err == 0)
                err = walk_enter(&into, inner);
            if (err < 0)
                file_fail((int)err, "copy", from.path);
        } else if (err == 0) {
            err = copy_one(walk_dir(&from), inner, walk_dir(&into), inner, &st, keep);
        }
        if (err < 0 && err != -ENOENT)
            file_fail((int)err, "copy", walk_path(&from, inner));
    }
    walk_end(&from);
    walk_end(&into);
}

static int inside(const char *path, const char *top)
{
    size_t n = strlen(top);
    return strlen(path) >= n && memcmp(path, top, n) == 0 &&
           (path[n] == '/' || path[n] == '\0' || n == 1);
}

/* A regular file onto a name that may exist: then it keeps mode and owner, and a link is followed. */
static void copy_file_over(const struct statx *st)
{
    struct statx a, b;
    int from, into, err, fresh;
    from = sys_openat(AT_FDCWD, job.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (from < 0)
        file_fail(from, "open", job.path);
    if (sys_statx(AT_FDCWD, job.path2, 0, &b) == 0 && type_of(&b) != 0100000)
        file_fail(type_of(&b) == 0040000 ? EISDIR : ENXIO, "open", job.path2);
    fresh = 1;
    into = sys_openat(AT_FDCWD, job.path2, O_WRONLY | O_CREAT | O_EXCL, st->stx_mode & 0777);
    if (into == -EEXIST) {
        fresh = 0;
        into = sys_openat(AT_FDCWD, job.path2, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY,
                          st->stx_mode & 0777);
    }
    if (into < 0)
        file_fail(into, "open", job.path2);
    err = sys_fstat(from, &a);
    if (err == 0)
        err = sys_fstat(into, &b);
    if (err == 0 && (type_of(&a) != 0100000 || type_of(&b) != 0100000))
        err = -ENXIO;
    if (err == 0 && a.stx_ino == b.stx_ino && a.stx_dev_major == b.stx_dev_major &&
        a.stx_dev_minor == b.stx_dev_minor)
        err = -EINVAL;
    if (err == 0 && !fresh)
        err = (int)SYS2(__NR_ftruncate, into, 0);
    if (err == 0)
        err = copy_bytes(from, into);
    if (err < 0) {
        if (fresh)
            SYS3(__NR_unlinkat, AT_FDCWD, job.path2, 0);
        file_fail(err, "copy", job.path2);
    }
}

void tree_copy(void)
{
    struct statx st;
    long err = sys_statx(AT_FDCWD, job.path, AT_SYMLINK_NOFOLLOW, &st);
    if (err < 0)
        file_fail((int)err, "stat", job.path);
    if (type_of(&st) == 0040000 && inside(job.path2, job.path))
        file_fail(EINVAL, "copy into itself", job.path2);
    if (file_u64(SB_F_PARENTS, 0) != 0)
        path_make_parents(job.path2);
    if (type_of(&st) == 0040000) {
        copy_tree(AT_FDCWD, job.path, job.path, AT_FDCWD, job.path2, 0);
    } else if (type_of(&st) == 0100000) {
        copy_file_over(&st);
    } else {
        err = copy_one(AT_FDCWD, job.path, AT_FDCWD, job.path2, &st, 0);
        if (err < 0)
            file_fail((int)err, "copy", job.path2);
    }
    file_done();
}

/* ---- move ---- */

/* To another file system: a copy beside the new name, then renamed, then the old one goes. */
static void move_far(void)
{
    static char temp[32];
    struct statx st;
    const char *name, *where;
    int dir = path_parent(job.path2, 0, &name);
    long err = sys_statx(AT_FDCWD, job.path, AT_SYMLINK_NOFOLLOW, &st);
    if (err < 0)
        file_fail((int)err, "stat", job.path);
    path_temp_name(temp);
    file_cleanup(dir, temp);
    if (type_of(&st) == 0040000) {
        copy_tree(AT_FDCWD, job.path, job.path, dir, temp, 1);
    } else {
        err = copy_one(AT_FDCWD, job.path, dir, temp, &st, 1);
        if (err < 0)
            file_fail((int)err, "copy", job.path2);
    }
    err = SYS5(__NR_renameat2, dir, temp, dir, name, 0);
    if (err < 0)
        file_fail((int)err, "rename", job.path2);
    file_cleanup(-1, NULL);
    err = tree_remove_at(AT_FDCWD, job.path, job.path, &where);
    if (err < 0)
        file_fail((int)err, "remove", where);
}

void tree_move(void)
{
    long err;
    if (file_u64(SB_F_PARENTS, 0) != 0)
        path_make_parents(job.path2);
    err = SYS5(__NR_renameat2, AT_FDCWD, job.path, AT_FDCWD, job.path2, 0);
    if (err == -EXDEV)
        move_far();
    else if (err < 0)
        file_fail((int)err, "rename", err == -ENOENT ? job.path : job.path2);
    file_done();
}
