/* The namespace S of an ordinary user's supervisor: a user namespace in which he is 0, with his
 * sub-ids from 1 up where the machine gives him any, and a mount namespace.
 *
 * All living sandboxes of a state root are below one S. From another S nothing of theirs could be
 * signalled or entered, so a successor finds S as the grandparent of a living sandbox's namespace. */
#include "rootless.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "record.h"

enum { SUB_WANTED = 65536, SUB_LEAST = 3, MAPPER_MS = 5000 };

/* One line "<name or uid>:<first>:<count>" of /etc/subuid or /etc/subgid, the first that is ours. */
static bool find_sub(const char *path, const char *name, uid_t uid, uint32_t *first,
                     uint32_t *count)
{
    sb_autofree char *text = sb_read_at(AT_FDCWD, path, 1 << 20, NULL);
    char number[16], *save = NULL;
    snprintf(number, sizeof number, "%u", uid);
    for (char *line = text != NULL ? strtok_r(text, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *colon = strchr(line, ':'), *end;
        if (colon == NULL)
            continue;
        *colon = '\0';
        if (strcmp(line, name) != 0 && strcmp(line, number) != 0)
            continue;
        *first = (uint32_t)strtoul(colon + 1, &end, 10);
        if (*end != ':')
            continue;
        *count = (uint32_t)strtoul(end + 1, NULL, 10);
        return *count >= SUB_LEAST;
    }
    return false;
}

static void own_name(uid_t uid, char *name, size_t size)
{
    sb_autofree char *text = sb_read_at(AT_FDCWD, "/etc/passwd", 4 << 20, NULL);
    char *save = NULL;
    *name = '\0';
    for (char *line = text != NULL ? strtok_r(text, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *first = strchr(line, ':'), *second = first != NULL ? strchr(first + 1, ':') : NULL;
        if (second != NULL && strtoul(second + 1, NULL, 10) == uid) {
            *first = '\0';
            snprintf(name, size, "%s", line);
            return;
        }
    }
}

static int run_mapper(const char *program, pid_t pid, uint32_t self, uint32_t first, uint32_t count)
{
    char text[4][16];
    snprintf(text[0], 16, "%d", (int)pid);
    snprintf(text[1], 16, "%u", self);
    snprintf(text[2], 16, "%u", first);
    snprintf(text[3], 16, "%u", count);
    pid_t child = fork();
    if (child == 0) {
        char zero[] = "0", one[] = "1", unit[] = "1", name[16];
        snprintf(name, sizeof name, "%s", program);
        char *argv[] = {name, text[0], zero, text[1], unit, one, text[2], text[3], NULL};
        execvp(program, argv);
        _exit(127);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* The helper that stays outside: only the set-uid programs may give a user more than one id, and only
 * from where he still is himself. It waits for our unshare, maps, and says how it went. */
static void mapper(int from, int to, pid_t target, uint32_t count)
{
    char c = 0;
    if (read(from, &c, 1) == 1 &&
        run_mapper("newuidmap", target, getuid(), sup.sub_uid, count) == 0 &&
        run_mapper("newgidmap", target, getgid(), sup.sub_gid, count) == 0)
        c = 'y';
    else
        c = 'n';
    (void)!write(to, &c, 1);
    _exit(0);
}

static int map_single(uid_t uid, gid_t gid)
{
    char text[48];
    int rc = sb_put("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1\n", uid);
    if (rc == 0)
        rc = sb_put("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "0 %u 1\n", gid);
    if (rc == 0)
        rc = sb_put("/proc/self/gid_map", text);
    return rc;
}

static int settle_inside(struct sb_failure *f)
{
    if (sup.mode == SB_MODE_SUBIDS && setgroups(0, NULL) < 0)
        return sb_failed_errno(f, "groups", "cannot drop supplementary groups");
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return sb_failed_errno(f, "ids", "cannot become root of the own namespace");
    if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
        return sb_failed_errno(f, "mounts", "cannot make mounts private");
    prctl(PR_SET_DUMPABLE, 0);
    return 0;
}

static int refuse(struct sb_failure *f, int err, const char *step)
{
    return sb_failed(f, "Unsupported", err, step,
                     "this machine does not let an ordinary user make namespaces (%s)",
                     strerror(err));
}

static int make_fresh(struct sb_failure *f)
{
    char name[256];
    uint32_t ucount = 0, gcount = 0;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    own_name(uid, name, sizeof name);
    bool sub = find_sub("/etc/subuid", name, uid, &sup.sub_uid, &ucount) &&
               find_sub("/etc/subgid", name, uid, &sup.sub_gid, &gcount);
    sup.sub_count = !sub ? 0 : ucount < gcount ? ucount : gcount;
    if (sup.sub_count > SUB_WANTED)
        sup.sub_count = SUB_WANTED;

    int go[2] = {-1, -1}, done[2] = {-1, -1};
    pid_t self = getpid(), helper = -1;
    if (sub && pipe2(go, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0)
        helper = fork();
    if (helper == 0) {
        /* Or what says that there is nothing to map, the end of the pipe, never comes. */
        sb_close(&go[1]);
        sb_close(&done[0]);
        mapper(go[0], done[1], self, sup.sub_count);
    }
    sb_close(&go[0]);
    sb_close(&done[1]);
    /* The map programs and the map files look at who owns our /proc directory. */
    prctl(PR_SET_DUMPABLE, 1);
    char answer = 'n';
    int rc = unshare(CLONE_NEWUSER | CLONE_NEWNS), err = errno;
    if (rc == 0 && helper > 0) {
        struct pollfd p = {done[0], POLLIN, 0};
        if (write(go[1], "g", 1) != 1 || poll(&p, 1, MAPPER_MS) != 1 ||
            read(done[0], &answer, 1) != 1)
            answer = 'n';
    }
    sb_close(&go[1]);
    sb_close(&done[0]);
    if (helper > 0)
        waitpid(helper, NULL, 0);
    if (rc < 0)
        return refuse(f, err, "user-namespace");
    if (answer == 'y') {
        sup.mode = SB_MODE_SUBIDS;
    } else {
        sup.mode = SB_MODE_SINGLE;
        sup.sub_uid = sup.sub_gid = sup.sub_count = 0;
        rc = map_single(uid, gid);
        if (rc < 0)
            return refuse(f, -rc, "id-map");
    }
    return settle_inside(f);
}

/* What an existing S maps, read from inside: "0 <uid> 1" and "1 <first> <count>". */
static void read_maps(void)
{
    static const char *const file[2] = {"/proc/self/uid_map", "/proc/self/gid_map"};
    uint32_t *const first[2] = {&sup.sub_uid, &sup.sub_gid};
    sup.mode = SB_MODE_SINGLE;
    sup.sub_count = 0;
    for (int i = 0; i < 2; i++) {
        sb_autofree char *text = sb_read_at(AT_FDCWD, file[i], 4096, NULL);
        char *second = text != NULL ? strchr(text, '\n') : NULL;
        unsigned int inside, outside, count;
        if (second == NULL || sscanf(second, "%u %u %u", &inside, &outside, &count) != 3 ||
            inside != 1)
            continue;
        *first[i] = outside;
        sup.sub_count = count;
        sup.mode = SB_MODE_SUBIDS;
    }
}

/* Of the user namespace of the sandbox's pid 1, if that lives. */
static int grandparent(int dir, const char *id)
{
    struct sb_record r;
    int64_t pid = 0;
    /* The newest first: a half-made one must be reached as well, to be killed. */
    sb_autofd int pidfd = sb_note_open(dir, &pid);
    if (pidfd < 0 && sb_record_read(&r, dir, id) == 0) {
        if (strcmp(r.host_boot, sup.host_boot) == 0)
            pidfd = sb_ident_open(&r.pid1);
        pid = r.pid1.pid;
        sb_record_free(&r);
    }
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    sb_autofd int inner = pidfd < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    /* It lives still (EPERM), so the number was its own when the name was opened. */
    if (inner >= 0 && pidfd_send_signal(pidfd, 0, NULL, 0) < 0 && errno == ESRCH)
        return -1;
    sb_autofd int outer = inner < 0 ? -1 : ioctl(inner, NS_GET_PARENT);
    return outer < 0 ? -1 : ioctl(outer, NS_GET_PARENT);
}

static int search(int where)
{
    int copy = openat(where, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    int found = -1;
    if (d == NULL) {
        sb_close(&copy);
        return -1;
    }
    for (struct dirent *e; found < 0 && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        sb_autofd int dir = openat(where, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0)
            found = grandparent(dir, e->d_name);
    }
    closedir(d);
    return found;
}

/* S, from any living pid 1 of this state root, also of spares; -1 when none lives. */
static int find_living(void)
{
    int found = search(sup.boxes);
    return found >= 0 ? found : search(sup.prepared);
}

/* In the single-id form they cannot be dropped: what they may, sandboxes may. It is told. */
static void note_groups(void)
{
    static gid_t group[NGROUPS_MAX];
    int n = getgroups(NGROUPS_MAX, group);
    size_t at = 0;
    for (int i = 0; i < n && at + 16 < sizeof sup.groups; i++)
        if (group[i] != getegid())
            at += (size_t)snprintf(sup.groups + at, sizeof sup.groups - at, "%s%u",
                                   at > 0 ? "," : "", group[i]);
}

int sb_rootless_enter(struct sb_failure *f)
{
    note_groups();
    sb_autofd int living = find_living();
    if (living < 0)
        return make_fresh(f);
    if (setns(living, CLONE_NEWUSER) < 0)
        return sb_failed_errno(f, "namespace", "cannot enter the living sandboxes' namespace");
    if (unshare(CLONE_NEWNS) < 0)
        return sb_failed_errno(f, "mounts", "cannot make a mount namespace");
    read_maps();
    return settle_inside(f);
}
