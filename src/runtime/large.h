/* Much data: memory for it and copies of it, at what memory can do. */
#ifndef SB_LARGE_H
#define SB_LARGE_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SB_LARGE_PAGE ((size_t)2 << 20)
#define SB_HEAP_KEPT ((size_t)8 << 20)
#define SB_COPY_PIECE 2048u /* the C library copies so much in a loop of its own */

/* A wish: large pages for memory that is written once, since the page faults of fresh memory cost more
 * than the copy that fills it. With the page the block begins in, where the C library keeps its length:
 * a mapping of two kinds could not be moved when the block grows. */
static inline void sb_large_wish(void *p, size_t n)
{
    uintptr_t start = (uintptr_t)p & ~(uintptr_t)4095;
    if (p != NULL && n >= 2 * SB_LARGE_PAGE)
        madvise((void *)start, (uintptr_t)p + n - start, MADV_HUGEPAGE);
}

/* With that wish. Freed with free. */
static inline void *sb_large_alloc(size_t n)
{
    if (n < 2 * SB_LARGE_PAGE || n > SIZE_MAX / 2)
        return malloc(n > 0 ? n : 1);
    n = (n + SB_LARGE_PAGE - 1) & ~(SB_LARGE_PAGE - 1);
    void *p = aligned_alloc(SB_LARGE_PAGE, n);
    sb_large_wish(p, n);
    return p;
}

/* Of memory that grows. */
static inline void *sb_large_realloc(void *p, size_t n)
{
    void *more = realloc(p, n);
    sb_large_wish(more, n);
    return more;
}

/* For those who give Lua one large string after the other. The C library gives memory at the top of its
 * heap back to the system when more than a threshold is free there. Strings that Lua's collector frees
 * go that way, and the next ones come back page fault by page fault, which costs three times the
 * reading. The threshold is twice the largest block that was once mapped and freed; so a block is. */
static inline void sb_large_keep_heap(void)
{
    static atomic_flag kept = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set_explicit(&kept, memory_order_relaxed))
        return;
    void *volatile block = malloc(SB_HEAP_KEPT / 2); /* volatile: or the compiler leaves it out */
    free(block);
}

/* memcpy. The C library leaves long copies to the processor's string instruction, which on AMD's of today
 * does 2 GB/s instead of 40 where the destination lies up to 31 bytes ahead of the source, modulo 4096. */
static inline void sb_large_copy(void *to, const void *from, size_t n)
{
    size_t ahead = ((uintptr_t)to - (uintptr_t)from) % 4096;
    if (ahead > 0 && ahead < 32)
        for (; n > SB_COPY_PIECE; n -= SB_COPY_PIECE) {
            memcpy(to, from, SB_COPY_PIECE);
            to = (char *)to + SB_COPY_PIECE;
            from = (const char *)from + SB_COPY_PIECE;
        }
    if (n > 0)
        memcpy(to, from, n);
}

#endif
