/* Watching a directory: a worker that stays, with an inotify instance of its own and one end of a pipe. What changes is
 * told there, a line each (enum sb_watch_line).
 *
 * A tree is watched directory by directory. One that is new is watched first and read then, and what is in it is
 * reported as created; the events of the time between are left out where they would tell it twice. A directory that
 * moves is forgotten where it was, and new where it comes to: no pair of events has to be matched, nothing is
 * reported under an old name, and what happens in between is not lost, since it is read anew.
 *
 * Nothing waits for the reader but this process: while the pipe is full events pile up in the kernel, which drops
 * them in the end and says so; then the tree is read anew, and the reader told to do the same. No directory of the
 * tree is held open: the kernel would not tell that one is gone. */
#include "file.h"
#include "mem.h"
#include "str.h"
#include "watch_node.h"

enum {
    DT_UNKNOWN = 0,
    DT_DIR = 4,
    EVENTS = 65536,
    LINES = 262144,
    PATIENCE_MS = 2000,
    PATH_WATCHED = 32768, /* deeper directories are not gone into: their lines would be too long */
    MASK = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB |
           IN_ONLYDIR | IN_EXCL_UNLINK,
    ROOT_MASK = MASK | IN_DELETE_SELF | IN_MOVE_SELF,
};

struct event {
    int wd;
    uint32_t mask, cookie, len;
    char name[];
};

static struct {
    int inotify, pipe;
    int recursive;
    struct node *root;
    char root_path[PATH_MAX];
    struct statx root_is;
    uint64_t got, taken; /* bytes of events: read, looked at */
    int quiet;           /* a scan tells nothing */
    int lost;            /* a scan came to no end: all has to be read anew */
    int astray;          /* the root is not where it was */
    int failed;          /* an errno that ends it */
    char *lines;
    size_t used, last; /* where the last line begins */
} w;

/* ---- lines ---- */

static void flush(void)
{
    for (size_t at = 0; at < w.used;) {
        long n = sys_write(w.pipe, w.lines + at, w.used - at);
        if (n <= 0)
            sys_exit(0); /* nobody listens any more */
        at += (size_t)n;
    }
    w.used = w.last = 0;
}

static void tell(enum sb_watch_line what, const char *text)
{
    size_t len = text != NULL ? strlen(text) : 0, start, size;
    char *to;
    if (text == NULL) {
        w.failed = ENOMEM;
        return;
    }
    if (w.used + 2 * len + 2 > LINES)
        flush();
    start = w.used;
    to = w.lines + start;
    *to++ = (char)what;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n' || text[i] == '\\')
            *to++ = '\\';
        *to++ = text[i] == '\n' ? 'n' : text[i];
    }
    *to++ = '\n';
    size = (size_t)(to - w.lines) - start;
    /* One of several in a row is enough of what tells of a state. */
    if ((what == SB_WATCH_WRITE || what == SB_WATCH_CHMOD) && start - w.last == size &&
        memcmp(w.lines + w.last, w.lines + start, size) == 0)
        return;
    w.last = start;
    w.used += size;
}

static _Noreturn void end(const char *reason)
{
    tell(SB_WATCH_END, reason);
    flush();
    sys_exit(0);
}

static _Noreturn void end_failed(int err)
{
    char number[24];
    if (err == ENOSPC || err == EMFILE)
        end("limit");
    number[str_digits(number, (uint64_t)err)] = '\0';
    end(number);
}

/* What files:write makes beside a file for a moment is no change that anybody asked for. */
static int is_ours(const char *name)
{
    if (strlen(name) != 24 || memcmp(name, ".sb-", 4) != 0)
        return 0;
    for (name += 4; *name != '\0'; name++)
        if (str_find("0123456789abcdef", 16, *name) == NULL)
            return 0;
    return 1;
}

/* A watch that was just closed gives its instance back when its worker has ended: that is waited for. */
static int inotify_make(void)
{
    struct sys_timespec moment = {0, 5000000};
    uint64_t until = sys_now_ms() + PATIENCE_MS;
    int fd;
    while ((fd = (int)SYS1(__NR_inotify_init1, O_CLOEXEC)) == -EMFILE && sys_now_ms() < until)
        SYS2(__NR_nanosleep, &moment, NULL);
    return fd;
}

/* ---- scans ---- */

static struct node *scanned;     /* of the directory on top of the walk */
static const char *scanned_name; /* of the one that is being opened */

