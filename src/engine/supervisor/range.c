/* Id ranges are locked byte by byte in one file of the machine: the locks go with their supervisor. The
 * file also says which process was started in a range, for the time between two supervisors. */
#include "range.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int file = -1;
static bool tried;

static int open_file(void)
{
    struct stat st;
    if (tried)
        return file;
    tried = true;
    if (mkdir("/run/sandbar", 0700) < 0 && errno != EEXIST)
        return -1;
    sb_autofd int dir = open("/run/sandbar", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || fstat(dir, &st) < 0 || st.st_uid != 0 || (st.st_mode & 022) != 0)
        return -1;
    file = sb_lift(openat(dir, "ranges", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    return file;
}

static int lock(int range, short how)
{
    struct flock l = {.l_type = how, .l_whence = SEEK_SET, .l_start = range, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &l);
}

bool sb_range_take(int range)
{
    struct sb_ident id;
    if (open_file() < 0)
        return true;
    if (lock(range, F_WRLCK) < 0)
        return errno != EAGAIN && errno != EACCES;
    if (pread(file, &id, sizeof id, (off_t)range * (off_t)sizeof id) != (ssize_t)sizeof id)
        return true;
    sb_autofd int alive = sb_ident_open(&id);
    if (alive < 0)
        return true;
    sb_range_give(range);
    return false;
}

void sb_range_keep(int range)
{
    if (open_file() >= 0)
        lock(range, F_WRLCK);
}

void sb_range_give(int range)
{
    if (file >= 0)
        lock(range, F_UNLCK);
}

void sb_range_note(int range, const struct sb_ident *pid1)
{
    /* What cannot be noted is missed only should this supervisor be killed. */
    if (file >= 0 && range >= 0)
        (void)!pwrite(file, pid1, sizeof *pid1, (off_t)range * (off_t)sizeof *pid1);
}
