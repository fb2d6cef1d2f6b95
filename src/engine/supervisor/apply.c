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

enum { DEPTH_MAX = 1000, NAMES_MAX = 65536, VALUE_MAX = 65536 };

/* Files with several names: where the first one went. */
struct seen {
    struct seen *next;
    ino_t inode;
    char path[]; /* below the target's top */
};

/* `path` is that of the entry at hand, below the top. */
struct copy {
    bool link; /* files of the source never change again: the target gets names of them */
    int top;
    size_t len;
    char path[4096];
    struct seen *seen[1024];
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
            break; /* a hole to the end */
        if (data < 0)
            data = at;
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            hole = size;
        if (copy_range(c, from, to, data, hole) < 0)
            return -1;
        at = hole;
    }
    return ftruncate(to, size);
}

static int copy_file(struct copy *c, int from, int to, const char *name, const struct stat *st)
{
    sb_autofd int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    sb_autofd int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return in < 0 || out < 0 ? -1 : copy_bytes(c, in, out, st->st_size);
}

static int copy_link(struct copy *c, int from, int to, const char *name)
{
    ssize_t n = readlinkat(from, name, c->value, 4096);
    if (n < 0)
        return -1;
    c->value[n] = '\0';
    return symlinkat(c->value, to, name);
}

/* 1: it is another name of a file that has been copied, and has been made so. */
static int copy_name(struct copy *c, int to, const char *name, const struct stat *st)
{
    struct seen **bucket = &c->seen[st->st_ino % (sizeof c->seen / sizeof *c->seen)];
    if (S_ISDIR(st->st_mode) || st->st_nlink < 2)
        return 0;
    for (struct seen *s = *bucket; s != NULL; s = s->next)
        if (s->inode == st->st_ino)
            return linkat(c->top, s->path, to, name, 0) < 0 ? -1 : 1;
    struct seen *s = malloc(sizeof *s + c->len + 1);
    if (s == NULL)
        return -1;
    s->inode = st->st_ino;
    memcpy(s->path, c->path, c->len + 1);
    s->next = *bucket;
    *bucket = s;
    return 0;
}

static int open_dir(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int each(int dir, int (*fn)(struct copy *, int, const char *, int, int), struct copy *c,
                int to, int depth)
{
    int list = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = list >= 0 ? fdopendir(list) : NULL;
    int rc = d != NULL ? 0 : -1;
    if (d == NULL)
        sb_close_at(&list);
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = fn(c, dir, e->d_name, to, depth);
    int err = errno;
    if (d != NULL)
        closedir(d);
    errno = err;
    return rc;
}

static int remove_entry(struct copy *c, int dir, const char *name, int to, int depth)
{
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    if (depth == DEPTH_MAX) {
        errno = ELOOP;
        return -1;
    }
    sb_autofd int below = open_dir(dir, name);
    if (below < 0 || each(below, remove_entry, c, to, depth + 1) < 0)
        return -1;
    return unlinkat(dir, name, AT_REMOVEDIR);
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
        if (strncmp(e, "trusted.overlay.", 16) != 0 && strncmp(e, "user.overlay.", 13) != 0 &&
            lremovexattr(path, e) < 0 && !not_ours(errno) && errno != ENODATA)
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

/* Makes room in the target. */
static int give_way(struct copy *c, int from, const char *name, int to, const struct stat *st)
{
    struct stat there;
    if (fstatat(to, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? ROOM : -1;
    if (S_ISDIR(there.st_mode) && S_ISDIR(st->st_mode) && !is_opaque(from, name))
        return MERGE;
    if (remove_entry(c, to, name, -1, 0) < 0)
        return -1;
    return S_ISDIR(there.st_mode) ? ROOM : HID;
}

static int copy_entry(struct copy *c, int from, const char *name, int to, int depth)
{
    struct stat st;
    const size_t len = c->len, n = strlen(name);
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (depth == DEPTH_MAX || len + n + 2 > sizeof c->path) {
        errno = depth == DEPTH_MAX ? ELOOP : ENAMETOOLONG;
        return -1;
    }
    if (len > 0)
        c->path[c->len++] = '/';
    memcpy(c->path + c->len, name, n + 1);
    c->len += n;
    int how = give_way(c, from, name, to, &st);
    int rc = how < 0 ? -1 : link_file(c, from, name, to, &st);
    if (rc == 0)
        rc = copy_name(c, to, name, &st);
    bool linked = rc == 1;
    if (rc == 0) {
        switch (st.st_mode & S_IFMT) {
        case S_IFREG:
            rc = copy_file(c, from, to, name, &st);
            break;
        case S_IFLNK:
            rc = copy_link(c, from, to, name);
            break;
        case S_IFDIR: {
            rc = how == MERGE ? 0 : mkdirat(to, name, 0700);
            if (rc == 0 && how == HID)
                rc = make_opaque(to, name);
            sb_autofd int in = rc == 0 ? open_dir(from, name) : -1;
            sb_autofd int out = rc == 0 ? open_dir(to, name) : -1;
            rc = in < 0 || out < 0 ? -1 : each(in, copy_entry, c, out, depth + 1);
            if (rc == 0 && how == MERGE)
                rc = strip(c, to, name);
            break;
        }
        default: /* 0:0 hides something; there are no other devices */
            rc = mknodat(to, name, (st.st_mode & S_IFMT) | 0600, 0);
        }
    }
    if (rc >= 0 && !linked)
        rc = dress(c, from, to, name, &st);
    c->len = len;
    c->path[len] = '\0';
    return rc < 0 ? -1 : 0;
}

int sb_apply(int from, int to, bool link)
{
    struct stat st;
    struct copy *c = calloc(1, sizeof *c);
    if (c == NULL)
        return ENOMEM;
    c->top = to;
    c->link = link;
    if (fstat(from, &st) < 0 || each(from, copy_entry, c, to, 0) < 0 || strip(c, to, ".") < 0 ||
        dress(c, from, to, ".", &st) < 0)
        return errno != 0 ? errno : EIO;
    return 0;
}
