/* One snapshot, for the two files that have to do with its insides: snapshot.c and snaptake.c. */
#ifndef SB_SNAPONE_H
#define SB_SNAPONE_H

#include "loop.h"
#include "record.h"

struct sb_box;
struct sb_conn;
struct sb_sync;
struct sb_wire_in;

/* One that is there, or is being made (`job`). Owned by the list. */
struct sb_snapone {
    struct sb_snapone *next;
    struct sb_record rec;   /* id: its name */
    struct sb_list env;     /* while it is being made */
    struct sb_list note;    /* likewise: the text that is kept with a step */
    struct sb_source maker; /* pidfd of the process that a temporary one ends with */
    struct sb_source job;   /* the process that copies and syncs */
    struct sb_sync *sync;   /* it does nothing but that; NULL: it does more */
    struct sb_conn *asker;  /* NULL: gone */
    uint32_t req;
    char box[SB_ID_MAX + 1]; /* that is being copied; "": none stands still for it */
    char half[24];           /* the layer being copied, under its temporary name; "": none */
    bool merge;              /* the layers so far become one, lest they be ever more */
    bool waiting, noted;     /* for the box to stand; the record was there when the sync began */
    bool
        unsynced; /* the layer that is copied now has to reach the disk before the record says so */
    bool copies;  /* out of the box's own directory, or did */
    bool whole;   /* it is on the disk */
    bool queued;  /* another one of that box, which was given up, is being wound down first */
    bool unwanted; /* its maker has gone, or nobody waits for it any more */
};

extern struct sb_snapone *sb_snapones;

struct sb_snapone *sb_snapone_find(const char *name);
/* What copies have from the box: the same template, layers, settings; neither its life nor its labels. */
int sb_snapone_describe(struct sb_snapone *s, const struct sb_box *b, struct sb_failure *f);
/* Whatever there is of it; layers that nobody else names go, too. */
void sb_snapone_drop(struct sb_snapone *s);
/* Nobody wants it any more: its name is free, what is under way for it ends, and then it is dropped. */
void sb_snapone_give_up(struct sb_snapone *s);
/* It goes with the process of that descriptor, which is taken. -1: it could not be watched. */
int sb_snapone_watch(struct sb_snapone *s, int pidfd);
/* The name that a request gives it, or a new one; -1: *f, it is none. */
int sb_snapone_name(const struct sb_wire_in *in, char name[SB_ID_MAX + 1], struct sb_failure *f);

#endif
