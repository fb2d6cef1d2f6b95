/* The wire between caller, supervisor and pid 1: datagrams on unix seqpacket sockets.
 *
 * A datagram is one `struct sb_msg` followed by fields. A field is {u16 tag, u16 0, u32 length, bytes}
 * without padding; integers are 8 bytes, host order (both ends are on one machine). Unknown fields are
 * skipped, so that a newer peer may add some; a repeated field is a list. Everything that comes from
 * pid 1 or a caller is hostile: only the readers below may look at it.
 *
 * This header is shared by hosted and freestanding code: no libc, no allocation, no state. */
#ifndef SB_PROTO_H
#define SB_PROTO_H

#include <stddef.h>
#include <stdint.h>

#define SB_PROTO_MAGIC 0x31524253u /* "SBR1" */
#ifndef SB_PROTO_VERSION
#define SB_PROTO_VERSION 1 /* N-1 is served */
#endif
#ifndef SB_RELEASE /* from make: the release as one number that grows, 1000 for 0.1.0 */
#define SB_RELEASE 0
#endif
#define SB_MSG_MAX 65536 /* bytes of one datagram, header included */
#define SB_MSG_FDS 16    /* descriptors one datagram may carry */
#define SB_SPILL_MAX \
    (8u << 20) /* bytes of fields that travel in a memfd instead (SB_MSG_SPILLED) */

struct sb_msg {
    uint32_t magic;
    uint16_t type;  /* enum sb_msg_type */
    uint16_t flags; /* SB_MSG_* */
    uint32_t req;   /* chosen by the asker, echoed by every answer; 0 = an event nobody asked for */
    uint32_t epoch; /* run epoch the asker believes in (requests to pid 1); 0 elsewhere */
};

/* The fields are not in the datagram but in its first descriptor, a sealed memfd of `spill` bytes
 * (the only field in the datagram). Used for argument vectors and environments above 60 kB. */
#define SB_MSG_SPILLED 1u

enum sb_msg_type {
    /* answers, in both directions */
    SB_REPLY = 1, /* the last answer to `req` */
    SB_ERROR = 2, /* the last answer to `req`: kind, errno, step, message, path */
    SB_PART = 3,  /* more answers to `req` follow */
    SB_EXITED =
        4, /* event or answer: a process ended (serial, pid, status, reason, utime, stime, maxrss) */
    SB_FROZEN = 5, /* event of pid 1: it begins nothing any more; count: how many requests of this
                      connection it has taken, what was sent after them is never carried out; epoch: the
                      next one, from which on it begins things again */
    SB_THAWED = 6, /* event of pid 1: it does, from this epoch on */

