/* Regular files on the file threads: each piece of work is bounded, copies its data, and can be
 * abandoned. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../runtime/large.h"

#define STEP 262144          /* between two looks at whether it should stop */
#define SMALL_READ 65536     /* allocated even where the file seems shorter */
#define SHORT 1048576        /* what a waiting program may move itself */
#define PUMP_TURN (8u << 20) /* copied before other work gets the thread */

int sb_file_enter(struct sb_file *file)
{
    unsigned users = file->users;
    while (users != 0 && !file->closed)
        if (atomic_compare_exchange_weak(&file->users, &users, users + 1))
            return 1;
    return 0;
}

void sb_file_leave(struct sb_file *file)
{
    if (--file->users == 0)
        close(file->fd);
}

void sb_file_close(struct sb_file *file)
{
    if (!atomic_exchange(&file->closed, 1))
        sb_file_leave(file);
}

static void file_destroy(struct sb_object *object)
{
    struct sb_file *file = (struct sb_file *)object;
    sb_file_close(file);
    free(file);
}
const struct sb_object_type sb_file_type = {"file", file_destroy};

struct sb_file *sb_file_new(int fd, struct sb_error *err)
{
    struct stat st;
    struct sb_file *file;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        sb_fail(err, SB_ERR_PROTOCOL, "what was opened is not a regular file");
        return NULL;
    }
    file = calloc(1, sizeof *file);
    if (file == NULL) {
        close(fd);
        sb_fail_errno(err, ENOMEM, "open", "no memory for a file handle");
        return NULL;
    }
    sb_object_init(&file->object, &sb_file_type);
    file->fd = fd;
    file->users = 1;
    return file;
}

/* What is written through: a file of the sandbox's own disk or memory. */
static int holds_data(long type)
{
    return type == OVERLAYFS_SUPER_MAGIC || type == TMPFS_MAGIC;
}

/* Where "files" are switches of the kernel's that look at who uses them, or wait. (Those of /proc that
 * can be read only tell something.) */
static int is_control(long type)
{
    static const unsigned types[] = {
        CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, SYSFS_MAGIC,      DEBUGFS_MAGIC,
        TRACEFS_MAGIC,      BPF_FS_MAGIC,        SECURITYFS_MAGIC, NSFS_MAGIC,
        SELINUX_MAGIC,      EFIVARFS_MAGIC,      BINFMTFS_MAGIC,   0x19800202 /* mqueue */,
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((unsigned)type == types[i])
            return 1;
    return 0;
}

struct sb_file *sb_file_of_sandbox(int fd, struct sb_error *err)
{
    struct statfs fs;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fstatfs(fd, &fs) < 0) {
        sb_fail_errno(err, errno, "open", "what was opened cannot be looked at");
    } else if ((flags & O_ACCMODE) == O_RDONLY ? is_control(fs.f_type) : !holds_data(fs.f_type)) {
        sb_fail(err, SB_ERR_UNSUPPORTED,
                "a file of the kernel's is not read or written from outside; use a command");
    } else {
        return sb_file_new(fd, err);
    }
    close(fd);
    return NULL;
}

/* ---- the work itself: on a file thread ---- */

size_t sb_file_read_at(int fd, unsigned char *to, size_t n, uint64_t offset,
                       const _Atomic int *stop, int *sys)
{
    size_t got = 0;
    *sys = 0;
    while (got < n && !*stop) {
        size_t step = n - got < STEP ? n - got : STEP;
        ssize_t r = pread(fd, to + got, step, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            *sys = errno;
        if (r <= 0)
            break;
        got += (size_t)r;
    }
    return got;
}

size_t sb_file_write_at(int fd, const unsigned char *from, size_t n, uint64_t offset,
                        const _Atomic int *stop, int *sys)
{
    size_t put = 0;
    *sys = 0;
    while (put < n && !*stop) {
        size_t step = n - put < STEP ? n - put : STEP;
        ssize_t r = pwrite(fd, from + put, step, (off_t)(offset + put));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0) {
            *sys = r < 0 ? errno : ENOSPC;
            break;
        }
        put += (size_t)r;
    }
    return put;
}

