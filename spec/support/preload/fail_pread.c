/* Preloaded into a Lua program: files have a bad block, 4 KiB at the offset in $FAIL_PREAD. A read ends before it,
 * one that begins in it fails. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    static off_t bad = -1;
    if (next == NULL) {
        const char *offset = getenv("FAIL_PREAD");
        bad = offset != NULL ? strtol(offset, NULL, 10) : -1;
        *(void **)&next = dlsym(RTLD_NEXT, "pread");
    }
    if (bad >= 0 && at >= bad && at < bad + 4096) {
        errno = EIO;
        return -1;
    }
    if (bad >= 0 && at < bad && n > (size_t)(bad - at))
        n = (size_t)(bad - at);
    return next(fd, to, n, at);
}
