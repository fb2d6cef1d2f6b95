/* What a tree takes: added up while somebody else works in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static const char *vanishing; /* a directory that goes between the look at it and its opening */

static int open_late(int dir, const char *name, int flags)
{
    if (vanishing != NULL && strcmp(name, vanishing) == 0)
        CHECK(unlinkat(dir, name, AT_REMOVEDIR) == 0);
    return openat(dir, name, flags);
}

#define openat open_late
#include "engine/supervisor/usage.c"
#undef openat

static int top;

static uint64_t taken(int dir, const char *name)
{
    struct stat st;
    CHECK(fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static uint64_t usage(const char *name)
{
    uint64_t bytes = 0;
    CHECK(sb_usage_add(top, name, &bytes) == 0);
    return bytes;
}

static void put(const char *path, size_t n)
{
    static char data[100000];
    memset(data, 'x', sizeof data);
    int fd = openat(top, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n && fsync(fd) == 0 && close(fd) == 0);
}

static void is_a_sum(void)
{
    CHECK(mkdirat(top, "u", 0700) == 0 && mkdirat(top, "u/d", 0700) == 0);
    put("u/file", 100000);
    put("u/d/file", 5000);
    put("outside", 100000);
    CHECK(symlinkat("../outside", top, "u/link") == 0);
    uint64_t others =
        taken(top, "u") + taken(top, "u/d") + taken(top, "u/d/file") + taken(top, "u/link");
    CHECK(usage("u") == others + taken(top, "u/file"));
    CHECK(linkat(top, "u/file", top, "u/d/again", 0) == 0);
    CHECK(linkat(top, "u/file", top, "elsewhere", 0) == 0);
    others = taken(top, "u") + taken(top, "u/d") + taken(top, "u/d/file") + taken(top, "u/link");
    CHECK(usage("u") == others + 2 * (taken(top, "u/file") / 3));
    passed("a file of several names is there once, a part at each; links lead nowhere");
    CHECK(usage("none") == 0);
    passed("what is not there takes nothing");
}

static void goes_on(void)
{
    CHECK(mkdirat(top, "busy", 0700) == 0 && mkdirat(top, "busy/b", 0700) == 0);
    put("busy/a", 5000);
    put("busy/c", 5000);
    vanishing = "b";
    uint64_t bytes = 0;
    CHECK(sb_usage_add(top, "busy", &bytes) == 0);
    CHECK(bytes >= taken(top, "busy/a") + taken(top, "busy/c"));
    CHECK(faccessat(top, "busy/b", F_OK, 0) < 0);
    vanishing = NULL;
    passed("a directory that vanishes on the way stops nothing");
}

static void has_an_end(void)
{
    int dir = dup(top);
    for (int i = 0; i < DEPTH_MAX + 2; i++) {
        CHECK(mkdirat(dir, "deep", 0700) == 0);
        int next = openat(dir, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CHECK(next >= 0 && close(dir) == 0);
        dir = next;
    }
    close(dir);
    uint64_t bytes = 0;
    CHECK(sb_usage_add(top, "deep", &bytes) < 0);
    passed("what lies too deep is no sum");
}

int main(void)
{
    char path[] = "/tmp/sandbar-usage.XXXXXX", line[64];
    CHECK(mkdtemp(path) != NULL);
    top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(top >= 0);
    is_a_sum();
    goes_on();
    has_an_end();
    snprintf(line, sizeof line, "rm -rf %s", path);
    CHECK(system(line) == 0);
    return 0;
}
