/* What a spare does with its time. */
#ifndef GUEST_PREPARE_H
#define GUEST_PREPARE_H

/* Looks up ahead what the first command would be the first to look for in this tree: the usual user, who
 * is then remembered, and the files that nearly every program's start needs, whose places the kernel then
 * knows. For pid 1 itself, before anything else can run in its tree, and only where that tree is the
 * supervisor's: what another has mounted there may keep whoever looks at it. */
void prepare(void);

#endif
