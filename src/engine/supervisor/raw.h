/* System calls without libc: for processes that share the supervisor's memory. They must not write
 * errno (it is the supervisor's), allocate, or lock. Results are the kernel's: negative errno. */
#ifndef SB_RAW_H
#define SB_RAW_H

#include <stddef.h>
#include <sys/syscall.h>

#if defined(__x86_64__)

static inline long sb_raw(long nr, long a, long b, long c, long d, long e)
{
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return ret;
}

/* clone3 whose child starts in fn(arg) on the stack given in `args` and exits with its result. */
static inline long sb_raw_clone3(void *args, size_t size, int (*fn)(void *), void *arg)
{
    long ret;
    register int (*r8)(void *) __asm__("r8") = fn;
    register void *r9 __asm__("r9") = arg;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r9, %%rdi\n\t"
                     "call *%%r8\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[quit], %%eax\n\t"
                     "syscall\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(ret)
                     : "a"((long)SYS_clone3), "D"(args), "S"(size), "r"(r8),
                       "r"(r9), [quit] "i"(SYS_exit_group)
                     : "rcx", "r11", "memory");
    return ret;
}

#elif defined(__aarch64__)

static inline long sb_raw(long nr, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}

static inline long sb_raw_clone3(void *args, size_t size, int (*fn)(void *), void *arg)
{
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = (long)size;
    register int (*x9)(void *) __asm__("x9") = fn;
    register void *x10 __asm__("x10") = arg;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x0, x10\n\t"
                     "blr x9\n\t"
                     "mov x8, %[quit]\n\t"
                     "svc 0\n\t"
                     "brk 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x9), "r"(x10), [quit] "i"(SYS_exit_group)
                     : "memory");
    return x0;
}

#else
#error "not ported to this machine"
#endif

#define SB_RAW5(nr, a, b, c, d, e, ...) \
    sb_raw((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
#define sb_sys(nr, ...) SB_RAW5(SYS_##nr, __VA_ARGS__, 0, 0, 0, 0, 0)

/* In a cloned process: notes what is being done in `of->step`; a failure goes to `of->err`, and the process ends. */
#define TRY(of, what, call)        \
    do {                           \
        (of)->step = (what);       \
        long rc_ = (call);         \
        if (rc_ < 0) {             \
            (of)->err = (int)-rc_; \
            return 1;              \
        }                          \
    } while (0)

#endif
