/* Uppers hold more than files: character devices 0:0 hide what is below, attributes make directories opaque, two names
 * may be one file. All of it is kept, holes too. What is already in the target gives way as it would under an overlay;
 * a hiding entry stays even if it hides nothing there, since there are layers further down. */
#include "apply.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sup.h"

enum { OPEN_MAX = 32, NAMES_MAX = 65536, VALUE_MAX = 65536 };

/* A directory on the way down. Of the last OPEN_MAX both descriptors are open, those further up are found again by
 * "..": nobody moves anything meanwhile. So depth is bounded by memory alone. */
struct level {
    DIR *list; /* of the source; NULL: to be opened again, at `at` */
    int to;
    long at;
    ino_t from_inode, to_inode;
    struct timespec atime; /* before it was read */
    bool merged;           /* there was one in the target already; else nothing gives way in it */
};

struct copy {
    bool bare; /* without the attributes that tell overlays something */
    bool link; /* files of the source never change again: the target gets names of them */
    int spare; /* a directory beside the target: what gave way, and a name of each file that has several */
    bool named; /* there are such names */
    struct level *stack;
    size_t depth, room;
    char names[NAMES_MAX], value[VALUE_MAX], block[1 << 16];
};

static int descriptor_path(char *out, size_t size, int dir, const char *name)
{
    return snprintf(out, size, "/proc/self/fd/%d/%s", dir, name) < (int)size ? 0 : -1;
}

/* Not of the target's file system, or not for this user to give: left out. */
static bool not_ours(int err)
{
    return err == EPERM || err == ENOTSUP;
}

static bool is_overlays(const char *attribute)
{
    return strncmp(attribute, "trusted.overlay.", 16) == 0 ||
           strncmp(attribute, "user.overlay.", 13) == 0;
}

static int copy_attributes(struct copy *c, int from, int to, const char *name)
{
    char source[4200], target[4200];
    if (descriptor_path(source, sizeof source, from, name) < 0 ||
        descriptor_path(target, sizeof target, to, name) < 0) {
        errno = ENAMETOOLONG;
        return -1;
    }
    ssize_t n = llistxattr(source, c->names, sizeof c->names);
    if (n < 0)
        return errno == ENOTSUP ? 0 : -1;
    for (char *at = c->names; at < c->names + n; at += strlen(at) + 1) {
        if (c->bare && is_overlays(at))
            continue;
        ssize_t size = lgetxattr(source, at, c->value, sizeof c->value);
        if (size < 0 || (lsetxattr(target, at, c->value, (size_t)size, 0) < 0 && !not_ours(errno)))
            return -1;
    }
    return 0;
}

/* Owners before modes: giving a file away takes its set-id bits. Attributes between: some vanish with the owner. */
static int dress(struct copy *c, int from, int to, const char *name, const struct stat *st)
{
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (sup.mode != SB_MODE_SINGLE &&
        fchownat(to, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (copy_attributes(c, from, to, name) < 0)
        return -1;
    if (!S_ISLNK(st->st_mode) && fchmodat(to, name, st->st_mode & 07777, 0) < 0)
        return -1;
    return utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
}

static int copy_range(struct copy *c, int from, int to, off_t at, off_t end)
{
    while (at < end) {
        off_t in = at, out = at;
        ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - at), 0);
        if (n < 0 && errno != EINTR) {
            n = pread(from, c->block, sizeof c->block, at);
            if (n > 0)
                n = pwrite(to, c->block, (size_t)n, at);
        }
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0)
            return 0; /* it has become shorter: nothing runs that could, but it is no reason to hang */
        at += n > 0 ? n : 0;
    }
    return 0;
}

static int copy_bytes(struct copy *c, int from, int to, off_t size)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return ftruncate(to, size); /* a hole to the end */
        if (data < 0)
            data = at;
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            hole = size;
        if (copy_range(c, from, to, data, hole) < 0)
            return -1;
        at = hole;
    }
    return 0;
}

static int copy_file(struct copy *c, int from, int to, const char *name, const struct stat *st)
{
    sb_autofd int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    sb_autofd int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (in < 0 || out < 0 || copy_bytes(c, in, out, st->st_size) < 0)
        return -1;
    /* As dress() does; but of what is open no name has to be looked up, and hardly a file has attributes. */
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if ((sup.mode != SB_MODE_SINGLE && fchown(out, st->st_uid, st->st_gid) < 0) ||
        (flistxattr(in, NULL, 0) != 0 && copy_attributes(c, from, to, name) < 0))
        return -1;
    return fchmod(out, st->st_mode & 07777) < 0 ? -1 : futimens(out, times);
}

static int copy_link(struct copy *c, int from, int to, const char *name)
{
    ssize_t n = readlinkat(from, name, c->value, 4096);
    if (n < 0)
        return -1;
    c->value[n] = '\0';
    return symlinkat(c->value, to, name);
}

