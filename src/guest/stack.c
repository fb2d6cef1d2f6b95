/* The stack: beside our other memory, and not where the kernel puts one, far from all else: there it would cost
 * three page tables of its own, and sandboxes are many. */
#include "guest.h"
#include "mem.h"
#include "sys.h"

enum {
    PR_SET_MM = 35,
    PR_SET_MM_MAP = 14,
    AT_PAGESZ = 6,
    AT_EXECFN = 31,
    BELOW = 262144, /* more than the kernel adds to what it has filled */
};

/* The first of .bss, which is sorted by alignment (flags.mk): what lies below may not be written. */
char guest_stack[STACK_BYTES] __attribute__((aligned(8192)));

extern const char __executable_start[], etext[], end[];

/* Our name, for /proc, is on the stack that goes. The kernel shows none that lies in a file. */
static long keep_name(void)
{
    static char name[sizeof "init"];
    memcpy(name, "init", sizeof name);
    struct {
        uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
        uint64_t arg_start, arg_end, env_start, env_end;
        const void *auxv;
        uint32_t auxv_size, exe_fd;
    } map = {
        .start_code = (uintptr_t)__executable_start,
        .end_code = (uintptr_t)etext,
        .start_data = (uintptr_t)etext,
        .end_data = (uintptr_t)etext,
        .start_brk = (uintptr_t)end,
        .brk = (uintptr_t)end,
        .start_stack = (uintptr_t)guest_stack,
        .arg_start = (uintptr_t)name,
        .arg_end = (uintptr_t)(name + sizeof name),
        .env_start = (uintptr_t)(name + sizeof name),
        .env_end = (uintptr_t)(name + sizeof name),
        .exe_fd = ~0u,
    };
    return SYS5(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

void stack_leave(const unsigned long *old)
{
    const unsigned long *at = old + 1 + old[0] + 1; /* the environment */
    unsigned long page = 4096, top = 0;
    while (*at++ != 0)
        ;
    for (; at[0] != 0; at += 2) {
        page = at[0] == AT_PAGESZ ? at[1] : page;
        top = at[0] == AT_EXECFN ? at[1] : top; /* the last that lies on it: shorter than a page */
    }
    if (top == 0 || keep_name() != 0)
        return; /* a kernel without checkpoints */
    top = (top & ~(page - 1)) + page;
    unsigned long from = ((uintptr_t)old & ~(page - 1)) - BELOW;
    SYS2(__NR_munmap, from, top - from);
}
