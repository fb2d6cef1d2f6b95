/* A walk over a directory tree. Depth is bounded by memory alone: of the directories above the one on
 * top only some stay open, the others are found again by ".." and then compared, since somebody may
 * have moved them. Links are never entered. */
#include "file.h"
#include "mem.h"

enum { KEEP_OPEN = 64 };

/* Order of two names of one block. */
static int name_after(const char *text, uint32_t a, uint32_t b)
{
    const unsigned char *x = (const unsigned char *)text + a + 1,
                        *y = (const unsigned char *)text + b + 1;
    while (*x == *y && *x != 0)
        x++, y++;
    return *x > *y;
}

/* Heap sort: no recursion, no bad case. */
static void names_sort(uint32_t *at, size_t n, const char *text)
{
    size_t start = n / 2, end = n;
    while (end > 1) {
        size_t root, child;
        uint32_t v;
        if (start > 0) {
            v = at[--start];
        } else {
            v = at[--end];
            at[end] = at[0];
        }
        for (root = start; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && name_after(text, at[child + 1], at[child]))
                child++;
            if (!name_after(text, at[child], v))
                break;
            at[root] = at[child];
        }
        at[root] = v;
    }
}

static int is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

int names_load(struct level *l)
{
    static char dents[32768];
    char *text = NULL;
    size_t used = 0, n = 0;
    long got;
    while ((got = SYS3(__NR_getdents64, l->fd, dents, sizeof dents)) > 0) {
        struct sys_dirent *d;
        char *more = mem_grow(text, used, used + (size_t)got);
        if (more == NULL) {
            mem_free(text);
            return -ENOMEM;
        }
        text = more;
        for (long at = 0; at < got; at += d->reclen) {
            size_t len;
            d = (struct sys_dirent *)(dents + at);
            if (is_dots(d->name))
                continue;
            len = strlen(d->name) + 1;
            text[used] = (char)d->type;
            memcpy(text + used + 1, d->name, len);
            used += len + 1;
            n++;
        }
    }
    l->n = (uint32_t)n;
    l->next = 0;
    l->names = NULL;
    if (got == 0 && n > 0) {
        l->names = mem_alloc(n * sizeof *l->names + used);
        if (l->names == NULL) {
            got = -ENOMEM;
        } else {
            size_t at = 0;
            memcpy(l->names + n, text, used);
            for (size_t i = 0; i < n; i++) {
                l->names[i] = (uint32_t)at;
                at += strlen(text + at + 1) + 2;
            }
            names_sort(l->names, n, (char *)(l->names + n));
        }
    }
    mem_free(text);
    return (int)got;
}

static int walk_push(struct walk *w, int fd)
{
    struct statx st;
    struct level *l;
    int err = sys_fstat(fd, &st);
    if (err == 0 && w->depth == w->room) {
        size_t room = w->room == 0 ? 16 : w->room * 2;
        struct level *more = mem_grow(w->stack, w->depth * sizeof *more, room * sizeof *more);
        if (more == NULL)
            err = -ENOMEM;
        else
            w->stack = more, w->room = room;
    }
    if (err < 0) {
        sys_close(fd);
        return err;
    }
    l = &w->stack[w->depth];
    memset(l, 0, sizeof *l);
    l->ino = st.stx_ino;
    l->major = st.stx_dev_major;
    l->minor = st.stx_dev_minor;
    l->fd = fd;
    l->path_len = w->path_len;
    if (w->opened != NULL)
        err = w->opened(fd);
    if (err == 0 && !w->bare)
        err = names_load(l);
    if (err < 0) {
        sys_close(fd);
        return err;
    }
    if (w->depth >= KEEP_OPEN) {
        struct level *far = &w->stack[w->depth - KEEP_OPEN];
        if (far->fd >= 0)
            sys_close(far->fd);
        far->fd = -1;
    }
    w->depth++;
    return 0;
}

static int path_room(struct walk *w, size_t more)
{
    if (w->path_len + more + 2 > w->path_room) {
        size_t room = (w->path_len + more + 2) * 2;
        char *path = mem_grow(w->path, w->path_len + 1, room);
        if (path == NULL)
            return -ENOMEM;
        w->path = path;
        w->path_room = room;
    }
    return 0;
}

int walk_start(struct walk *w, int fd, const char *path)
{
    size_t len = strlen(path);
    if (path_room(w, len) < 0) {
        sys_close(fd);
        return -ENOMEM;
    }
    memcpy(w->path, path, len + 1);
    w->path_len = len == 1 && path[0] == '/' ? 0 : len;
    return walk_push(w, fd);
}

int walk_dir(const struct walk *w)
{
    return w->stack[w->depth - 1].fd;
}

const char *walk_path(struct walk *w, const char *name)
{
    size_t len = strlen(name);
    if (path_room(w, len) < 0)
        return name;
    w->path[w->path_len] = '/';
    memcpy(w->path + w->path_len + 1, name, len + 1);
    return w->path;
}

int walk_enter(struct walk *w, const char *name)
{
    size_t before = w->path_len;
    int fd = sys_openat(walk_dir(w), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK, 0),
        err;
    if (fd < 0)
        return fd;
    walk_path(w, name);
    w->path_len += strlen(name) + 1;
    err = walk_push(w, fd);
    if (err < 0)
        w->path_len = before;
    return err;
}

int walk_leave(struct walk *w)
{
    struct level *l = &w->stack[w->depth - 1], *up = l - 1;
    int err = 0;
    if (w->depth > 1 && up->fd < 0) {
        struct statx st;
        up->fd = sys_openat(l->fd, "..", O_RDONLY | O_DIRECTORY, 0);
        if (up->fd < 0)
            err = up->fd;
        else if ((err = sys_fstat(up->fd, &st)) == 0 &&
                 (st.stx_ino != up->ino || st.stx_dev_major != up->major ||
                  st.stx_dev_minor != up->minor))
            err = -ESTALE;
    }
    sys_close(l->fd);
    mem_free(l->names);
    w->depth--;
    if (w->depth > 0)
        w->path_len = up->path_len;
    return err;
}

const char *names_next(struct level *l, unsigned *type)
{
    const char *text = (const char *)(l->names + l->n);
    if (l->next == l->n)
        return NULL;
    text += l->names[l->next++];
    *type = (unsigned char)text[0];
    return text + 1;
}

const char *walk_next(struct walk *w, unsigned *type)
{
    return names_next(&w->stack[w->depth - 1], type);
}

void walk_end(struct walk *w)
{
    for (size_t i = 0; i < w->depth; i++) {
        if (w->stack[i].fd >= 0)
            sys_close(w->stack[i].fd);
        mem_free(w->stack[i].names);
    }
    mem_free(w->stack);
    mem_free(w->path);
    memset(w, 0, sizeof *w);
}
