#include "users.h"

#include "guest.h"
#include "mem.h"
#include "str.h"
#include "sys.h"

enum { FILE_MAX = 1 << 20, SPEC_MAX = 256 };

#define SECOND_NS 1000000000

#define ID_MAX 4294967294u /* the last one means "none" to the kernel */

/* Lines of a file, one after the other, in a buffer of the caller's. */
struct lines {
    int fd;
    char *buf;
    size_t at, end, total;
    int skip; /* inside a line that did not fit */
};

static int lines_open(struct lines *l, const char *path, char *buf)
{
    struct statx st;
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return fd;
    if (sys_fstat(fd, &st) != 0 || (st.stx_mode & 0170000) != 0100000) {
        sys_close(fd);
        return -EINVAL;
    }
    memset(l, 0, sizeof *l);
    l->fd = fd;
    l->buf = buf;
    return 0;
}

/* The next line without its newline, or NULL. Lines longer than the buffer are skipped. */
static const char *lines_next(struct lines *l, size_t *len)
{
    for (;;) {
        const char *start = l->buf + l->at;
        const char *stop = str_find(start, l->end - l->at, '\n');
        long n;
        if (stop != NULL) {
            *len = (size_t)(stop - start);
            l->at += *len + 1;
            if (!l->skip)
                return start;
            l->skip = 0;
            continue;
        }
        if (l->end - l->at == USERS_BUF) {
            l->skip = 1;
            l->at = l->end = 0;
        } else if (l->at > 0) {
            memmove(l->buf, start, l->end - l->at);
            l->end -= l->at;
            l->at = 0;
        }
        n = l->total >= FILE_MAX ? 0 : sys_read(l->fd, l->buf + l->end, USERS_BUF - l->end);
        if (n <= 0) {
            *len = l->end;
            l->end = 0;
            return *len > 0 && !l->skip ? l->buf : NULL;
        }
        l->end += (size_t)n;
        l->total += (size_t)n;
    }
}

/* Field number i of a line with colons: 1, or 0 when there is none. */
static int field_of(const char *line, size_t len, unsigned i, const char **at, size_t *n)
{
    const char *end = line + len, *colon;
    while (i-- > 0) {
        colon = str_find(line, (size_t)(end - line), ':');
        if (colon == NULL)
            return 0;
        line = colon + 1;
    }
    colon = str_find(line, (size_t)(end - line), ':');
    *at = line;
    *n = (size_t)((colon != NULL ? colon : end) - line);
    return 1;
}

static void copy_text(char *to, size_t cap, const char *from, size_t len)
{
    if (len >= cap || str_find(from, len, '\0') != NULL)
        len = 0;
    memcpy(to, from, len);
    to[len] = '\0';
}

int users_parse_passwd(const char *line, size_t len, const char *name, size_t name_len, int numeric,
                       uint32_t uid, struct account *a)
{
    const char *f[7];
    size_t n[7];
    uint64_t u, g;
    for (unsigned i = 0; i < 7; i++)
        if (!field_of(line, len, i, &f[i], &n[i]))
            return 0;
    if (!str_number(f[2], n[2], ID_MAX, &u) || !str_number(f[3], n[3], ID_MAX, &g))
        return 0;
    if (numeric ? u != uid : n[0] != name_len || memcmp(f[0], name, name_len) != 0)
        return 0;
    a->uid = (uint32_t)u;
    a->gid = (uint32_t)g;
    copy_text(a->name, sizeof a->name, f[0], n[0]);
    copy_text(a->home, sizeof a->home, f[5], n[5]);
    copy_text(a->shell, sizeof a->shell, f[6], n[6]);
    return 1;
}

int users_parse_group(const char *line, size_t len, const char *name, size_t name_len,
                      uint32_t *gid, const char *member)
{
    const char *f[4];
    size_t n[4];
    uint64_t g;
    for (unsigned i = 0; i < 4; i++)
        if (!field_of(line, len, i, &f[i], &n[i]))
            return 0;
    if (!str_number(f[2], n[2], ID_MAX, &g))
        return 0;
    *gid = (uint32_t)g;
    if (name != NULL)
        return n[0] == name_len && memcmp(f[0], name, name_len) == 0;
    while (n[3] > 0) {
        const char *comma = str_find(f[3], n[3], ',');
        size_t m = comma != NULL ? (size_t)(comma - f[3]) : n[3];
        if (str_same(f[3], m, member))
            return 1;
        f[3] += comma != NULL ? m + 1 : m;
        n[3] -= comma != NULL ? m + 1 : m;
    }
    return 0;
}

static void defaults_of(struct account *a)
{
    if (a->home[0] != '/')
        copy_text(a->home, sizeof a->home, "/", 1);
    if (a->shell[0] != '/')
        copy_text(a->shell, sizeof a->shell, "/bin/sh", 7);
}

/* What every sandbox has, also where its files say nothing about it. */
static int built_in(const char *name, size_t len, struct account *a)
{
    if (str_same(name, len, "user")) {
        a->uid = a->gid = 1000;
        copy_text(a->home, sizeof a->home, "/home/user", 10);
    } else if (str_same(name, len, "root")) {
        copy_text(a->home, sizeof a->home, "/root", 5);
    } else {
        return 0;
    }
    copy_text(a->name, sizeof a->name, name, len);
    return 1;
}

static int find_group(const char *name, size_t len, char *buf, uint32_t *gid)
{
    struct lines l;
    const char *line;
    size_t n;
    int found = 0;
    if (lines_open(&l, "/etc/group", buf) != 0)
        return str_same(name, len, "root") ? (*gid = 0, 1) : 0;
    while (!found && (line = lines_next(&l, &n)) != NULL)
        found = users_parse_group(line, n, name, len, gid, NULL);
    sys_close(l.fd);
    return found;
}

