/* Opening and writing: in place, appended, or whole beside the old file and then in its stead. */
#include "file.h"
#include "mem.h"
#include "str.h"

/* Where a write goes: the last name of the path, with the link behind it followed. */
struct target {
    int dir;
    const char *name;
    const char *path; /* for answers: absolute where it can be told */
    int exists;
    struct statx st;
};

static int is_regular(const struct statx *st)
{
    return (st->stx_mode & 0170000) == 0100000;
}

static void refuse_special(const struct statx *st, const char *path)
{
    if ((st->stx_mode & 0170000) == 0040000)
        file_fail(EISDIR, "open", path);
    if (!is_regular(st))
        file_fail(ENXIO, "open", path);
}

/* Follows one link at t->name: 1, or 0 when it is none. */
static int follow(struct target *t)
{
    char *text = mem_alloc(PATH_MAX + 1);
    char *slash = NULL, *end;
    long n = text == NULL ? -ENOMEM : SYS4(__NR_readlinkat, t->dir, t->name, text, PATH_MAX);
    int dir;
    if (n == -EINVAL || n == -ENOENT) {
        mem_free(text);
        return 0;
    }
    if (n < 0)
        file_fail((int)n, "readlink", t->path);
    end = text + n;
    while (end > text + 1 && end[-1] == '/')
        *--end = '\0';
    for (char *s = text; s < end; s++)
        if (*s == '/')
            slash = s;
    t->name = slash != NULL ? slash + 1 : text;
    if (t->name[0] == '\0' || str_same(t->name, strlen(t->name), ".") ||
        str_same(t->name, strlen(t->name), ".."))
        file_fail(EISDIR, "open", t->path);
    if (slash != NULL) {
        *slash = '\0';
        dir = sys_openat(t->dir, slash == text ? "/" : text, O_PATH | O_DIRECTORY, 0);
        if (dir < 0)
            file_fail(dir, "open", t->path);
        sys_close(t->dir);
        t->dir = dir;
    }
    return 1;
}

/* The directory's own path and the name, for BEGIN's answer; the asked path if that cannot be told. */
static const char *real_path(const struct target *t)
{
    size_t len = strlen(t->name);
    char *path = mem_alloc(PATH_MAX + len + 2);
    long n;
    if (path == NULL || SYS1(__NR_fchdir, t->dir) != 0)
        return t->path;
    n = SYS2(__NR_getcwd, path, PATH_MAX);
    if (n <= 0 || path[0] != '/')
        return t->path;
    n = n == 2 ? 0 : n - 1;
    path[n] = '/';
    memcpy(path + n + 1, t->name, len + 1);
    return path;
}

static void target_find(struct target *t, int exclusive)
{
    int err, links = 0;
    t->path = job.path;
    t->dir = path_parent(job.path, file_u64(SB_F_PARENTS, 0) != 0, &t->name);
    while (!exclusive && follow(t))
        if (++links > 40)
            file_fail(ELOOP, "open", job.path);
    err = sys_statx(t->dir, t->name, AT_SYMLINK_NOFOLLOW, &t->st);
    if (err < 0 && err != -ENOENT)
        file_fail(err, "stat", job.path);
    t->exists = err == 0;
    if (t->exists && exclusive)
        file_fail(EEXIST, "open", job.path);
    if (t->exists)
        refuse_special(&t->st, job.path);
}

static void write_all(int fd, const unsigned char *data, size_t len)
{
    while (len > 0) {
        long n = sys_write(fd, data, len);
        if (n <= 0)
            file_fail(n == 0 ? EIO : (int)n, "write", job.path);
        data += n;
        len -= (size_t)n;
    }
}

/* Opens what is a regular file, also when somebody puts something else there meanwhile. */
static int open_regular(int dir, const char *name, int flags, int mode, struct statx *st)
{
    int fd = sys_openat(dir, name, flags | O_NONBLOCK | O_NOCTTY, (unsigned)mode);
    int err = fd < 0 ? fd : sys_fstat(fd, st);
    if (err < 0)
        file_fail(err, "open", job.path);
    refuse_special(st, job.path);
    return fd;
}

void file_open(void)
{
    enum { ALLOWED = O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_NOFOLLOW };
    uint64_t flags = file_u64(SB_F_OFLAGS, O_RDONLY);
    int mode = file_mode(0644), err;
    struct statx st;
    if ((flags & ~(uint64_t)ALLOWED) != 0 || (flags & O_ACCMODE) == O_ACCMODE)
        file_refuse("InvalidArgument", "open flags that are not allowed", job.path);
    if ((flags & O_CREAT) && file_u64(SB_F_PARENTS, 0) != 0) {
        const char *name;
        sys_close(path_parent(job.path, 1, &name));
    }
    err = sys_statx(AT_FDCWD, job.path, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0, &st);
    if (err == 0 && !(flags & O_EXCL) && (st.stx_mode & 0170000) != 0120000)
        refuse_special(&st, job.path);
    entry_reply(job.path, AT_FDCWD, job.path,
                open_regular(AT_FDCWD, job.path, (int)flags, mode, &st));
}

