/* Preloaded into a Lua program: whoever asks what time of day it is hears of a day later and of a day earlier in turn. The
 * other clocks are what they are. */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { DAY = 86400 };

static long step(void)
{
    static int turn;
    return __atomic_add_fetch(&turn, 1, __ATOMIC_RELAXED) % 2 != 0 ? DAY : -DAY;
}

int clock_gettime(clockid_t which, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, which, ts);
    if (rc == 0 && which == CLOCK_REALTIME)
        ts->tv_sec += step();
    return rc;
}

time_t time(time_t *to)
{
    struct timespec ts = {0};
    clock_gettime(CLOCK_REALTIME, &ts);
    if (to != NULL)
        *to = ts.tv_sec;
    return ts.tv_sec;
}
