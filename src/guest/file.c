/* A worker's life: take on the user, find the paths, do one thing, answer, end. */
#include "file.h"

#include "mem.h"
#include "str.h"

struct job_file job;

static struct {
    int dir;
    const char *name;
} cleanup;

void file_begin(struct sb_packer *p, uint16_t type)
{
    answer_begin(p, type, job.r->head.req);
}

void file_send(const struct sb_packer *p, int fd)
{
    const struct sys_timespec moment = {0, 1000000};
    int err, tries = 0;
    if (p->overflow)
        file_refuse("LimitExceeded", "the answer does not fit into a message", NULL);
    while ((err = msg_send(FILE_CONN, p, &fd, fd >= 0, 0)) == -ENOBUFS && ++tries < 10000)
        SYS2(__NR_nanosleep, &moment, NULL);
    if (err == -ETOOMANYREFS && fd >= 0) /* a command of this user's has sent them to itself */
        file_refuse("LimitExceeded", "as many descriptors are in flight as this user may have",
                    job.path);
    if (err != 0)
        sys_exit(1); /* pid 1 answers for us, if anybody still listens */
}

_Noreturn void file_finish(const struct sb_packer *p, int fd)
{
    file_send(p, fd);
    sys_exit(0);
}

_Noreturn void file_done(void)
{
    struct sb_packer p;
    file_begin(&p, SB_REPLY);
    file_finish(&p, -1);
}

void file_cleanup(int dir, const char *name)
{
    cleanup.dir = dir;
    cleanup.name = name;
}

static _Noreturn void answer_error(const char *kind, int err, const char *step, const char *message,
                                   const char *path)
{
    struct sb_packer p;
    if (cleanup.name != NULL) {
        const char *name = cleanup.name, *where;
        cleanup.name = NULL;
        tree_remove_at(cleanup.dir, name, name, &where);
    }
    file_begin(&p, SB_ERROR);
    sb_pack_str(&p, SB_F_KIND, kind);
    if (err != 0)
        sb_pack_u64(&p, SB_F_ERRNO, (uint64_t)err);
    if (step != NULL)
        sb_pack_str(&p, SB_F_STEP, step);
    sb_pack_str(&p, SB_F_MESSAGE, message);
    if (path != NULL && strlen(path) < 60000)
        sb_pack_str(&p, SB_F_PATH, path);
    file_finish(&p, -1);
}

_Noreturn void file_fail(int err, const char *step, const char *path)
{
    err = err < 0 ? -err : err;
    answer_error(kind_of_errno(err), err, step, text_of_errno(err), path);
}

_Noreturn void file_refuse(const char *kind, const char *message, const char *path)
{
    answer_error(kind, 0, NULL, message, path);
}

uint64_t file_u64(uint16_t tag, uint64_t fallback)
{
    return sb_read_u64(&job.r->fields, tag, fallback);
}

/* ---- the small operations ---- */

static void need_path(void)
{
    if (job.path == NULL)
        file_refuse("InvalidArgument", "no path was given", NULL);
}

int file_mode(int fallback)
{
    uint64_t mode = file_u64(SB_F_MODE, (uint64_t)fallback);
    if (mode > 07777)
        file_refuse("InvalidArgument", "not a permission mode", job.path);
    return (int)mode;
}

static void op_stat(void)
{
    struct sb_packer p;
    struct statx st;
    const char *name = job.path;
    int nofollow = file_u64(SB_F_NOFOLLOW, 0) != 0;
    int err = sys_statx(AT_FDCWD, job.path, nofollow ? AT_SYMLINK_NOFOLLOW : 0, &st);
    if (err < 0)
        file_fail(err, "stat", job.path);
    for (const char *s = job.path; *s != '\0'; s++)
        if (*s == '/' && s[1] != '\0')
            name = s + 1;
    file_begin(&p, SB_REPLY);
    entry_pack(&p, name, job.path, &st, AT_FDCWD, job.path);
    file_finish(&p, -1);
}

static void op_mkdir(void)
{
    struct sb_packer p;
    struct statx st;
    int mode = file_mode(0755);
    long err;
    if (file_u64(SB_F_PARENTS, 0) != 0)
        path_make_parents(job.path);
    err = SYS3(__NR_mkdirat, AT_FDCWD, job.path, mode);
    if (err == -EEXIST && sys_statx(AT_FDCWD, job.path, 0, &st) == 0 &&
        (st.stx_mode & 0170000) == 0040000) {
        file_begin(&p, SB_REPLY);
        sb_pack_u64(&p, SB_F_CREATED, 0);
        file_finish(&p, -1);
    }
    if (err < 0)
        file_fail((int)err, "mkdir", job.path);
    file_begin(&p, SB_REPLY);
    sb_pack_u64(&p, SB_F_CREATED, 1);
    file_finish(&p, -1);
}

