/* Copying a small tree of the host into a template. */
#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 16, FILE_MAX_BYTES = 64 << 20 };

static int give(int dir, const char *name, uint32_t id)
{
    return sup.mode == SB_MODE_SINGLE ? 0 : fchownat(dir, name, id, id, AT_SYMLINK_NOFOLLOW);
}

static int copy_file(int from, int to_dir, const char *to, const struct stat *st)
{
    sb_autofd int out = openat(to_dir, to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return -1;
    for (off_t left = st->st_size; left > 0;) {
        ssize_t n = sendfile(out, from, NULL, (size_t)left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        left -= n;
    }
    return fchmod(out, st->st_mode & 0777);
}

static int copy_entry(int from_dir, const char *from, int to_dir, const char *to, uint32_t id,
                      int depth);

static int copy_dir(int from, int to_dir, const char *to, const struct stat *st, uint32_t id,
                    int depth)
{
    if (mkdirat(to_dir, to, 0700) < 0 && errno != EEXIST)
        return -1;
    sb_autofd int out = openat(to_dir, to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int list = fcntl(from, F_DUPFD_CLOEXEC, 0);
    DIR *d = list >= 0 ? fdopendir(list) : NULL;
    int rc = out < 0 || d == NULL ? -1 : 0;
    if (d == NULL)
        sb_close_at(&list);
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = copy_entry(from, e->d_name, out, e->d_name, id, depth + 1);
    int err = errno;
    if (d != NULL)
        closedir(d);
    errno = err;
    return rc < 0 ? rc : fchmod(out, st->st_mode & 0777);
}

static int copy_entry(int from_dir, const char *from, int to_dir, const char *to, uint32_t id,
                      int depth)
{
    char target[4096];
    ssize_t n = depth > 0 ? readlinkat(from_dir, from, target, sizeof target - 1) : -1;
    int rc;
    if (n > 0) {
        target[n] = '\0';
        rc = symlinkat(target, to_dir, to);
    } else {
        struct stat st;
        sb_autofd int in = openat(from_dir, from, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (in < 0 || fstat(in, &st) < 0)
            return 0;
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX)
            rc = copy_dir(in, to_dir, to, &st, id, depth);
        else if (S_ISREG(st.st_mode) && st.st_size <= FILE_MAX_BYTES)
            rc = copy_file(in, to_dir, to, &st);
        else
            return 0;
    }
    return rc < 0 ? rc : give(to_dir, to, id);
}

int sb_copy_tree(int from_dir, const char *from, int to_dir, const char *to, uint32_t id)
{
    return copy_entry(from_dir, from, to_dir, to, id, 0);
}
