/* A sandbox with a limit of memory: whom the kernel kills when it is reached. */
#include "guest.h"
#include "mem.h"
#include "str.h"
#include "sys.h"

/* A tenth of the limit: whoever has that much more than we do is chosen, and we have next to nothing. */
#define EXPOSED "100"

void memory_start(int oom)
{
    guest.oom = oom;
    guest.oom_score = sys_openat(AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY, 0);
}

uint64_t memory_killed(void)
{
    static const char word[] = "oom_kill ";
    const size_t len = sizeof word - 1;
    char text[256] = "";
    uint64_t count = 0;
    long n = guest.oom < 0 ? 0 : SYS4(__NR_pread64, guest.oom, text, sizeof text - 1, 0);
    for (const char *at = text; at + len < text + n; at++) {
        if ((at != text && at[-1] != '\n') || memcmp(at, word, len) != 0)
            continue;
        for (at += len; *at >= '0' && *at <= '9'; at++)
            count = count * 10 + (uint64_t)(*at - '0');
        break;
    }
    return count;
}

/* What is started inherits our score, and all who share our memory have the same until their exec. */
void memory_expose(int on)
{
    if (guest.oom_score >= 0)
        sys_write(guest.oom_score, on ? EXPOSED : "0", on ? sizeof EXPOSED - 1 : 1);
}
