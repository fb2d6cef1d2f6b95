/* What the processes of the sandbox use, by a look at each: for machines and users without control groups. */
#include "guest.h"
#include "mem.h"
#include "str.h"
#include "sys.h"

enum { TICK_US = 10000, PAGE = 4096 }; /* of the kernel's interface, whatever its own are */

/* The fields of a stat line behind the name, by their numbers in proc(5). */
enum { FIRST = 3, UTIME = 14, CSTIME = 17, THREADS = 20, RSS = 24 };

/* Zero where there is no such field. */
static void stat_read(const char *text, size_t n, uint64_t field[RSS + 1])
{
    const char *end = text + n, *at = end;
    memset(field, 0, (RSS + 1) * sizeof *field);
    while (at > text && at[-1] != ')') /* the name may hold anything, also parentheses */
        at--;
    for (int i = FIRST; i <= RSS && at < end; i++) {
        const char *from = at + 1 < end ? at + 1 : end;
        const char *stop = str_find(from, (size_t)(end - from), ' ');
        at = stop != NULL ? stop : end;
        str_number(from, (size_t)(at - from), UINT64_MAX, &field[i]);
    }
}

static size_t read_stat(int dir, const char *pid, size_t len, char *text, size_t cap)
{
    char path[32];
    memcpy(path, pid, len);
    memcpy(path + len, "/stat", 6);
    int fd = sys_openat(dir, path, O_RDONLY, 0);
    long n = fd < 0 ? -1 : sys_read(fd, text, cap);
    if (fd >= 0)
        sys_close(fd);
    return n > 0 ? (size_t)n : 0;
}

/* Who has ended is in the times of the parent that has waited for it, in the end in ours. */
void usage_answer(uint32_t req)
{
    static char dents[4096];
    char text[1024];
    uint64_t field[RSS + 1], ticks = 0, pages = 0, tasks = 0, pid;
    struct sb_packer p;
    int dir = sys_openat(AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY, 0);
    long got = -1;
    while (dir >= 0 && (got = SYS3(__NR_getdents64, dir, dents, sizeof dents)) > 0)
        for (long at = 0; at < got;) {
            const struct sys_dirent *d = (struct sys_dirent *)(dents + at);
            size_t len = strlen(d->name);
            at += d->reclen;
            if (!str_number(d->name, len, 1 << 30, &pid))
                continue;
            stat_read(text, read_stat(dir, d->name, len, text, sizeof text), field);
            for (int i = UTIME; i <= CSTIME; i++)
                ticks += field[i];
            tasks += field[THREADS];
            pages += field[RSS];
        }
    if (dir >= 0)
        sys_close(dir);
    sb_pack_begin(&p, guest.out, sizeof guest.out, got < 0 ? SB_ERROR : SB_REPLY, req, 0);
    if (got >= 0) {
        sb_pack_u64(&p, SB_F_CPU_US, ticks * TICK_US);
        sb_pack_u64(&p, SB_F_MEMORY, pages * PAGE);
        sb_pack_u64(&p, SB_F_COUNT, tasks);
    }
    control_send(&p);
}
