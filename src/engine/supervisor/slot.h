/* Slots: everything of a sandbox that does not depend on who asks for it, made ahead of need. */
#ifndef SB_SLOT_H
#define SB_SLOT_H

#include "cgroup.h"
#include "mounts.h"
#include "record.h"
#include "sup.h"
#include "template.h"

enum { SB_POOL = 2, SB_SEALED_MAX = 64 };

/* The sandbox's file systems, detached. `tree` follows sb_base_tree. */
struct sb_layers {
    int root;
    int tree[SB_TREES_MAX];
    int trees;
};

/* One outer namespace A with its network, used by one sandbox and never again. Made step by step and
 * dropped by the loop; sb_slot_take hands one out, sb_slot_drop ends it. What a sandbox takes over is set to -1
 * (descriptors), "" (names) or moved out first. */
struct sb_slot {
    struct sb_slot *next;
    int range; /* which 65,536 ids, as root; -1 otherwise */
    int user, net;
    struct sb_cgroup group;
    int device;
    int boot_id; /* a detached mount of a file that holds `boot` */
    char boot[37];

    /* A directory for a new sandbox of the base template, below <root>/v1/p, with its mounts made
     * and its listener bound. "" and -1: not prepared. */
    char dir_name[20];
    int dir, listener;
    int record, note; /* its empty files */
    struct sb_layers layers;
};

/* Documented base of root's ranges: above what distributions and systemd hand out. */
#define SB_RANGE_BASE 1879048192u
enum { SB_RANGE_SIZE = 65536, SB_RANGES = 4096 };

/* The ids a sandbox has, as the map of A. The range matters as root only. */
void sb_slot_map(int range, struct sb_idmap *map);
/* What an id inside is called on the disk of a template or an upper, seen from the supervisor. */
uint32_t sb_slot_disk_id(uint32_t inside);
void sb_slot_reserve(int range, bool used); /* for adopted sandboxes */
uid_t sb_slot_root(int range);              /* as root: what root inside is called outside */

/* From the pool, or made now. NULL: see *f. */
struct sb_slot *sb_slot_take(struct sb_failure *f);
int sb_slot_first(struct sb_failure *f); /* the pool's first, at the start */
void sb_slot_drop(struct sb_slot *s);    /* its range stays reserved unless still in s->range */
bool sb_slot_wanted(void);
int64_t sb_slot_due_ms(void); /* when a failed refill is tried again */
void sb_slot_refill(void);    /* one step */
/* A process of the slot under way shares our memory and cannot bear a stage beside it. */
bool sb_slot_settled(void);
void sb_slot_settle(void); /* waits for its end */
void sb_slot_drain(void);
int sb_slot_pooled(void);
void sb_slot_booted(const char *boot); /* the file behind a boot_id needs its name no more */
int sb_slot_listen(int dir);           /* binds <dir>/sock */
int sb_slot_note(int dir);             /* opens <dir>/birth, empty */

/* ---- its directory and mounts: layers.c ---- */

/* A used directory can be mounted again: removes what a volatile overlay marks its work with. */
void sb_slot_clean_works(int dir);
/* An empty directory for a sandbox: uppers and works for `t`. */
int sb_slot_make_dirs(int dir, const struct sb_template *t, struct sb_failure *f);
/* `disk`: a detached mount in which uppers and works are, which gets the slot's ids; -1: they are in `dir`.
 * `names`: of layers between, the lowest first; NULL: none. */
int sb_layers_make(struct sb_layers *l, const struct sb_slot *s, int dir, int disk,
                   const struct sb_template *t, const struct sb_list *names, bool allow_setuid,
                   struct sb_failure *f);
/* What a pid 1 on its way may still be mounting; and what nobody else has, at an idle moment. */
void sb_layers_close(struct sb_layers *l);
void sb_layers_drop(struct sb_layers *l);
/* Fresh uppers in `dir`, which look like those of the uppermost of these layers. */
int sb_layers_like(int dir, const struct sb_list *names, struct sb_failure *f);
/* An upper that comes from elsewhere belongs to root, and everybody may go into it. -1: errno. */
int sb_layers_plain(int upper);
/* The uppers of a sandbox at rest become the sealed layer rec->seal, and it gets fresh ones. May be done again after an
 * interruption: what is done is skipped. */
int sb_layers_seal(const struct sb_record *rec, int dir, struct sb_failure *f);

#endif