void sb_file_fail_write(struct sb_error *err, int sys, size_t done, size_t len)
{
    if (sys == EBADF)
        sb_fail_errno(err, sys, "write", "the file was not opened for writing");
    else
        sb_fail_errno(err, sys, "write", "after %zu of %zu bytes", done, len);
}

/* ---- operations on one file ---- */

enum kind { READ, WRITE, TRUNCATE, SYNC, SIZE, OPEN, PUMP };

/* Made by the asker; in a file thread between sb_pool_run and done; `op` is the I/O thread's. */
struct job {
    enum kind kind;
    struct sb_op *op;          /* NULL: nobody waits any more */
    struct sb_file *file, *to; /* references, entered; NULL for OPEN */
    uint64_t offset;
    size_t len;
    _Atomic int stop;
    unsigned char *bytes;
    size_t bytes_len;
    uint64_t number;
    struct sb_error error;
    char how[8];
    unsigned mode;
    int more; /* pump: not at the end yet */
    unsigned char data[];
};

static void job_free(struct job *job)
{
    for (int i = 0; i < 2; i++) {
        struct sb_file *file = i ? job->to : job->file;
        if (file != NULL) {
            sb_file_leave(file);
            sb_object_unref(file);
        }
    }
    free(job->bytes);
    free(job);
}

static void cancelled(struct sb_op *op, void *owner)
{
    struct job *job = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    job->stop = 1;
    job->op = NULL;
    sb_op_fail(op, &err);
}

void sb_file_fail_read(struct sb_error *err, int sys)
{
    sb_fail_errno(err, sys, "read", "the file %s",
                  sys == EBADF ? "was not opened for reading" : "cannot be read");
}

/* A read that got somewhere is none that failed: the next one will tell. */
static ssize_t read_some(int fd, void *to, size_t n, uint64_t offset, const _Atomic int *stop,
                         struct sb_error *err)
{
    int sys;
    size_t got = sb_file_read_at(fd, to, n, offset, stop, &sys);
    if (got > 0 || sys == 0)
        return (ssize_t)got;
    sb_file_fail_read(err, sys);
    return -1;
}

static void do_read(struct job *job)
{
    struct stat st;
    size_t room = job->len;
    ssize_t n;
    if (fstat(job->file->fd, &st) == 0 && room > SMALL_READ) {
        uint64_t left = (uint64_t)st.st_size > job->offset ? (uint64_t)st.st_size - job->offset : 0;
        if (room > left)
            room = left > SMALL_READ ? (size_t)left : SMALL_READ;
    }
    job->bytes = sb_large_alloc(room);
    if (job->bytes == NULL) {
        sb_file_fail_read(&job->error, ENOMEM);
        return;
    }
    n = read_some(job->file->fd, job->bytes, room, job->offset, &job->stop, &job->error);
    job->bytes_len = n > 0 ? (size_t)n : 0;
}

static void do_open(struct job *job)
{
    int write = strchr(job->how, 'w') != NULL;
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    struct stat st;
    int fd;
    flags |= write ? O_WRONLY | O_CREAT : O_RDONLY;
    flags |= strchr(job->how, 'x') ? O_EXCL : 0;
    flags |= strchr(job->how, 'n') ? O_NOFOLLOW : 0;
    fd = open((const char *)job->data, flags, (mode_t)job->mode);
    if (fd < 0) {
        sb_fail_errno(&job->error, errno, "open", "%.200s", (const char *)job->data);
    } else if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        sb_fail_errno(&job->error, S_ISDIR(st.st_mode) ? EISDIR : EINVAL, "open",
                      "%.200s is no regular file", (const char *)job->data);
        close(fd);
    } else if (write && ftruncate(fd, 0) < 0) { /* only now that it is known to be a file */
        sb_fail_errno(&job->error, errno, "open", "%.200s", (const char *)job->data);
        close(fd);
    } else {
        job->file = sb_file_new(fd, &job->error);
        if (job->file != NULL)
            sb_file_enter(job->file);
    }
    if (job->error.kind != SB_OK)
        strncpy(job->error.path, (const char *)job->data, sizeof job->error.path - 1);
}

