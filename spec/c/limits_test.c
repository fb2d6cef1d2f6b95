/* Limits by control groups of version 2, also where the machine's controllers belong to version 1: what is written and
 * read is files, so a directory with files of those names is a group; and of turning a controller on any will do. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/supervisor/fail.c"
#include "engine/supervisor/util.c"

#include "engine/supervisor/lacks.h"

/* check.h is the runtime's, whose loop is another. */
#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* What they call of others. */
struct sb_sup sup;
const char *sb_lacks(const char *step, int err, const char **kind)
{
    (void)step, (void)err, (void)kind;
    return NULL;
}

#include "engine/supervisor/cgroup.c"
#include "engine/supervisor/limits.c"

int sb_list_add(struct sb_list *l, const void *entry, size_t n)
{
    (void)l, (void)entry, (void)n;
    return 0;
}

const char *sb_list_next(const struct sb_list *l, const char *entry)
{
    (void)l, (void)entry;
    return NULL;
}

void sb_list_remove(struct sb_list *l, const char *entry)
{
    (void)l, (void)entry;
}

int sb_mounts_clone(int dir, int idmap)
{
    (void)dir, (void)idmap;
    errno = ENOSYS;
    return -1;
}

void sb_loop_close_later(int *fd)
{
    sb_close(fd);
}

static int group;

static void put_file(const char *name, const char *text)
{
    CHECK(sb_write_at(group, name, text, strlen(text), 0644) == 0);
}

static bool holds(const char *name, const char *text)
{
    size_t n = 0;
    char *found = sb_read_at(group, name, 4096, &n);
    bool same = found != NULL && strcmp(found, text) == 0;
    free(found);
    return same;
}

static void writes_what_version_two_wants(void)
{
    struct sb_record rec = {.limit_memory = 64u << 20, .limit_cpu = 1500};
    struct sb_cgroup g = {.dir = group};
    struct sb_limits l;
    struct sb_failure f;
    int fd[SB_BOUNDS + 1], joins, oom;
    have[SB_BOUND_MEMORY].kind = have[SB_BOUND_CPU].kind = V2;
    put_file("memory.max", "");
    put_file("memory.swap.max", "");
    put_file("cpu.max", "");
    put_file("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n");
    put_file("memory.current", "5000000\n");
    put_file("memory.stat",
             "anon 1000000\nfile 4000000\ninactive_anon 1\ninactive_file 3000000\nactive_file 9\n");
    CHECK(sb_limits_make(&l, &rec, &g, &f) == 0);
    CHECK(holds("memory.max", "67108864") && holds("memory.swap.max", "0"));
    CHECK(holds("cpu.max", "150000 100000"));
    CHECK(l.name[0] == '\0'); /* no group of its own, which somebody would have to remove */
    /* Pid 1 has nowhere to move to, and reads the file of the kills. */
    CHECK(sb_limits_hand(&l, fd, &joins, &oom) == 1 && joins == 0 && oom == 1);
    char text[32] = "";
    CHECK(pread(fd[0], text, sizeof text - 1, 0) > 0 && strncmp(text, "low 0", 5) == 0);
    close(fd[0]);
    CHECK(sb_limits_killed(&l) == 2);
    CHECK(sb_limits_memory(&l) == 2000000);
    sb_limits_drop(&l);
    CHECK(l.dir[0] == -1 && l.dir[1] == -1 && fcntl(group, F_GETFD) >= 0);

    /* A kernel that counts no swap has no such file; one without the limit's file has no limit. */
    CHECK(unlinkat(group, "memory.swap.max", 0) == 0);
    CHECK(sb_limits_make(&l, &rec, &g, &f) == 0);
    sb_limits_drop(&l);
    CHECK(unlinkat(group, "cpu.max", 0) == 0);
    CHECK(sb_limits_make(&l, &rec, &g, &f) < 0 && strcmp(f.step, "limits.cpus") == 0);

    /* One that an earlier supervisor started: the same group, found by its name. */
    rec.limit_cpu = 0;
    sb_limits_open(&l, &rec, &g);
    CHECK(l.dir[SB_BOUND_MEMORY] >= 0 && l.dir[SB_BOUND_CPU] == -1 && sb_limits_killed(&l) == 2);
    sb_limits_drop(&l);
}

static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; at != NULL && (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\n' || at[n] == '\0'))
            return true;
    return false;
}

/* The first controller that the machine has for version 2 and that has a file to look for; else it is said. */
static void turns_a_controller_on(void)
{
    static const struct {
        const char *controller, *file;
    } any[] = {{"memory", "memory.max"},
               {"cpu", "cpu.max"},
               {"pids", "pids.max"},
               {"hugetlb", "hugetlb.2MB.max"}};
    bool before = false;
    size_t i = 0;
    if (geteuid() != 0) {
        printf("  skip  turning a controller on: only root can\n");
        return;
    }
    snprintf(sup.top_name, sizeof sup.top_name, "sandbar-%016llx", (unsigned long long)getpid());
    sb_cgroup_start();
    char *have_here = cg.root < 0 ? NULL : sb_read_at(cg.root, "cgroup.controllers", 4096, NULL);
    for (; have_here != NULL && i < sizeof any / sizeof *any; i++)
        if (has_word(have_here, any[i].controller))
            break;
    for (enum sb_bound what = 0; what < SB_BOUNDS; what++)
        if (!has_word(have_here, bound[what].controller))
            printf("  skip  %s as the kernel enforces it: the machine's %s controller is none of "
                   "version 2\n",
                   bound[what].limit, bound[what].controller);
    if (have_here == NULL || i == sizeof any / sizeof *any) {
        printf("  skip  turning a controller on: version 2 has none here\n");
    } else {
        char *on = sb_read_at(cg.root, "cgroup.subtree_control", 4096, NULL);
        before = has_word(on, any[i].controller);
        free(on);
        CHECK(sb_cgroup_control(any[i].controller, any[i].file));
        CHECK(sb_cgroup_control(any[i].controller, any[i].file)); /* also when it is on */
        CHECK(!sb_cgroup_control("nosuch", "nosuch.max"));
        CHECK(!sb_cgroup_control(any[i].controller, "nosuch.max"));
        /* A sandbox's group has the file then, and is no obstacle to anything. */
        struct sb_cgroup g;
        CHECK(sb_cgroup_make(&g, 1234) == 0);
        CHECK(faccessat(g.dir, any[i].file, W_OK, 0) == 0);
        sb_cgroup_handed(&g);
        sb_cgroup_remove(&g);
    }
    const int root = cg.root < 0 ? -1 : fcntl(cg.root, F_DUPFD_CLOEXEC, 0);
    sb_cgroup_leave();
    if (have_here != NULL && i < sizeof any / sizeof *any && !before) {
        char word[32];
        snprintf(word, sizeof word, "-%s", any[i].controller);
        put_at(root, "cgroup.subtree_control", word);
    }
    free(have_here);
    close(root);
}

int main(void)
{
    char path[] = "/tmp/sandbar-limits.XXXXXX", line[64];
    CHECK(mkdtemp(path) != NULL);
    group = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(group >= 0);
    writes_what_version_two_wants();
    turns_a_controller_on();
    snprintf(line, sizeof line, "rm -rf %s", path);
    CHECK(system(line) == 0);
    return 0;
}
