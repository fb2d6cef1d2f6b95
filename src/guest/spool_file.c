/* The file of a spool lies where all files of the sandbox lie, so that it counts as its disk, and can be written back
 * from memory. Without a name nothing of it is left when pid 1 has gone, and no copy or snapshot contains it. */
#include "spool.h"
#include "str.h"
#include "sys.h"

/* Where the file system cannot make one without a name, it has one for a moment. */
static int named(void)
{
    static uint64_t number;
    char name[40], *end = str_put(name, "/.sandbar-spool-");
    int fd;
    end += str_digits(end, sys_clock_ns(CLOCK_BOOTTIME) + number++);
    *end = '\0';
    fd = sys_openat(AT_FDCWD, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd >= 0)
        SYS3(__NR_unlinkat, AT_FDCWD, name, 0);
    return fd;
}

int spool_file(void)
{
    int fd = sys_openat(AT_FDCWD, "/", O_TMPFILE | O_RDWR, 0600);
    return fd == -EOPNOTSUPP || fd == -EISDIR ? named() : fd;
}