/* Watches a directory. Its number or a negative errno. */
static long watch_dir(int fd)
{
    uint32_t mask = scanned == NULL ? ROOT_MASK : MASK;
    long wd = SYS1(__NR_fchdir, fd);
    if (wd < 0)
        return wd;
    wd = SYS3(__NR_inotify_add_watch, w.inotify, ".", mask | IN_MASK_CREATE);
    if (wd == -EEXIST) { /* known at another place, which it has left */
        struct node *old;
        wd = SYS3(__NR_inotify_add_watch, w.inotify, ".", mask);
        old = wd < 0 ? NULL : node_of((int)wd);
        if (old != NULL && node_holds(old, scanned)) {
            w.lost = 1;
            return -ELOOP;
        }
        if (old != NULL)
            node_drop(old, w.inotify);
        else if (wd >= 0)
            SYS2(__NR_inotify_rm_watch, w.inotify, wd);
        wd = SYS3(__NR_inotify_add_watch, w.inotify, ".", mask);
    }
    return wd;
}

static int opened(int fd)
{
    long wd = watch_dir(fd);
    struct node *n = wd < 0 ? NULL : node_add(scanned, scanned_name, (int)wd);
    if (n == NULL)
        return wd < 0 ? (int)wd : -ENOMEM;
    if (scanned == NULL)
        w.root = n;
    scanned = n;
    /* It was opened before it was watched, and some file systems show no names that are younger than that. */
    SYS3(__NR_lseek, fd, 0, 0);
    return 0;
}

/* The names of a directory that was read, for as long as there are events that were queued until now. */
static void remember(struct level *l)
{
    int queued = 0;
    SYS3(__NR_ioctl, w.inotify, FIONREAD, &queued);
    if (queued <= 0 || l->n == 0)
        return;
    if (fresh_add(scanned, l->names, l->n, w.got + (uint64_t)queued) == 0)
        l->names = NULL;
    else
        w.failed = ENOMEM;
}

static int is_fatal(int err)
{
    return err == -ENOSPC || err == -EMFILE || err == -ENFILE || err == -ENOMEM;
}

/* Reads the directory fd (and closes it) and what is below it, watching each. 0, or what ends it. */
static int scan(struct node *parent, const char *name, int fd, const char *path)
{
    struct walk walk = {.opened = opened};
    const char *inner;
    unsigned type;
    int err;
    scanned = parent;
    scanned_name = name;
    err = walk_start(&walk, fd, path);
    while (err == 0 && walk.depth > 0) {
        struct node *here = scanned;
        inner = walk_next(&walk, &type);
        if (inner == NULL) {
            remember(&walk.stack[walk.depth - 1]);
            scanned = scanned->parent;
            w.lost |= walk_leave(&walk) < 0;
            if (w.lost)
                break;
            continue;
        }
        if (is_ours(inner))
            continue;
        if (!w.quiet)
            tell(SB_WATCH_CREATE, walk_path(&walk, inner) + 1);
        if ((type != DT_DIR && type != DT_UNKNOWN) || walk.path_len > PATH_WATCHED)
            continue;
        scanned_name = inner;
        err = walk_enter(&walk, inner);
        if (err < 0 && scanned != here) { /* watched, and then it could not be read */
            node_drop(scanned, w.inotify);
            scanned = here;
        }
        if (!is_fatal(err))
            err = 0;
    }
    walk_end(&walk);
    SYS1(__NR_chdir, "/");
    return err;
}

/* ---- the root ---- */

static int same_file(const struct statx *a, const struct statx *b)
{
    return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
           a->stx_dev_minor == b->stx_dev_minor;
}

/* Takes the descriptor. */
static int root_begin(int fd)
{
    long wd;
    w.quiet = 1;
    w.got = w.taken = 0;
    if (w.recursive) {
        int err = scan(NULL, "", fd, "/");
        w.quiet = 0;
        return err;
    }
    scanned = NULL;
    wd = watch_dir(fd);
    SYS1(__NR_chdir, "/");
    sys_close(fd);
    if (wd >= 0 && (w.root = node_add(NULL, "", (int)wd)) == NULL)
        wd = -ENOMEM;
    return wd < 0 ? (int)wd : 0;
}

