/* The relay's loop: descriptors, and a tick twice a second while anything is timed. */
#ifndef SB_RELAY_WATCH_H
#define SB_RELAY_WATCH_H

#include <stdint.h>

/* Embedded in what it belongs to; fd < 0: not watched. Memory that holds one is freed with sb_watch_bury. */
struct sb_watch {
    int fd;
    uint32_t events;
    void (*ready)(struct sb_watch *w, uint32_t events);
};

#define SB_WATCHED(w, type, member) \
    ((type *)(void *)((char *)(w) - __builtin_offsetof(type, member)))

int sb_watch_open(void);
int sb_watch_add(struct sb_watch *w, int fd, uint32_t events,
                 void (*ready)(struct sb_watch *, uint32_t)); /* -1: fd is closed */
void sb_watch_want(struct sb_watch *w, uint32_t events);
void sb_watch_mute(struct sb_watch *w); /* nothing more is said of it; it stays open */
void sb_watch_drop(struct sb_watch *w); /* closes fd */
void sb_watch_bury(void *memory);
void sb_watch_timed(int more); /* how many more (fewer) things wait for a tick */
int64_t sb_watch_now(void);    /* milliseconds */
void sb_watch_run(void (*tick)(int64_t now));

#endif
