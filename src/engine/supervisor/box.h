/* Sandboxes: the table of all that exist, and what happens to each. */
#ifndef SB_BOX_H
#define SB_BOX_H

#include "birth.h"
#include "cgroup.h"
#include "limits.h"
#include "loop.h"
#include "network.h"
#include "record.h"

struct sb_conn;
struct sb_metrics;
struct sb_layers;
struct sb_slot;
struct sb_sync;
struct sb_template;

#define SB_HOSTNAME "sandbox"

/* A request that is answered when the sandbox's state has changed. Belongs to its box; `conn` is
 * NULL once the asker is gone. */
struct sb_waiter {
    struct sb_waiter *next;
    struct sb_conn *conn;
    uint32_t req;
    uint16_t type; /* the SB_S_* that asked */
};

/* What the end of pid 1 means. */
enum sb_goal { SB_GOAL_NONE, SB_GOAL_DESTROY, SB_GOAL_PAUSE };

/* One sandbox, from the request that makes it until its directory is in the trash. Owned by the
 * table. Sources are registered only while there is a pid 1 (`guest`, `proc`) or an owner to watch. */
struct sb_box {
    struct sb_box *next;                       /* in its hash chain */
    struct sb_box *stirred_next, **stirred_at; /* see sb_box_stir; NULL: at rest */
    bool keeps_us;                             /* at rest: the supervisor may not leave */
    struct sb_record rec;
    struct sb_source guest;    /* control socket to pid 1 */
    struct sb_source proc;     /* pidfd of pid 1; SIGKILL and the end */
    struct sb_source owner;    /* pidfd of the process that owns it */
    struct sb_source freezing; /* its group's events, until all in it stands */
    struct sb_cgroup group;
    struct sb_limits limits;
    struct sb_metrics *metrics; /* NULL: nobody has asked */
    struct sb_birth *birth;     /* until pid 1 has said hello */
    struct sb_list env;         /* only while booting */
    struct sb_list start;       /* likewise: what its template has started in it (named.h) */
    uint64_t clone_at;          /* likewise: pid 1's alone, once it has got it */
    int record;                 /* its record's file, likewise; -1 after, and of resumed ones */
    struct sb_network net;      /* its way to the world, if it has one */
    int mounts;                 /* its mount namespace, once it is to end (dissolve.h); -1 */
    int image;                  /* of a limited disk, before it has its name (disk.h); -1 */
    int disk;                   /* likewise: its mount, until overlays are made of it; -1 */
    bool on_disk;               /* at rest, and everything it has written was synced */
    struct sb_sync *sync;       /* of a pause, whose process is what `proc` is then; NULL */
    int user;                   /* of a spare, and until its set-up: namespace A; -1 */
    struct sb_waiter *waiters;
    enum sb_goal goal;
    int64_t step_due_ms; /* real time limit of hello or stop; 0: none */
    struct sb_failure why;
    bool fresh;    /* a create: nothing of it stays if it fails */
    bool spare;    /* see spare.h */
    bool unrooted; /* its pid 1 was a spare, and stands on the usual root still (reroot.h) */
    bool greeted;  /* hello has come, on this control socket */
    bool dying;    /* SIGKILL was sent */
    bool hung_up;  /* its end of the control channel was closed before that */
    bool expired;  /* it is being paused because its lifetime has ended */
    bool renewed;  /* a resume gave it another lifetime, which begins when it goes on */
    bool copied;   /* it stands for a snapshot, or soon will: nothing moves until that is taken */
    bool
        freeze_asked; /* to be frozen as soon as pid 1 has greeted this supervisor, or been set up */
    bool stop_asked;  /* to be paused without memory, likewise */
    enum sb_kept
        pause_next; /* what a pause keeps that waits for the end of a snapshot that was given up */
};

bool sb_id_valid(const char *id, size_t n);
struct sb_box *sb_box_find(const char *id);
/* As everybody is told: also while it stands for a snapshot, which is nobody else's business. */
bool sb_box_runs(const struct sb_box *b);
struct sb_box *sb_box_new(const char *id); /* in the table, state creating; NULL: no memory */
void sb_box_forget(struct sb_box *b); /* out of the table, everything released, disk untouched */
int sb_box_count(void);
/* Iterates in no order; the callback may forget the box it is given. */
void sb_box_each(void (*fn)(struct sb_box *, void *), void *arg);
/* A tick (life.h) looks only at boxes that are stirred: new ones, found ones, those of which a source
 * reports. Otherwise every event would cost a look at all there are. */