static void op_chmod(void)
{
    long err;
    if (file_u64(SB_F_MODE, 0xffff) > 07777)
        file_refuse("InvalidArgument", "not a permission mode", job.path);
    err = SYS3(__NR_fchmodat, AT_FDCWD, job.path, file_u64(SB_F_MODE, 0));
    if (err < 0)
        file_fail((int)err, "chmod", job.path);
    file_done();
}

static void op_chown(void)
{
    char *owner = field_text(SB_F_OWNER);
    uint32_t uid, gid;
    long err;
    if (owner == NULL)
        file_refuse("InvalidArgument", "no owner was given", job.path);
    owner_find(owner, &uid, &gid);
    err = SYS5(__NR_fchownat, AT_FDCWD, job.path, uid, gid,
               file_u64(SB_F_NOFOLLOW, 0) != 0 ? AT_SYMLINK_NOFOLLOW : 0);
    if (err < 0)
        file_fail((int)err, "chown", job.path);
    file_done();
}

static void op_symlink(void)
{
    char *target = field_text(SB_F_TARGET);
    long err;
    if (target == NULL)
        file_refuse("InvalidArgument", "no target was given", job.path);
    if (file_u64(SB_F_PARENTS, 0) != 0)
        path_make_parents(job.path);
    err = SYS3(__NR_symlinkat, target, AT_FDCWD, job.path);
    if (err < 0)
        file_fail((int)err, "symlink", job.path);
    file_done();
}

static void op_readlink(void)
{
    char target[PATH_MAX];
    struct sb_packer p;
    long n = SYS4(__NR_readlinkat, AT_FDCWD, job.path, target, sizeof target);
    if (n == -EINVAL)
        answer_error(kind_of_errno(EINVAL), EINVAL, "readlink", "not a link", job.path);
    if (n < 0)
        file_fail((int)n, "readlink", job.path);
    file_begin(&p, SB_REPLY);
    sb_pack_bytes(&p, SB_F_TARGET, target, (size_t)n);
    file_finish(&p, -1);
}

static void op_tempdir(void)
{
    const char *dir = job.path != NULL ? job.path : "/tmp";
    char *path = mem_alloc(strlen(dir) + 48), *end, random[32];
    int mode = file_mode(0700);
    struct sb_packer p;
    long err;
    if (path == NULL)
        file_fail(ENOMEM, NULL, dir);
    end = str_put(path, dir[1] == '\0' ? "" : dir);
    do {
        path_temp_name(random);
        str_put(str_put(end, "/sandbar-"), random + 4);
        err = SYS3(__NR_mkdirat, AT_FDCWD, path, mode);
    } while (err == -EEXIST);
    if (err < 0)
        file_fail((int)err, "mkdir", path);
    file_begin(&p, SB_REPLY);
    sb_pack_str(&p, SB_F_PATH, path);
    file_finish(&p, -1);
}

/* The names of all attributes, one behind the other, into `names`: how long they are. */
static long list_xattrs(char *names, size_t room)
{
    long n = names == NULL ? -ENOMEM : SYS3(__NR_listxattr, job.path, names, room);
    if (n < 0 && n != -EOPNOTSUPP)
        file_fail((int)n, "listxattr", job.path);
    return n;
}

static void remove_xattrs(const void *prefix, size_t len)
{
    enum { NAMES = 65536 };
    char *names = mem_alloc(NAMES);
    long n = list_xattrs(names, NAMES);
    for (long at = 0; at < n; at += (long)strlen(names + at) + 1) {
        long err = 0;
        if (strlen(names + at) >= len && memcmp(names + at, prefix, len) == 0)
            err = SYS2(__NR_removexattr, job.path, names + at);
        if (err < 0 && err != -ENODATA)
            file_fail((int)err, "removexattr", job.path);
    }
}

static void set_xattr(const struct sb_field_view *f, const char *zero)
{
    const char *value = zero + 1;
    long err = SYS5(__NR_setxattr, job.path, f->data, value,
                    f->data + f->len - (const unsigned char *)value, 0);
    if (err < 0)
        file_fail((int)err, "setxattr", job.path);
}