    /* caller -> supervisor */
    SB_S_HELLO = 32, /* version, linger_ms, network? (cap* shall say what is there of it)
                        -> version, release, pid, mode, cap* */
    SB_S_CREATE, /* id, token, template, rootfs, lifetime_ms, on_expiry, label*, owned, allow_setuid,
                          user, cwd, env*, hostname, limit_* -> a record, epoch, fd: connection to pid 1; start*, ready*:
                          what its template wants started, until then the asker owns it.
                          Sent again with the same token it makes no second one */
    SB_S_CONNECT, /* id, label* (expected) -> a record, epoch, fd when running */
    SB_S_INFO,    /* id -> a record */
    SB_S_LIST,    /* state*, label* (all must match), after, limit -> SB_PART: a record each,
                          then SB_REPLY with `next` when there is more */
    SB_S_DESTROY, /* id, token? (only the sandbox made with it) -> reply, also when it is gone already */
    SB_S_LIFETIME, /* id, lifetime_ms (from now), extend (1: never shorten) -> ends_ms */
    SB_S_PAUSE,    /* id, keep -> kept: the one asked for, or what a paused one has */
    SB_S_RESUME,   /* id, lifetime_ms? -> as SB_S_CONNECT */
    SB_S_SOCKET,   /* id -> fds: one IPv4 and one IPv6 TCP socket of the sandbox's network,
                          unconnected, non-blocking */
    SB_S_EXPOSE,   /* id, port, on -> reply; recorded in the sandbox's record */
    SB_S_ADVANCE,  /* ms: moves the test clock; refused without <root>/v1/test-clock */
    SB_S_STATS,    /* -> live sandboxes, pooled slots, open descriptors: for tests and bench */
    SB_S_NETWORK,  /* id, network, net_allow*, net_deny*, net_inject* -> reply, once it holds */
    SB_S_SNAPSHOT =
        46, /* id, snapshot (its name; absent: chosen), temporary (1: it ends with the process that asks) ->
                           snapshot, once it is on the disk. Of a sandbox at rest without copying anything; of a
                           running one while it stands still. Its name may begin with "=": a step of a build, which
                           nobody is shown. A step can be made of the directory `subtree` in the root of a sandbox at
                           rest, which is moved out of there, or (rootfs instead of id) of one of the host's;
                           data: a text that is kept with it */
    SB_S_SNAPSHOTS, /* -> SB_PART: snapshot, template, created_ms each, in the order of names; then SB_REPLY */
    SB_S_UNSNAPSHOT, /* snapshot -> reply; Busy while a sandbox made from it is there */
    SB_S_METRICS, /* id -> a sample: ms, and what is known of cpu_us, memory, size (of its disk), count (of processes
                     and threads), received, sent. With started_ms, ends_ms: SB_PART: a sample each, of those that
                     were taken between, then SB_REPLY; from the first such request on they are taken */
    SB_S_HANDOVER =
        59, /* version, release -> reply, and soon the end of the connection: whoever carries a newer
               release starts its supervisor in the place of this one. Served without a hello, and the same
               for all versions */
    SB_S_TEMPLATE =
        52, /* template (a name), snapshot? (the step it is made of; absent: the base template), digest,
               step_key* (all it was built of), env*, user, cwd, start*, ready* -> reply, once it is on the disk and
               has replaced the one of that name */
    SB_S_TEMPLATES, /* template? (only this one) -> SB_PART: what SB_S_TEMPLATE said of each, created_ms, in the
                       order of names; then SB_REPLY: those of the request's step_key* that are there */
    SB_S_UNTEMPLATE, /* template -> reply; Busy while a sandbox made from it is there */
    SB_S_KEEP =
        62, /* id -> reply: it has no owner any more, and outlives the one it had until it was
                        prepared */
    SB_S_GIVE_UP, /* snapshot -> reply: whoever asked for it on this connection does not wait any more: if it is
                     not whole yet it will not be, and its sandbox need not stand still for it */

    /* supervisor -> pid 1, on the control socket */
    SB_G_INIT =
        64, /* version, boot, user, cwd, env*, epoch, limit_commands, limit_files, allow_setuid, ends_ms,
                       owned, grace_ms (SB_G_LIFE), clone_at (the
                       one address at which clone3 may find its arguments), limit_started, started, join,
                       oom, leaf*, leaf_fds; fds: `join` groups to move into, with `oom` the file in which
                       the kernel counts whom it kills for memory, leaf groups as root, none rootless ->
                       reply */
    SB_G_CONN,  /* epoch; fd: one end of a new caller connection. No answer */
    SB_G_USAGE, /* -> cpu_us, memory, count, summed up over /proc */
    SB_G_LEAVES, /* leaf* (their numbers), leaf_fds; fds: for each leaf cgroup.procs, cgroup.kill and,
                       with leaf_fds = 3, its directory. No answer */
    SB_G_STOP,   /* end every command (TERM, then KILL after grace_ms) -> started; then killed */
    SB_G_LIFE, /* ends_ms (CLOCK_BOOTTIME, 0 none), owned, grace_ms: when pid 1 ends by itself, should no
                  supervisor do it. The same fields are in SB_G_INIT. No answer */
    SB_G_SPARE, /* no fields: its set-up is not to come soon, there is time to prepare. No answer */
    SB_G_FREEZE, /* epoch (the next one), grace_ms, stop: begins nothing any more and, once running file
                    operations have ended or the grace has, -> reply. With stop (no groups) it stops all
                    processes but itself. Then the supervisor freezes the group */
    SB_G_THAW, /* epoch: after the supervisor has thawed the group. Also when nothing was frozen. No
                  answer */
    /* pid 1 -> supervisor */
    SB_G_HELLO =
        80, /* version: the first message of a booted pid 1, and of an adopted one, which adds epoch,
                        started and stop (1: it was frozen and has not been thawed) */
    SB_G_NEED_LEAVES, /* its stock of empty leaf groups runs low; leaf* (those it gives back, empty and
                          of no more use to it). Answered by SB_G_LEAVES */

