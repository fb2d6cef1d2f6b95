/* The directories a watch has its eyes on: a tree by name, found by their inotify number too. */
#ifndef GUEST_WATCH_NODE_H
#define GUEST_WATCH_NODE_H

#include <stddef.h>
#include <stdint.h>

/* Names of a directory that its first scan has reported, sorted: events about their coming that were
 * queued before `until` (bytes of the event stream) tell nothing new. */
struct fresh {
    struct fresh *next;
    struct node *node; /* NULL: gone */
    uint64_t until;
    uint32_t n;
    uint32_t *names; /* as in struct level; a type of 255: it counts no more */
};

struct node {
    struct node *parent; /* NULL: the root */
    struct node *child, *next, **self;
    struct node *chain; /* of the same bucket */
    struct fresh *fresh;
    int wd;
    char name[];
};

/* NULL: out of memory. */
struct node *node_add(struct node *parent, const char *name, int wd);
struct node *node_of(int wd);
struct node *node_child(const struct node *n, const char *name);
/* Is `n` the same as `below`, or above it? */
int node_holds(const struct node *n, const struct node *below);
/* Forgets it and all below it, and (but for -1) ends their watches. */
void node_drop(struct node *n, int inotify);
/* "/a/b", and "" for the root; NULL: out of memory. Valid until the next call. With `name`, of that in it. */
const char *node_path(const struct node *n, const char *name);

/* Takes the sorted names over. 0 or -ENOMEM. */
int fresh_add(struct node *n, uint32_t *names, uint32_t count, uint64_t until);
/* Ends those whose time is over. */
void fresh_expire(uint64_t now);
/* 1 when the name was reported by the scan; it counts no more after that. */
int fresh_take(const struct node *n, const char *name);

#endif
