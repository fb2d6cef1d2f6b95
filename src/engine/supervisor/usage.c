/* The bytes that a tree takes, added up while its owner goes on changing it: what vanishes on the way counts as gone.
 * (nftw gives up where a directory does.) */
#include "usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A descriptor each. Nobody has such a tree but to be in somebody's way. */
enum { DEPTH_MAX = 1000 };

struct tree {
    dev_t dev; /* what is mounted in it is not of it */
    uint64_t bytes;
};

static bool gone(void)
{
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

static int add_dir(struct tree *t, int fd, int depth);

static int add(struct tree *t, int dir, const char *name, int depth)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return gone() || errno == EACCES ? 0 : -1;
    if (depth == 0)
        t->dev = st.st_dev;
    if (st.st_dev != t->dev || st.st_nlink == 0)
        return 0;
    bool is_dir = S_ISDIR(st.st_mode);
    /* A file of several names has its part at each. */
    t->bytes += (uint64_t)st.st_blocks * 512 / (is_dir ? 1 : st.st_nlink);
    if (!is_dir)
        return 0;
    if (depth == DEPTH_MAX)
        return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return gone() || errno == EACCES ? 0 : -1;
    return add_dir(t, fd, depth);
}

static int add_dir(struct tree *t, int fd, int depth)
{
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return -1;
    }
    int rc = 0;
    struct dirent *e;
    while (rc == 0 && (errno = 0, e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = add(t, fd, e->d_name, depth + 1);
    if (rc == 0 && errno != 0)
        rc = -1;
    closedir(d);
    return rc;
}

int sb_usage_add(int dir, const char *name, uint64_t *bytes)
{
    struct tree t = {0};
    int rc = add(&t, dir, name, 0);
    *bytes += t.bytes;
    return rc;
}