static void do_pump(struct job *job)
{
    size_t turn = 0;
    if (job->bytes == NULL && (job->bytes = malloc(job->len)) == NULL) {
        sb_fail_errno(&job->error, ENOMEM, "copy", "no memory to copy a file");
        return;
    }
    job->more = 1;
    while (turn < PUMP_TURN && !job->stop) {
        int sys;
        size_t n =
            sb_file_read_at(job->file->fd, job->bytes, job->len, job->number, &job->stop, &sys);
        size_t put;
        if (n == 0) {
            if (sys != 0)
                sb_fail_errno(&job->error, sys, "read", "after %llu bytes",
                              (unsigned long long)job->number);
            job->more = 0;
            return;
        }
        put = sb_file_write_at(job->to->fd, job->bytes, n, job->number, &job->stop, &sys);
        job->number += put;
        turn += put;
        if (sys != 0) {
            sb_fail_errno(&job->error, sys, "write", "after %llu bytes",
                          (unsigned long long)job->number);
            job->more = 0;
            return;
        }
    }
}

static void work(void *arg)
{
    struct job *job = arg;
    int sys = 0;
    struct stat st;
    switch (job->kind) {
    case READ:
        do_read(job);
        break;
    case WRITE:
        job->number =
            sb_file_write_at(job->file->fd, job->data, job->len, job->offset, &job->stop, &sys);
        if (sys != 0)
            sb_file_fail_write(&job->error, sys, job->number, job->len);
        break;
    case TRUNCATE:
        if (ftruncate(job->file->fd, (off_t)job->offset) < 0)
            sb_fail_errno(&job->error, errno, "truncate", "the size of the file cannot be changed");
        break;
    case SYNC:
        if (fdatasync(job->file->fd) < 0)
            sb_fail_errno(&job->error, errno, "sync", "the file cannot be synced");
        break;
    case SIZE:
        if (fstat(job->file->fd, &st) < 0)
            sb_fail_errno(&job->error, errno, "stat", "the size of the file cannot be read");
        else
            job->number = (uint64_t)st.st_size;
        break;
    case OPEN:
        do_open(job);
        break;
    case PUMP:
        do_pump(job);
        break;
    }
}

static void done(void *arg)
{
    struct job *job = arg;
    struct sb_op *op = job->op;
    struct sb_result *result;
    if (op == NULL) {
        job_free(job);
        return;
    }
    if (job->kind == PUMP && job->more) {
        if (sb_pool_run(work, done, job, &job->error) == 0)
            return;
    }
    result = sb_op_result(op);
    result->error = job->error;
    if (job->kind == READ && job->error.kind == SB_OK && (job->bytes_len > 0 || job->len == 0)) {
        result->bytes = job->bytes;
        result->bytes_len = job->bytes_len;
        job->bytes = NULL;
    }
    if (job->kind == WRITE || job->kind == SIZE || job->kind == PUMP) {
        result->number = (double)job->number;
        result->has_number = 1;
    }
    if (job->kind == OPEN && job->file != NULL)
        result->object = sb_object_ref(&job->file->object);
    job_free(job);
    sb_op_complete(op);
}