static int root_open(int flags)
{
    struct statx st;
    int fd = sys_openat(AT_FDCWD, w.root_path, flags | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd >= 0 && (sys_fstat(fd, &st) < 0 || !same_file(&st, &w.root_is))) {
        sys_close(fd);
        fd = -ENOENT;
    }
    if (fd < 0)
        w.astray = 1; /* if it is gone, an event will tell */
    return fd;
}

/* Events were dropped: all is watched anew, and only then is the reader told to look. A new instance, since the
 * queue could not even take the ends of the old watches. */
static void begin_anew(void)
{
    int fd, err;
    w.lost = 0;
    if (w.recursive) {
        if (w.root != NULL)
            node_drop(w.root, -1);
        w.root = NULL;
        fresh_expire(~UINT64_C(0));
        sys_close(w.inotify);
        w.inotify = inotify_make();
        if (w.inotify < 0)
            end_failed(-w.inotify);
        fd = root_open(O_RDONLY);
        if (fd < 0) {
            tell(SB_WATCH_RENAME, ".");
            end("moved");
        }
        err = root_begin(fd);
        if (err < 0)
            end_failed(-err);
    }
    tell(SB_WATCH_OVERFLOW, ".");
}

/* ---- events ---- */

/* Opens (O_PATH) a directory of the tree, through no link. */
static int dir_open(const struct node *n)
{
    const char *path = node_path(n, NULL);
    int dir = path == NULL ? -ENOMEM : root_open(O_PATH);
    while (dir >= 0 && *path == '/') {
        char part[NAME_MAX + 1];
        size_t len = 0;
        int next;
        for (path++; path[len] != '\0' && path[len] != '/' && len < NAME_MAX; len++)
            part[len] = path[len];
        part[len] = '\0';
        path += len;
        next = sys_openat(dir, part, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
        sys_close(dir);
        dir = next;
    }
    return dir;
}

/* A file that has no name yet goes by "#" and its number, and tells of its mode under that. */
static int is_nameless(const struct node *n, const char *name)
{
    struct statx st;
    int dir, err;
    if (*name != '#')
        return 0;
    for (const char *s = name + 1; *s != '\0'; s++)
        if (*s < '0' || *s > '9')
            return 0;
    dir = dir_open(n);
    err = dir < 0 ? dir : sys_statx(dir, name, AT_SYMLINK_NOFOLLOW, &st);
    if (dir >= 0)
        sys_close(dir);
    return err == -ENOENT;
}

/* A directory that has come, or that may be read now. */
static void adopt(struct node *parent, const char *name)
{
    const char *path;
    int dir = dir_open(parent), fd, err;
    if (dir < 0)
        return;
    fd = sys_openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK, 0);
    sys_close(dir);
    if (is_fatal(fd))
        end_failed(-fd);
    path = node_path(parent, name);
    if (fd < 0 || path == NULL || strlen(path) > PATH_WATCHED) {
        if (fd >= 0)
            sys_close(fd);
        return;
    }
    err = scan(parent, name, fd, path);
    if (is_fatal(err))
        end_failed(-err);
}

static void take_root(uint32_t mask)
{
    if (mask & IN_MOVE_SELF) {
        tell(SB_WATCH_RENAME, ".");
        end("moved");
    }
    if (mask & (IN_DELETE_SELF | IN_UNMOUNT | IN_IGNORED)) {
        tell(SB_WATCH_REMOVE, ".");
        end("removed");
    }
    if (mask & IN_ATTRIB)
        tell(SB_WATCH_CHMOD, ".");
}

static void take_named(struct node *n, const struct event *e)
{
    struct node *child = w.recursive && (e->mask & IN_ISDIR) ? node_child(n, e->name) : NULL;
    int come = (e->mask & (IN_CREATE | IN_MOVED_TO)) != 0;
    int gone = (e->mask & (IN_DELETE | IN_MOVED_FROM)) != 0;
    const char *path;
    if ((come || gone) && fresh_take(n, e->name) && come)
        return;
    if ((e->mask & IN_ATTRIB) && is_nameless(n, e->name))
        return;
    path = node_path(n, e->name);
    if (path != NULL)
        path++;
    if (come)
        tell(SB_WATCH_CREATE, path);
    else if (gone)
        tell(e->mask & IN_DELETE ? SB_WATCH_REMOVE : SB_WATCH_RENAME, path);
    else
        tell((e->mask & (IN_MODIFY | IN_ISDIR)) == IN_MODIFY ? SB_WATCH_WRITE : SB_WATCH_CHMOD,
             path); /* of a directory, its time was set */
    if (child != NULL && (come || gone)) {
        node_drop(child, w.inotify);
        child = NULL;
    }
    if (w.recursive && (e->mask & IN_ISDIR) && !gone && child == NULL)
        adopt(n, e->name);
}

