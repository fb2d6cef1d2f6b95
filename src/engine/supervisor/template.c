/* The base template: a small skeleton directory under the state root, with the host's /usr (and,
 * where the host is not merged, its /bin and so on) mounted into it. Nothing of the host's /etc is
 * copied but what programs need and what tells nothing about the host's users or secrets. */
#include "template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy.h"
#include "slot.h"
#include "trash.h"

enum { SKELETON_VERSION = 1 };

struct sb_template sb_base = {.dir = -1};
const char *sb_base_tree[SB_TREES_MAX];
int sb_base_trees;

static const char *const unmerged[] = {"bin", "sbin", "lib", "lib64", "lib32", "libx32"};

/* Of the host's /etc, where present. */
static const char *const copied[] = {
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ssl/cert.pem",
    "ca-certificates",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "crypto-policies",
    "mime.types",
    "localtime",
    "protocols",
    "services",
    "rpc",
    "os-release",
    "debian_version",
    "shells",
    "terminfo",
    "inputrc",
    "fonts",
    "perl",
    "python3",
    "lua",
    "gai.conf",
    "host.conf",
    "magic",
};

static const struct {
    const char *name;
    mode_t mode;
    uint32_t id;
} directory[] = {
    {"etc", 0755, 0},
    {"etc/ssl", 0755, 0},
    {"etc/pki", 0755, 0},
    {"etc/pki/tls", 0755, 0},
    {"etc/pki/ca-trust", 0755, 0},
    {"home", 0755, 0},
    {"home/user", 0755, 1000},
    {"root", 0700, 0},
    {"tmp", 01777, 0},
    {"var", 0755, 0},
    {"var/tmp", 01777, 0},
    {"var/cache", 0755, 0},
    {"var/lib", 0755, 0},
    {"var/log", 0755, 0},
    {"var/spool", 0755, 0},
    {"var/mail", 0755, 0},
    {"run", 0755, 0},
    {"run/lock", 01777, 0},
    {"proc", 0555, 0},
    {"dev", 0755, 0},
    {"sys", 0555, 0},
    {"usr", 0755, 0},
    {"opt", 0755, 0},
    {"srv", 0755, 0},
    {"mnt", 0755, 0},
    {"media", 0755, 0},
};

static const struct {
    const char *name, *text;
} file[] = {
    {"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"
                   "user:x:1000:1000:user:/home/user:/bin/sh\n"
                   "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
    {"etc/group", "root:x:0:\ntty:x:5:\nmail:x:8:\nshadow:x:42:\nutmp:x:43:\nstaff:x:50:\n"
                  "users:x:100:\nuser:x:1000:\nnogroup:x:65534:\n"},
    {"etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n"},
    {"etc/hostname", "sandbox\n"},
    {"etc/resolv.conf", "nameserver 192.0.0.1\n"}, /* SB_NET_RESOLVER4 */
    {"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"
                          "networks: files\nprotocols: files\nservices: files\nrpc: files\n"},
    {"etc/profile", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                    "export PATH\n[ \"$(id -u)\" = 0 ] && PS1='# ' || PS1='$ '\n"},
    {"etc/fstab", ""},
    {"var/log/lastlog", ""},
};

static uint32_t disk_id(uint32_t inside)
{
    return sb_slot_disk_id(inside);
}

/* 0 also when ids cannot be given away (single-id form): everything is the one id then. */
static int give(int dir, const char *name, uint32_t inside)
{
    if (sup.mode == SB_MODE_SINGLE)
        return 0;
    return fchownat(dir, name, disk_id(inside), disk_id(inside), AT_SYMLINK_NOFOLLOW);
}

static int link_to(const char *target, int dir, const char *name)
{
    return symlinkat(target, dir, name) < 0 ? -1 : give(dir, name, 0);
}

static int build_skeleton(int dir, struct sb_failure *f)
{
    for (size_t i = 0; i < sizeof directory / sizeof *directory; i++)
        if (mkdirat(dir, directory[i].name, 0700) < 0 ||
            give(dir, directory[i].name, directory[i].id) < 0 ||
            fchmodat(dir, directory[i].name, directory[i].mode, 0) < 0)
            return sb_failed(f, NULL, errno, "base template", "/%s", directory[i].name);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (sb_write_at(dir, file[i].name, file[i].text, strlen(file[i].text), 0644) < 0 ||
            give(dir, file[i].name, 0) < 0 || fchmodat(dir, file[i].name, 0644, 0) < 0)
            return sb_failed(f, NULL, errno, "base template", "/%s", file[i].name);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "/etc/%s", copied[i]);
        snprintf(to, sizeof to, "etc/%s", copied[i]);
        if (sb_copy_tree(AT_FDCWD, from, dir, to, disk_id(0)) < 0)
            return sb_failed(f, NULL, errno, "base template", "%s", from);
    }
    if (link_to("/run", dir, "var/run") < 0 || link_to("/run/lock", dir, "var/lock") < 0 ||
        link_to("/proc/mounts", dir, "etc/mtab") < 0)
        return sb_failed_errno(f, "base template", "links");
    for (size_t i = 0; i < sizeof unmerged / sizeof *unmerged; i++) {
        char host[16], target[256];
        snprintf(host, sizeof host, "/%s", unmerged[i]);
        ssize_t n = readlink(host, target, sizeof target - 1);
        struct stat st;
        if (n > 0) {
            target[n] = '\0';
            n = link_to(target, dir, unmerged[i]);
        } else if (stat(host, &st) == 0) {
            n = mkdirat(dir, unmerged[i], 0755);
        }
        if (n < 0 && errno != EINVAL && errno != ENOENT)
            return sb_failed(f, NULL, errno, "base template", "%s", host);
    }
    /* Programs read it before anything else: the host's is for the host's library directories. */
    return give(dir, ".", 0) < 0 || fchmod(dir, 0755) < 0
               ? sb_failed_errno(f, "base template", "root directory")
               : 0;
}

