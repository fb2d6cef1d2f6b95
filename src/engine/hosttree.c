/* See hosttree.h. Every step below a base goes through openat2 with RESOLVE_BENEATH and without links, so
 * that no name, and no link planted meanwhile, leads out of it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../runtime/loop.h"
#include "file.h"
#include "hosttree.h"

#define DEPTH_MAX 256         /* directories inside each other */
#define TREE_MAX (256u << 20) /* bytes of one listing */

/* Made by the asker; in a file thread between sb_pool_run and done; `op` is the I/O thread's. */
struct job {
    struct sb_op *op; /* NULL: nobody waits any more */
    _Atomic int stop; /* a listing ends early */
    struct sb_error error;
    struct sb_file *file; /* what READ and CREATE opened */
    enum sb_host_action action;
    int tree;
    char *base, *name, *other;
    unsigned mode;
    char *out; /* the listing */
    size_t len, cap;
};

static void job_free(struct job *job)
{
    free(job->base);
    free(job->name);
    free(job->other);
    free(job->out);
    if (job->file != NULL)
        sb_object_unref(job->file);
    free(job);
}

static int fail(struct job *job, int sys, const char *step, const char *path)
{
    sb_fail_errno(&job->error, sys, step, "%s", path);
    snprintf(job->error.path, sizeof job->error.path, "%s", path);
    return -1;
}

/* ---- listing ---- */

static int append(struct job *job, const char *data, size_t len)
{
    if (job->len + len > TREE_MAX) {
        sb_fail(&job->error, SB_ERR_LIMIT_EXCEEDED, "the tree has more names than fit a listing");
        return -1;
    }
    if (job->len + len > job->cap) {
        size_t cap = job->cap > 0 ? job->cap * 2 : 4096;
        while (cap < job->len + len)
            cap *= 2;
        char *more = realloc(job->out, cap);
        if (more == NULL)
            return fail(job, ENOMEM, "list", job->base);
        job->out = more;
        job->cap = cap;
    }
    memcpy(job->out + job->len, data, len);
    job->len += len;
    return 0;
}

static int append_entry(struct job *job, const struct stat *st, const char *path,
                        const char *target)
{
    char head[64];
    char type = S_ISREG(st->st_mode)   ? 'f'
                : S_ISDIR(st->st_mode) ? 'd'
                : S_ISLNK(st->st_mode) ? 'l'
                                       : 'o';
    int n = snprintf(head, sizeof head, "%c %o %lld %u %u", type, (unsigned)st->st_mode & 07777,
                     (long long)st->st_size, (unsigned)st->st_uid, (unsigned)st->st_gid);
    if (append(job, head, (size_t)n + 1) < 0 || append(job, path, strlen(path) + 1) < 0)
        return -1;
    return append(job, target, strlen(target) + 1);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted; takes over fd. -1: errno tells. */
static int read_names(int fd, char ***names, size_t *count)
{
    size_t cap = 0, n = 0;
    char **list = NULL;
    int sys = 0;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        sys = errno;
        close(fd);
        errno = sys;
        return -1;
    }
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            sys = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (n == cap) {
            cap = cap > 0 ? cap * 2 : 64;
            char **more = realloc(list, cap * sizeof *list);
            if (more == NULL) {
                sys = ENOMEM;
                break;
            }
            list = more;
        }
        list[n] = strdup(entry->d_name);
        if (list[n] == NULL) {
            sys = ENOMEM;
            break;
        }
        n++;
    }
    closedir(dir);
    if (sys != 0) {
        for (size_t i = 0; i < n; i++)
            free(list[i]);
        free(list);
        errno = sys;
        return -1;
    }
    if (n > 1)
        qsort(list, n, sizeof *list, by_name);
    *names = list;
    *count = n;
    return 0;
}

/* A directory being listed: its names, and which one is next. */
struct level {
    int fd;
    char *path; /* in the listing */
    char **names;
    size_t count, next;
};

static void leave_level(struct level *level)
{
    for (size_t i = 0; i < level->count; i++)
        free(level->names[i]);
    free(level->names);
    free(level->path);
    close(level->fd);
}

/* Begins with the directory `fd`; takes over it and `path`. */
static int enter_level(struct job *job, struct level *level, int fd, char *path)
{
    int names = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    *level = (struct level){.fd = fd, .path = path};
    if (names >= 0 && read_names(names, &level->names, &level->count) == 0)
        return 0;
    fail(job, errno, "list", path);
    leave_level(level);
    return -1;
}

