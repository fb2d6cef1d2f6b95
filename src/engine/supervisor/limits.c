/* Limits of memory and processor time. With v2 the controllers are turned on for the sandboxes' groups when the first
 * limit is asked for, and set in the group of the sandbox. With v1 each hierarchy has groups of its own, below that of
 * the supervisor: <mount>/<own path>/<top>/<name>. Pid 1 moves itself in: it may take a grace period of the whole
 * machine, for which the supervisor must not stand still. */
#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PERIOD_US = 100000 };

static const struct {
    const char *controller, *limit, *v1_limit, *what;
} bound[SB_BOUNDS] = {
    [SB_BOUND_MEMORY] = {"memory", "memory.max", "memory.limit_in_bytes", "limits.memory"},
    [SB_BOUND_CPU] = {"cpu", "cpu.max", "cpu.cfs_quota_us", "limits.cpus"},
};

/* Of each hierarchy. With v1 `own` is the supervisor's group there, `top` what sandboxes' are made in. */
static struct {
    enum { UNTRIED, NONE, V1, V2 } kind;
    int own, top;
} have[SB_BOUNDS] = {{UNTRIED, -1, -1}, {UNTRIED, -1, -1}};

static struct sb_list dead; /* names of v1 groups that could not be removed yet */

/* ---- what there is ---- */

/* The first field of `line` after `n` blanks, ended in place. */
static char *field(char *line, int n, char **rest)
{
    while (n-- > 0 && line != NULL) {
        line = strchr(line, ' ');
        line = line != NULL ? line + 1 : NULL;
    }
    char *end = line != NULL ? strchr(line, ' ') : NULL;
    if (end == NULL)
        return NULL;
    *end = '\0';
    *rest = end + 1;
    return line;
}

static bool names(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0' || at[n] == ':'))
            return true;
    return false;
}

