/* What a machine lacks when a step fails on it, and what can be done. */
#ifndef SB_LACKS_H
#define SB_LACKS_H

/* For a step that failed with this errno: a text and, where it is another than the errno's, the kind. NULL: nothing is
 * known of it. */
const char *sb_lacks(const char *step, int err, const char **kind);

#endif