void sb_box_stir(struct sb_box *b);
void sb_box_each_stirred(void (*fn)(struct sb_box *, void *), void *arg);
/* Nothing of it changes by itself but at its deadline. */
void sb_box_rest(struct sb_box *b, bool keeps_us);
int sb_box_keeping(void);               /* how many at rest keep us */
int sb_box_dir(const struct sb_box *b); /* opens <root>/v1/s/<id> */
bool sb_box_dir_exists(const struct sb_box *b);
int sb_box_save(struct sb_box *b); /* writes the record */
/* The same without the flush that a rename costs, for what comes and goes often. */
int sb_box_save_quickly(struct sb_box *b);

int sb_box_wait(struct sb_box *b, struct sb_conn *c, uint32_t req, uint16_t type);
/* Answers everybody who waits: with a failure, or (NULL) with what they asked for. */
void sb_box_settle(struct sb_box *b, const struct sb_failure *f);
/* Only those who wait for the answer to one type of request, or all but those. */
void sb_box_settle_type(struct sb_box *b, uint16_t type, const struct sb_failure *f);
void sb_box_settle_others(struct sb_box *b, uint16_t type, const struct sb_failure *f);
void sb_box_conn_gone(struct sb_conn *c);

/* boot.c: makes pid 1 run. `owner` and the record are set. The answer goes to the waiters. */
int sb_boot_create(struct sb_box *b, struct sb_failure *f);
int sb_boot_resume(struct sb_box *b, struct sb_failure *f);
/* The parts: pid 1 of a prepared slot, which stays the caller's; what an errno of mkdir or rename means;
 * the environment's file. */
int sb_boot_slot(struct sb_box *b, struct sb_slot *s, struct sb_failure *f);
int sb_boot_taken(struct sb_box *b, struct sb_failure *f);
/* <root>/v1/s/<id> of one that no prepared directory fits, with uppers and works. -1: it is not there. */
int sb_boot_make_dir(struct sb_box *b, struct sb_failure *f);
/* The layers of one whose directory `dir` is, on its limited disk if it has one; the ids and namespace are the slot's. */
int sb_boot_layers(struct sb_box *b, const struct sb_slot *s, int dir, const struct sb_template *t,
                   struct sb_layers *l, struct sb_failure *f);
int sb_boot_keep_env(struct sb_box *b, int dir, struct sb_failure *f);
void sb_boot_proc_ready(struct sb_source *src, uint32_t events);

/* guest.c: the control channel. What is asked of pid 1 there, by number: */
enum { SB_REQ_INIT = 1, SB_REQ_STOP, SB_REQ_FREEZE, SB_REQ_USAGE };
int sb_guest_attach(struct sb_box *b, int fd);
void sb_guest_set_up(struct sb_box *b); /* pid 1 has said hello: sends INIT, writes the record */
/* A new connection to pid 1: the caller's end, or -1 and *f. */
int sb_guest_connect(struct sb_box *b, struct sb_failure *f);
int sb_guest_stop(struct sb_box *b, uint32_t grace_ms);
/* When pid 1 shall end by itself, should no supervisor be there to do it. Nothing is waited for: the
 * next supervisor says it again. */
void sb_guest_tell_life(struct sb_box *b);
void sb_guest_kill(struct sb_box *b, const char *cause); /* NULL: as the goal says */

/* life.c: how sandboxes end. */
void sb_life_destroy(struct sb_box *b);                    /* answers the waiters when it is gone */
int sb_life_pause(struct sb_box *b, struct sb_failure *f); /* without memory */
/* Back to running, from whatever a pause kept. -1 and *f: it stays as it is. */
int sb_life_resume(struct sb_box *b, struct sb_failure *f);
/* Of a pause of an earlier supervisor: what it may not have waited for. */
void sb_life_sync(struct sb_box *b);
void sb_life_paused(struct sb_box *b); /* it is: answers whoever waits, or resumes for him */
/* A pause with memory came to nothing. One whose lifetime has ended is then paused without. */
void sb_life_not_paused(struct sb_box *b, const struct sb_failure *f);
void sb_life_went_on(struct sb_box *b); /* it stood for a moment: answers whoever waits */
void sb_life_remove(struct sb_box *b);  /* no pid 1: to the trash, at once */
void sb_life_ended(struct sb_box *b);   /* pid 1 is gone */
void sb_life_watch_owner(struct sb_box *b, int pidfd);
void sb_life_begin(struct sb_box *b); /* its lifetime, from now on; not written */
/* What is left of the time that it may run; INT64_MAX: no limit. */
int64_t sb_life_wall_left(const struct sb_box *b);
bool sb_life_over(const struct sb_box *b,
                  struct sb_failure *f); /* nothing: it may not be resumed */
void sb_life_stands(struct sb_box *b);   /* it runs no more: its time is counted; not written */
/* In its record, and for its pid 1. -1: the record could not be written, and nothing has changed. */
int sb_life_set(struct sb_box *b, int64_t lifetime_ms, struct sb_failure *f);

#endif
