/* Writes the carried programs into sealed memfds. */
#include "images.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

extern const unsigned char sb_bytes_pid1[], sb_bytes_pid1_end[];
extern const unsigned char sb_bytes_supervisor[], sb_bytes_supervisor_end[];

extern const unsigned char sb_bytes_unpack[], sb_bytes_unpack_end[];

static int image_fd(const char *name, const unsigned char *at, const unsigned char *end,
                    struct sb_error *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* kernels before MFD_EXEC */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return sb_fail_errno(err, errno, "memfd", "a program could not be stored");
    while (at < end) {
        ssize_t n = write(fd, at, (size_t)(end - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            goto failed;
        at += n;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
        return fd;
failed:
    sb_fail_errno(err, errno, "memfd", "a program could not be stored");
    close(fd);
    return err ? -(int)err->kind : -(int)SB_ERR_PLATFORM;
}

int sb_image_pid1(struct sb_error *err)
{
    return image_fd("sandbar-pid1", sb_bytes_pid1, sb_bytes_pid1_end, err);
}

int sb_image_supervisor(struct sb_error *err)
{
    return image_fd("sandbar-supervisor", sb_bytes_supervisor, sb_bytes_supervisor_end, err);
}

const unsigned char *sb_image_unpack(size_t *n)
{
    *n = (uintptr_t)sb_bytes_unpack_end - (uintptr_t)sb_bytes_unpack;
    return sb_bytes_unpack;
}