/* Where a v1 hierarchy is mounted: a mount of `root`, a path in it, at `at`. */
static char *v1_mount(char *table, const char *controller, char **root)
{
    char *save = NULL;
    for (char *line = strtok_r(table, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *type = strstr(line, " - cgroup "), *options = strrchr(line, ' ');
        if (type == NULL || !names(options + 1, controller))
            continue;
        char *rest;
        *root = field(line, 3, &rest);
        return *root != NULL ? field(rest, 0, &rest) : NULL;
    }
    return NULL;
}

/* The path in that hierarchy, as /proc/<pid>/cgroup has it. */
static const char *v1_path(char *table, const char *controller)
{
    char *save = NULL;
    for (char *line = strtok_r(table, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path != NULL && list[1] != ':' && names(list + 1, controller))
            return path + 1;
    }
    return NULL;
}

/* The v1 group that a process is in. Nothing above our own is ever asked for, nor what a sandbox says. */
static int v1_group(const char *proc, const char *controller)
{
    char path[4096], *root = NULL;
    sb_autofree char *mounts = sb_read_at(AT_FDCWD, "/proc/self/mountinfo", 4 << 20, NULL);
    sb_autofree char *groups = sb_read_at(AT_FDCWD, proc, 65536, NULL);
    const char *at = mounts != NULL ? v1_mount(mounts, controller, &root) : NULL;
    const char *in = groups != NULL ? v1_path(groups, controller) : NULL;
    if (at == NULL || in == NULL)
        return -1;
    size_t n = strlen(root);
    if (n > 1 && strncmp(in, root, n) == 0)
        in += n; /* only this part of the hierarchy is mounted */
    snprintf(path, sizeof path, "%s/%s", at, in);
    return sb_lift(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static int v1_make(enum sb_bound what, const char *name)
{
    if (mkdirat(have[what].top, name, 0755) < 0)
        return -1;
    return sb_lift(openat(have[what].top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static int v1_remove(enum sb_bound what, const char *name)
{
    return have[what].kind != V1 ? 0 : unlinkat(have[what].top, name, AT_REMOVEDIR);
}

static void v1_leave(enum sb_bound what)
{
    if (have[what].top >= 0)
        sb_cgroup_give_top(have[what].own, &have[what].top);
    sb_close(&have[what].own);
    have[what].kind = NONE;
}

static bool try_v1(enum sb_bound what)
{
    static const char probe[] = "probe";
    have[what].own = v1_group("/proc/self/cgroup", bound[what].controller);
    have[what].top = have[what].own < 0 ? -1 : sb_cgroup_take_top(have[what].own);
    sb_autofd int group = have[what].top < 0 ? -1 : v1_make(what, probe);
    bool works = group >= 0 && faccessat(group, bound[what].v1_limit, W_OK, 0) == 0 &&
                 faccessat(group, "cgroup.procs", W_OK, 0) == 0;
    if (have[what].top >= 0) {
        sb_cgroup_sweep_left(have[what].top); /* the probe and what earlier supervisors left */
        sb_cgroup_sweep_others(have[what].own);
        have[what].kind = V1;
    }
    if (!works)
        v1_leave(what);
    return works;
}

bool sb_limits_can(enum sb_bound what)
{
    if (have[what].kind == UNTRIED)
        have[what].kind = sup.mode != SB_MODE_ROOT                                       ? NONE
                          : sb_cgroup_control(bound[what].controller, bound[what].limit) ? V2
                          : try_v1(what)                                                 ? V1
                                                                                         : NONE;
    return have[what].kind != NONE;
}

static uint64_t asked(const struct sb_record *r, enum sb_bound what)
{
    return what == SB_BOUND_MEMORY ? r->limit_memory : r->limit_cpu;
}

int sb_limits_check(const struct sb_record *r, struct sb_failure *f)
{
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++)
        if (asked(r, i) != 0 && !sb_limits_can(i))
            return sb_failed(f, "Unsupported", 0, bound[i].what,
                             sup.mode == SB_MODE_ROOT
                                 ? "%s: there is no control group with a %s controller here"
                                 : "%s: only root has control groups with a %s controller",
                             bound[i].what, bound[i].controller);
    return 0;
}

/* ---- a sandbox's ---- */

static int put_number(int dir, const char *name, uint64_t value, const char *more)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%llu%s", (unsigned long long)value, more);
    sb_autofd int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, text, (size_t)n) < 0 ? -1 : 0;
}

/* Swap would be memory by another name: where it is counted there is none. */
static int set(enum sb_bound what, int dir, uint64_t value)
{
    bool v1 = have[what].kind == V1;
    if (what == SB_BOUND_CPU) {
        uint64_t quota = value * PERIOD_US / 1000;
        return v1 ? put_number(dir, "cpu.cfs_quota_us", quota, "")
                  : put_number(dir, "cpu.max", quota, " 100000");
    }
    if (put_number(dir, v1 ? bound[what].v1_limit : bound[what].limit, value, "") < 0)
        return -1;
    int rc = v1 ? put_number(dir, "memory.memsw.limit_in_bytes", value, "")
                : put_number(dir, "memory.swap.max", 0, "");
    return rc < 0 && errno != ENOENT && errno != EOPNOTSUPP ? -1 : 0;
}

static void nothing(struct sb_limits *l)
{
    *l = (struct sb_limits){.dir = {-1, -1}};
}

int sb_limits_make(struct sb_limits *l, const struct sb_record *r, const struct sb_cgroup *g,
                   struct sb_failure *f)
{
    nothing(l);
    if (sb_limits_check(r, f) < 0)
        return -1;
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++) {
        if (asked(r, i) == 0)
            continue;
        if (have[i].kind == V1 && l->name[0] == '\0') {
            uint64_t random;
            sb_random(&random, sizeof random);
            snprintf(l->name, sizeof l->name, "%016llx", (unsigned long long)random);
        }
        l->dir[i] =
            have[i].kind == V1 ? v1_make(i, l->name) : sb_lift(fcntl(g->dir, F_DUPFD_CLOEXEC, 0));
        if (l->dir[i] < 0 || set(i, l->dir[i], asked(r, i)) < 0) {
            sb_failed_errno(f, bound[i].what, "cannot be set");
            sb_limits_drop(l);
            return -1;
        }
    }
    return 0;
}

void sb_limits_open(struct sb_limits *l, const struct sb_record *r, const struct sb_cgroup *g)
{
    char proc[40];
    nothing(l);
    snprintf(proc, sizeof proc, "/proc/%lld/cgroup", (long long)r->pid1.pid);
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++) {
        if (asked(r, i) == 0 || !sb_limits_can(i))
            continue;
        if (have[i].kind == V2) {
            l->dir[i] = g->dir < 0 ? -1 : sb_lift(fcntl(g->dir, F_DUPFD_CLOEXEC, 0));
            continue;
        }
        sb_autofree char *groups = sb_read_at(AT_FDCWD, proc, 65536, NULL);
        const char *path = groups != NULL ? v1_path(groups, bound[i].controller) : NULL;
        const char *last = path != NULL ? strrchr(path, '/') : NULL;
        if (last == NULL || strlen(last + 1) >= sizeof l->name)
            continue;
        l->dir[i] = v1_group(proc, bound[i].controller);
        memcpy(l->name, last + 1, strlen(last));
    }
}

int sb_limits_hand(const struct sb_limits *l, int fd[SB_BOUNDS + 1], int *joins, int *oom)
{
    int n = 0;
    *oom = 0;
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++)
        if (l->dir[i] >= 0 && have[i].kind == V1)
            fd[n++] = openat(l->dir[i], "cgroup.procs", O_WRONLY | O_CLOEXEC);
    *joins = n;
    if (l->dir[SB_BOUND_MEMORY] >= 0) {
        const char *name =
            have[SB_BOUND_MEMORY].kind == V1 ? "memory.oom_control" : "memory.events";
        fd[n++] = openat(l->dir[SB_BOUND_MEMORY], name, O_RDONLY | O_CLOEXEC);
        *oom = 1;
    }
    for (int i = 0; i < n; i++)
        if (fd[i] < 0) {
            int err = errno;
            while (n-- > 0)
                sb_close(&fd[n]);
            errno = err;
            return -1;
        }
    return n;
}

