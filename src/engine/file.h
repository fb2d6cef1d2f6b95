/* Regular files by descriptor, read and written by the pool of file threads (native object
 * NativeFile). */
#ifndef SB_FILE_H
#define SB_FILE_H

#include <sys/types.h>

#include "../runtime/op.h"
#include "box.h"
#include "filework.h"

/* Counted. The descriptor is closed when it is closed and no work uses it any more. */
struct sb_file {
    struct sb_object object;
    int fd;
    _Atomic unsigned users; /* work under way, and one for being open */
    _Atomic int closed;
};

/* Takes over fd in every case. Anything but a regular file is refused: it could block a file
 * thread. */
struct sb_file *sb_file_new(int fd, struct sb_error *err);

/* The same for what the pid 1 of a sandbox gives, which may be anything it can open. A write done here
 * is done by this process: into cgroup.procs or a file of /proc it would mean this process. So only
 * files that hold data are taken: for writing those of the sandbox's own file systems. */
struct sb_file *sb_file_of_sandbox(int fd, struct sb_error *err);

/* Any thread, never wait; NULL: out of memory. A closed file: Closed. */
struct sb_op *sb_file_read(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t offset,
                           size_t n);
struct sb_op *sb_file_write(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t offset,
                            const void *data, size_t len);
struct sb_op *sb_file_truncate(struct sb_file *file, struct sb_mailbox *mailbox, uint64_t size);
struct sb_op *sb_file_sync(struct sb_file *file, struct sb_mailbox *mailbox);
struct sb_op *sb_file_size(struct sb_file *file, struct sb_mailbox *mailbox);
void sb_file_close(struct sb_file *file);

/* Reads on the calling thread, for as long as the disk takes: `n` bytes, or all up to the end. The number of
 * bytes, or -1. */
ssize_t sb_file_read_here(struct sb_file *file, uint64_t offset, void *to, size_t n,
                          struct sb_error *err);

/* Takes the lock of a file without waiting, for as long as it is open: 1; 0: another open file has it, in whatever
 * process; -1. */
int sb_file_lock(struct sb_file *file, struct sb_error *err);

/* A file of the host's. `how`: r (read), w (made or emptied), x with w (made, or AlreadyExists),
 * n: the last component is not a link. */
struct sb_op *sb_file_host_open(struct sb_mailbox *mailbox, const char *path, const char *how,
                                unsigned mode);

/* The whole of `from` to the start of `to`, `chunk` bytes at a time: number = bytes copied. */
struct sb_op *sb_file_pump(struct sb_file *from, struct sb_file *to, struct sb_mailbox *mailbox,
                           size_t chunk);

/* ---- for filework.c ---- */

/* Its descriptor is there until it is left. 0: it is closed. */
int sb_file_enter(struct sb_file *file);
void sb_file_leave(struct sb_file *file);
/* Whole reads and writes with an offset: the number of bytes and, when an error ended it, *sys. */
size_t sb_file_read_at(int fd, unsigned char *to, size_t n, uint64_t offset,
                       const _Atomic int *stop, int *sys);
size_t sb_file_write_at(int fd, const unsigned char *from, size_t n, uint64_t offset,
                        const _Atomic int *stop, int *sys);
void sb_file_fail_read(struct sb_error *err, int sys);
void sb_file_fail_write(struct sb_error *err, int sys, size_t done, size_t len);

/* ---- files of a sandbox (transfer.c). Fields are runs of proto.h fields without file_op ---- */

/* SB_FILE_OPEN or SB_FILE_BEGIN: an sb_file and the fields. */
struct sb_op *sb_box_open_file(struct sb_box *box, struct sb_mailbox *mailbox, int file_op,
                               const void *fields, size_t len);
struct sb_op *sb_box_commit(struct sb_box *box, struct sb_mailbox *mailbox, struct sb_file *file,
                            const void *fields, size_t len);
struct sb_op *sb_box_read_all(struct sb_box *box, struct sb_mailbox *mailbox, const void *fields,
                              size_t len, size_t max);
struct sb_op *sb_box_write_all(struct sb_box *box, struct sb_mailbox *mailbox, const void *fields,
                               size_t len, const void *data, size_t data_len);

#endif
