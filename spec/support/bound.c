/* bound LIMIT GRACE COMMAND...: runs one suite inside walls.
 *
 * The command gets LIMIT seconds. Whatever it started and orphaned comes back to this process (it is a
 * child subreaper), so when the command has ended, every descendant that is still there after GRACE
 * seconds was left over: it is named, killed and makes the suite fail.
 * Told to end (SIGINT, SIGTERM), it kills them all and ends.
 * Exit status: the command's; 124 it ran out of time; 125 it ended well but left processes behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_PIDS 32768

struct process {
    pid_t pid, parent;
    int ours;
};

static struct process table[MAX_PIDS];
static int table_len;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Parent and state from /proc/<pid>/stat; the name in the middle may hold anything but ends in the last ')'. */
static int read_stat(pid_t pid, pid_t *parent, char *state)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    char *tail = strrchr(text, ')');
    int ppid;
    if (!tail || sscanf(tail + 1, " %c %d", state, &ppid) != 2)
        return -1;
    *parent = ppid;
    return 0;
}

/* Fills the table with our living descendants (zombies are not left over, they are only unread). */
static int descendants(void)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return 0;
    table_len = 0;
    for (struct dirent *entry; table_len < MAX_PIDS && (entry = readdir(proc));) {
        char *end, state;
        long pid = strtol(entry->d_name, &end, 10);
        struct process *p = &table[table_len];
        if (*end || pid <= 0 || read_stat((pid_t)pid, &p->parent, &state) < 0)
            continue;
        p->pid = (pid_t)pid;
        p->ours = state == 'Z' ? -1 : 0;
        table_len++;
    }
    closedir(proc);
    int found = 0;
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = 0; i < table_len; i++) {
            if (table[i].ours)
                continue;
            int child = table[i].parent == getpid();
            for (int j = 0; !child && j < table_len; j++)
                child = table[j].ours == 1 && table[j].pid == table[i].parent;
            if (child) {
                table[i].ours = changed = 1;
                found++;
            }
        }
    }
    return found;
}

static void describe(pid_t pid)
{
    char path[64], text[400];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ')
            text[i] = ' ';
    text[n > 0 ? n : 0] = '\0';
    fprintf(stderr, "left over: process %d: %s\n", (int)pid, text);
}

static void kill_descendants(void)
{
    for (int round = 0; round < 200 && descendants() > 0; round++) {
        for (int i = 0; i < table_len; i++)
            if (table[i].ours == 1)
                kill(table[i].pid, SIGKILL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static sigset_t awaited(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

/* Waits for any child to change or for `seconds`, and reaps; returns 1 once `child` has ended. Does not return when
 * this process is told to end. */
static int reap(pid_t child, int *status, double seconds)
{
    sigset_t set = awaited();
    struct timespec wait = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    int sig = sigtimedwait(&set, NULL, &wait);
    if (sig == SIGINT || sig == SIGTERM) {
        kill_descendants();
        _exit(128 + sig);
    }
    int ended = 0, st;
    for (pid_t pid; (pid = waitpid(-1, &st, WNOHANG)) > 0;)
        if (pid == child) {
            *status = st;
            ended = 1;
        }
    return ended;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bound LIMIT GRACE COMMAND...\n");
        return 126;
    }
    double limit = strtod(argv[1], NULL), grace = strtod(argv[2], NULL);
    sigset_t set = awaited();
    sigprocmask(SIG_BLOCK, &set, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    pid_t child = fork();
    if (child < 0) {
        perror("bound: fork");
        return 126;
    }
    if (child == 0) {
        setpgid(0, 0);
        /* The same for every suite, however check was started: nothing ignored, nothing blocked. */
        static const unsigned long
            by_default[4]; /* posix_spawn leaves 32 and 33 ignored, out of signal()'s reach */
        for (int sig = 1; sig <= 64; sig++)
            syscall(SYS_rt_sigaction, sig, by_default, NULL, 8);
        sigemptyset(&set);
        sigprocmask(SIG_SETMASK, &set, NULL);
        execvp(argv[3], argv + 3);
        fprintf(stderr, "bound: %s: %s\n", argv[3], strerror(errno));
        _exit(127);
    }

    int status = 0, ended = 0;
    double end = now() + limit;
    while (!(ended = reap(child, &status, end - now() > 0 ? end - now() : 0)) && now() < end)
        ;
    if (!ended) {
        fprintf(stderr, "out of time: %g s were not enough\n", limit);
        descendants();
        for (int i = 0; i < table_len; i++)
            if (table[i].ours == 1)
                describe(table[i].pid);
        kill_descendants();
        return 124;
    }

    for (end = now() + grace; descendants() > 0 && now() < end;)
        reap(0, &status, 0.02);
    int left = descendants();
    for (int i = 0; i < table_len; i++)
        if (table[i].ours == 1)
            describe(table[i].pid);
    kill_descendants();
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "ended by signal %d\n", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status) ? WEXITSTATUS(status) : left ? 125 : 0;
}
