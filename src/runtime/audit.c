/* The audit trail, see audit.h. A queue of bytes under a lock; pipes and sockets are written as far
 * as they take it, regular files by a file thread. */
#include "audit.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "secret.h"
#include "sigpipe.h"
#include "transfer.h"

#define QUEUE_MOST 1048576
#define DRAIN_MS 1000

/* One descriptor's. Closed, it lives until its queue is written or nobody takes it. */
struct trail {
    struct trail *next; /* of those that are closed and not done */
    int fd;             /* -1: nobody reads any more */
    int regular;
    int closed;
    char *data; /* data[start .. start + len) is to be written */
    size_t start, len, room;
    unsigned long missed;
    int posted;          /* a turn of the I/O thread is coming */
    struct piece *piece; /* the front of the queue, at a file thread */
    struct sb_transfer transfer;
    /* the I/O thread's */
    struct sb_source source; /* a duplicate, watched while the reader is behind */
    int added;
    struct sb_post post;
};

static struct {
    pthread_mutex_t lock; /* guards the rest and what is not the I/O thread's in every trail */
    struct trail *current, *closed, *trace;
} audit = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- lines ---- */

static void put(struct sb_audit_line *line, const char *data, size_t len)
{
    if (!line->failed && line->room - line->len < len) {
        size_t room = (line->len + len) * 2 + 256;
        char *more = realloc(line->data, room);
        if (more == NULL)
            line->failed = 1;
        else
            line->data = more, line->room = room;
    }
    if (line->failed)
        return;
    memcpy(line->data + line->len, data, len);
    line->len += len;
}