static int64_t number_after(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = text; at != NULL && *at != '\0';
         at = strchr(at, '\n') != NULL ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && at[n] == ' ')
            return strtoll(at + n + 1, NULL, 10);
    return -1;
}

uint64_t sb_limits_killed(const struct sb_limits *l)
{
    int dir = l->dir[SB_BOUND_MEMORY];
    if (dir < 0)
        return 0;
    const char *name = have[SB_BOUND_MEMORY].kind == V1 ? "memory.oom_control" : "memory.events";
    sb_autofree char *text = sb_read_at(dir, name, 4096, NULL);
    int64_t n = number_after(text, "oom_kill");
    return n > 0 ? (uint64_t)n : 0;
}

int64_t sb_limits_memory(const struct sb_limits *l)
{
    const int dir = l->dir[SB_BOUND_MEMORY];
    const bool v1 = have[SB_BOUND_MEMORY].kind == V1;
    if (dir < 0)
        return -1;
    sb_autofree char *used =
        sb_read_at(dir, v1 ? "memory.usage_in_bytes" : "memory.current", 64, NULL);
    sb_autofree char *stat = sb_read_at(dir, "memory.stat", 65536, NULL);
    if (used == NULL)
        return -1;
    int64_t all = strtoll(used, NULL, 10);
    int64_t files = number_after(stat, v1 ? "total_inactive_file" : "inactive_file");
    return files > 0 && files < all ? all - files : all;
}

/* ---- their end ---- */

static bool remove_name(const char *name)
{
    bool gone = true;
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++)
        gone = (v1_remove(i, name) == 0 || errno == ENOENT) && gone;
    return gone;
}

void sb_limits_drop(struct sb_limits *l)
{
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++)
        sb_close(&l->dir[i]);
    if (l->name[0] != '\0' && !remove_name(l->name))
        sb_list_add(&dead, l->name,
                    strlen(l->name)); /* without memory: a later supervisor finds it */
    nothing(l);
}

bool sb_limits_unswept(void)
{
    return dead.len != 0;
}

void sb_limits_sweep(void)
{
    for (const char *name = NULL, *next = sb_list_next(&dead, NULL); (name = next) != NULL;) {
        if (remove_name(name)) {
            size_t at = (size_t)(name - dead.data);
            sb_list_remove(&dead, name);
            next = at < dead.len ? dead.data + at : NULL;
        } else {
            next = sb_list_next(&dead, name);
        }
    }
}

/* What killed supervisors left would stay until somebody asks for a limit: one that never did looks as well. */
void sb_limits_leave(void)
{
    sb_limits_sweep();
    for (enum sb_bound i = 0; i < SB_BOUNDS; i++) {
        if (have[i].kind == UNTRIED && sup.mode == SB_MODE_ROOT)
            have[i].own = v1_group("/proc/self/cgroup", bound[i].controller);
        if (have[i].own >= 0)
            sb_cgroup_sweep_others(have[i].own);
        v1_leave(i);
    }
}