static void name_in_spare(char out[24], const struct stat *st)
{
    snprintf(out, 24, "n%016llx", (unsigned long long)st->st_ino);
}

static bool has_names(const struct stat *st)
{
    return !S_ISDIR(st->st_mode) && st->st_nlink > 1;
}

/* 1: it is another name of a file that has been copied, and has been made so. */
static int copy_name(struct copy *c, int to, const char *name, const struct stat *st)
{
    char first[24];
    if (!has_names(st))
        return 0;
    name_in_spare(first, st);
    if (linkat(c->spare, first, to, name, 0) == 0)
        return 1;
    /* It has as many names as a file can have: the next copy takes over. */
    if (errno == EMLINK)
        return unlinkat(c->spare, first, 0);
    return errno == ENOENT ? 0 : -1;
}

static int keep_name(struct copy *c, int to, const char *name, const struct stat *st)
{
    char first[24];
    if (!has_names(st))
        return 0;
    c->named = true;
    name_in_spare(first, st);
    return linkat(to, name, c->spare, first, 0);
}

static int drop_names(struct copy *c)
{
    int list = c->named ? openat(c->spare, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = list >= 0 ? fdopendir(list) : NULL;
    int rc = 0;
    if (!c->named)
        return 0;
    if (d == NULL) {
        sb_close_at(&list);
        return -1;
    }
    struct dirent *e;
    while (rc == 0 && (errno = 0, e = readdir(d)) != NULL)
        if (e->d_name[0] == 'n')
            rc = unlinkat(c->spare, e->d_name, 0);
    if (rc == 0 && errno != 0)
        rc = -1;
    int err = errno;
    closedir(d);
    errno = err;
    return rc;
}

static int open_dir(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_opaque(int at, const char *name)
{
    char path[4200], value;
    const char *attribute =
        sup.mode == SB_MODE_ROOT ? "trusted.overlay.opaque" : "user.overlay.opaque";
    return descriptor_path(path, sizeof path, at, name) == 0 &&
           lgetxattr(path, attribute, &value, 1) == 1 && value == 'y';
}

static int make_opaque(int at, const char *name)
{
    char path[4200];
    const char *attribute =
        sup.mode == SB_MODE_ROOT ? "trusted.overlay.opaque" : "user.overlay.opaque";
    return descriptor_path(path, sizeof path, at, name) < 0 ? -1
                                                            : lsetxattr(path, attribute, "y", 1, 0);
}

/* What the directory had before; not what it says to overlays, which is still so. */
static int strip(struct copy *c, int at, const char *name)
{
    char path[4200];
    if (descriptor_path(path, sizeof path, at, name) < 0) {
        errno = ENAMETOOLONG;
        return -1;
    }
    ssize_t n = llistxattr(path, c->names, sizeof c->names);
    if (n < 0)
        return errno == ENOTSUP ? 0 : -1;
    for (char *e = c->names; e < c->names + n; e += strlen(e) + 1)
        if (!is_overlays(e) && lremovexattr(path, e) < 0 && !not_ours(errno) && errno != ENODATA)
            return -1;
    return 0;
}

/* 1: done, attributes and all; 0: it has to be copied. */
static int link_file(const struct copy *c, int from, const char *name, int to,
                     const struct stat *st)
{
    if (!c->link || !S_ISREG(st->st_mode))
        return 0;
    if (linkat(from, name, to, name, 0) == 0)
        return 1;
    return errno == EMLINK || errno == EPERM || errno == EXDEV ? 0 : -1;
}

enum { ROOM, MERGE, HID }; /* HID: what was there hid everything further down */

static unsigned gone; /* directories in the spare one, of all calls */

/* Makes room in the target. What is below a directory may be large and deep: it goes elsewhere as a whole. */
static int give_way(struct copy *c, int from, const char *name, int to, const struct stat *st)
{
    struct stat there;
    if (fstatat(to, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? ROOM : -1;
    if (!S_ISDIR(there.st_mode))
        return unlinkat(to, name, 0) < 0 ? -1 : HID;
    if (S_ISDIR(st->st_mode) && !is_opaque(from, name))
        return MERGE;
    char elsewhere[16];
    snprintf(elsewhere, sizeof elsewhere, "d%u", gone++);
    return renameat(to, name, c->spare, elsewhere) < 0 ? -1 : ROOM;
}

/* ---- the way through the tree ---- */

/* Takes both descriptors over. `atime`: the source's, before anybody read in it. */
static int push(struct copy *c, int from, int to, struct timespec atime, bool merged)
{
    struct stat in, out;
    struct level l = {.to = to, .atime = atime, .merged = merged};
    int rc = from < 0 || to < 0 || fstat(from, &in) < 0 || fstat(to, &out) < 0 ? -1 : 0;
    if (rc == 0 && c->depth == c->room) {
        size_t room = c->room == 0 ? 64 : c->room * 2;
        struct level *more = realloc(c->stack, room * sizeof *more);
        if (more == NULL) {
            rc = -1;
        } else {
            c->stack = more;
            c->room = room;
        }
    }
    l.list = rc == 0 ? fdopendir(from) : NULL;
    if (l.list == NULL) {
        int err = errno;
        sb_close(&from);
        sb_close(&to);
        errno = err;
        return -1;
    }
    l.from_inode = in.st_ino;
    l.to_inode = out.st_ino;
    if (c->depth >= OPEN_MAX) {
        struct level *far = &c->stack[c->depth - OPEN_MAX];
        if (far->list != NULL) {
            far->at = telldir(far->list);
            closedir(far->list);
            far->list = NULL;
            sb_close(&far->to);
        }
    }
    c->stack[c->depth++] = l;
    return 0;
}

static void close_level(struct level *l)
{
    if (l->list != NULL)
        closedir(l->list);
    sb_close(&l->to);
}

/* Opens the one above the uppermost again. */
static int open_above(struct copy *c)
{
    const struct level *l = &c->stack[c->depth - 1];
    struct level *above = &c->stack[c->depth - 2];
    struct stat in, out;
    int from = openat(dirfd(l->list), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int to = openat(l->to, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = from < 0 || to < 0 || fstat(from, &in) < 0 || fstat(to, &out) < 0 ? -1 : 0;
    if (rc == 0 && (in.st_ino != above->from_inode || out.st_ino != above->to_inode)) {
        errno = ESTALE;
        rc = -1;
    }
    above->list = rc == 0 ? fdopendir(from) : NULL;
    if (above->list == NULL) {
        int err = errno;
        sb_close(&from);
        sb_close(&to);
        errno = err;
        return -1;
    }
    seekdir(above->list, above->at);
    above->to = to;
    return 0;
}

/* All that is in the directory has been copied. */
static int leave(struct copy *c)
{
    struct level *l = &c->stack[c->depth - 1];
    struct stat st;
    if (fstat(dirfd(l->list), &st) < 0)
        return -1;
    st.st_atim = l->atime;
    if (l->merged && strip(c, l->to, ".") < 0)
        return -1;
    if (c->depth > 1 && c->stack[c->depth - 2].list == NULL && open_above(c) < 0)
        return -1;
    if (dress(c, dirfd(l->list), l->to, ".", &st) < 0)
        return -1;
    close_level(l);
    c->depth--;
    return 0;
}

static int copy_other(struct copy *c, int from, const char *name, int to, const struct stat *st)
{
    int rc = link_file(c, from, name, to, st);
    if (rc == 0)
        rc = copy_name(c, to, name, st);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (S_ISREG(st->st_mode))
        rc = copy_file(c, from, to, name, st);
    else if (S_ISLNK(st->st_mode))
        rc = copy_link(c, from, to, name);
    else /* 0:0 hides something; there are no other devices */
        rc = mknodat(to, name, (st->st_mode & S_IFMT) | 0600, 0);
    if (rc == 0 && !S_ISREG(st->st_mode))
        rc = dress(c, from, to, name, st);
    return rc == 0 ? keep_name(c, to, name, st) : rc;
}

static int copy_entry(struct copy *c, const char *name)
{
    const struct level *l = &c->stack[c->depth - 1];
    const int from = dirfd(l->list), to = l->to;
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    int how = l->merged ? give_way(c, from, name, to, &st) : ROOM;
    if (how < 0 || !S_ISDIR(st.st_mode))
        return how < 0 ? -1 : copy_other(c, from, name, to, &st);
    if (how != MERGE && mkdirat(to, name, 0700) < 0)
        return -1;
    if (how == HID && make_opaque(to, name) < 0)
        return -1;
    return push(c, open_dir(from, name), open_dir(to, name), st.st_atim, how == MERGE);
}

static int walk(struct copy *c)
{
    while (c->depth > 0) {
        errno = 0;
        const struct dirent *e = readdir(c->stack[c->depth - 1].list);
        if (e == NULL) {
            if (errno != 0 || leave(c) < 0)
                return -1;
        } else if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
                   copy_entry(c, e->d_name) < 0) {
            return -1;
        }
    }
    return 0;
}

int sb_apply(int from, int to, int spare, bool link)
{
    struct stat st;
    struct copy *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ENOMEM;
    c->spare = spare;
    c->link = link;
    int rc = fstat(from, &st);
    if (rc == 0)
        rc = push(c, open_dir(from, "."), open_dir(to, "."), st.st_atim, true);
    if (rc == 0)
        rc = walk(c);
    if (rc == 0)
        rc = drop_names(c);
    int err = rc == 0 ? 0 : errno != 0 ? errno : EIO;
    while (c->depth > 0)
        close_level(&c->stack[--c->depth]);
    free(c->stack);
    free(c);
    return err;
}

int sb_apply_top(int from, int to)
{
    static struct copy c; /* little of it is ever touched */
    struct stat st;
    c.bare = true;
    return fstat(from, &st) < 0 ? -1 : dress(&c, from, to, ".", &st);
}
