/* A sandbox's directory and what is mounted of it: uppers and works, and the overlays over a template. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop.h"
#include "slot.h"

/* Uppers look like the root of their lower; on the disk they have plain ids as root, the lineage's
 * otherwise. Works are the overlay's own. */
static int make_pair(int dir, const char *tree, struct sb_failure *f)
{
    char name[24];
    static const char *const kind[2] = {"u", "w"};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s%s%s", tree, *tree != '\0' ? "." : "", kind[i]);
        if (mkdirat(dir, name, 0755) < 0)
            return sb_failed(f, NULL, errno, "layers", "mkdir %s", name);
        if (i == 0 && sup.mode == SB_MODE_SUBIDS &&
            fchownat(dir, name, sb_slot_disk_id(0), sb_slot_disk_id(0), 0) < 0)
            return sb_failed(f, NULL, errno, "layers", "chown %s", name);
    }
    return 0;
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
    static const char *const work[] = {"w", "usr.w"};
    static const char *const mark[] = {"incompat/volatile/dirty", "incompat/volatile", "incompat"};
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        for (size_t k = 0; k < sizeof mark / sizeof *mark; k++) {
            char path[64];
            snprintf(path, sizeof path, "%s/work/%s", work[i], mark[k]);
            unlinkat(dir, path, k == 0 ? 0 : AT_REMOVEDIR);
        }
}

/* The mount of one overlay: lower from `lower`, upper and work by name from the sandbox's own tree. */
static int overlay(int lower, int own, const char *upper, const char *work, int64_t id,
                   bool allow_setuid)
{
    sb_autofd int u = openat(own, upper, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    sb_autofd int w = openat(own, work, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return u < 0 || w < 0 ? -1 : sb_mounts_overlay(lower, u, w, id, allow_setuid);
}

int sb_layers_make(struct sb_layers *l, const struct sb_slot *s, int dir,
                   const struct sb_template *t, bool allow_setuid, struct sb_failure *f)
{
    bool root = sup.mode == SB_MODE_ROOT;
    int idmap = root ? s->user : -1;
    int64_t id = root ? SB_RANGE_BASE + (int64_t)s->range * SB_RANGE_SIZE : -1;
    l->root = -1;
    l->trees = 0;
    /* A detached clone of the sandbox's directory alone: inside, the layers' paths start there. */
    sb_latefd int own = sb_mounts_clone(dir, idmap);
    sb_latefd int lower = sb_mounts_clone(t->dir, idmap);
    if (own < 0 || lower < 0)
        return sb_failed_errno(f, "layers",
                               own < 0 ? "clone of the directory" : "clone of the template");
    l->root = overlay(lower, own, "u", "w", id, allow_setuid);
    if (l->root < 0)
        return sb_failed_errno(f, "overlay", "mount of /");
    for (int i = 0; t->composed && i < sb_base_trees; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%s", sb_base_tree[i]);
        if (root && i == 0) {
            sb_autofd int host = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
            sb_latefd int usr = host < 0 ? -1 : sb_mounts_clone(host, idmap);
            l->tree[i] = usr < 0 ? -1 : overlay(usr, own, "usr.u", "usr.w", id, allow_setuid);
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

void sb_layers_close(struct sb_layers *l)
{
    sb_close(&l->root);
    while (l->trees > 0)
        sb_close(&l->tree[--l->trees]);
}
