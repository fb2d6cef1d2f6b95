/* A sandbox's directory and what is mounted of it: uppers and works, and the overlays over a template. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apply.h"
#include "loop.h"
#include "raw.h"
#include "slot.h"

/* What is below a sandbox's uppers and above its template, open. */
struct sb_sealed {
    int n, dir[SB_SEALED_MAX];
};

/* Uppers look like the root of their lower; on the disk they have plain ids as root, the lineage's
 * otherwise. Works are the overlay's own. */
static int make_dir(int dir, const char *tree, const char *kind, struct sb_failure *f)
{
    char name[24];
    snprintf(name, sizeof name, "%s%s%s", tree, *tree != '\0' ? "." : "", kind);
    if (mkdirat(dir, name, 0755) < 0)
        return sb_failed(f, NULL, errno, "layers", "mkdir %s", name);
    if (*kind == 'u' && sup.mode == SB_MODE_SUBIDS &&
        fchownat(dir, name, sb_slot_disk_id(0), sb_slot_disk_id(0), 0) < 0)
        return sb_failed(f, NULL, errno, "layers", "chown %s", name);
    return 0;
}

static int make_upper(int dir, const char *tree, struct sb_failure *f)
{
    return make_dir(dir, tree, "u", f);
}

static int make_pair(int dir, const char *tree, struct sb_failure *f)
{
    return make_upper(dir, tree, f) < 0 ? -1 : make_dir(dir, tree, "w", f);
}

