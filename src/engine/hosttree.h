/* Trees of the host, for upload and download: listing one without following links, and changing things
 * below a directory without ever leaving it. Names may come from a sandbox and are hostile. */
#ifndef SB_HOSTTREE_H
#define SB_HOSTTREE_H

#include "../runtime/op.h"

enum sb_host_action {
    SB_HOST_MKDIR,   /* a directory; it may be there already. mode */
    SB_HOST_SYMLINK, /* a link with the text `other`; replaces nothing */
    SB_HOST_RENAME,  /* to `other`, also below the base */
    SB_HOST_REMOVE,  /* a file or link */
    SB_HOST_CHMOD,   /* mode */
    SB_HOST_READ,    /* an existing regular file: an sb_file as the result's object */
    SB_HOST_CREATE,  /* a new regular file, which must not be there: the same. mode */
    SB_HOST_SYNC, /* the directory that holds it: what was made and renamed there is on the disk */
};

/* What is at `path` and below it: bytes = a run of "<type> <mode, octal> <size> <uid> <gid>\0<path>\0<target>\0",
 * type one of f d l o, paths relative to `path` (itself is ""), directories before what they contain, in the
 * order of their names. `path` itself may be a link and is followed. What cannot be read is an error.
 * Runs in the file pool. NULL: out of memory. */
struct sb_op *sb_host_tree(struct sb_mailbox *mailbox, const char *path);

/* One action at `name`, relative to the directory `base` (which may be reached through links, `name` may
 * not: neither links nor "..", which is InvalidArgument or ELOOP). */
struct sb_op *sb_host_at(struct sb_mailbox *mailbox, enum sb_host_action action, const char *base,
                         const char *name, const char *other, unsigned mode);

#endif
