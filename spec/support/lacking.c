/* Runs a program on a machine that lacks something the engine needs. Root starts it.
 *
 *   lacking WHAT UID PROGRAM [ARGUMENT...]
 *
 * namespaces  user.max_user_namespaces is 0
 * filter      a filter forbids new namespaces, as that of a container does
 * old         fsopen and its kind are not there
 * proc        a part of /proc is covered, as in containers
 * container   root of a user namespace that has few ids
 * single      root of a user namespace that has one id and no say in groups
 * rights      root without CAP_SYS_ADMIN
 * cgroups     no control groups
 * groups      control groups that can only be read, as in containers
 * tun         no /dev/net/tun
 * flight      as many descriptors as the user may have are in flight between sockets
 * disk        the directory $LACKING_DISK can be read only
 * name        the user has a name of 64 characters, under which his subordinate ids are listed
 * mappers     the same, and newuidmap does not work
 *
 * named-WHAT  the same as both name and WHAT */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "lacking: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static void own_mounts(void)
{
    must(unshare(CLONE_NEWNS) == 0, "unshare");
    must(mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) == 0, "private");
}

/* A user namespace with the ids `from` and up shown as 0 and up. Somebody outside must write the map. */
static void own_ids(unsigned int from, unsigned int count, int more)
{
    int go[2], status;
    char path[64], map[64], c = 0;
    pid_t self = getpid(), helper;
    must(pipe(go) == 0, "pipe");
    helper = fork();
    if (helper == 0) {
        must(read(go[0], &c, 1) == 1, "read");
        snprintf(map, sizeof map, "0 %u %u", from, count);
        snprintf(path, sizeof path, "/proc/%d/uid_map", self);
        put(path, map);
        snprintf(path, sizeof path, "/proc/%d/gid_map", self);
        put(path, map);
        _exit(0);
    }
    must(unshare(CLONE_NEWUSER | more) == 0, "unshare");
    must(write(go[1], "g", 1) == 1 && waitpid(helper, &status, 0) == helper && status == 0, "maps");
    close(go[0]);
    close(go[1]);
    must(setgroups(0, NULL) == 0 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0, "ids");
}

/* What `unshare --map-root-user` gives. */
static void single_id(void)
{
    must(setgroups(0, NULL) == 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 0 1");
    put("/proc/self/gid_map", "0 0 1");
}

static void filter(const int *number, size_t n, unsigned int answer)
{
    struct sock_filter code[32];
    unsigned short at = 0;
    code[at++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < n; i++) {
        code[at++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number[i], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, code};
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0, "seccomp");
}

static void cover(const char *path)
{
    must(mount("none", path, "tmpfs", 0, NULL) == 0, path);
}

static void lay_over(const char *path, const char *text)
{
    char file[] = "/tmp/lacking.XXXXXX";
    int fd = mkstemp(file);
    must(fd >= 0, file);
    close(fd);
    put(file, text);
    must(chmod(file, 0644) == 0 && mount(file, path, NULL, MS_BIND, NULL) == 0, path);
    unlink(file);
}

static void read_only(const char *path)
{
    must(mount(path, path, NULL, MS_BIND | MS_REC, NULL) == 0 &&
             mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0,
         path);
}

static void read_only_tree(const char *path)
{
    struct {
        uint64_t set, clear, propagation, user;
    } attr = {.set = MS_RDONLY}; /* MOUNT_ATTR_RDONLY is the same bit */
    must(syscall(SYS_mount_setattr, AT_FDCWD, path, AT_RECURSIVE, &attr, sizeof attr) == 0, path);
}

static void long_name(unsigned int uid)
{
    char name[65], text[256];
    memset(name, 'n', 64);
    name[64] = '\0';
    snprintf(text, sizeof text, "root:x:0:0::/root:/bin/sh\n%s:x:%u:%u::/:/bin/sh\n", name, uid,
             uid);
    lay_over("/etc/passwd", text);
    snprintf(text, sizeof text, "%s:%u:65536\n", name, 500000000u);
    lay_over("/etc/subuid", text);
    lay_over("/etc/subgid", text);
}

/* The program gets both sockets, which keep them there. */
static void fill_flight(void)
{
    enum { FILES = 1024, PIECE = 250 };
    const struct rlimit few = {FILES, FILES};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(PIECE * sizeof(int))];
    } space = {.room = {0}};
    char byte = 'x';
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    int pair[2], fd[PIECE] = {0};
    ssize_t n;
    must(setrlimit(RLIMIT_NOFILE, &few) == 0, "files");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "sockets");
    space.head.cmsg_level = SOL_SOCKET;
    space.head.cmsg_type = SCM_RIGHTS;
    space.head.cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(&space.head), fd, sizeof fd);
    do
        n = sendmsg(pair[0], &m, MSG_DONTWAIT);
    while (n == 1);
    must(errno == ETOOMANYREFS, "send");
}

int main(int argc, char **argv)
{
    static const int namespaces[] = {SYS_unshare, SYS_setns},
                     new_mounts[] = {SYS_fsopen,    SYS_fsconfig,   SYS_fsmount,
                                     SYS_open_tree, SYS_move_mount, SYS_mount_setattr};
    unsigned int uid;
    int flight = 0, single = 0;
    const char *what = argv[1];
    must(argc > 3, "usage");
    uid = (unsigned int)strtoul(argv[2], NULL, 10);
    if (strncmp(what, "named-", 6) == 0) {
        own_mounts();
        long_name(uid);
        what += 6;
    }
    if (strcmp(what, "namespaces") == 0) {
        own_ids(0, 4294967295u, 0);
        put("/proc/sys/user/max_user_namespaces", "0");
    } else if (strcmp(what, "filter") == 0) {
        filter(namespaces, 2, EPERM);
    } else if (strcmp(what, "old") == 0) {
        filter(new_mounts, 6, ENOSYS);
    } else if (strcmp(what, "proc") == 0) {
        own_mounts();
        cover("/proc/sys/vm");
    } else if (strcmp(what, "mappers") == 0) {
        own_mounts();
        long_name(uid);
        must(mount("/dev/null", "/usr/bin/newuidmap", NULL, MS_BIND, NULL) == 0, "newuidmap");
    } else if (strcmp(what, "cgroups") == 0) {
        own_mounts();
        must(umount2("/sys/fs/cgroup", MNT_DETACH) == 0, "cgroup");
    } else if (strcmp(what, "groups") == 0) {
        own_mounts();
        read_only_tree("/sys/fs/cgroup");
    } else if (strcmp(what, "tun") == 0) {
        own_mounts();
        cover("/dev/net");
    } else if (strcmp(what, "container") == 0) {
        own_ids(500000000u, 65536, CLONE_NEWNS | CLONE_NEWCGROUP);
    } else if (strcmp(what, "single") == 0) {
        single_id();
        single = 1;
    } else if (strcmp(what, "rights") == 0) {
        must(prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) == 0, "bounding set");
    } else if (strcmp(what, "disk") == 0) {
        own_mounts();
        read_only(getenv("LACKING_DISK"));
    } else if (strcmp(what, "flight") == 0) {
        flight = 1;
    } else if (strcmp(what, "name") == 0) {
        own_mounts();
        long_name(uid);
    } else {
        errno = EINVAL;
        must(0, what);
    }
    must(single || setgroups(0, NULL) == 0, "groups");
    must(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "user");
    if (flight)
        fill_flight();
    execvp(argv[3], argv + 3);
    must(0, argv[3]);
}
