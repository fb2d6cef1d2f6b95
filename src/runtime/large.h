/* Memory for much data that is written once: on large pages where the kernel has them, since the
 * page faults of fresh memory cost more than the copy that fills it. Freed with free. */
#ifndef SB_LARGE_H
#define SB_LARGE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SB_LARGE_PAGE ((size_t)2 << 20)

static inline void *sb_large_alloc(size_t n)
{
    if (n < 2 * SB_LARGE_PAGE || n > SIZE_MAX / 2)
        return malloc(n > 0 ? n : 1);
    n = (n + SB_LARGE_PAGE - 1) & ~(SB_LARGE_PAGE - 1);
    void *p = aligned_alloc(SB_LARGE_PAGE, n);
    if (p != NULL)
        madvise(p, n, MADV_HUGEPAGE); /* a wish */
    return p;
}

#endif
