/* Control groups of sandboxes. Layout below the v2 mount: <top>/self holds the supervisor,
 * <top>/<random> a sandbox's pid 1 and file workers, <top>/<random>/<n> one command's tree. Whoever
 * holds a shared lock on <top> uses it; whoever gets an exclusive one may remove it. */
#include "cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop.h"
#include "mounts.h"

enum { TAKE_TRIES = 5, SWEEP_SECONDS = 2 };

static struct {
    int root, top;
    bool unswept;
} cg = {-1, -1, false};

bool sb_cgroup_have(void)
{
    return cg.top >= 0;
}

/* The mount point of the v2 hierarchy, from our own mount table. */
static int find_root(void)
{
    sb_autofree char *table = sb_read_at(AT_FDCWD, "/proc/self/mountinfo", 4 << 20, NULL);
    char *save = NULL;
    for (char *line = table != NULL ? strtok_r(table, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *type = strstr(line, " - cgroup2 ");
        if (type == NULL)
            continue;
        char *at = line;
        for (int i = 0; i < 4 && at != NULL; i++)
            at = strchr(at, ' ') != NULL ? strchr(at, ' ') + 1 : NULL;
        char *end = at != NULL ? strchr(at, ' ') : NULL;
        if (end == NULL)
            continue;
        *end = '\0';
        return sb_lift(open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }
    return -1;
}

static int put_at(int dir, const char *name, const char *text)
{
    sb_autofd int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, text, strlen(text)) < 0 ? -1 : 0;
}

static int open_group(int dir, const char *name)
{
    return sb_lift(openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

static bool make(int dir, const char *name)
{
    return mkdirat(dir, name, 0755) == 0 || errno == EEXIST;
}

/* Our own, made and locked. One that somebody removed before we had the lock takes no "self". */
int sb_cgroup_take_top(int root)
{
    for (int i = 0; i < TAKE_TRIES; i++) {
        int fd = make(root, sup.top_name) ? open_group(root, sup.top_name) : -1;
        if (fd < 0 && errno != ENOENT)
            return -1;
        alarm(SWEEP_SECONDS); /* whoever holds it exclusively is about to remove it */
        int rc = fd >= 0 ? flock(fd, LOCK_SH) : -1;
        alarm(0);
        if (rc == 0 && make(fd, "self"))
            return fd;
        sb_close(&fd);
    }
    return -1;
}

void sb_cgroup_start(void)
{
    if (sup.mode != SB_MODE_ROOT)
        return;
    cg.root = find_root();
    if (cg.root < 0)
        return;
    cg.top = sb_cgroup_take_top(cg.root);
    /* cgroup.kill came with Linux 5.14: without it the leaves are of no use. */
    if (cg.top < 0 || faccessat(cg.top, "cgroup.kill", W_OK, 0) < 0) {
        sb_close(&cg.top);
        sb_close(&cg.root);
        return;
    }
    put_at(cg.top, "self/cgroup.procs", "0");
}

/* A controller is turned on from the root down, which the kernel allows where the groups on the way hold no process
 * themselves. */
bool sb_cgroup_control(const char *controller, const char *file)
{
    char word[32], path[64];
    if (cg.top < 0)
        return false;
    snprintf(word, sizeof word, "+%s", controller);
    put_at(cg.root, "cgroup.subtree_control", word); /* who came first has done it */
    snprintf(path, sizeof path, "self/%s", file);
    return put_at(cg.top, "cgroup.subtree_control", word) == 0 &&
           faccessat(cg.top, path, W_OK, 0) == 0;
}

static void each_group(int dir, void (*fn)(int dir, const char *name))
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (d == NULL) {
        sb_close(&copy);
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            fn(dir, e->d_name);
    closedir(d);
}

static void remove_leaf(int dir, const char *name)
{
    unlinkat(dir, name, AT_REMOVEDIR);
}

static void remove_with_leaves(int dir, const char *name)
{
    sb_autofd int group = open_group(dir, name);
    if (group >= 0)
        each_group(group, remove_leaf);
    unlinkat(dir, name, AT_REMOVEDIR);
}

static bool ours_by_name(const char *name)
{
    static const char prefix[] = "sandbar-";
    size_t n = sizeof prefix - 1;
    return strncmp(name, prefix, n) == 0 && strlen(name) == n + 16 &&
           strspn(name + n, "0123456789abcdef") == 16;
}

static void remove_deserted(int dir, const char *name)
{
    if (!ours_by_name(name))
        return;
    sb_autofd int group = open_group(dir, name);
    if (group < 0 || flock(group, LOCK_EX | LOCK_NB) < 0)
        return;
    sb_autofree char *events = sb_read_at(group, "cgroup.events", 4096, NULL);
    if (events != NULL && strstr(events, "populated 0") == NULL)
        return; /* v1 has no such file, and removes no group in which something lives */
    each_group(group, remove_with_leaves);
    unlinkat(dir, name, AT_REMOVEDIR);
}

void sb_cgroup_sweep_others(int root)
{
    each_group(root, remove_deserted);
}

void sb_cgroup_sweep_deserted(void)
{
    if (cg.top >= 0)
        sb_cgroup_sweep_others(cg.root);
}

static void remove_if_left(int dir, const char *name)
{
    if (strcmp(name, "self") != 0)
        unlinkat(dir, name, AT_REMOVEDIR);
}

void sb_cgroup_sweep_left(int top)
{
    each_group(top, remove_if_left);
}

void sb_cgroup_give_top(int root, int *top)
{
    unlinkat(*top, "self", AT_REMOVEDIR);
    unlinkat(root, sup.top_name, AT_REMOVEDIR);
    sb_close(top);
}

void sb_cgroup_leave(void)
{
    if (cg.top < 0)
        return;
    put_at(cg.root, "cgroup.procs", "0");
    /* And a process that empties the trash. */
    sb_autofree char *rest = sb_read_at(cg.top, "self/cgroup.procs", 4096, NULL);
    char *save = NULL;
    for (char *pid = rest != NULL ? strtok_r(rest, "\n", &save) : NULL; pid != NULL;
         pid = strtok_r(NULL, "\n", &save))
        put_at(cg.root, "cgroup.procs", pid);
    sb_cgroup_give_top(cg.root, &cg.top);
}

/* Pid 1 starts a command in its leaf with clone3, which wants the leaf's directory and the right to write
 * cgroup.procs of the leaf and of the group above: the caller's own right, hence the owner. A command
 * that moved itself there instead would wait for a grace period of the whole machine, 5 to 15 ms.
 *
 * The directory comes from a detached clone of the group alone: from a leaf `..` leads to the group and
 * no further, and nothing below can be opened for writing, whoever owns it. */
static int own_procs(const struct sb_cgroup *g, const char *name)
{
    return fchownat(g->dir, name, g->root, (gid_t)-1, AT_SYMLINK_NOFOLLOW);
}

static int clone_group(const struct sb_cgroup *g)
{
    int fd = sb_mounts_clone(g->dir, -1);
    struct mount_attr a = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                       MOUNT_ATTR_NOEXEC};
    if (fd >= 0 && mount_setattr(fd, "", AT_EMPTY_PATH, &a, sizeof a) < 0)
        sb_close(&fd);
    return fd;
}

/* A number for the next leaf, with its directory made. */
static int make_leaf(struct sb_cgroup *g, int back)
{
    char name[16];
    snprintf(name, sizeof name, "%d", back);
    /* One in which something runs stays what it is. */
    if (back >= 0 && back < g->leaves && unlinkat(g->dir, name, AT_REMOVEDIR) == 0)
        return mkdirat(g->dir, name, 0755) < 0 ? -1 : back;
    while (g->leaves < SB_LEAVES_MAX) {
        snprintf(name, sizeof name, "%d", g->leaves);
        int rc = mkdirat(g->dir, name, 0755);
        if (rc == 0)
            return g->leaves++;
        if (errno != EEXIST)
            return -1;
        g->leaves++; /* behind a gap that an earlier supervisor left */
    }
    errno = EMFILE;
    return -1;
}

static int add_leaf(struct sb_cgroup *g, int tree, int back)
{
    static const char *const name[] = {"/cgroup.procs", "/cgroup.kill", ""};
    static const int flags[] = {O_RDWR, O_WRONLY, O_PATH | O_DIRECTORY};
    int number = make_leaf(g, back);
    if (number < 0)
        return -1;
    for (int k = 0; k < g->each && k < 3; k++) {
        char path[32];
        snprintf(path, sizeof path, "%d%s", number, name[k]);
        if (k == 0 && g->each == 3 && own_procs(g, path) < 0)
            return -1;
        int fd = sb_lift(openat(k == 2 ? tree : g->dir, path, flags[k] | O_CLOEXEC));
        if (fd < 0)
            return -1;
        g->number[g->nfds / g->each] = number;
        g->fd[g->nfds++] = fd;
    }
    return 0;
}

static int add_leaves(struct sb_cgroup *g, const int *back, int n)
{
    sb_latefd int tree = clone_group(g);
    g->each = tree >= 0 && own_procs(g, "cgroup.procs") == 0 ? 3 : 2;
    const int more = g->leaves == 0 ? SB_LEAVES_FIRST : SB_LEAVES_MORE;
    for (int i = 0; i < more; i++)
        if (add_leaf(g, tree, i < n ? back[i] : -1) < 0)
            return -1;
    return 0;
}

int sb_cgroup_make(struct sb_cgroup *g, uid_t root)
{
    uint64_t r;
    memset(g, 0, sizeof *g);
    g->dir = -1;
    g->root = root;
    if (cg.top < 0)
        return 0;
    sb_random(&r, sizeof r);
    snprintf(g->name, sizeof g->name, "%016llx", (unsigned long long)r);
    if (mkdirat(cg.top, g->name, 0755) < 0) {
        g->name[0] = '\0';
        return -1;
    }
    g->dir = sb_lift(openat(cg.top, g->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (g->dir < 0) {
        int err = errno;
        sb_cgroup_remove(g);
        errno = err;
        return -1;
    }
    return 0;
}

int sb_cgroup_more(struct sb_cgroup *g, const int *back, int n)
{
    if (g->dir < 0) {
        errno = ENOENT;
        return -1;
    }
    sb_cgroup_handed(g);
    if (add_leaves(g, back, n) == 0)
        return 0;
    int err = errno;
    sb_cgroup_handed(g);
    errno = err;
    return -1;
}

void sb_cgroup_handed(struct sb_cgroup *g)
{
    while (g->nfds > 0)
        sb_close(&g->fd[--g->nfds]);
}

int sb_cgroup_open(struct sb_cgroup *g, const char *name, uid_t root)
{
    memset(g, 0, sizeof *g);
    g->dir = -1;
    g->root = root;
    if (cg.top < 0 || *name == '\0')
        return 0;
    g->dir = sb_lift(openat(cg.top, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (g->dir < 0)
        return -1;
    snprintf(g->name, sizeof g->name, "%s", name);
    char leaf[16];
    do
        snprintf(leaf, sizeof leaf, "%d", g->leaves);
    while (faccessat(g->dir, leaf, F_OK, 0) == 0 && ++g->leaves < SB_LEAVES_MAX);
    return 0;
}

int sb_cgroup_freeze(struct sb_cgroup *g, bool on)
{
    return put_at(g->dir, "cgroup.freeze", on ? "1" : "0");
}

int sb_cgroup_events(const struct sb_cgroup *g)
{
    return sb_lift(openat(g->dir, "cgroup.events", O_RDONLY | O_CLOEXEC));
}

bool sb_cgroup_stands(int events)
{
    char text[128];
    ssize_t n = pread(events, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "frozen 1") != NULL;
}

int64_t sb_cgroup_cpu_us(const struct sb_cgroup *g)
{
    static const char word[] = "usage_usec "; /* the first line */
    sb_autofree char *text = g->dir < 0 ? NULL : sb_read_at(g->dir, "cpu.stat", 4096, NULL);
    return text != NULL && strncmp(text, word, sizeof word - 1) == 0
               ? strtoll(text + sizeof word - 1, NULL, 10)
               : -1;
}

/* Only a level below is ours: nobody inside can make groups. */
static int remove_group(const char *name, int leaves)
{
    char path[300];
    while (leaves-- > 0) {
        snprintf(path, sizeof path, "%s/%d", name, leaves);
        if (unlinkat(cg.top, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
            return -1;
    }
    return unlinkat(cg.top, name, AT_REMOVEDIR);
}

void sb_cgroup_remove(struct sb_cgroup *g)
{
    sb_cgroup_handed(g);
    sb_close(&g->dir);
    if (g->name[0] == '\0')
        return;
    if (remove_group(g->name, g->leaves) < 0 && errno != ENOENT) {
        char dead[48];
        /* Groups cannot be renamed: the mark is a leaf of a name no live group has. */
        snprintf(dead, sizeof dead, "%s/dead", g->name);
        mkdirat(cg.top, dead, 0755);
        cg.unswept = true;
    }
    g->name[0] = '\0';
}

bool sb_cgroup_unswept(void)
{
    return cg.unswept;
}

static bool (*still_kept)(
    const char *name); /* during a sweep; NULL: all that are not marked dead */

static void sweep_one(int top, const char *name)
{
    char path[300];
    if (strcmp(name, "self") == 0)
        return;
    snprintf(path, sizeof path, "%s/dead", name);
    bool dead = unlinkat(top, path, AT_REMOVEDIR) == 0;
    if (!dead && (still_kept == NULL || still_kept(name)))
        return;
    snprintf(path, sizeof path, "%s/cgroup.kill", name);
    put_at(top, path, "1");
    if (remove_group(name, SB_LEAVES_MAX) < 0) {
        snprintf(path, sizeof path, "%s/dead", name);
        mkdirat(top, path, 0755);
        cg.unswept = true;
    }
}

void sb_cgroup_sweep(bool (*kept)(const char *name))
{
    if (cg.top < 0)
        return;
    cg.unswept = false;
    still_kept = kept;
    each_group(cg.top, sweep_one);
}