/* 0 when the events after it mean nothing any more. */
static int take(const struct event *e)
{
    struct node *n;
    if (e->mask & IN_Q_OVERFLOW) {
        begin_anew();
        return !w.recursive;
    }
    n = node_of(e->wd);
    if (n == NULL)
        return 1;
    if (e->len > 0 && e->name[0] != '\0') {
        if (!is_ours(e->name))
            take_named(n, e);
    } else if (n->parent == NULL) {
        take_root(e->mask);
    } else if (e->mask & IN_IGNORED) {
        node_drop(n, w.inotify);
    }
    if (w.lost)
        begin_anew();
    else
        return 1;
    return 0;
}

static _Noreturn void serve(void)
{
    char *events = mem_alloc(EVENTS);
    if (events == NULL)
        end_failed(ENOMEM);
    for (;;) {
        struct {
            int fd;
            short events, revents;
        } polled[2] = {{w.inotify, POLLIN, 0}, {w.pipe, 0, 0}};
        struct sys_timespec now = {0, 0};
        long n = SYS5(__NR_ppoll, polled, 2, w.astray ? &now : NULL, NULL, 8);
        if (n == 0) { /* nothing has told that it is gone: something above it has moved */
            tell(SB_WATCH_RENAME, ".");
            end("moved");
        }
        if (polled[1].revents != 0)
            sys_exit(0);
        if (n < 0 || polled[0].revents == 0)
            continue;
        n = sys_read(w.inotify, events, EVENTS);
        if (n <= 0)
            end_failed(n < 0 ? (int)-n : EIO);
        w.got += (uint64_t)n;
        for (long at = 0; at + (long)sizeof(struct event) <= n;) {
            const struct event *e = (const struct event *)(events + at);
            fresh_expire(w.taken);
            at += (long)(sizeof *e + e->len);
            w.taken += sizeof *e + e->len;
            if (!take(e))
                break;
            if (w.failed != 0)
                end_failed(w.failed);
        }
        flush();
    }
}

/* ---- the beginning ---- */

static _Noreturn void refuse(int err)
{
    if (err == -EMFILE)
        file_refuse(
            "LimitExceeded",
            "no inotify instance is left: a sandbox has 16 for its watches and programs, fewer "
            "where the machine's fs.inotify.max_user_instances is used up",
            job.path);
    if (err == -ENOSPC)
        file_refuse(
            "LimitExceeded",
            "there are more directories than can be watched: a sandbox may watch 16384, fewer "
            "where the machine's fs.inotify.max_user_watches is used up",
            job.path);
    file_fail(err, "watch", job.path);
}

void file_watch(void)
{
    uint64_t pipe_signal = 1u << (SIGPIPE - 1);
    struct sb_packer p;
    int ends[2] = {-1, -1}, fd, err;
    fd = sys_openat(AT_FDCWD, job.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    if (fd < 0)
        file_fail(fd, "open", job.path);
    err = (int)SYS1(__NR_fchdir, fd);
    if (err == 0)
        err = (int)SYS2(__NR_getcwd, w.root_path, sizeof w.root_path);
    if (err >= 0)
        err = sys_fstat(fd, &w.root_is);
    if (err >= 0)
        w.inotify = err = inotify_make();
    if (err >= 0) {
        w.recursive = file_u64(SB_F_RECURSIVE, 0) != 0;
        err = root_begin(fd);
    }
    if (err >= 0)
        err = (int)SYS2(__NR_pipe2, ends, O_CLOEXEC);
    w.lines = mem_alloc(LINES);
    if (err >= 0 && (w.lines == NULL || w.failed != 0))
        err = -ENOMEM;
    if (err < 0)
        refuse(err);
    w.pipe = ends[1];
    SYS4(__NR_rt_sigprocmask, 0, &pipe_signal, 0, sizeof pipe_signal);
    file_begin(&p, SB_REPLY);
    sb_pack_str(&p, SB_F_PATH, w.root_path);
    file_send(&p, ends[0]);
    sys_close(ends[0]);
    sys_close(FILE_CONN);
    serve();
}
