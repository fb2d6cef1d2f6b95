/* What is known about a sandbox, as kept on the disk and as shown to callers. */
#ifndef SB_RECORD_H
#define SB_RECORD_H

#include "../proto.h"
#include "sup.h"

enum sb_state {
    SB_BOX_CREATING, /* on the disk: a leftover unless a supervisor is at it */
    SB_BOX_RUNNING,
    SB_BOX_STOPPING, /* on the way to paused; the disk says so already, see `settled` */
    SB_BOX_PAUSED,
    SB_BOX_FAILED,
    SB_BOX_GONE,     /* only shown: its destruction has begun */
    SB_BOX_FREEZING, /* never on the disk: on the way to paused with memory, or to running again */
};

/* What a pause kept. The numbers are on the disk. */
enum sb_kept { SB_KEPT_NOTHING, SB_KEPT_DISK, SB_KEPT_MEMORY };
enum sb_expiry { SB_EXPIRY_PAUSE_DISK, SB_EXPIRY_DESTROY, SB_EXPIRY_PAUSE };

enum { SB_ID_MAX = 128, SB_TOKEN_MAX = 64, SB_SHOWN_MAX = 57344, SB_ENV_MAX = 4 << 20 };

/* Strings one after the other, each with its terminating zero. */
struct sb_list {
    char *data;
    size_t len;
};
int sb_list_add(struct sb_list *l, const void *s, size_t n);
int sb_list_copy(struct sb_list *to, const struct sb_list *from);  /* behind what is there */
const char *sb_list_next(const struct sb_list *l, const char *at); /* NULL starts, NULL ends */
bool sb_list_has(const struct sb_list *l, const void *s, size_t n);
void sb_list_remove(struct sb_list *l, const char *entry);
/* All fields with this tag, into an empty list of which no copy stays behind in memory. */
int sb_list_secret(struct sb_list *to, const struct sb_reader *fields, uint16_t tag);
void sb_list_wipe(struct sb_list *l);

/* Plain data that owns its strings; sb_record_free. Strings may be NULL (absent). */
struct sb_record {
    char id[SB_ID_MAX + 1];
    size_t token_len; /* 0: the create named none */
    unsigned char token[SB_TOKEN_MAX];
    enum sb_state state;
    char *template, *base, *rootfs; /* base: directory of the base template, or NULL */
    char *user, *cwd, *hostname;
    char *cause, *message; /* why it is as it is: a word, and a sentence */
    char *snapshot;        /* it was made from; of a snapshot's own record NULL */
    char seal[20];         /* a layer that its uppers are about to become; "" */
    struct sb_list layers; /* below its uppers, above the template: the lowest first */
    struct sb_list labels, exposed;
    const char *network; /* "deny", "allow" or "rules"; NULL: "deny" */
    struct sb_list net_allow, net_deny;
    struct sb_list net_inject; /* with secrets: sb_list_wipe */
    char boot[37], host_boot[40], group[32];
    int64_t created_ms, started_ms, ends_ms; /* wall clock, for show */
    int64_t deadline_ms;                     /* CLOCK_BOOTTIME of host_boot; 0: none */
    int64_t lifetime_ms;
    uint32_t epoch;
    enum sb_expiry on_expiry;
    enum sb_kept kept;
    bool owned, allow_setuid, auto_resume;
    bool settled; /* stopping, and an earlier supervisor may have told that it is paused */
    bool newer;   /* written by a later version: nothing of it is touched */
    bool unread;  /* that, or damaged: nobody knows what it names */
    uint64_t limit_processes, limit_files, limit_commands;
    uint64_t limit_output, limit_env; /* kept for callers, who enforce them; 0: the usual */
    uint64_t limit_disk;              /* bytes; 0: none */
    uint64_t limit_memory, limit_cpu; /* bytes, thousandths of a processor; 0: none */
    uint64_t limit_started, started;  /* how many commands it may start, and has */
    int64_t limit_wall_ms, ran_ms;    /* how long it may run, and did before this run */
    int64_t run_at_ms;                /* since when this run counts: as deadline_ms; 0: none */
    int range;
    uint32_t sub_uid, sub_gid, sub_count;
    enum sb_mode mode;
    struct sb_ident pid1, owner;
};

void sb_record_free(struct sb_record *r);
/* The base template, and nothing of its own in between or below. */
bool sb_record_plain(const struct sb_record *r);
/* What is on its disk was written with the user ids there are now. */
bool sb_record_same_ids(const struct sb_record *r);
/* Copies both; NULL: nothing to say. */
void sb_record_cause(struct sb_record *r, const char *word, const char *message);
/* Writes <dir>/record by rename. 0 or -1 and errno. */
int sb_record_write(const struct sb_record *r, int dir);
/* The same in place, through a descriptor of <dir>/record: one call, without the flush that a rename
 * over an existing file costs. Only while the sandbox boots. 1: it is longer than the kernel writes in
 * one piece (a killed process leaves the first pages), and nothing was written. */
int sb_record_put(const struct sb_record *r, int fd);
/* In place as well, where the record on the disk is as long as this one and not longer than a page; else by
 * rename. */
int sb_record_refresh(const struct sb_record *r, int dir);
/* -1: damaged or of a newer format; then only id and state (failed) and cause are set. */
int sb_record_read(struct sb_record *r, int dir, const char *id);
/* The fields a caller may see. A record that does not fit is shown without its lists. */
void sb_record_show(const struct sb_record *r, struct sb_packer *p);
/* Its limits, for those who want to know more of one. */
void sb_record_limits(const struct sb_record *r, struct sb_packer *p);
/* Its network policy's fields, and the policy's word as they have it. `secrets`: also what is injected. */
void sb_record_network(const struct sb_record *r, struct sb_packer *p, bool secrets);
const char *sb_network_word(const struct sb_reader *fields);
/* Bytes that takes; 0: more than an answer has room for. */
size_t sb_record_shown(const struct sb_record *r);
/* A pidfd of the process in <dir>/birth, if that still lives; -1 otherwise. */
int sb_note_open(int dir, int64_t *pid);
const char *sb_record_state(const struct sb_record *r); /* the word for callers */
const char *sb_kept_name(enum sb_kept k);               /* NULL: nothing */
/* "pause", "pause_disk", "destroy"; or -1. */
int sb_expiry_of(const void *name, size_t n);

#endif
