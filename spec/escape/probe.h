/* Attacks tried from inside a sandbox. A probe is a few that belong together. Inside, all must fail. In a *room*, a
 * place that lacks what the sandbox is defended by, they must work: a probe that cannot tell proves nothing. */
#ifndef SPEC_ESCAPE_PROBE_H
#define SPEC_ESCAPE_PROBE_H

#include <stddef.h>

/* Where an attack works. PLAIN: namespaces of one's own as everybody may make them, whole capabilities in there, no
 * filter, no masks. ROOT: the host's root with its own mounts, processes and network. HOST: just the host. */
enum { INSIDE = 0, PLAIN = 1, ROOT = 2, HOST = 4 };
extern int room;

struct probe {
    const char *name;
    int rooms; /* where it is shown to work; 0: nowhere, for a reason that is written at the probe */
    void (*run)(const char *arg);
};

extern const struct probe file_probes[], process_probes[], call_probes[], network_probes[],
    budget_probes[];

/* One attack, that did what it wanted if `result` is not negative; errno says why not. `rooms`: where it works. */
void attack(int rooms, const char *what, long result);
/* It has worked, which only goes without saying in a room. */
void worked(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* It cannot be tried here. */
void cannot(const char *why) __attribute__((noreturn));

/* Enters a room. */
void enter_room(int which);

/* Listens on the host's loopback and on an abstract socket, says where, and ends when nobody reads that any more. */
void listen_on_host(void);

#endif
