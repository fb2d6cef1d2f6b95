/* The trash: directories are renamed into it and emptied by a process of its own, niced, that dies
 * with nothing lost: the next supervisor finds what is left.
 *
 * Trees of any depth are removed with bounded recursion and descriptors: what lies too deep is renamed
 * up into the trash itself and gets its turn later. */
#include "trash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "birth.h"
#include "job.h"
#include "loop.h"

/* Wait this long after the last put, so that the fork does not fall into somebody's create; but only so
 * long after the first, since there may be no quiet moment. */
enum { QUIET_MS = 100, PATIENCE_MS = 2000, LAST_MS = 3000 };

static struct {
    bool some;
    int64_t first_ms, due_ms;
    struct sb_source worker;
} trash = {.some = true, .worker = {.fd = -1}};

static void fresh_name(char *out, size_t size)
{
    uint64_t r;
    sb_random(&r, sizeof r);
    snprintf(out, size, "%016llx", (unsigned long long)r);
}

int sb_trash_put(int dir, const char *name)
{
    char fresh[20];
    fresh_name(fresh, sizeof fresh);
    if (renameat(dir, name, sup.trash, fresh) < 0)
        return -1;
    int64_t now = sb_real_ms();
    if (!trash.some)
        trash.first_ms = now;
    trash.some = true;
    trash.due_ms = now + QUIET_MS;
    if (trash.due_ms > trash.first_ms + PATIENCE_MS)
        trash.due_ms = trash.first_ms + PATIENCE_MS;
    return 0;
}

bool sb_trash_wanted(void)
{
    return trash.some && trash.worker.fd < 0 && sb_real_ms() >= trash.due_ms;
}

bool sb_trash_busy(void)
{
    return trash.some || trash.worker.fd >= 0;
}

void sb_trash_finish(void)
{
    sb_trash_start();
    struct pollfd p = {trash.worker.fd, POLLIN, 0};
    poll(&p, 1, LAST_MS);
}

int64_t sb_trash_due_ms(void)
{
    return trash.some && trash.worker.fd < 0 ? trash.due_ms : INT64_MAX;
}

enum { DEPTH_MAX = 256 };

static int open_dir(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
        fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd;
}

/* Removes parent/name with everything below it; what lies too deep moves up into the trash. Whether
 * anything went or moved. */
static bool remove_entry(int top, int parent, const char *name, bool is_dir, int depth)
{
    if (!is_dir && unlinkat(parent, name, 0) == 0)
        return true;
    if (depth == DEPTH_MAX) {
        char fresh[20];
        fresh_name(fresh, sizeof fresh);
        int rc = renameat(parent, name, top, fresh);
        /* A move writes "..", which wants the right to write. */
        if (rc < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
            rc = renameat(parent, name, top, fresh);
        return rc == 0;
    }
    bool progress = false;
    int fd = open_dir(parent, name);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        sb_close(&fd);
        return false;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            progress = remove_entry(top, fd, e->d_name, e->d_type == DT_DIR, depth + 1) || progress;
    closedir(d);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || progress;
}

static void empty_all(int top)
{
    bool progress = true;
    while (progress) {
        progress = false;
        int copy = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = copy < 0 ? NULL : fdopendir(copy);
        if (d == NULL) {
            sb_close(&copy);
            return;
        }
        for (struct dirent *e; (e = readdir(d)) != NULL;)
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                progress = remove_entry(top, top, e->d_name, e->d_type == DT_DIR, 0) || progress;
        closedir(d);
    }
}

static void worker_ready(struct sb_source *src, uint32_t events)
{
    (void)events;
    sb_job_end(src, NULL);
}

void sb_trash_start(void)
{
    trash.some = false;
    pid_t pid = fork();
    if (pid == 0) {
        /* Every other descriptor would keep sockets and locks alive. */
        if (dup2(sup.trash, 3) == 3 && close_range(4, ~0U, 0) == 0) {
            setpriority(PRIO_PROCESS, 0, 5);
            syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
            empty_all(3);
        }
        _exit(0);
    }
    if (sb_job_watch(&trash.worker, pid, worker_ready) < 0) {
        trash.some = true;
        trash.first_ms = sb_real_ms();
        trash.due_ms = trash.first_ms + 1000;
    }
}