static void op_setxattr(void)
{
    for (int sets = 0; sets < 2; sets++) {
        struct sb_reader at = job.r->fields;
        struct sb_field_view f;
        while (sb_read_field(&at, &f) == 1) {
            const char *zero;
            if (f.tag != SB_F_XATTR)
                continue;
            zero = str_find(f.data, f.len, '\0');
            if (zero == NULL && !sets)
                remove_xattrs(f.data, f.len);
            else if (zero != NULL && sets)
                set_xattr(&f, zero);
        }
    }
    file_done();
}

static void op_getxattr(void)
{
    enum { NAMES = 65536, VALUE = 65536 };
    char *names = mem_alloc(NAMES + 256 + VALUE), *value = names + NAMES;
    struct sb_packer p;
    long n = list_xattrs(names, NAMES);
    file_begin(&p, SB_REPLY);
    for (long at = 0; at < n;) {
        size_t len = strlen(names + at);
        long m;
        memcpy(value, names + at, len + 1);
        m = SYS4(__NR_getxattr, job.path, names + at, value + len + 1, VALUE);
        if (m >= 0)
            sb_pack_bytes(&p, SB_F_XATTR, value, len + 1 + (size_t)m);
        at += (long)len + 1;
    }
    file_finish(&p, -1);
}

/* ---- the worker ---- */

static void become(void)
{
    char *user = field_text(SB_F_USER);
    int err = users_find(user != NULL         ? user
                         : guest.user != NULL ? guest.user
                                              : "user",
                         &job.who, (char *)guest.in);
    if (err == 0)
        err = users_become(&job.who);
    if (err == -EOPNOTSUPP)
        file_refuse("Unsupported", "this sandbox has one user only", NULL);
    if (err != 0)
        answer_error("InvalidArgument", -err, "user", "the sandbox has no such user or group",
                     NULL);
    SYS1(__NR_umask, 0);
}

_Noreturn void file_serve(struct request *r, int with)
{
    struct sb_field_view f;
    struct request kept = *r;
    uint64_t op;
    /* guest.in becomes a buffer of users_find: the request moves away. */
    if (r->spill == NULL) {
        size_t len = (size_t)(r->fields.end - r->fields.at);
        unsigned char *copy = mem_alloc(len + 1);
        if (copy == NULL)
            sys_exit(1);
        memcpy(copy, r->fields.at, len);
        kept.fields.at = copy;
        kept.fields.end = copy + len;
    }
    job.r = &kept;
    job.with = with;
    become();
    op = file_u64(SB_F_FILE_OP, 0);
    if (sb_read_find(&kept.fields, SB_F_PATH, &f))
        job.path = path_make(&f);
    if (sb_read_find(&kept.fields, SB_F_PATH2, &f))
        job.path2 = path_make(&f);
    if (op != SB_FILE_TEMPDIR && op != SB_FILE_GLOB)
        need_path();
    if ((op == SB_FILE_MOVE || op == SB_FILE_COPY) && job.path2 == NULL)
        file_refuse("InvalidArgument", "no second path was given", job.path);
    switch (op) {
    case SB_FILE_STAT:
        op_stat();
        break;
    case SB_FILE_OPEN:
        file_open();
        break;
    case SB_FILE_WRITE:
        file_write();
        break;
    case SB_FILE_BEGIN:
        file_begin_write();
        break;
    case SB_FILE_COMMIT:
        file_commit();
        break;
    case SB_FILE_ABORT:
        file_abort();
        break;
    case SB_FILE_LIST:
        tree_list();
        break;
    case SB_FILE_MKDIR:
        op_mkdir();
        break;
    case SB_FILE_MOVE:
        tree_move();
        break;
    case SB_FILE_COPY:
        tree_copy();
        break;
    case SB_FILE_REMOVE:
        tree_remove();
        break;
    case SB_FILE_CHMOD:
        op_chmod();
        break;
    case SB_FILE_CHOWN:
        op_chown();
        break;
    case SB_FILE_SYMLINK:
        op_symlink();
        break;
    case SB_FILE_READLINK:
        op_readlink();
        break;
    case SB_FILE_TEMPDIR:
        op_tempdir();
        break;
    case SB_FILE_SETXATTR:
        op_setxattr();
        break;
    case SB_FILE_GETXATTR:
        op_getxattr();
        break;
    case SB_FILE_GLOB:
        file_glob();
        break;
    case SB_FILE_WATCH:
        file_watch();
        break;
    default:
        file_refuse("Unsupported", "pid 1 does not know this file operation", job.path);
    }
    file_done();
}
