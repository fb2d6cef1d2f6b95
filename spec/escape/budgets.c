/* What is counted for somebody and could be used up: for the sandbox itself, for others on the machine. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fork_bomb(const char *arg)
{
    long limit = arg != NULL ? strtol(arg, NULL, 10) : 1024, made = 0;
    int gate[2];
    if (pipe(gate) != 0)
        cannot("pipe");
    while (made < limit + 100) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0) {
            char c;
            close(gate[1]);
            (void)!read(gate[0], &c, 1);
            _exit(0);
        }
        made++;
    }
    printf("%ld processes were made, then %s\n", made, strerror(errno));
    if (made > limit)
        worked("no bound at %ld", limit);
    close(gate[1]);
    while (wait(NULL) > 0)
        continue;
}

static void *idle_thread(void *arg)
{
    char c;
    (void)!read(*(int *)arg, &c, 1);
    return NULL;
}

static void thread_bomb(const char *arg)
{
    long limit = arg != NULL ? strtol(arg, NULL, 10) : 1024, made = 0;
    pthread_attr_t small;
    int gate[2];
    if (pipe(gate) != 0)
        cannot("pipe");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    while (made < limit + 100) {
        pthread_t t;
        if (pthread_create(&t, &small, idle_thread, &gate[0]) != 0)
            break;
        made++;
    }
    printf("%ld threads were made\n", made);
    if (made > limit)
        worked("no bound at %ld", limit);
}

/* Opens only: in a room the groups are the machine's own. */
static void groups(const char *arg)
{
    static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};
    char path[64];
    (void)arg;
    attack(PLAIN | ROOT, "the host's groups", open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY));
    attack(PLAIN | ROOT, "a group namespace", unshare(CLONE_NEWCGROUP));
    mkdir("/tmp/groups", 0755);
    attack(PLAIN | ROOT, "mount the groups", mount("none", "/tmp/groups", "cgroup2", 0, NULL));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/tmp/groups/%s", files[i]);
        attack(ROOT, path, open(path, O_WRONLY));
    }
    attack(0, "the old kind with memory", mount("none", "/tmp/groups", "cgroup", 0, "memory"));
    attack(0, "the old kind with cpu", mount("none", "/tmp/groups", "cgroup", 0, "cpu"));
}

static void inotify_hoard(const char *arg)
{
    long budget = arg != NULL ? strtol(arg, NULL, 10) : 64, made = 0;
    while (made <= budget && inotify_init1(IN_CLOEXEC) >= 0)
        made++;
    printf("%ld inotify instances, then %s\n", made, strerror(errno));
    if (made > budget)
        worked("more than %ld inotify instances", budget);
}

/* Limits that were set at birth cannot be raised again. In a room our own were lowered a moment before; nobody gets
 * them back without a right over the machine. */
static void limits_up(const char *arg)
{
    static const struct {
        const char *what;
        int which;
        rlim_t most;
    } each[] = {{"processes", RLIMIT_NPROC, 1 << 20},
                {"core dumps", RLIMIT_CORE, 1},
                {"locked memory", RLIMIT_MEMLOCK, 8 << 20},
                {"message queues", RLIMIT_MSGQUEUE, 819200},
                {"real time", RLIMIT_RTPRIO, 0},
                {"nice", RLIMIT_NICE, 0},
                {"signals", RLIMIT_SIGPENDING, 4096}};
    struct sched_param fifo = {.sched_priority = 1};
    struct rlimit now;
    (void)arg;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        if (getrlimit((__rlimit_resource_t)each[i].which, &now) != 0)
            cannot("getrlimit");
        printf("%s: %llu %llu\n", each[i].what, (unsigned long long)now.rlim_cur,
               (unsigned long long)now.rlim_max);
        if (now.rlim_max > each[i].most)
            worked("%s are limited to %llu", each[i].what, (unsigned long long)now.rlim_max);
        now.rlim_cur = now.rlim_max = now.rlim_max + 1;
        if (each[i].which != RLIMIT_CORE)
            attack(0, each[i].what, setrlimit((__rlimit_resource_t)each[i].which, &now));
    }
    /* Lowered to 0 it would be a host's crash handler again that a crash here starts. */
    now.rlim_cur = now.rlim_max = 0;
    setrlimit(RLIMIT_CORE, &now);
    syscall(SYS_prlimit64, 0, RLIMIT_CORE, &now, NULL);
    syscall(SYS_prlimit64, 0x700000000, 0x500000000 | RLIMIT_CORE, &now, &now);
    if (getrlimit(RLIMIT_CORE, &now) == 0 && now.rlim_max != 1)
        worked("the limit on core dumps is %llu", (unsigned long long)now.rlim_max);
    if (room != INSIDE)
        return; /* root may, and should not do it to others */
    attack(0, "a real-time policy", sched_setscheduler(0, SCHED_FIFO, &fifo));
    attack(0, "a better nice", setpriority(PRIO_PROCESS, 0, -10));
    attack(0, "a real-time disk priority", syscall(SYS_ioprio_set, 1, 0, 1 << 13));
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    attack(0, "safety from the out-of-memory killer", write(fd, "-1000", 5) == 5 ? 0 : -1);
    close(fd);
}

/* Holds all it can get of everything, says so, and keeps it until its input ends. */
static void hoard(const char *arg)
{
    struct mq_attr many = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    struct rlimit files;
    long pipes = 0, sockets = 0, queues = 0, watches = 0;
    int gate = dup(0), ends[2];
    char name[32], c;
    (void)arg;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    while (watches < 1000 && inotify_init1(IN_CLOEXEC) >= 0)
        watches++;
    while (queues < 1000) {
        snprintf(name, sizeof name, "/q%ld", queues);
        if (mq_open(name, O_CREAT | O_RDWR, 0600, &many) < 0)
            break;
        queues++;
    }
    while (pipes < 500 && pipe(ends) == 0) {
        fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
        pipes++;
    }
    while (sockets < 20000 && socket(AF_INET, SOCK_DGRAM, 0) >= 0)
        sockets++;
    printf("%ld pipes, %ld sockets, %ld queues, %ld inotify instances\nheld\n", pipes, sockets,
           queues, watches);
    fflush(stdout);
    alarm(0);
    (void)!read(gate, &c, 1);
}

const struct probe budget_probes[] = {
    {"fork_bomb", HOST, fork_bomb},
    {"thread_bomb", HOST, thread_bomb},
    {"inotify_hoard", HOST, inotify_hoard},
    {"groups", PLAIN | ROOT, groups},
    {"limits_up", HOST, limits_up},
    {"hoard", 0, hoard}, /* the spec looks at a sandbox beside it */
    {NULL, 0, NULL}};
