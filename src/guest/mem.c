#include "mem.h"

#include "sys.h"

enum {
    CLASS_MIN = 5,  /* 32 bytes */
    CLASS_MAX = 12, /* 4096 bytes; larger pieces are mappings */
    CHUNK = 65536,
};

/* In front of every piece. 16 bytes keep pieces aligned. */
struct piece {
    size_t size; /* of the whole piece, header included */
    struct piece *next;
};

static struct piece *spare[CLASS_MAX + 1];
/* The first is where our other memory is: elsewhere its first page would cost up to three page tables. */
static char first[CHUNK] __attribute__((aligned(4096)));
static char *chunk;
static size_t chunk_left;

static void chunk_next(void)
{
    chunk = chunk == NULL
                ? first
                : sys_mmap(CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    chunk_left = chunk == NULL ? 0 : CHUNK;
}

void *memcpy(void *to, const void *from, size_t n)
{
#if defined(__x86_64__)
    void *d = to;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(n) : : "memory");
#else
    unsigned char *d = to;
    const unsigned char *s = from;
    while (n-- > 0)
        *d++ = *s++;
#endif
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    unsigned char *d = to;
    const unsigned char *s = from;
    if (d < s)
        while (n-- > 0)
            *d++ = *s++;
    else
        while (n-- > 0)
            d[n] = s[n];
    return to;
}

void *memset(void *to, int c, size_t n)
{
#if defined(__x86_64__)
    void *d = to;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(c) : "memory");
#else
    volatile unsigned char *d = to;
    while (n-- > 0)
        *d++ = (unsigned char)c;
#endif
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (; n > 0; n--, x++, y++)
        if (*x != *y)
            return *x - *y;
    return 0;
}

size_t strlen(const char *s)
{
    size_t n = 0;
    while (s[n] != '\0')
        n++;
    return n;
}

void *mem_alloc(size_t n)
{
    size_t whole = n + sizeof(struct piece);
    struct piece *p;
    int class = CLASS_MIN;
    if (whole < n)
        return NULL;
    while (class <= CLASS_MAX && ((size_t)1 << class) < whole)
        class ++;
    if (class > CLASS_MAX) {
        whole = (whole + 4095) & ~(size_t)4095;
        p = sys_mmap(whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (p == NULL)
            return NULL;
        p->size = whole;
        return p + 1;
    }
    whole = (size_t)1 << class;
    p = spare[class];
    if (p != NULL) {
        spare[class] = p->next;
    } else {
        if (chunk_left < whole) {
            chunk_next();
            if (chunk == NULL)
                return NULL;
        }
        p = (struct piece *)chunk;
        chunk += whole;
        chunk_left -= whole;
    }
    p->size = whole;
    memset(p + 1, 0, n);
    return p + 1;
}

void mem_free(void *at)
{
    struct piece *p = at;
    int class = CLASS_MIN;
    if (at == NULL)
        return;
    p--;
    if (p->size > (size_t)1 << CLASS_MAX) {
        sys_munmap(p, p->size);
        return;
    }
    while (((size_t)1 << class) < p->size)
        class ++;
    p->next = spare[class];
    spare[class] = p;
}

void *mem_grow(void *at, size_t used, size_t n)
{
    struct piece *p = at;
    void *fresh;
    if (p != NULL && n + sizeof *p <= p[-1].size)
        return at;
    if (p != NULL && p[-1].size > (size_t)1 << CLASS_MAX) {
        size_t whole = (n + sizeof *p + 4095) & ~(size_t)4095;
        long r = SYS4(__NR_mremap, p - 1, p[-1].size, whole, MREMAP_MAYMOVE);
        if (r < 0 && r > -4096)
            return NULL;
        __builtin_memcpy(&fresh, &r, sizeof fresh);
        p = fresh;
        p->size = whole;
        return p + 1;
    }
    fresh = mem_alloc(n);
    if (fresh == NULL)
        return NULL;
    if (at != NULL)
        memcpy(fresh, at, used);
    mem_free(at);
    return fresh;
}
