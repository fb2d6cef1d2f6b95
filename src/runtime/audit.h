/* The audit trail on a descriptor: one JSON object a line, written by the I/O thread, so that nobody
 * who tells it something ever waits, and that releases after the end of a Lua state are in it. The
 * trace is a second trail of the same kind: what the runtime does, on stderr. */
#ifndef SB_AUDIT_H
#define SB_AUDIT_H

#include <stddef.h>

#include "error.h"

/* From now on lines go to a duplicate of fd; -1: to nobody. What is queued for the descriptor before
 * still goes there, as far as it can without waiting. */
int sb_audit_open(int fd, struct sb_error *err);
int sb_audit_on(void);

/* A line being made, in malloc'ed memory that grows. Zeroed: empty. A line that lacks memory is not
 * queued but counted. Texts are redacted as they are put in. */
struct sb_audit_line {
    char *data;
    size_t len, room;
    int failed;
};
void sb_audit_begin(struct sb_audit_line *line, const char *event); /* with the wall time */
void sb_audit_text(struct sb_audit_line *line, const char *key, const char *text, size_t len);
void sb_audit_number(struct sb_audit_line *line, const char *key, double number);
void sb_audit_bool(struct sb_audit_line *line, const char *key, int value);
/* Queues it and frees it. Any thread. A reader that is a mebibyte behind misses lines; how many is
 * the next line it gets. */
void sb_audit_end(struct sb_audit_line *line);

/* Was SANDBAR_TRACE=1 in the environment when this object was loaded? Asked before a line is made. */
int sb_trace_on(void);
void sb_trace_end(struct sb_audit_line *line);

/* At exit: writes what is queued, for at most a second. */
void sb_audit_drain(void);

#endif
