/* File operations, in a worker: a process for one request. It fails by answering and ending, so that
 * nothing here has to hand errors up. */
#ifndef GUEST_FILE_H
#define GUEST_FILE_H

#include "conn.h"
#include "sys.h"
#include "users.h"

enum {
    FILE_CONN = 3, /* the caller's connection */
    FILE_WITH = 4, /* a descriptor that came with the request */
    NO_MODE = -1,
};

struct job_file {
    const struct request *r;
    struct account who;
    int with;           /* FILE_WITH is there */
    char *path, *path2; /* absolute, without "." and ".."; NULL: not given */
};

extern struct job_file job;

_Noreturn void file_serve(struct request *r, int with);

/* file.c: answers */
_Noreturn void file_fail(int err, const char *step, const char *path);
_Noreturn void file_refuse(const char *kind, const char *message, const char *path);
_Noreturn void file_done(void);
_Noreturn void file_finish(const struct sb_packer *p, int fd);
void file_send(const struct sb_packer *p, int fd);
void file_begin(struct sb_packer *p, uint16_t type);
uint64_t file_u64(uint16_t tag, uint64_t fallback);
int file_mode(int fallback); /* the mode field; refuses what is none */
/* What file_fail removes before it answers: a name in a directory. NULL: nothing. */
void file_cleanup(int dir, const char *name);

/* file_path.c */
char *path_make(const struct sb_field_view *f);
/* Opens (O_PATH) the directory that holds the last name of a path, made with its parents if asked. */
int path_parent(char *path, int parents, const char **name);
void path_make_parents(char *path);
void path_temp_name(char out[32]);
/* A string field as a zero-terminated copy, or NULL; refuses zero bytes. */
char *field_text(uint16_t tag);

/* file_entry.c */
void entry_pack(struct sb_packer *p, const char *name, const char *path, const struct statx *st,
                int dir, const char *link);
_Noreturn void entry_reply(const char *path, int dir, const char *name, int fd);
/* "user", "user:group", "1:2", ":group" is not one. */
void owner_find(const char *text, uint32_t *uid, uint32_t *gid);

/* file_walk.c: a directory tree of any depth, with a bounded number of descriptors */
struct level {
    uint64_t ino;
    uint32_t major, minor;
    int fd; /* -1: closed for want of room, to be found again by ".." */
    uint32_t n, next;
    uint32_t *names; /* offsets into what follows them: type byte, zero-terminated name; sorted */
    size_t path_len; /* of the path up to this directory */
};

struct walk {
    struct level *stack;
    size_t depth, room;
    char *path; /* of the directory on top, zero-terminated */
    size_t path_len, path_room;
    int bare;              /* names are not read */
    int (*opened)(int fd); /* told of each directory before its names are read; may refuse it */
};

/* 0 or a negative errno. walk_start takes the descriptor. */
int walk_start(struct walk *w, int fd, const char *path);
int walk_enter(struct walk *w, const char *name);
int walk_leave(struct walk *w);
int walk_dir(const struct walk *w);
/* The next name on top, or NULL; its type as getdents says it (may be unknown). */
const char *walk_next(struct walk *w, unsigned *type);
/* "path/name" in memory of the walk's, valid until the next call. */
const char *walk_path(struct walk *w, const char *name);
void walk_end(struct walk *w);
/* All names of the directory l->fd, and the next of them. */
int names_load(struct level *l);
const char *names_next(struct level *l, unsigned *type);

/* file_glob.c */
void file_glob(void);

/* file_watch.c */
void file_watch(void);

/* file_tree.c */
void tree_list(void);
void tree_copy(void);
void tree_move(void);
void tree_remove(void);
/* 0 or a negative errno; *where is the path it stopped at. */
int tree_remove_at(int dir, const char *name, const char *path, const char **where);
int copy_bytes(int from, int to);

/* file_write.c */
void file_open(void);
void file_write(void);
void file_begin_write(void);
void file_commit(void);
void file_abort(void);

#endif