    /* caller -> pid 1 */
    SB_C_PING = 96, /* -> reply */
    SB_C_EXEC, /* stage, arg*, [stage, arg* ...], env*, clean_env, user, cwd, tag, in_mode, out_mode,
                        err_mode, detached, keep_in, cols, rows (of a terminal), time_limit_ms, whole ->
                        serial, pid, start_ns, streams; fds in the order of the bits of `streams`. Later
                        SB_EXITED with req = 0.
                        keep_in: whoever attaches later may write to it, too.
                        whole: the asker waits for the end anyway. The answer may come then, and instead of
                        streams and SB_EXITED carry that one's fields, last of all data and data_err */
    SB_C_SIGNAL, /* serial, signal, group -> count: how many processes it was delivered to */
    SB_C_KILL, /* serial, signal, grace_ms: the whole tree, KILL after the grace; answered when the
                        leader has been reaped and the tree is empty -> count. Instead of serial, req: of an
                        SB_C_EXEC with `whole` that has not been answered; without both: all such of this
                        connection. Then KILL at once -> reply */
    SB_C_WAIT, /* serial -> SB_EXITED as the answer, at once or when it ends */
    SB_C_ATTACH, /* serial | pid | tag; start_ns (0 = any), lease -> SB_PART: stream, data (the tail),
                        then a process record with streams and fds when lease was asked for and given */
    SB_C_RELEASE, /* serial, streams: the lease on its output ends, pid 1 drains into the tail; of stdin
                        the end that pid 1 keeps is closed -> reply */
    SB_C_DETACH, /* serial: outlives scope and connection -> reply */
    SB_C_LIST,   /* -> SB_PART: a process record each (serial, pid, start_ns, tag, arg*, cwd, user,
                        detached, running, and of a terminal cols and rows), then SB_REPLY */
    SB_C_FILE,   /* file_op, ... see enum sb_file_op; answered by a worker process */
    SB_C_TELL,   /* req: of an SB_C_EXEC with `whole`, whose answer is wanted now -> reply */
    SB_C_RESIZE, /* serial, cols, rows: of its terminal -> reply */
    SB_C_SPOOL, /* serial, start_ns, stream, from: what is kept of it -> reply; fd: a pipe of frames, from the byte
                    `from` on or the first one after it that is still kept */

    /* supervisor -> relay of a sandbox's network */
    SB_R_POLICY = 128, /* network, net_allow*, net_deny*, net_inject*, resolver* -> reply */
    /* relay -> supervisor */
    SB_R_DENIED, /* index, denied: one entry of its table of what it has refused */
    /* relay -> its second process, for TLS, which gets SB_R_POLICY as well */
    SB_R_OPEN =
        132, /* serial, name (of the host), data (what the program has sent); fds: to the program, to the
                        server. No answer but the next */
    SB_R_OPENED, /* from there: serial, index: how it ended (enum sb_opened_end) */
};

/* Requests that let go of something: pid 1 serves them whatever epoch they are of, and its callers rely on that. */
static inline int sb_msg_lets_go(uint16_t type)
{
    return type == SB_C_KILL || type == SB_C_RELEASE || type == SB_C_DETACH || type == SB_C_TELL;
}

/* Bits of the `streams` field, and its order of descriptors. */
#define SB_STREAM_STDIN 1u  /* write end */
#define SB_STREAM_STDOUT 2u /* read end */
#define SB_STREAM_STDERR 4u /* read end */

