/* The event loop: one epoll, one timer, work for idle moments.
 *
 * A handler may drop any source, also others whose event is already in the current batch: memory
 * that holds a source is freed with sb_loop_bury, which waits for the end of the batch. */
#ifndef SB_LOOP_H
#define SB_LOOP_H

#include <stdint.h>

/* Embedded in what it belongs to. Registered from sb_loop_add to sb_loop_drop; `fd` belongs to it
 * in that time and is closed by sb_loop_drop. fd < 0: not registered. */
struct sb_source {
    int fd;
    void (*ready)(struct sb_source *src, uint32_t events);
};

#define SB_OWNER(src, type, member) \
    ((type *)(void *)((char *)(src) - __builtin_offsetof(type, member)))

int sb_loop_open(void); /* 0 or -1 with errno */
/* Takes the descriptor; on failure (-1) it is closed. */
int sb_loop_add(struct sb_source *src, int fd, uint32_t events,
                void (*ready)(struct sb_source *, uint32_t));
void sb_loop_want(struct sb_source *src, uint32_t events);
/* The registration of `from` becomes that of `to`, with the same handler. */
void sb_loop_move(struct sb_source *to, struct sb_source *from);
void sb_loop_drop(struct sb_source *src);
void sb_loop_bury(void *memory);
/* Closes a detached mount at an idle moment: the kernel waits for all processors when it dissolves one. */
void sb_loop_close_later(int *fd);
#define sb_latefd __attribute__((cleanup(sb_loop_close_later)))
void sb_loop_run(void); /* until sup.leaving */

#endif
