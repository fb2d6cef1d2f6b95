/* The rooms in which the attacks are shown to work. Nothing done in one is seen outside: mounts, processes, network and
 * /tmp are its own. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        cannot(path);
    close(fd);
}

static void map_ids(unsigned int uid, unsigned int gid)
{
    char text[32];
    put("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1", uid);
    put("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "0 %u 1", gid);
    put("/proc/self/gid_map", text);
}

void enter_room(int which)
{
    unsigned int uid = geteuid(), gid = getegid();
    int status, flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    pid_t pid;
    room = which;
    if (which == HOST)
        return;
    if (which == ROOT && uid != 0)
        cannot("only root");
    if (unshare(flags | (which == PLAIN ? CLONE_NEWUSER : 0)) != 0)
        cannot("no namespaces here");
    if (which == PLAIN)
        map_ids(uid, gid);
    pid = fork();
    if (pid !=
        0) { /* outside of the new process namespace, where nothing can be started any more */
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
    }
    if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) != 0 ||
        mount("none", "/tmp", "tmpfs", 0, NULL) != 0 ||
        mount("none", "/proc", "proc", 0, NULL) != 0 || chdir("/tmp") != 0)
        cannot("mounts");
}