/* How a connection ended in the relay's second process. */
enum sb_opened_end {
    SB_OPENED_DONE = 1,
    SB_OPENED_CUT,
    SB_OPENED_UNREADABLE, /* the request inside */
    SB_OPENED_REFUSED,
    SB_OPENED_UNTRUSTED, /* the server's certificate */
    SB_OPENED_SERVER,    /* TLS with it failed otherwise */
    SB_OPENED_PROGRAM,   /* TLS with the program: it does not trust the sandbox's authority, say */
};

enum sb_stdio {
    SB_IO_NULL = 0,  /* stdin: at its end; output: discarded */
    SB_IO_PIPE = 1,  /* a pipe whose far end goes to the asker */
    SB_IO_TAIL = 2,  /* output only: drained by pid 1 into a tail of SB_TAIL_BYTES */
    SB_IO_MERGE = 3, /* stderr only: the same as stdout */
    /* As err_mode: all three are a terminal. in_mode and out_mode say where its far side goes; with
     * SB_IO_NULL as in_mode its input ends at once. */
    SB_IO_TERMINAL = 4,
    SB_IO_SPOOL = 5, /* output only: kept by pid 1, for any number of readers */
};

#define SB_TAIL_BYTES 65536  /* kept per stream once nobody reads */
#define SB_PIPE_BYTES 262144 /* wished size of an output pipe; smaller where the kernel refuses */
#define SB_SPOOL_BYTES (64u << 20) /* kept per stream of SB_IO_SPOOL */
#define SB_WHOLE_BYTES 16384   /* of each stream: the most that comes with an answer to SB_C_EXEC */
#define SB_LIST_DEFAULT 100u   /* records in an answer to SB_S_LIST without a limit ... */
#define SB_LIST_MAX 1000u      /* ... and the most of them */
#define SB_KEEP_ENDED 256      /* how many ended processes stay attachable ... */
#define SB_KEEP_ENDED_MS 60000 /* ... and for how long */

/* What a sandbox may have beyond limits.processes: pid 1, its workers, and a command that is started while those inside
 * have as many as they may. */
#define SB_PROCESSES_SPARE 32

/* What a reader of kept output gets: 8 bytes, where what follows lies in the stream (lower 48 bits) and how much it is
 * (upper 16), then that. Nothing follows at the end of the stream; a pipe that ends before was cut off. */
#define SB_FRAME_HEAD(offset, len) (((uint64_t)(offset)&0xffffffffffff) | (uint64_t)(len) << 48)
#define SB_FRAME_DATA 4088 /* the most of one: it is written as a whole or not at all */

/* Every file operation takes `user` (default: the sandbox's) and runs in a worker with that user's
 * rights. Paths: relative and `~` start at the user's home. Errors: SB_ERROR with errno, path, step. */
enum sb_file_op {
    SB_FILE_STAT = 1, /* path, nofollow -> entry */
    SB_FILE_OPEN, /* path, oflags, mode, parents -> entry; fd. Regular files only (others EISDIR, ENXIO) */
    SB_FILE_WRITE, /* path, data (inline), mode?, owner?, exclusive, append, atomic, parents -> entry */
    SB_FILE_BEGIN, /* path, mode?, owner?, exclusive, parents -> token, path (final); fd of an unnamed or
                         temporary file in the final directory. Nothing shows until the commit */
    SB_FILE_COMMIT, /* token, path; fd: the one BEGIN gave -> entry. Rename over, or EEXIST if exclusive */
    SB_FILE_ABORT, /* token, path: removes a named temporary file */
    SB_FILE_LIST,  /* path, depth (1 = flat, 0 = all) -> SB_PART: entries in stable order; links are
                         entries, never entered */
    SB_FILE_MKDIR, /* path, mode, parents -> created (0 when it was there) */
    SB_FILE_MOVE,  /* path, path2 */
    SB_FILE_COPY,  /* path, path2: file or tree */
    SB_FILE_REMOVE,   /* path, recursive */
    SB_FILE_CHMOD,    /* path, mode */
    SB_FILE_CHOWN,    /* path, owner ("user", "user:group", "1:2") */
    SB_FILE_SYMLINK,  /* target, path */
    SB_FILE_READLINK, /* path -> target */
    SB_FILE_TEMPDIR,  /* path (directory to make it in, default /tmp), mode -> path */
    SB_FILE_SETXATTR, /* path, xattr* ("name\0value"; without a zero byte: those whose names begin so go,
                         before any is set) */
    SB_FILE_GETXATTR, /* path -> xattr* */
    SB_FILE_GLOB,     /* pattern* -> SB_PART: match* (paths; of two patterns maybe twice) */
    SB_FILE_WATCH, /* path, recursive -> path (final); fd: a pipe of lines, see enum sb_watch_line. Its
                         worker stays until the pipe's other end is closed */
};

