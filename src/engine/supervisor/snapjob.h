/* The process of a snapshot: copies, merges, syncs. */
#ifndef SB_SNAPJOB_H
#define SB_SNAPJOB_H

#include "record.h"

/* A directory in the layer that nothing stands on: what had to give way there. None: nothing had. */
#define SB_SNAPJOB_SPARE "x"

struct sb_snapjob {
    int box;   /* the sandbox's directory; with `import` one of the host's */
    int layer; /* the new layer's, empty; -1: none is made */
    const struct sb_list
        *merge; /* layers that the new one takes together, the lowest first; NULL: none */
    bool copy;  /* the uppers go on top of that */
    bool sync;
    bool import; /* a copy of that directory is the layer */
};

/* Its pid; its status will be 0 or an errno. -1: see errno. */
pid_t sb_snapjob_start(const struct sb_snapjob *j);

#endif