/* An unnamed file in the directory, or one with a name nobody knows yet (kind 'n', name in temp).
 * -errno when there can be none. */
static int temp_open(int dir, char temp[32], char *kind)
{
    char link[32] = "/proc/self/fd/", target[8];
    int fd = sys_openat(dir, ".", O_TMPFILE | O_RDWR, 0600);
    temp[0] = '\0';
    *kind = 'u';
    if (fd >= 0) {
        link[14 + str_digits(link + 14, (uint64_t)fd)] = '\0';
        if (SYS4(__NR_readlinkat, AT_FDCWD, link, target, sizeof target) > 0)
            return fd;
        sys_close(fd); /* without /proc it could never get a name */
    } else if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT && fd != -EINVAL) {
        return fd;
    }
    *kind = 'n';
    path_temp_name(temp);
    fd = sys_openat(dir, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd >= 0)
        file_cleanup(dir, temp);
    return fd;
}

/* Mode and owner: what was asked for, else what the replaced file has. 0, or -1 when this user cannot
 * make them so: then the old file must be written in place. */
static int dress(int fd, const struct target *t)
{
    char *owner = field_text(SB_F_OWNER);
    int mode = file_mode(t->exists ? (int)(t->st.stx_mode & 07777) : 0644);
    struct statx st;
    long err = 0;
    if (owner != NULL) {
        uint32_t uid, gid;
        owner_find(owner, &uid, &gid);
        err = SYS3(__NR_fchown, fd, uid, gid);
        if (err < 0)
            file_fail((int)err, "chown", job.path);
    } else if (t->exists && sys_fstat(fd, &st) == 0 &&
               (st.stx_uid != t->st.stx_uid || st.stx_gid != t->st.stx_gid)) {
        err = SYS3(__NR_fchown, fd, t->st.stx_uid, t->st.stx_gid);
        if (err < 0)
            return -1;
    }
    err = SYS2(__NR_fchmod, fd, mode);
    if (err < 0)
        file_fail((int)err, "chmod", job.path);
    return 0;
}

/* Gives fd the name, replacing what is there. */
static void publish(int fd, int dir, const char *name, char kind, char temp[32], int exclusive)
{
    char link[32] = "/proc/self/fd/";
    long err;
    link[14 + str_digits(link + 14, (uint64_t)fd)] = '\0';
    if (kind == 'u') {
        if (!exclusive)
            path_temp_name(temp);
        err = SYS5(__NR_linkat, AT_FDCWD, link, dir, exclusive ? name : temp, AT_SYMLINK_FOLLOW);
        if (err < 0)
            file_fail((int)err, "link", job.path);
        if (exclusive)
            return;
        file_cleanup(dir, temp);
    } else if (exclusive) {
        err = SYS5(__NR_linkat, dir, temp, dir, name, 0);
        if (err < 0)
            file_fail((int)err, "link", job.path);
        SYS3(__NR_unlinkat, dir, temp, 0);
        file_cleanup(-1, NULL);
        return;
    }
    err = SYS5(__NR_renameat2, dir, temp, dir, name, 0);
    if (err < 0)
        file_fail((int)err, "rename", job.path);
    file_cleanup(-1, NULL);
}

static void may_write(const struct target *t)
{
    long err = t->exists ? SYS3(__NR_faccessat, t->dir, t->name, W_OK) : 0;
    if (err < 0)
        file_fail((int)err, "open", job.path);
}

/* What is there keeps its owner, and its mode unless one was asked for. */
static _Noreturn void write_in_place(const struct target *t, const struct sb_field_view *data,
                                     int flags)
{
    int mode = file_mode(t->exists ? (int)(t->st.stx_mode & 07777) : 0644);
    struct statx st;
    int fd = open_regular(t->dir, t->name,
                          O_WRONLY | O_NOFOLLOW | flags | (t->exists ? 0 : O_CREAT), mode, &st);
    write_all(fd, data->data, data->len);
    if (!t->exists || field_text(SB_F_OWNER) != NULL || (st.stx_mode & 07777) != (unsigned)mode)
        dress(fd, t);
    sys_close(fd);
    entry_reply(job.path, t->dir, t->name, -1);
}