/* The length of the UTF-8 sequence at `at`, 0 if it is none. */
static size_t utf8(const unsigned char *at, size_t left)
{
    size_t n = at[0] < 0x80                    ? 1
               : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
               : (at[0] & 0xf0) == 0xe0        ? 3
                                               : 4;
    if ((at[0] >= 0x80 && at[0] < 0xc2) || at[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return n;
}

/* Bytes that are no UTF-8 show as the code points of their values. */
static void put_quoted(struct sb_audit_line *line, const char *text, size_t len)
{
    put(line, "\"", 1);
    for (size_t i = 0, n; i < len; i += n) {
        unsigned char c = (unsigned char)text[i];
        n = utf8((const unsigned char *)text + i, len - i);
        if (n == 0 || c < 0x20 || c == 0x7f) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", c);
            put(line, escape, strlen(escape));
            n = 1;
            continue;
        }
        if (c == '"' || c == '\\')
            put(line, "\\", 1);
        put(line, text + i, n);
    }
    put(line, "\"", 1);
}

static void put_key(struct sb_audit_line *line, const char *key)
{
    put(line, line->len > 0 ? "," : "{", 1);
    put_quoted(line, key, strlen(key));
    put(line, ":", 1);
}

void sb_audit_text(struct sb_audit_line *line, const char *key, const char *text, size_t len)
{
    char *clean = NULL;
    size_t clean_len;
    int redacted = sb_redact(text, len, &clean, &clean_len);
    if (redacted < 0) {
        line->failed = 1;
        return;
    }
    put_key(line, key);
    put_quoted(line, redacted ? clean : text, redacted ? clean_len : len);
    free(clean);
}

void sb_audit_number(struct sb_audit_line *line, const char *key, double number)
{
    char text[40] = "null";
    put_key(line, key);
    if (isfinite(number))
        snprintf(text, sizeof text, "%.17g", number);
    put(line, text, strlen(text));
    for (size_t i = line->failed ? 0 : line->len; i-- > 0 && line->data[i] != ':';)
        if (line->data[i] == ',') /* of a locale that writes it so */
            line->data[i] = '.';
}

void sb_audit_bool(struct sb_audit_line *line, const char *key, int value)
{
    put_key(line, key);
    put(line, value ? "true" : "false", value ? 4 : 5);
}

void sb_audit_begin(struct sb_audit_line *line, const char *event)
{
    struct timespec ts;
    char text[40] = "";
    sb_audit_text(line, "event", event, strlen(event));
    clock_gettime(CLOCK_REALTIME, &ts);
    put_key(line, "time");
    snprintf(text, sizeof text, "%lld.%06ld", (long long)ts.tv_sec, ts.tv_nsec / 1000);
    put(line, text, strlen(text));
}

/* ---- the queue; lock held ---- */

/* Nobody takes any more. */
static void give_up(struct trail *t)
{
    if (t->fd >= 0) {
        sb_transfer_close(&t->transfer);
        close(t->fd);
    }
    t->fd = -1;
    t->start = t->len = t->missed = 0;
}

static int reserve(struct trail *t, size_t len)
{
    if (t->room - t->start - t->len >= len)
        return 0;
    if (t->len > 0)
        memmove(t->data, t->data + t->start, t->len);
    t->start = 0;
    if (t->room - t->len >= len)
        return 0;
    size_t room = (t->len + len) * 2;
    char *more = realloc(t->data, room);
    if (more == NULL)
        return -1;
    t->data = more;
    t->room = room;
    return 0;
}

static void append(struct trail *t, const char *data, size_t len)
{
    if (len > 0)
        memcpy(t->data + t->start + t->len, data, len);
    t->len += len;
}

/* Queues how many lines there was no room for, if there were any, and room for `len` more bytes. */
static int tell_missed(struct trail *t, size_t len)
{
    char note[64];
    size_t note_len = 0;
    if (t->missed > 0)
        note_len = (size_t)snprintf(note, sizeof note, "{\"event\":\"missed\",\"count\":%lu}\n",
                                    t->missed);
    if (t->len + note_len + len > QUEUE_MOST || reserve(t, note_len + len) < 0)
        return -1;
    append(t, note, note_len);
    t->missed = 0;
    return 0;
}

static void taken(struct trail *t, size_t n)
{
    t->start += n;
    t->len -= n;
    if (t->len == 0)
        t->start = 0;
    if (t->len == 0 && t->closed)
        tell_missed(t, 0);
}

/* No more lines come: what was missed is told as the last one. */
static void shut(struct trail *t)
{
    t->closed = 1;
    taken(t, 0);
}

/* Writes what a pipe or socket takes. 0: all, or nobody is there; 1: it takes no more now. */
static int write_some(struct trail *t)
{
    while (t->fd >= 0 && t->len > 0) {
        ssize_t n = sb_transfer_write(&t->transfer, t->fd, t->data + t->start, t->len);
        if (n >= 0)
            taken(t, (size_t)n);
        else if (errno == EAGAIN)
            return 1;
        else
            give_up(t);
    }
    return 0;
}

/* ---- turns of the I/O thread ---- */

struct piece {
    struct trail *trail;
    int fd; /* a duplicate: the trail may be given up meanwhile */
    size_t len, done;
    int error;
    char data[];
};

static void write_piece(void *arg)
{
    struct piece *piece = arg;
    while (piece->done < piece->len && piece->error == 0) {
        ssize_t n = write(piece->fd, piece->data + piece->done, piece->len - piece->done);
        if (n >= 0)
            piece->done += (size_t)n;
        else if (errno != EINTR)
            piece->error = errno;
    }
}

static void advance(struct trail *t);

static void piece_written(void *arg)
{
    struct piece *piece = arg;
    struct trail *t = piece->trail;
    pthread_mutex_lock(&audit.lock);
    t->piece = NULL;
    if (t->len > 0)
        taken(t, piece->len); /* what could not be written is lost */
    pthread_mutex_unlock(&audit.lock);
    close(piece->fd);
    free(piece);
    advance(t);
}

/* Lock held. */
static void hand_to_file_thread(struct trail *t)
{
    struct piece *piece;
    if (t->piece != NULL || t->len == 0 || t->fd < 0)
        return;
    piece = malloc(sizeof *piece + t->len);
    if (piece == NULL)
        return; /* the next line tries again */
    *piece = (struct piece){t, fcntl(t->fd, F_DUPFD_CLOEXEC, 3), t->len, 0, 0};
    memcpy(piece->data, t->data + t->start, t->len);
    if (piece->fd < 0 || sb_pool_run(write_piece, piece_written, piece, NULL) != 0) {
        if (piece->fd >= 0)
            close(piece->fd);
        free(piece);
        return;
    }
    t->piece = piece;
}

static void unwatch(struct trail *t)
{
    if (!t->added)
        return;
    sb_source_remove(&t->source);
    close(t->source.fd);
    t->source.fd = -1;
    t->added = 0;
}

static void ready(struct sb_source *source, uint32_t events)
{
    (void)events;
    advance(sb_container(source, struct trail, source));
}

/* Lock held. Whether it is done with. */
static int unlink_done(struct trail *t)
{
    if (!t->closed || t->posted || t->piece != NULL || (t->fd >= 0 && t->len > 0))
        return 0;
    for (struct trail **at = &audit.closed; *at != NULL; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    give_up(t);
    return 1;
}

static void advance(struct trail *t)
{
    int behind = 0;
    pthread_mutex_lock(&audit.lock);
    if (t->regular)
        hand_to_file_thread(t);
    else
        behind = write_some(t);
    int fd = behind && !t->added ? fcntl(t->fd, F_DUPFD_CLOEXEC, 3) : -1;
    int over = unlink_done(t);
    pthread_mutex_unlock(&audit.lock);
    if (!behind)
        unwatch(t);
    if (over) {
        free(t->data);
        free(t);
        return;
    }
    if (fd < 0)
        return;
    t->source = (struct sb_source){fd, EPOLLOUT, ready};
    t->added = sb_source_add(&t->source, NULL) == 0;
    if (!t->added)
        close(fd); /* the next line tries again */
}

static void turn(struct sb_post *post)
{
    struct trail *t = sb_container(post, struct trail, post);
    pthread_mutex_lock(&audit.lock);
    t->posted = 0;
    pthread_mutex_unlock(&audit.lock);
    advance(t);
}

/* Lock held. */
static void kick(struct trail *t)
{
    if (t->posted)
        return;
    t->post.fn = turn;
    t->posted = sb_loop_post_node(&t->post, NULL) == 0;
}

/* ---- for everybody ---- */

/* Lock held. */
static void queue(struct trail *t, const struct sb_audit_line *line)
{
    if (t == NULL || t->fd < 0)
        return;
    if (line->failed || tell_missed(t, line->len) != 0)
        t->missed++;
    else
        append(t, line->data, line->len);
    kick(t);
}

static void forget(struct sb_audit_line *line)
{
    free(line->data);
    *line = (struct sb_audit_line){0};
}

void sb_audit_end(struct sb_audit_line *line)
{
    put(line, "}\n", 2);
    pthread_mutex_lock(&audit.lock);
    queue(audit.current, line);
    pthread_mutex_unlock(&audit.lock);
    forget(line);
}

int sb_audit_on(void)
{
    pthread_mutex_lock(&audit.lock);
    int on = audit.current != NULL && audit.current->fd >= 0;
    pthread_mutex_unlock(&audit.lock);
    return on;
}

static struct trail *trail_new(int fd, struct sb_error *err)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    struct trail *t = calloc(1, sizeof *t);
    int copy = t != NULL && flags >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (copy < 0 || fstat(copy, &st) < 0) {
        sb_fail_errno(err, t != NULL ? errno : ENOMEM, "audit", "the descriptor cannot be used");
    } else if ((flags & O_ACCMODE) == O_RDONLY) {
        sb_fail(err, SB_ERR_INVALID_ARGUMENT, "the descriptor is not open for writing");
    } else {
        t->fd = copy;
        t->regular = S_ISREG(st.st_mode) || S_ISBLK(st.st_mode);
        t->source.fd = -1;
        sb_transfer_init(&t->transfer, copy);
        return t;
    }
    if (copy >= 0)
        close(copy);
    free(t);
    return NULL;
}

static int traced;

__attribute__((constructor)) static void look_for_trace(void)
{
    const char *wish = getenv("SANDBAR_TRACE"); /* once, at load */
    traced = wish != NULL && strcmp(wish, "1") == 0;
}

int sb_trace_on(void)
{
    return traced;
}

void sb_trace_end(struct sb_audit_line *line)
{
    put(line, "}\n", 2);
    pthread_mutex_lock(&audit.lock);
    if (audit.trace == NULL)
        audit.trace = trail_new(STDERR_FILENO, NULL);
    queue(audit.trace, line);
    pthread_mutex_unlock(&audit.lock);
    forget(line);
}

int sb_audit_open(int fd, struct sb_error *err)
{
    struct trail *t = NULL;
    if (fd >= 0 && (t = trail_new(fd, err)) == NULL)
        return -(int)err->kind;
    pthread_mutex_lock(&audit.lock);
    struct trail *old = audit.current;
    audit.current = t;
    if (old != NULL) {
        shut(old);
        old->next = audit.closed;
        audit.closed = old;
        kick(old); /* which frees it, in the end */
    }
    pthread_mutex_unlock(&audit.lock);
    return 0;
}

/* Lock held. The file threads have ended, and so has the loop as far as trails go. */
static void drain(struct trail *t, uint64_t until)
{
    shut(t);
    if (t->piece != NULL && t->len > 0)
        taken(t, t->piece->done);
    while (t->fd >= 0 && t->len > 0 && sb_now() < until) {
        struct pollfd p = {t->fd, POLLOUT, 0};
        if (!t->regular && !write_some(t))
            break;
        if (poll(&p, 1, 100) > 0 && t->regular) {
            ssize_t n = write(t->fd, t->data + t->start, t->len);
            if (n < 0 && errno != EINTR)
                give_up(t);
            else if (n > 0)
                taken(t, (size_t)n);
        }
    }
}

void sb_audit_drain(void)
{
    sigset_t old;
    uint64_t until = sb_now() + DRAIN_MS * 1000000ull;
    sb_sigpipe_hold(&old);
    pthread_mutex_lock(&audit.lock);
    for (struct trail *t = audit.closed; t != NULL; t = t->next)
        drain(t, until);
    if (audit.current != NULL)
        drain(audit.current, until);
    if (audit.trace != NULL)
        drain(audit.trace, until);
    pthread_mutex_unlock(&audit.lock);
    sb_sigpipe_swallow(&old);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- fork: what is queued is the parent's to write ---- */

void sb_audit_fork_lock(void)
{
    pthread_mutex_lock(&audit.lock);
}

void sb_audit_fork_unlock(void)
{
    pthread_mutex_unlock(&audit.lock);
}

static void start_anew(struct trail *t)
{
    if (t == NULL)
        return;
    t->start = t->len = t->missed = 0;
    t->posted = t->added = 0;
    t->piece = NULL;
    t->source.fd = -1; /* closed by the loop, if it was watched */
}

void sb_audit_fork_child(void)
{
    audit.closed = NULL;
    start_anew(audit.current);
    start_anew(audit.trace);
}