static void find_trees(void)
{
    sb_base_tree[sb_base_trees++] = "usr";
    for (size_t i = 0; i < sizeof unmerged / sizeof *unmerged && sb_base_trees < SB_TREES_MAX;
         i++) {
        char host[16];
        struct stat st;
        snprintf(host, sizeof host, "/%s", unmerged[i]);
        if (lstat(host, &st) == 0 && S_ISDIR(st.st_mode))
            sb_base_tree[sb_base_trees++] = unmerged[i];
    }
}

/* The skeleton's name changes with everything it is made of, and with the ids on its disk. */
static void name_base(char *out, size_t size)
{
    uint64_t h = sb_hash("skeleton", 8, 0);
    uint32_t parts[4] = {SKELETON_VERSION, sup.mode, disk_id(0), disk_id(1000)};
    h = sb_hash(parts, sizeof parts, h);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        h = sb_hash(file[i].text, strlen(file[i].text), h);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        char from[64];
        struct stat st;
        snprintf(from, sizeof from, "/etc/%s", copied[i]);
        if (stat(from, &st) < 0)
            continue;
        int64_t what[3] = {(int64_t)i, st.st_mtim.tv_sec, st.st_size};
        h = sb_hash(what, sizeof what, h);
    }
    snprintf(out, size, "base-%016llx", (unsigned long long)h);
}

int sb_template_start(struct sb_failure *f)
{
    char work[48];
    find_trees();
    name_base(sb_base.name, sizeof sb_base.name);
    sb_base.composed = true;
    if (mkdirat(sup.templates, SB_TEMPLATE_EMPTY, 0755) == 0 &&
        give(sup.templates, SB_TEMPLATE_EMPTY, 0) < 0)
        return sb_failed_errno(f, "base template", "the empty one");
    sb_base.dir = sb_lift(openat(sup.templates, sb_base.name, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (sb_base.dir >= 0)
        return 0;
    /* A random name: ext4 chooses the place on the disk by it (main.c), and every state root has this
     * template. */
    uint64_t r;
    sb_random(&r, sizeof r);
    snprintf(work, sizeof work, ".%016llx", (unsigned long long)r);
    if (mkdirat(sup.templates, work, 0700) < 0)
        return sb_failed_errno(f, "base template", "mkdir");
    sb_autofd int dir = openat(sup.templates, work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return sb_failed_errno(f, "base template", "open");
    if (build_skeleton(dir, f) < 0)
        return -1;
    if (renameat(sup.templates, work, sup.templates, sb_base.name) < 0)
        return sb_failed_errno(f, "base template", "rename");
    sb_base.dir = sb_lift(openat(sup.templates, sb_base.name, O_PATH | O_DIRECTORY | O_CLOEXEC));
    return sb_base.dir < 0 ? sb_failed_errno(f, "base template", "open") : 0;
}

void sb_template_prune(bool (*used)(const char *name))
{
    int copy = openat(sup.templates, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (d == NULL) {
        sb_close(&copy);
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        /* life.lock is held: leftovers of an interrupted build are nobody's. */
        bool leftover = e->d_name[0] == '.' && e->d_name[1] != '.' && e->d_name[1] != '\0';
        bool old = strncmp(e->d_name, "base-", 5) == 0 && strcmp(e->d_name, sb_base.name) != 0 &&
                   !used(e->d_name);
        if (leftover || old)
            sb_trash_put(sup.templates, e->d_name);
    }
    closedir(d);
}

/* A link in these places would lead mounts elsewhere. The child does not follow links either: this
 * check is for a clear message. */
int sb_template_check(int dir, struct sb_failure *f)
{
    static const char *const real[] = {"dev", "proc", "etc", "sys"};
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        struct stat st;
        if (fstatat(dir, real[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (!S_ISDIR(st.st_mode))
            return sb_failed(f, "InvalidArgument", ENOTDIR, "rootfs",
                             "/%s of the rootfs is not a directory", real[i]);
    }
    return 0;
}

int sb_template_open(struct sb_template *t, const char *name, const char *rootfs,
                     struct sb_failure *f)
{
    if (rootfs == NULL && strcmp(name, sb_base.name) == 0) {
        *t = sb_base;
        return 0;
    }
    memset(t, 0, sizeof *t);
    if (rootfs != NULL && sup.mode == SB_MODE_ROOT) {
        t->dir = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    } else {
        snprintf(t->name, sizeof t->name, "%s", name);
        t->composed = rootfs == NULL && strcmp(name, SB_TEMPLATE_EMPTY) != 0;
        t->dir = openat(sup.templates, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (t->dir < 0)
        return sb_failed(f, NULL, errno, "template", "template%s%s",
                         rootfs != NULL ? ".rootfs " : "", rootfs != NULL ? rootfs : "");
    if (rootfs != NULL && sb_template_check(t->dir, f) < 0) {
        sb_close(&t->dir);
        return -1;
    }
    return 0;
}

void sb_template_close(struct sb_template *t)
{
    if (t->dir != sb_base.dir)
        sb_close(&t->dir);
}