static int look_up(const char *spec, struct account *a, char *buf)
{
    size_t len = strlen(spec);
    const char *colon = str_find(spec, len, ':');
    size_t name_len = colon != NULL ? (size_t)(colon - spec) : len;
    uint64_t number = 0;
    int numeric = 1, found = 0;
    struct lines l;
    const char *line;
    size_t n;

    memset(a, 0, sizeof *a);
    if (name_len == 0 || name_len >= sizeof a->name || str_find(spec, len, '/') != NULL)
        return -EINVAL;
    for (size_t i = 0; i < name_len; i++)
        if (spec[i] < '0' || spec[i] > '9')
            numeric = 0;
    if (numeric && !str_number(spec, name_len, ID_MAX, &number))
        return -EINVAL;

    if (lines_open(&l, "/etc/passwd", buf) == 0) {
        while (!found && (line = lines_next(&l, &n)) != NULL)
            found = users_parse_passwd(line, n, spec, name_len, numeric, (uint32_t)number, a);
        sys_close(l.fd);
    }
    if (!found && numeric) {
        a->uid = a->gid = (uint32_t)number;
        copy_text(a->name, sizeof a->name, spec, name_len);
    } else if (!found && !built_in(spec, name_len, a)) {
        return -ENOENT;
    }
    defaults_of(a);

    if (colon != NULL) {
        const char *group = colon + 1;
        size_t group_len = len - name_len - 1;
        if (str_number(group, group_len, ID_MAX, &number)) {
            a->gid = (uint32_t)number;
        } else if (group_len == 0 || (group[0] >= '0' && group[0] <= '9') || group[0] == '-') {
            return -EINVAL;
        } else if (!find_group(group, group_len, buf, &a->gid)) {
            return -ENOENT;
        }
        return 0;
    }
    if (!guest.single && lines_open(&l, "/etc/group", buf) == 0) {
        while (a->ngroups < MAX_GROUPS && (line = lines_next(&l, &n)) != NULL) {
            uint32_t gid;
            if (users_parse_group(line, n, NULL, 0, &gid, a->name) && gid != a->gid)
                a->groups[a->ngroups++] = gid;
        }
        sys_close(l.fd);
    }
    return 0;
}

/* ---- the last one ---- */

/* One version of a file; all zero: there is none. */
struct version {
    uint64_t device, inode, size;
    int64_t changed, modified; /* ns */
};

/* Who was looked up last, and in which versions of the two files. Written by children on their way to
 * execve, which may die at any moment: valid only when it is whole. */
static struct {
    int valid;
    char spec[SPEC_MAX];
    struct account account;
    struct version passwd, group;
} last;

static int64_t ns_of(const struct statx_timestamp *t)
{
    return t->tv_sec * SECOND_NS + t->tv_nsec;
}

static void version_of(const char *path, struct version *v)
{
    struct statx st;
    memset(v, 0, sizeof *v);
    if (sys_statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &st) != 0)
        return;
    v->device = (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor;
    v->inode = st.stx_ino;
    v->size = st.stx_size;
    v->changed = ns_of(&st.stx_ctime);
    v->modified = ns_of(&st.stx_mtime);
}

static int version_same(const struct version *a, const struct version *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Time stamps move by ticks (10 ms at most, or whole seconds where a file system has no more): what has
 * changed just now may change once more and look the same. */
static int version_settled(const struct version *v)
{
    int64_t tick = v->changed % SECOND_NS == 0 ? SECOND_NS : SECOND_NS / 20;
    return v->changed + 2 * tick < (int64_t)sys_clock_ns(CLOCK_REALTIME);
}

int users_find(const char *spec, struct account *a, char *buf)
{
    struct version passwd, group;
    size_t len = strlen(spec);
    int r;
    version_of("/etc/passwd", &passwd);
    version_of("/etc/group", &group);
    if (last.valid && strlen(last.spec) == len && memcmp(last.spec, spec, len) == 0 &&
        version_same(&passwd, &last.passwd) && version_same(&group, &last.group)) {
        memcpy(a, &last.account, sizeof *a);
        return 0;
    }
    r = look_up(spec, a, buf);
    if (r != 0 || len >= SPEC_MAX || !version_settled(&passwd) || !version_settled(&group))
        return r;
    last.valid = 0;
    __asm__ volatile("" ::: "memory");
    memcpy(last.spec, spec, len + 1);
    memcpy(&last.account, a, sizeof *a);
    last.passwd = passwd;
    last.group = group;
    __asm__ volatile("" ::: "memory");
    last.valid = 1;
    return 0;
}

size_t users_name_of(uint32_t id, int group, char *out, size_t cap, char *buf)
{
    struct lines l;
    const char *line, *name, *text;
    size_t n, name_len, len, found = 0;
    uint64_t number;
    if (lines_open(&l, group ? "/etc/group" : "/etc/passwd", buf) != 0)
        return 0;
    while (found == 0 && (line = lines_next(&l, &n)) != NULL) {
        if (field_of(line, n, 0, &name, &name_len) && field_of(line, n, 2, &text, &len) &&
            str_number(text, len, ID_MAX, &number) && number == id && name_len <= cap) {
            memcpy(out, name, name_len);
            found = name_len;
        }
    }
    sys_close(l.fd);
    return found;
}

int users_become(const struct account *a)
{
    long r;
    if (guest.single)
        return a->uid == guest.uid ? 0 : -EOPNOTSUPP;
    r = SYS2(__NR_setgroups, a->ngroups, a->groups);
    if (r == 0)
        r = SYS3(__NR_setresgid, a->gid, a->gid, a->gid);
    if (r == 0)
        r = SYS3(__NR_setresuid, a->uid, a->uid, a->uid);
    return (int)r;
}