/* The lines of a watch: one of these, then the path below the root ("." for itself) in which a newline is
 * "\n" and a backslash "\\", or after SB_WATCH_END the reason. */
enum sb_watch_line {
    SB_WATCH_CREATE = 'c', /* the name is there; what is in a directory that came follows */
    SB_WATCH_WRITE = 'w',
    SB_WATCH_REMOVE = 'd',
    SB_WATCH_RENAME = 'r', /* it has gone from here, with all that is below it */
    SB_WATCH_CHMOD = 'a',
    SB_WATCH_OVERFLOW = 'o',
    SB_WATCH_END = 'e', /* "removed", "moved", "limit", or an errno's number */
};

/* X(tag, name, type): U = u64, B = bytes (once), L = bytes (list). An entry of the file API is:
 * name, path, ftype, size, mode, uid, gid, owner, group, mtime_ns, target. */
/* clang-format off */
#define SB_FIELDS(X) \
    X(1, VERSION, version, U) X(2, KIND, kind, B) X(3, ERRNO, errno_, U) X(4, STEP, step, B) \
    X(5, MESSAGE, message, B) X(6, PATH, path, B) X(7, PATH2, path2, B) X(8, SPILL, spill, U) \
    X(9, COUNT, count, U) X(10, LIMIT, limit, U) X(11, AFTER, after, B) X(12, NEXT, next, B) \
    X(13, MS, ms, U) \
    /* sandboxes */ \
    X(20, ID, id, B) X(21, TEMPLATE, template, B) X(22, ROOTFS, rootfs, B) \
    X(23, LIFETIME_MS, lifetime_ms, U) X(24, ON_EXPIRY, on_expiry, B) X(25, LABEL, label, L) \
    X(26, OWNED, owned, U) X(27, ALLOW_SETUID, allow_setuid, U) X(28, USER, user, B) \
    X(29, CWD, cwd, B) X(30, ENV, env, L) X(31, HOSTNAME, hostname, B) X(32, STATE, state, L) \
    X(33, KEPT, kept, B) X(34, KEEP, keep, B) X(35, BOOT, boot, B) X(36, EPOCH, epoch, U) \
    X(37, STARTED_MS, started_ms, U) X(38, ENDS_MS, ends_ms, U) X(39, CAUSE, cause, B) \
    X(40, EXPOSED, exposed, L) X(41, PORT, port, U) X(42, ON, on, U) \
    X(43, MODE_NAME, mode_name, B) X(44, CAP, cap, L) X(45, LINGER_MS, linger_ms, U) \
    X(46, AUTO_RESUME, auto_resume, U) X(47, LIMIT_PROCESSES, limit_processes, U) \
    X(48, LIMIT_FILES, limit_files, U) X(49, LIMIT_COMMANDS, limit_commands, U) \
    X(50, LIVE, live, U) X(51, POOLED, pooled, U) X(52, OPEN_FDS, open_fds, U) \
    X(53, NETWORK, network, B) X(54, LIMIT_DISK, limit_disk, U) \
    X(55, LIMIT_MEMORY, limit_memory, U) X(56, CREATED_MS, created_ms, U) \
    X(58, CLONE_AT, clone_at, U) X(59, LEAF_FDS, leaf_fds, U) X(60, EXTEND, extend, U) \
    X(57, STOP, stop, U) X(64, SNAPSHOT, snapshot, B) X(65, LAYER, layer, L) X(66, TEMPORARY, temporary, U) \
    X(61, LEAF, leaf, U) X(62, LIMIT_OUTPUT, limit_output, U) X(63, LIMIT_ENV, limit_env, U) \
    /* processes */ \
    X(70, STAGE, stage, U) X(71, ARG, arg, L) X(72, CLEAN_ENV, clean_env, U) \
    X(73, TAG, tag, B) X(74, IN_MODE, in_mode, U) X(75, OUT_MODE, out_mode, U) \
    X(76, ERR_MODE, err_mode, U) X(77, DETACHED, detached, U) \
    X(78, TIME_LIMIT_MS, time_limit_ms, U) X(79, SERIAL, serial, U) X(80, PID, pid, U) \
    X(81, START_NS, start_ns, U) X(82, STREAMS, streams, U) X(83, STATUS, status, U) \
    X(84, REASON, reason, B) X(85, UTIME_US, utime_us, U) X(86, STIME_US, stime_us, U) \
    X(87, MAXRSS, maxrss, U) X(88, SIGNAL, signal, U) X(89, GROUP, group, U) \
    X(90, GRACE_MS, grace_ms, U) X(91, LEASE, lease, U) X(92, STREAM, stream, U) \
    X(93, DATA, data, B) X(94, DROPPED, dropped, U) X(95, RUNNING, running, U) \
    X(96, DROPPED_ERR, dropped_err, U) X(97, WHOLE, whole, U) \
    X(98, DATA_ERR, data_err, B) X(99, REQ, req, U) X(100, KEEP_IN, keep_in, U) \
    X(101, COLS, cols, U) X(102, ROWS, rows, U) \
    /* files */ \
    X(110, FILE_OP, file_op, U) X(111, OFLAGS, oflags, U) X(112, MODE, mode, U) \
    X(113, OWNER, owner, B) X(114, EXCLUSIVE, exclusive, U) X(115, APPEND, append, U) \
    X(116, ATOMIC, atomic, U) X(117, PARENTS, parents, U) X(118, NOFOLLOW, nofollow, U) \
    X(119, DEPTH, depth, U) X(120, RECURSIVE, recursive, U) X(121, TARGET, target, B) \
    X(122, TOKEN, token, B) X(123, NAME, name, B) X(124, FTYPE, ftype, B) \
    X(125, SIZE, size, U) X(126, UID, uid, U) X(127, GID, gid, U) \
    X(128, OWNER_GROUP, owner_group, B) X(129, MTIME_NS, mtime_ns, U) \
    X(130, CREATED, created, U) X(131, XATTR, xattr, L) X(132, PATTERN, pattern, L) \
    X(133, MATCH, match, L) \
    /* network: a host name, address or CIDR each; "protocol|host|port|why|count|ms since 1970" */ \
    X(140, NET_ALLOW, net_allow, L) X(141, NET_DENY, net_deny, L) \
    X(142, RESOLVER, resolver, L) X(143, DENIED, denied, L) X(144, INDEX, index, U) \
    /* kept output */ \
    X(150, FROM, from, U) \
    /* limits and what is used: cpu in thousandths of a processor; started: commands, ever */ \
    X(160, JOIN, join, U) X(161, OOM, oom, U) X(162, LIMIT_CPU, limit_cpu, U) \
    X(163, LIMIT_WALL_MS, limit_wall_ms, U) X(164, LIMIT_STARTED, limit_started, U) \
    X(165, STARTED, started, U) X(166, CPU_US, cpu_us, U) X(167, MEMORY, memory, U) \
    X(168, RECEIVED, received, U) X(169, SENT, sent, U) \
    /* templates */ \
    X(170, STEP_KEY, step_key, L) X(171, START, start, L) X(172, READY, ready, L) X(173, DIGEST, digest, B) \
    X(174, SUBTREE, subtree, B) \
    /* relay/inject.h says what is in it: in a record that callers see, values are not; the sandbox whose are taken */ \
    X(180, NET_INJECT, net_inject, L) X(181, INJECT_OF, inject_of, B) \
    X(200, RELEASE, release, U)
