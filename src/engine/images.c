/* Writes the carried programs into sealed memfds, once, and hands out their descriptors. */
#include "images.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

extern const unsigned char sb_bytes_pid1[], sb_bytes_pid1_end[];
extern const unsigned char sb_bytes_supervisor[], sb_bytes_supervisor_end[];

/* Part of the one runtime. A forked child inherits the descriptors; they are as good there. */
static struct image {
    const char *name;
    const unsigned char *from, *to;
    int fd;
} pid1 = {"sandbar-pid1", sb_bytes_pid1, sb_bytes_pid1_end, -1},
  supervisor = {"sandbar-supervisor", sb_bytes_supervisor, sb_bytes_supervisor_end, -1};

static int image_fd(struct image *image, struct sb_error *err)
{
    int fd;
    if (image->fd >= 0)
        return image->fd;
    fd = memfd_create(image->name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* kernels before MFD_EXEC */
        fd = memfd_create(image->name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return sb_fail_errno(err, errno, "memfd", "a program could not be stored");
    for (const unsigned char *at = image->from; at < image->to;) {
        ssize_t n = write(fd, at, (size_t)(image->to - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            goto failed;
        at += n;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        goto failed;
    return image->fd = fd;
failed:
    sb_fail_errno(err, errno, "memfd", "a program could not be stored");
    close(fd);
    return err ? -(int)err->kind : -(int)SB_ERR_PLATFORM;
}

int sb_image_pid1(struct sb_error *err)
{
    return image_fd(&pid1, err);
}

int sb_image_supervisor(struct sb_error *err)
{
    return image_fd(&supervisor, err);
}