static struct sb_op *submit(enum kind kind, struct sb_file *file, struct sb_file *to,
                            struct sb_mailbox *mailbox, uint64_t offset, size_t len,
                            const void *data, size_t data_len, struct job **made)
{
    struct job *job = malloc(sizeof *job + data_len + 1);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (job == NULL || (op = sb_op_new(mailbox, cancelled, job)) == NULL) {
        free(job);
        return NULL;
    }
    memset(job, 0, sizeof *job);
    if (data_len > 0)
        memcpy(job->data, data, data_len);
    job->data[data_len] = '\0';
    job->kind = kind;
    job->op = op;
    job->offset = offset;
    job->len = len;
    if (file != NULL && sb_file_enter(file))
        job->file = sb_object_ref(file);
    if (to != NULL && sb_file_enter(to))
        job->to = sb_object_ref(to);
    if ((file != NULL && job->file == NULL) || (to != NULL && job->to == NULL))
        sb_fail(&err, SB_ERR_CLOSED, "the file is closed");
    else if (made != NULL)
        *made = job;
    else if (kind == SIZE || ((kind == READ || kind == WRITE) && len <= SHORT))
        sb_pool_run_short(work, done, job, &err);
    else
        sb_pool_run(work, done, job, &err);
    if (err.kind != SB_OK) {
        job_free(job);
        sb_op_fail(op, &err);
        if (made != NULL)
            *made = NULL;
    }
    return op;
}

struct sb_op *sb_file_read(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t offset,
                           size_t n)
{
    return submit(READ, file, NULL, mailbox, offset, n, NULL, 0, NULL);
}

struct sb_op *sb_file_write(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t offset,
                            const void *data, size_t len)
{
    return submit(WRITE, file, NULL, mailbox, offset, len, data, len, NULL);
}

struct sb_op *sb_file_truncate(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t size)
{
    return submit(TRUNCATE, file, NULL, mailbox, size, 0, NULL, 0, NULL);
}

struct sb_op *sb_file_sync(struct sb_file *file, struct sb_mailbox *mailbox)
{
    return submit(SYNC, file, NULL, mailbox, 0, 0, NULL, 0, NULL);
}

struct sb_op *sb_file_size(struct sb_file *file, struct sb_mailbox *mailbox)
{
    return submit(SIZE, file, NULL, mailbox, 0, 0, NULL, 0, NULL);
}

struct sb_op *sb_file_pump(struct sb_file *from, struct sb_file *to, struct sb_mailbox *mailbox,
                           size_t chunk)
{
    return submit(PUMP, from, to, mailbox, 0, chunk, NULL, 0, NULL);
}

struct sb_op *sb_file_host_open(struct sb_mailbox *mailbox, const char *path, const char *how,
                                unsigned mode)
{
    struct sb_error err = {SB_OK};
    struct job *job = NULL;
    struct sb_op *op = submit(OPEN, NULL, NULL, mailbox, 0, 0, path, strlen(path), &job);
    if (job == NULL)
        return op;
    strncpy(job->how, how, sizeof job->how - 1);
    job->mode = mode;
    if (sb_pool_run(work, done, job, &err) < 0) {
        job_free(job);
        sb_op_fail(op, &err);
    }
    return op;
}

ssize_t sb_file_read_here(struct sb_file *file, uint64_t offset, void *to, size_t n,
                          struct sb_error *err)
{
    static const _Atomic int never;
    if (!sb_file_enter(file)) {
        sb_fail(err, SB_ERR_CLOSED, "the file is closed");
        return -1;
    }
    ssize_t got = read_some(file->fd, to, n, offset, &never, err);
    sb_file_leave(file);
    return got;
}

int sb_file_lock(struct sb_file *file, struct sb_error *err)
{
    if (!sb_file_enter(file)) {
        sb_fail(err, SB_ERR_CLOSED, "the file is closed");
        return -1;
    }
    int rc;
    do
        rc = flock(file->fd, LOCK_EX | LOCK_NB);
    while (rc < 0 && errno == EINTR);
    int sys = errno;
    sb_file_leave(file);
    if (rc == 0)
        return 1;
    if (sys == EWOULDBLOCK)
        return 0;
    sb_fail_errno(err, sys, "lock", "cannot lock the file");
    return -1;
}