void file_write(void)
{
    int exclusive = file_u64(SB_F_EXCLUSIVE, 0) != 0, append = file_u64(SB_F_APPEND, 0) != 0;
    struct sb_field_view data = {0};
    struct target t;
    char temp[32], kind;
    int fd;
    sb_read_find(&job.r->fields, SB_F_DATA, &data);
    target_find(&t, exclusive);
    if (append)
        write_in_place(&t, &data, O_APPEND | (exclusive ? O_EXCL : 0));
    if (file_u64(SB_F_ATOMIC, 1) == 0)
        write_in_place(&t, &data, exclusive ? O_EXCL : O_TRUNC);
    may_write(&t);
    fd = temp_open(t.dir, temp, &kind);
    if (fd < 0) {
        /* The old file may be written although nothing may be made beside it. */
        if (t.exists && (fd == -EACCES || fd == -EPERM))
            write_in_place(&t, &data, O_TRUNC);
        file_fail(fd, "open", job.path);
    }
    if (dress(fd, &t) != 0) {
        if (kind == 'n')
            SYS3(__NR_unlinkat, t.dir, temp, 0);
        file_cleanup(-1, NULL);
        write_in_place(&t, &data, O_TRUNC);
    }
    write_all(fd, data.data, data.len);
    publish(fd, t.dir, t.name, kind, temp, exclusive);
    sys_close(fd);
    entry_reply(job.path, t.dir, t.name, -1);
}

void file_begin_write(void)
{
    int exclusive = file_u64(SB_F_EXCLUSIVE, 0) != 0;
    struct sb_packer p;
    struct target t;
    char temp[32], token[40], kind;
    int fd;
    size_t len;
    target_find(&t, exclusive);
    may_write(&t);
    fd = temp_open(t.dir, temp, &kind);
    if (fd >= 0 && dress(fd, &t) != 0) {
        if (kind == 'n')
            SYS3(__NR_unlinkat, t.dir, temp, 0);
        file_cleanup(-1, NULL);
        sys_close(fd);
        fd = -EACCES;
    }
    if (t.exists && (fd == -EACCES || fd == -EPERM)) {
        fd = sys_openat(AT_FDCWD, "/tmp", O_TMPFILE | O_RDWR, 0600);
        kind = 'i'; /* the bytes go into the old file at the commit */
        temp[0] = '\0';
    }
    if (fd < 0)
        file_fail(fd, "open", job.path);
    token[0] = kind;
    token[1] = exclusive ? 'x' : '-';
    len = strlen(temp);
    memcpy(token + 2, temp, len);
    file_begin(&p, SB_REPLY);
    sb_pack_bytes(&p, SB_F_TOKEN, token, 2 + len);
    sb_pack_str(&p, SB_F_PATH, real_path(&t));
    file_finish(&p, fd);
}

/* The token of BEGIN: how to finish. Its only name is one of ours, in the path's directory. */
static void token_read(char *kind, int *exclusive, char temp[32])
{
    struct sb_field_view f;
    if (!sb_read_find(&job.r->fields, SB_F_TOKEN, &f) || f.len < 2 || f.len > 2 + 31 ||
        str_find("uni", 3, (char)f.data[0]) == NULL || (f.data[0] == 'n') != (f.len > 2))
        file_refuse("InvalidArgument", "not a token", job.path);
    *kind = (char)f.data[0];
    *exclusive = f.data[1] == 'x' || file_u64(SB_F_EXCLUSIVE, 0) != 0;
    memcpy(temp, f.data + 2, f.len - 2);
    temp[f.len - 2] = '\0';
    if (f.len > 2 && (memcmp(temp, ".sb-", 4) != 0 || str_find(temp, f.len - 2, '/') != NULL))
        file_refuse("InvalidArgument", "not a token", job.path);
}

void file_commit(void)
{
    char kind, temp[32];
    int exclusive, dir;
    const char *name;
    struct statx st;
    token_read(&kind, &exclusive, temp);
    dir = path_parent(job.path, 0, &name);
    if (!job.with || sys_fstat(FILE_WITH, &st) != 0 || !is_regular(&st))
        file_refuse("InvalidArgument", "the written file is missing", job.path);
    if (kind == 'i') {
        int to = open_regular(dir, name, O_WRONLY | O_TRUNC, 0, &st), err;
        SYS3(__NR_lseek, FILE_WITH, 0, 0);
        err = copy_bytes(FILE_WITH, to);
        if (err < 0)
            file_fail(err, "write", job.path);
        sys_close(to);
    } else {
        if (kind == 'n')
            file_cleanup(dir, temp);
        if (sys_statx(dir, name, AT_SYMLINK_NOFOLLOW, &st) == 0) {
            if (exclusive)
                file_fail(EEXIST, "link", job.path);
            refuse_special(&st, job.path);
        }
        /* Writing has taken set-id bits away again. */
        if (file_mode(0) & 06000)
            SYS2(__NR_fchmod, FILE_WITH, file_mode(0));
        publish(FILE_WITH, dir, name, kind, temp, exclusive);
    }
    sys_close(FILE_WITH); /* whoever has the answer may execute the file */
    entry_reply(job.path, dir, name, -1);
}

void file_abort(void)
{
    char kind, temp[32];
    int exclusive, dir;
    const char *name;
    token_read(&kind, &exclusive, temp);
    if (kind == 'n') {
        long err;
        dir = path_parent(job.path, 0, &name);
        err = SYS3(__NR_unlinkat, dir, temp, 0);
        if (err < 0 && err != -ENOENT)
            file_fail((int)err, "unlink", job.path);
    }
    file_done();
}