/* clang-format on */

enum sb_field {
#define SB_FIELD_ENUM(tag, upper, lower, type) SB_F_##upper = (tag),
    SB_FIELDS(SB_FIELD_ENUM)
#undef SB_FIELD_ENUM
};

/* ---- writing ---- */

/* A message under construction in memory of the caller's. Running out of room is remembered in
 * `overflow` and checked once, at the end. */
struct sb_packer {
    unsigned char *buf;
    size_t cap, len;
    int overflow;
};

static inline void sb_pack_begin(struct sb_packer *p, void *buf, size_t cap, uint16_t type,
                                 uint32_t req, uint32_t epoch)
{
    struct sb_msg head = {SB_PROTO_MAGIC, type, 0, req, epoch};
    p->buf = buf;
    p->cap = cap;
    p->len = sizeof head;
    p->overflow = cap < sizeof head;
    if (!p->overflow)
        __builtin_memcpy(p->buf, &head, sizeof head);
}

static inline void sb_pack_bytes(struct sb_packer *p, uint16_t tag, const void *data, size_t len)
{
    uint64_t head = tag | (uint64_t)len << 32; /* little endian, as every machine this runs on */
    if (p->overflow || len > SB_SPILL_MAX || p->cap - p->len < sizeof head + len) {
        p->overflow = 1;
        return;
    }
    __builtin_memcpy(p->buf + p->len, &head, sizeof head);
    if (len > 0)
        __builtin_memcpy(p->buf + p->len + sizeof head, data, len);
    p->len += sizeof head + len;
}

