/* The state directory, connecting to its supervisor, and starting one. [io] all of it. */
#ifndef SB_START_H
#define SB_START_H

#include "../runtime/error.h"
#include "../runtime/loop.h"

/* Makes `root` and `<root>/v1` if they are missing, checks that they are ours alone (owner;
 * nobody else may write root, or enter v1), and opens both. */
int sb_root_open(const char *root, int *rootfd, int *v1fd, struct sb_error *err);

enum sb_root_connect {
    SB_CONNECTED,
    SB_CONNECT_START, /* nobody listens */
    SB_CONNECT_LATER, /* its queue is full: try again in a moment */
};
/* Connects to the supervisor's socket; *fd is non-blocking. Negative: an error that trying again or
 * starting one does not cure. */
int sb_root_connect(int v1fd, int *fd, struct sb_error *err);

/* A supervisor being started, embedded in its owner. `done` runs once: err = NULL, one is
 * listening now. */
struct sb_start {
    void (*done)(struct sb_start *start, const struct sb_error *err);
    struct sb_source status;
    struct sb_timer timer;
    int rootfd, status_end; /* a file thread's until it has spawned */
    uint64_t linger_ms;
    struct sb_error error;
    size_t len;
    char line[512];
};

/* Starts one and returns at once; `done` follows. On failure it does not. `rootfd` stays open until
 * then. */
int sb_start_run(struct sb_start *start, int rootfd, uint64_t linger_ms,
                 void (*done)(struct sb_start *start, const struct sb_error *err),
                 struct sb_error *err);

#endif