/* The next name of a level. 1: it is a directory, now in *below, which has been entered. */
static int list_one(struct job *job, struct level *level, struct level *below, char *target,
                    size_t room)
{
    const char *name = level->names[level->next++];
    struct stat st;
    char *child;
    int rc, fd;
    if (asprintf(&child, "%s%s%s", level->path, *level->path ? "/" : "", name) < 0)
        return fail(job, ENOMEM, "list", level->path);
    if (fstatat(level->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        rc = errno == ENOENT ? 0 : fail(job, errno, "list", child); /* it vanished meanwhile */
        free(child);
        return rc;
    }
    target[0] = '\0';
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(level->fd, name, target, room - 1);
        target[n > 0 ? n : 0] = '\0';
    }
    rc = append_entry(job, &st, child, target);
    if (rc < 0 || !S_ISDIR(st.st_mode)) {
        free(child);
        return rc;
    }
    if (below == NULL) {
        fail(job, ELOOP, "list", child);
        free(child);
        return -1;
    }
    fd = openat(level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        fail(job, errno, "list", child);
        free(child);
        return -1;
    }
    return enter_level(job, below, fd, child) < 0 ? -1 : 1;
}

/* Lists what is in the directory `fd` (taken over) and below. The way down is kept in memory of our
 * own: a file thread's stack is small. */
static int walk(struct job *job, int fd)
{
    char target[4096];
    struct level *levels = malloc((DEPTH_MAX + 1) * sizeof *levels);
    char *top = strdup("");
    int depth = 0, rc;
    if (levels == NULL || top == NULL) {
        free(levels);
        free(top);
        close(fd);
        return fail(job, ENOMEM, "list", job->base);
    }
    rc = enter_level(job, &levels[0], fd, top);
    if (rc < 0)
        depth = -1;
    while (depth >= 0 && rc >= 0 && !job->stop) {
        if (levels[depth].next == levels[depth].count) {
            leave_level(&levels[depth--]);
            continue;
        }
        rc = list_one(job, &levels[depth], depth < DEPTH_MAX ? &levels[depth + 1] : NULL, target,
                      sizeof target);
        depth += rc > 0;
    }
    for (; depth >= 0; depth--)
        leave_level(&levels[depth]);
    free(levels);
    return rc < 0 ? -1 : 0;
}

static void list_tree(struct job *job)
{
    struct stat st;
    if (stat(job->base, &st) < 0) {
        fail(job, errno, "list", job->base);
        return;
    }
    if (append_entry(job, &st, "", "") < 0)
        return;
    if (S_ISDIR(st.st_mode)) {
        int fd = open(job->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
            fail(job, errno, "list", job->base);
            return;
        }
        walk(job, fd);
    }
}

/* ---- acting below a base ---- */

static int open_beneath(int base, const char *name, unsigned long long flags, unsigned mode)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, base, name, &how, sizeof how);
}

/* A plain relative path: no empty, "." or ".." components. */
static int is_plain(const char *name)
{
    while (*name != '\0') {
        size_t n = strcspn(name, "/");
        if (n == 0 || (n == 1 && name[0] == '.') || (n == 2 && name[0] == '.' && name[1] == '.'))
            return 0;
        name += n;
        if (*name == '/' && *++name == '\0')
            return 0;
    }
    return 1;
}

/* The directory that holds `name`, and its last component. The descriptor is new. */
static int open_parent(int base, char *name, const char **last)
{
    char *slash = strrchr(name, '/');
    if (slash == NULL) {
        *last = name;
        return fcntl(base, F_DUPFD_CLOEXEC, 3);
    }
    *slash = '\0';
    int fd = open_beneath(base, name, O_PATH | O_DIRECTORY, 0);
    *slash = '/';
    *last = slash + 1;
    return fd;
}

