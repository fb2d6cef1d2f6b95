/* Preloaded into a Lua program: makes the n-th allocation fail that the library's own modules ask for, on
 * whichever thread, and nobody else's. The program drives it through package.loadlib: fail_arm takes n from the
 * file that $FAIL_MALLOC names, fail_report writes there how many allocations were seen since, and disarms. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static atomic_long seen, fail_at; /* fail_at 0: nothing is counted */

/* dlsym may allocate before anything has been found. */
static _Alignas(16) char early[4096];
static size_t early_used;

static void *early_take(size_t size)
{
    void *p = early + early_used;
    early_used += (size + 15) & ~(size_t)15;
    return early_used <= sizeof early ? p : NULL;
}

static void find(void)
{
    static int finding;
    if (finding)
        return;
    finding = 1;
    *(void **)&next_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&next_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next_malloc = dlsym(RTLD_NEXT, "malloc");
}

static int is_ours(const void *caller)
{
    Dl_info info;
    const char *name;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
        return 0;
    name = strstr(info.dli_fname, "/sandbar/");
    return name != NULL && strstr(name, ".so") != NULL;
}

static int fails(const void *caller)
{
    long n = atomic_load(&fail_at);
    if (n == 0 || !is_ours(caller) || atomic_fetch_add(&seen, 1) + 1 != n)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size)
{
    if (next_malloc == NULL)
        find();
    if (next_malloc == NULL)
        return early_take(size);
    return fails(__builtin_return_address(0)) ? NULL : next_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    if (next_calloc == NULL)
        find();
    if (next_calloc == NULL)
        return early_take(n * size);
    return fails(__builtin_return_address(0)) ? NULL : next_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    if (next_realloc == NULL)
        find();
    return fails(__builtin_return_address(0)) ? NULL : next_realloc(old, size);
}

char *strdup(const char *s)
{
    size_t size = strlen(s) + 1;
    char *copy;
    if (next_malloc == NULL)
        find();
    copy = fails(__builtin_return_address(0)) ? NULL : next_malloc(size);
    return copy == NULL ? NULL : memcpy(copy, s, size);
}

/* ---- for package.loadlib: functions of Lua's that take and give nothing ---- */

int fail_arm(void *state);
int fail_report(void *state);

int fail_arm(void *state)
{
    const char *path = getenv("FAIL_MALLOC");
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    long n = 0;
    (void)state;
    if (f == NULL || fscanf(f, "%ld", &n) != 1)
        abort();
    fclose(f);
    atomic_store(&seen, 0);
    atomic_store(&fail_at, n);
    return 0;
}

int fail_report(void *state)
{
    const char *path = getenv("FAIL_MALLOC");
    long n = atomic_exchange(&fail_at, 0);
    FILE *f = path != NULL ? fopen(path, "w") : NULL;
    (void)state;
    (void)n;
    if (f == NULL)
        abort();
    fprintf(f, "%ld\n", atomic_load(&seen));
    fclose(f);
    return 0;
}
