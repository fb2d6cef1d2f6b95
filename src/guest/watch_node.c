#include "watch_node.h"

#include <asm/errno.h>

#include "mem.h"
#include "str.h"
#include "sys.h"

enum { USED = 255 };

static struct node **buckets;
static size_t room, count; /* room: a power of two */
static struct fresh *first, *last;
static char *path;
static size_t path_room;

/* ---- by number ---- */

static int grow(void)
{
    size_t more = room == 0 ? 64 : room * 2;
    struct node **fresh = mem_alloc(more * sizeof *fresh);
    if (fresh == NULL)
        return -1;
    for (size_t i = 0; i < room; i++)
        for (struct node *n = buckets[i], *after; n != NULL; n = after) {
            struct node **bucket = &fresh[(unsigned)n->wd & (more - 1)];
            after = n->chain;
            n->chain = *bucket;
            *bucket = n;
        }
    mem_free(buckets);
    buckets = fresh;
    room = more;
    return 0;
}

struct node *node_of(int wd)
{
    struct node *n = room > 0 ? buckets[(unsigned)wd & (room - 1)] : NULL;
    while (n != NULL && n->wd != wd)
        n = n->chain;
    return n;
}

/* ---- by name ---- */

struct node *node_add(struct node *parent, const char *name, int wd)
{
    size_t len = strlen(name);
    struct node *n = count < room || grow() == 0 ? mem_alloc(sizeof *n + len + 1) : NULL;
    struct node **bucket;
    if (n == NULL)
        return NULL;
    memcpy(n->name, name, len + 1);
    n->wd = wd;
    n->parent = parent;
    if (parent != NULL) {
        n->next = parent->child;
        n->self = &parent->child;
        parent->child = n;
        if (n->next != NULL)
            n->next->self = &n->next;
    }
    bucket = &buckets[(unsigned)wd & (room - 1)];
    n->chain = *bucket;
    *bucket = n;
    count++;
    return n;
}

struct node *node_child(const struct node *n, const char *name)
{
    struct node *child = n->child;
    size_t len = strlen(name);
    while (child != NULL && !str_same(name, len, child->name))
        child = child->next;
    return child;
}

int node_holds(const struct node *n, const struct node *below)
{
    while (below != NULL && below != n)
        below = below->parent;
    return below != NULL;
}

static void drop_one(struct node *n, int inotify)
{
    struct node **at = &buckets[(unsigned)n->wd & (room - 1)];
    while (*at != n)
        at = &(*at)->chain;
    *at = n->chain;
    count--;
    if (n->self != NULL) {
        *n->self = n->next;
        if (n->next != NULL)
            n->next->self = n->self;
    }
    if (n->fresh != NULL)
        n->fresh->node = NULL;
    if (inotify >= 0)
        SYS2(__NR_inotify_rm_watch, inotify, n->wd);
    mem_free(n);
}

void node_drop(struct node *n, int inotify)
{
    struct node *stop = n->parent, *up;
    for (struct node *at = n; at != stop; at = up) {
        while (at->child != NULL)
            at = at->child;
        up = at == n ? stop : at->parent;
        drop_one(at, inotify);
    }
}

static size_t put_before(size_t end, const char *name)
{
    for (size_t len = strlen(name); len > 0; len--)
        path[--end] = name[len - 1];
    path[--end] = '/';
    return end;
}

const char *node_path(const struct node *n, const char *name)
{
    size_t len = name != NULL ? strlen(name) + 1 : 0, end;
    for (const struct node *at = n; at->parent != NULL; at = at->parent)
        len += strlen(at->name) + 1;
    if (len >= path_room) {
        char *more = mem_grow(path, 0, len * 2 + 1);
        if (more == NULL)
            return NULL;
        path = more;
        path_room = len * 2 + 1;
    }
    end = len;
    path[end] = '\0';
    if (name != NULL)
        end = put_before(end, name);
    for (; n->parent != NULL; n = n->parent)
        end = put_before(end, n->name);
    return path;
}

/* ---- what a scan has reported ---- */

int fresh_add(struct node *n, uint32_t *names, uint32_t count_, uint64_t until)
{
    struct fresh *f = mem_alloc(sizeof *f);
    if (f == NULL)
        return -ENOMEM;
    *f = (struct fresh){NULL, n, until, count_, names};
    n->fresh = f;
    if (last != NULL)
        last->next = f;
    else
        first = f;
    last = f;
    return 0;
}

void fresh_expire(uint64_t now)
{
    while (first != NULL && first->until <= now) {
        struct fresh *f = first;
        first = f->next;
        if (first == NULL)
            last = NULL;
        if (f->node != NULL)
            f->node->fresh = NULL;
        mem_free(f->names);
        mem_free(f);
    }
}

static int compare(const char *a, const char *b)
{
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    while (*x == *y && *x != 0)
        x++, y++;
    return *x - *y;
}

int fresh_take(const struct node *n, const char *name)
{
    const struct fresh *f = n->fresh;
    uint32_t low = 0, high = f != NULL ? f->n : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        char *text = (char *)(f->names + f->n) + f->names[middle];
        int order = compare(text + 1, name);
        if (order == 0) {
            int had = (unsigned char)text[0] != USED;
            text[0] = (char)USED;
            return had;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}