static int make_directory(int parent, const char *last, unsigned mode)
{
    struct stat st;
    if (mkdirat(parent, last, mode) == 0)
        return 0;
    if (errno != EEXIST)
        return -1;
    if (fstatat(parent, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return -1;
    }
    return 0;
}

static int open_file(int parent, const char *last, enum sb_host_action action, unsigned mode)
{
    struct stat st;
    int flags = action == SB_HOST_READ ? O_RDONLY : O_RDWR | O_CREAT | O_EXCL;
    int fd = openat(parent, last, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

static int change_mode(int parent, const char *last, unsigned mode)
{
    int fd = openat(parent, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fchmod(fd, mode);
    int sys = errno;
    close(fd);
    errno = sys;
    return result;
}

/* What was made and renamed in the directory is on the disk. */
static int sync_names(int parent)
{
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fsync(fd);
    int sys = errno;
    close(fd);
    errno = sys;
    return result;
}

/* Takes the place of a file or a link, never of a device, pipe or socket. */
static int rename_to(int base, int parent, const char *last, char *other)
{
    const char *other_last;
    struct stat there;
    int to = open_parent(base, other, &other_last), result = -1;
    if (to < 0)
        return -1;
    if (fstatat(to, other_last, &there, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(there.st_mode) &&
        !S_ISLNK(there.st_mode) && !S_ISDIR(there.st_mode))
        errno = EEXIST;
    else
        result = renameat(parent, last, to, other_last);
    int sys = errno;
    close(to);
    errno = sys;
    return result;
}

static void act(struct job *job)
{
    static const char *const steps[] = {"mkdir", "symlink", "rename", "remove",
                                        "chmod", "open",    "create", "sync"};
    const char *last;
    int result = -1;
    if (!is_plain(job->name) || *job->name == '\0' ||
        (job->action == SB_HOST_RENAME && !is_plain(job->other))) {
        sb_fail(&job->error, SB_ERR_INVALID_ARGUMENT, "the name leads out of the directory");
        return;
    }
    int base = open(job->base, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (base < 0) {
        fail(job, errno, steps[job->action], job->base);
        return;
    }
    int parent = open_parent(base, job->name, &last);
    if (parent >= 0) {
        switch (job->action) {
        case SB_HOST_MKDIR:
            result = make_directory(parent, last, job->mode);
            break;
        case SB_HOST_SYMLINK:
            result = symlinkat(job->other, parent, last);
            break;
        case SB_HOST_RENAME:
            result = rename_to(base, parent, last, job->other);
            break;
        case SB_HOST_REMOVE:
            result = unlinkat(parent, last, 0);
            break;
        case SB_HOST_CHMOD:
            result = change_mode(parent, last, job->mode);
            break;
        case SB_HOST_SYNC:
            result = sync_names(parent);
            break;
        case SB_HOST_READ:
        case SB_HOST_CREATE:
            result = open_file(parent, last, job->action, job->mode);
            if (result >= 0) {
                job->file = sb_file_new(result, &job->error);
            }
            break;
        }
    }
    int sys = errno;
    if (parent >= 0)
        close(parent);
    close(base);
    if (result < 0)
        fail(job, sys, steps[job->action], job->name);
}

/* ---- as operations ---- */

static void work(void *arg)
{
    struct job *job = arg;
    if (job->tree)
        list_tree(job);
    else
        act(job);
}

static void done(void *arg)
{
    struct job *job = arg;
    struct sb_op *op = job->op;
    if (op != NULL) {
        struct sb_result *result = sb_op_result(op);
        result->error = job->error;
        if (job->error.kind == SB_OK && job->tree) {
            result->bytes = (unsigned char *)job->out;
            result->bytes_len = job->len;
            job->out = NULL;
        }
        if (job->file != NULL)
            result->object = sb_object_ref(job->file);
        job_free(job);
        sb_op_complete(op);
        return;
    }
    job_free(job);
}

/* A listing is given up between two entries. An action is one short system call, and whoever asked
 * for it has to know whether it was done: it just ends when it ends. */
static void cancelled(struct sb_op *op, void *owner)
{
    struct job *job = owner;
    struct sb_error err = {SB_OK};
    if (!job->tree)
        return;
    job->stop = 1;
    job->op = NULL;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_op_fail(op, &err);
}

static struct sb_op *submit(struct sb_mailbox *mailbox, struct job *job)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, cancelled, job);
    if (op == NULL) {
        job_free(job);
        return NULL;
    }
    job->op = op;
    if (sb_pool_run(work, done, job, &err) < 0) {
        job_free(job);
        sb_op_fail(op, &err);
    }
    return op;
}

struct sb_op *sb_host_tree(struct sb_mailbox *mailbox, const char *path)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    job->tree = 1;
    job->base = strdup(path);
    if (job->base == NULL) {
        job_free(job);
        return NULL;
    }
    return submit(mailbox, job);
}

struct sb_op *sb_host_at(struct sb_mailbox *mailbox, enum sb_host_action action, const char *base,
                         const char *name, const char *other, unsigned mode)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    job->action = action;
    job->base = strdup(base);
    job->name = strdup(name);
    job->other = strdup(other);
    job->mode = mode;
    if (job->base == NULL || job->name == NULL || job->other == NULL) {
        job_free(job);
        return NULL;
    }
    return submit(mailbox, job);
}
