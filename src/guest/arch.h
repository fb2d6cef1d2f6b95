/* What differs between the machines: the system call instruction, the entry point, and a child that
 * shares our address space. */
#ifndef GUEST_ARCH_H
#define GUEST_ARCH_H

#include <stddef.h>

/* sys_spawn(flags, stack, tid, fn, arg): clone(2); the child runs fn(arg) on a stack of its own, which ends
 * at `stack`, in the memory of its parent (CLONE_VM). tid is for CLONE_CHILD_CLEARTID. fn never returns.
 * The child branches away inside the assembly, so that the compiler never sees a call that returns twice
 * and cannot share a stack slot between the two. */

/* SYS_START: guest_main(the stack as the kernel left it), on a stack of our own (stack.c). */
#define STACK_BYTES 131072
#define STACK_END "guest_stack + 131072"

#if defined(__x86_64__)

static inline long sys_call(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}

#define SYS_CHILD_PART      \
    "test %%rax, %%rax\n\t" \
    "jnz 1f\n\t"            \
    "and $-16, %%rsp\n\t"   \
    "xor %%ebp, %%ebp\n\t"  \
    "mov %%r13, %%rdi\n\t"  \
    "call *%%r12\n\t"       \
    "ud2\n"                 \
    "1:"

static inline long sys_spawn(long flags, void *stack, int *tid, void (*fn)(void *), void *arg)
{
    register int *r10 __asm__("r10") = tid;
    register long r8 __asm__("r8") = 0;
    register void (*r12)(void *) __asm__("r12") = fn;
    register void *r13 __asm__("r13") = arg;
    long ret;
    __asm__ volatile("syscall\n\t" SYS_CHILD_PART
                     : "=a"(ret)
                     : "a"(56L), "D"(flags), "S"(stack), "d"(0L), "r"(r10), "r"(r8), "r"(r12),
                       "r"(r13)
                     : "rcx", "r11", "memory");
    return ret;
}

/* The same with clone3(args, size), where args name stack and tid. */
static inline long sys_spawn3(void *args, size_t size, void (*fn)(void *), void *arg)
{
    register void (*r12)(void *) __asm__("r12") = fn;
    register void *r13 __asm__("r13") = arg;
    long ret;
    __asm__ volatile("syscall\n\t" SYS_CHILD_PART
                     : "=a"(ret)
                     : "a"(435L), "D"(args), "S"(size), "r"(r12), "r"(r13)
                     : "rcx", "r11", "memory");
    return ret;
}

#define SYS_START                                                 \
    __asm__(".globl _start\n.type _start, @function\n_start:\n\t" \
            "xor %ebp, %ebp\n\tmov %rsp, %rdi\n\t"                \
            "mov $" STACK_END ", %esp\n\tcall guest_main\n\tud2\n")

#elif defined(__aarch64__)

static inline long sys_call(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

#define SYS_CHILD_PART \
    "cbnz x0, 1f\n\t"  \
    "mov x29, xzr\n\t" \
    "mov x0, x20\n\t"  \
    "blr x19\n\t"      \
    "brk #0\n"         \
    "1:"

static inline long sys_spawn(long flags, void *stack, int *tid, void (*fn)(void *), void *arg)
{
    register long x8 __asm__("x8") = 220;
    register long x0 __asm__("x0") = flags;
    register void *x1 __asm__("x1") = stack;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register int *x4 __asm__("x4") = tid;
    register void (*x19)(void *) __asm__("x19") = fn;
    register void *x20 __asm__("x20") = arg;
    __asm__ volatile("svc 0\n\t" SYS_CHILD_PART
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x19), "r"(x20)
                     : "memory");
    return x0;
}

static inline long sys_spawn3(void *args, size_t size, void (*fn)(void *), void *arg)
{
    register long x8 __asm__("x8") = 435;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = (long)size;
    register void (*x19)(void *) __asm__("x19") = fn;
    register void *x20 __asm__("x20") = arg;
    __asm__ volatile("svc 0\n\t" SYS_CHILD_PART
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x19), "r"(x20)
                     : "memory");
    return x0;
}

#define SYS_START                                                 \
    __asm__(".globl _start\n.type _start, %function\n_start:\n\t" \
            "mov x29, xzr\n\tmov x0, sp\n\t"                      \
            "adrp x1, " STACK_END "\n\t"                          \
            "add x1, x1, :lo12:" STACK_END "\n\t"                 \
            "mov sp, x1\n\tbl guest_main\n\tbrk #0\n")

#else
#error "pid 1 knows x86_64 and aarch64"
#endif

#endif
