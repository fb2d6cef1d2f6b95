/* Small helpers of the supervisor: descriptors, clocks, files, process identity. */
#include "sup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "birth.h"

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446
#endif

void sb_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void sb_close_at(int *fd)
{
    int keep = errno;
    sb_close(fd);
    errno = keep;
}

void sb_free_at(void *p)
{
    free(*(void **)p);
}

static int64_t clock_ms(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t sb_real_ms(void)
{
    return clock_ms(CLOCK_BOOTTIME);
}

int64_t sb_now_ms(void)
{
    return sb_real_ms() + sup.clock_offset_ms;
}

/* The test clock moves both clocks, so that what is shown agrees with what is enforced. */
int64_t sb_wall_ms(void)
{
    return clock_ms(CLOCK_REALTIME) + sup.clock_offset_ms;
}

void sb_random(void *buf, size_t n)
{
    unsigned char *p = buf;
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            abort(); /* a kernel without random numbers cannot give identities */
        p += got;
        n -= (size_t)got;
    }
}

void sb_uuid(char out[37])
{
    unsigned char b[16];
    sb_random(b, sizeof b);
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    snprintf(out, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static int write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

int sb_write_at(int dir, const char *name, const void *data, size_t n, mode_t mode)
{
    sb_autofd int fd =
        openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    return fd < 0 ? -1 : write_all(fd, data, n);
}

char *sb_read_at(int dir, const char *name, size_t max, size_t *n)
{
    sb_autofd int fd = openat(dir, name, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t cap = 4096, len = 0;
    char *buf = malloc(cap);
    while (buf != NULL) {
        ssize_t got = read(fd, buf + len, cap - len - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        len += (size_t)got;
        if (got == 0) {
            buf[len] = '\0';
            if (n != NULL)
                *n = len;
            return buf;
        }
        if (len > max) {
            errno = EFBIG;
            break;
        }
        if (cap - len < 2) {
            char *more = realloc(buf, cap *= 4);
            if (more == NULL)
                break;
            buf = more;
        }
    }
    free(buf);
    return NULL;
}

int sb_lift(int fd)
{
    if (fd < 0 || fd >= SB_FD_END)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, SB_FD_END);
    sb_close_at(&fd);
    return high;
}

int sb_each_name(int dir, void (*fn)(const char *name))
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err;
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (d == NULL) {
        err = errno;
        sb_close(&copy);
        return err;
    }
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL)
            break;
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            fn(e->d_name);
    }
    err = errno;
    closedir(d);
    return err;
}

bool sb_lacking(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOMEM;
}

/* FNV-1a. */
uint64_t sb_hash(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = seed != 0 ? seed : 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

int sb_put(const char *path, const char *text)
{
    sb_autofd int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int sb_ident_of(int pidfd, pid_t pid, struct sb_ident *id)
{
    struct stat st;
    struct statfs fs;
    if (fstat(pidfd, &st) < 0 || fstatfs(pidfd, &fs) < 0)
        return -1;
    id->pid = pid;
    id->inode = st.st_ino;
    id->start = 0;
    /* Since Linux 6.9 the inode alone says which process since boot; before, all had the same. */
    if (fs.f_type == PID_FS_MAGIC)
        return 0;
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    sb_autofree char *text = sb_read_at(AT_FDCWD, name, 4096, NULL);
    if (text == NULL)
        return -1;
    /* Field 22, counted behind the command's name, which may hold anything. */
    char *p = strrchr(text, ')');
    for (int i = 2; p != NULL && i < 22; i++)
        p = strchr(p + 1, ' ');
    if (p == NULL)
        return -1;
    id->start = strtoull(p + 1, NULL, 10);
    return 0;
}

int sb_ident_open(const struct sb_ident *id)
{
    struct sb_ident now;
    if (id->pid <= 1) {
        errno = ESRCH;
        return -1;
    }
    int fd = sb_lift(pidfd_open((pid_t)id->pid, 0));
    if (fd < 0)
        return -1;
    if (sb_ident_of(fd, (pid_t)id->pid, &now) < 0 || now.inode != id->inode ||
        now.start != id->start) {
        sb_close(&fd);
        errno = ESRCH;
    }
    return fd;
}