int sb_slot_make_dirs(int dir, const struct sb_template *t, struct sb_failure *f)
{
    if (make_pair(dir, "", f) < 0)
        return -1;
    if (t->composed)
        return sup.mode == SB_MODE_ROOT ? make_pair(dir, "usr", f) : 0;
    /* A rootfs may lack the places that are mounted on. */
    static const char *const place[] = {"proc", "dev"};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        struct stat st;
        char name[16];
        snprintf(name, sizeof name, "u/%s", place[i]);
        if (fstatat(t->dir, place[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        if (mkdirat(dir, name, 0755) < 0 ||
            (sup.mode == SB_MODE_SUBIDS &&
             fchownat(dir, name, sb_slot_disk_id(0), sb_slot_disk_id(0), 0) < 0))
            return sb_failed(f, NULL, errno, "layers", "mkdir %s", name);
    }
    return 0;
}

void sb_slot_clean_works(int dir)
{
    static const char *const mark[] = {
        "w/work/incompat/volatile/dirty",     "w/work/incompat/volatile",     "w/work/incompat",
        "usr.w/work/incompat/volatile/dirty", "usr.w/work/incompat/volatile", "usr.w/work/incompat",
    };
    for (size_t i = 0; i < sizeof mark / sizeof *mark; i++)
        sb_sys(unlinkat, dir, mark[i], i % 3 == 0 ? 0 : AT_REMOVEDIR);
}

/* The mount of one overlay: lowers are what `sub` of the sealed layers (top first) is, then `lower`; upper and work are
 * the sandbox's own, by name. */
static int overlay(const struct sb_sealed *sealed, const char *sub, int lower, int own, int64_t id,
                   bool allow_setuid)
{
    char upper[16], work[16];
    int lowers[SB_SEALED_MAX + 1], n = 0, rc = -1;
    snprintf(upper, sizeof upper, "%su", sub);
    snprintf(work, sizeof work, "%sw", sub);
    sb_autofd int u = openat(own, upper, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    sb_autofd int w = openat(own, work, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (; n < sealed->n; n++) {
        lowers[n] = openat(sealed->dir[n], upper, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (lowers[n] < 0)
            break;
    }
    if (u >= 0 && w >= 0 && n == sealed->n) {
        lowers[n] = lower;
        rc = sb_mounts_overlay(lowers, n + 1, u, w, id, allow_setuid);
    }
    int err = errno;
    while (n-- > 0)
        close(lowers[n]);
    errno = err;
    return rc;
}

/* Detached clones of the sealed layers' directories, the uppermost first. */
static int open_sealed(struct sb_sealed *sealed, const struct sb_list *names, int idmap)
{
    const char *name[SB_SEALED_MAX];
    int n = 0;
    for (const char *e = NULL; (e = sb_list_next(names, e)) != NULL;) {
        if (n == SB_SEALED_MAX) {
            errno = ELOOP;
            return -1;
        }
        name[n++] = e;
    }
    for (sealed->n = 0; sealed->n < n; sealed->n++) {
        sb_autofd int dir = openat(sup.layers, name[n - 1 - sealed->n],
                                   O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int clone = dir < 0 ? -1 : sb_mounts_clone(dir, idmap);
        if (clone < 0)
            return -1;
        sealed->dir[sealed->n] = clone;
    }
    return 0;
}

static void close_sealed(struct sb_sealed *sealed)
{
    while (sealed->n > 0)
        sb_loop_close_later(&sealed->dir[--sealed->n]);
}

static int make_all(struct sb_layers *l, const struct sb_slot *s, int dir, int disk,
                    const struct sb_template *t, const struct sb_sealed *sealed, bool allow_setuid,
                    struct sb_failure *f)
{
    bool root = sup.mode == SB_MODE_ROOT;
    int idmap = root ? s->user : -1;
    int64_t id = root ? SB_RANGE_BASE + (int64_t)s->range * SB_RANGE_SIZE : -1;
    l->root = -1;
    l->trees = 0;
    /* A detached clone of the sandbox's directory alone: inside, the layers' paths start there. */
    sb_latefd int clone = disk < 0 ? sb_mounts_clone(dir, idmap) : -1;
    const int own = disk < 0 || sb_mounts_own(disk, idmap) < 0 ? clone : disk;
    sb_latefd int lower = sb_mounts_clone(t->dir, idmap);
    if (own < 0 || lower < 0)
        return sb_failed_errno(f, "layers",
                               own < 0 ? "clone of the directory" : "clone of the template");
    l->root = overlay(sealed, "", lower, own, id, allow_setuid);
    if (l->root < 0)
        return sb_failed_errno(f, "overlay", "mount of /");
    for (int i = 0; t->composed && i < sb_base_trees; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%s", sb_base_tree[i]);
        if (root && i == 0) {
            sb_autofd int host = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
            sb_latefd int usr = host < 0 ? -1 : sb_mounts_clone(host, idmap);
            l->tree[i] = usr < 0 ? -1 : overlay(sealed, "usr.", usr, own, id, allow_setuid);
        } else {
            l->tree[i] = sb_mounts_clone_readonly(AT_FDCWD, path, idmap);
        }
        if (l->tree[i] < 0) {
            sb_failed(f, NULL, errno, "layers", "mount of %s", path);
            sb_layers_close(l);
            return -1;
        }
        l->trees++;
    }
    return 0;
}

int sb_layers_make(struct sb_layers *l, const struct sb_slot *s, int dir, int disk,
                   const struct sb_template *t, const struct sb_list *names, bool allow_setuid,
                   struct sb_failure *f)
{
    static const struct sb_list none;
    struct sb_sealed sealed = {.n = 0};
    int rc = open_sealed(&sealed, names != NULL ? names : &none,
                         sup.mode == SB_MODE_ROOT ? s->user : -1);
    if (rc < 0) {
        l->root = -1;
        l->trees = 0;
        sb_failed_errno(f, "layers", "a sealed layer");
    } else {
        rc = make_all(l, s, dir, disk, t, &sealed, allow_setuid, f);
    }
    close_sealed(&sealed);
    return rc;
}

void sb_layers_close(struct sb_layers *l)
{
    sb_close(&l->root);
    while (l->trees > 0)
        sb_close(&l->tree[--l->trees]);
}

void sb_layers_drop(struct sb_layers *l)
{
    sb_loop_close_later(&l->root);
    while (l->trees > 0)
        sb_loop_close_later(&l->tree[--l->trees]);
}

static bool is_there(int dir, const char *name)
{
    return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The roots of the overlays are what their uppermost directories are. */
static const char *const upper_name[] = {"u", "usr.u"};
enum { UPPERS = sizeof upper_name / sizeof *upper_name };

static int like(int dir, int layer, const char *name, struct sb_failure *f)
{
    sb_autofd int from = openat(layer, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    sb_autofd int to = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0 || to < 0 || sb_apply_top(from, to) < 0)
        return sb_failed(f, NULL, errno, "layers", "owner and mode of %s", name);
    return 0;
}

int sb_layers_like(int dir, const struct sb_list *names, struct sb_failure *f)
{
    const char *last = NULL;
    for (const char *e = NULL; (e = sb_list_next(names, e)) != NULL;)
        last = e;
    if (last == NULL)
        return 0;
    sb_autofd int layer = openat(sup.layers, last, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (layer < 0)
        return sb_failed_errno(f, "layers", "a sealed layer");
    for (int i = 0; i < UPPERS; i++)
        if (is_there(dir, upper_name[i]) && is_there(layer, upper_name[i]) &&
            like(dir, layer, upper_name[i], f) < 0)
            return -1;
    return 0;
}

int sb_layers_plain(int upper)
{
    const uint32_t id = sb_slot_disk_id(0);
    if (sup.mode != SB_MODE_SINGLE && fchown(upper, id, id) < 0)
        return -1;
    return fchmod(upper, 0755);
}

int sb_layers_seal(const struct sb_record *rec, int dir, struct sb_failure *f)
{
    static const char *const tree[UPPERS] = {"", "usr"};
    sb_autofd int layer =
        openat(sup.layers, rec->seal, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (layer < 0)
        return sb_failed_errno(f, "layers", "the layer of a snapshot");
    for (int i = 0; i < UPPERS; i++) {
        const char *name = upper_name[i];
        bool here = is_there(dir, name), sealed = is_there(layer, name);
        if (!here && !sealed)
            continue;
        if (!sealed && renameat(dir, name, layer, name) < 0)
            return sb_failed(f, NULL, errno, "layers", "rename of %s", name);
        if (!is_there(dir, name) && make_upper(dir, tree[i], f) < 0)
            return -1;
        if (like(dir, layer, name, f) < 0)
            return -1;
    }
    return 0;
}