static inline void sb_pack_u64(struct sb_packer *p, uint16_t tag, uint64_t value)
{
    sb_pack_bytes(p, tag, &value, sizeof value);
}

static inline void sb_pack_str(struct sb_packer *p, uint16_t tag, const char *s)
{
    sb_pack_bytes(p, tag, s, __builtin_strlen(s));
}

/* ---- reading ---- */

struct sb_field_view {
    uint16_t tag;
    const unsigned char *data; /* inside the datagram; not zero-terminated */
    uint32_t len;
};

struct sb_reader {
    const unsigned char *at, *end;
};

/* 0 and the header in *head, or -1 when these bytes are not a message. */
static inline int sb_read_begin(struct sb_reader *r, struct sb_msg *head, const void *buf,
                                size_t len)
{
    if (len < sizeof *head)
        return -1;
    __builtin_memcpy(head, buf, sizeof *head);
    r->at = (const unsigned char *)buf + sizeof *head;
    r->end = (const unsigned char *)buf + len;
    return head->magic == SB_PROTO_MAGIC ? 0 : -1;
}

/* The next field: 1; the end: 0; damaged: -1 (and every later call too). */
static inline int sb_read_field(struct sb_reader *r, struct sb_field_view *f)
{
    uint16_t zero;
    if (r->at == r->end)
        return 0;
    if (r->at == NULL || r->end - r->at < 8)
        goto bad;
    __builtin_memcpy(&f->tag, r->at, 2);
    __builtin_memcpy(&zero, r->at + 2, 2);
    __builtin_memcpy(&f->len, r->at + 4, 4);
    if (zero != 0 || f->len > (size_t)(r->end - r->at) - 8)
        goto bad;
    f->data = r->at + 8;
    r->at += 8 + f->len;
    return 1;
bad:
    r->at = NULL;
    return -1;
}

/* The field's value as an integer; `fallback` when it is not 8 bytes long. */
static inline uint64_t sb_field_u64(const struct sb_field_view *f, uint64_t fallback)
{
    uint64_t v;
    if (f->len != sizeof v)
        return fallback;
    __builtin_memcpy(&v, f->data, sizeof v);
    return v;
}

/* The first field with this tag, searched from the start of `r` (which is not moved): 1 or 0. */
static inline int sb_read_find(const struct sb_reader *r, uint16_t tag, struct sb_field_view *f)
{
    struct sb_reader copy = *r;
    while (sb_read_field(&copy, f) == 1)
        if (f->tag == tag)
            return 1;
    return 0;
}

static inline uint64_t sb_read_u64(const struct sb_reader *r, uint16_t tag, uint64_t fallback)
{
    struct sb_field_view f;
    return sb_read_find(r, tag, &f) ? sb_field_u64(&f, fallback) : fallback;
}

#endif
