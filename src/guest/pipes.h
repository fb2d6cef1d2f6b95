/* Pipes for commands: pipes.c. fd[0] reads, fd[1] writes; both -1 after a failure. */
#ifndef GUEST_PIPES_H
#define GUEST_PIPES_H

#include "../engine/proto.h"

/* 0 or a negative errno. The end `ours` (0 or 1; -1: neither) does not block. */
int pipe_make(int fd[2], int ours);
/* The same, for output: we read, and do not block. */
int pipe_make_output(int fd[2]);
/* To what a reader with much to read wants. Only for pipes that go out: a user may not have many that large. */
void pipe_enlarge(int fd);
/* Makes those of the next command, and closes them again. */
void pipes_prepare(void);
void pipes_drop(void);

#endif
