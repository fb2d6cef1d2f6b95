/* A seqpacket connection: request table, calls, strict receiving. Sending is in sending.c. */
#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sending.h"
#include "trace.h"

#define SLOTS_MAX 65535u
#define NO_SLOT UINT32_MAX
#define ALL_CALLS UINT64_MAX
#define PARTS_PER_TURN 64 /* SB_PART answers taken in one go before other sources get their turn */

/* req = turn << 16 | index + 1, so that an answer to a request long gone is recognised as such. */
struct sb_conn_slot {
    uint32_t req; /* 0: free */
    uint32_t next_free;
    uint64_t number;      /* how many requests had been sent, with this one; 0: it lets go */
    uint32_t epoch;       /* it was sent with */
    struct sb_call *call; /* NULL in a used slot: forgotten */
};

/* Where every datagram is received. [io]: one thread in the process, one message at a time. */
static unsigned char inbox[SB_MSG_MAX];

void sb_fds_close(int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
}

/* ---- the request table (lock held) ---- */

static int slots_grow(struct sb_conn *conn)
{
    uint32_t room = conn->room ? conn->room * 2 : 8;
    struct sb_conn_slot *slots;
    if (conn->room == SLOTS_MAX)
        return -1;
    if (room > SLOTS_MAX)
        room = SLOTS_MAX;
    slots = realloc(conn->slots, room * sizeof *slots);
    if (slots == NULL)
        return -1;
    for (uint32_t i = conn->room; i < room; i++)
        slots[i] = (struct sb_conn_slot){.next_free = i + 1 < room ? i + 1 : NO_SLOT};
    conn->free_slot = conn->room;
    conn->slots = slots;
    conn->room = room;
    return 0;
}

static uint32_t slot_take(struct sb_conn *conn, struct sb_call *call, uint16_t type)
{
    struct sb_conn_slot *slot;
    uint32_t index;
    if (conn->free_slot == NO_SLOT && slots_grow(conn) < 0)
        return 0;
    index = conn->free_slot;
    slot = &conn->slots[index];
    conn->free_slot = slot->next_free;
    conn->turn = (conn->turn + 1) & 0xffff;
    slot->req = conn->turn << 16 | (index + 1);
    slot->number = sb_msg_lets_go(type) ? 0 : conn->sent + 1;
    slot->epoch = conn->epoch;
    slot->call = call;
    if (call != NULL) {
        call->req = slot->req;
        conn->in_flight++;
    }
    return slot->req;
}

static struct sb_conn_slot *slot_find(struct sb_conn *conn, uint32_t req)
{
    uint32_t index = (req & 0xffff) - 1;
    if (req == 0 || index >= conn->room || conn->slots[index].req != req)
        return NULL;
    return &conn->slots[index];
}

static void slot_drop(struct sb_conn *conn, struct sb_conn_slot *slot)
{
    if (slot->call != NULL)
        conn->in_flight--;
    slot->req = 0;
    slot->call = NULL;
    slot->next_free = conn->free_slot;
    conn->free_slot = (uint32_t)(slot - conn->slots);
}

/* ---- calls ---- */

static int fail_frozen(struct sb_error *err)
{
    int rc = sb_fail(err, SB_ERR_NOT_RUNNING, "the sandbox is paused");
    if (err != NULL)
        memcpy(err->step, "epoch", sizeof "epoch");
    return rc;
}

int sb_conn_call(struct sb_conn *conn, struct sb_call *call, unsigned char *msg, size_t len,
                 const int *fds, unsigned nfds, struct sb_error *err)
{
    unsigned char small[64];
    int all[SB_MSG_FDS], spilled = -1, rc;
    struct sb_msg head;
    uint32_t req;
    if (len > SB_SPILL_MAX + sizeof head)
        return sb_fail(err, SB_ERR_LIMIT_EXCEEDED, "the request is longer than %u bytes",
                       SB_SPILL_MAX);
    if (nfds >= SB_MSG_FDS)
        return sb_fail(err, SB_ERR_INTERNAL, "a request carries too many descriptors");
    memcpy(&head, msg, sizeof head);
    if (len > SB_SPILL_FROM) {
        struct sb_packer p;
        spilled = sb_sending_spill(msg + sizeof head, len - sizeof head, err);
        if (spilled < 0)
            return err ? -(int)err->kind : -(int)SB_ERR_PLATFORM;
        sb_pack_begin(&p, small, sizeof small, head.type, 0, 0);
        sb_pack_u64(&p, SB_F_SPILL, len - sizeof head);
        head.flags |= SB_MSG_SPILLED;
        msg = small;
        len = p.len;
        all[0] = spilled;
        if (nfds > 0)
            memcpy(all + 1, fds, nfds * sizeof *fds);
        fds = all;
        nfds++;
    }

    pthread_mutex_lock(&conn->lock);
    if (conn->state != SB_CONN_OPEN) {
        rc = sb_fail(err, SB_ERR_NOT_RUNNING, "the connection has ended");
    } else if (conn->frozen != 0 && !sb_msg_lets_go(head.type)) {
        rc = fail_frozen(err);
    } else if ((req = slot_take(conn, call, head.type)) == 0) {
        rc = conn->room == SLOTS_MAX
                 ? sb_fail(err, SB_ERR_BUSY, "too many requests are in flight")
                 : sb_fail_errno(err, ENOMEM, "send", "a request could not be noted");
    } else {
        head.req = req;
        head.epoch = conn->epoch;
        memcpy(msg, &head, sizeof head);
        /* Before: what comes of it may be shown by the I/O thread at once. */
        sb_trace_message("send", conn->type->peer, &head, len, nfds, NULL);
        rc = sb_sending_add(conn, msg, len, fds, nfds, err);
        if (rc < 0)
            slot_drop(conn, slot_find(conn, req));
        else
            conn->sent++;
    }
    pthread_mutex_unlock(&conn->lock);
    if (spilled >= 0)
        close(spilled);
    return rc;
}

/* Those sent after the first `taken` and before `epoch`; ALL_CALLS: all. */
static void fail_calls(struct sb_conn *conn, uint64_t taken, uint32_t epoch,
                       const struct sb_answer *answer)
{
    for (uint32_t i = 0;; i++) {
        struct sb_call *call = NULL;
        pthread_mutex_lock(&conn->lock);
        for (; i < conn->room; i++) {
            struct sb_conn_slot *slot = &conn->slots[i];
            if (slot->req == 0 ||
                (taken != ALL_CALLS && (slot->number <= taken || slot->epoch >= epoch)))
                continue;
            call = slot->call;
            slot_drop(conn, slot);
            if (call != NULL)
                break;
        }
        pthread_mutex_unlock(&conn->lock);
        if (call == NULL)
            return;
        call->answer(call, answer);
    }
}

int sb_conn_frozen(struct sb_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    int frozen = conn->frozen != 0;
    pthread_mutex_unlock(&conn->lock);
    return frozen;
}

void sb_conn_thaw(struct sb_conn *conn, uint32_t epoch)
{
    pthread_mutex_lock(&conn->lock);
    if (epoch > conn->epoch && epoch >= conn->frozen) {
        conn->epoch = epoch;
        conn->frozen = 0;
    }
    pthread_mutex_unlock(&conn->lock);
}

void sb_conn_freeze(struct sb_conn *conn, uint64_t taken, uint32_t epoch)
{
    struct sb_error err = {SB_OK};
    struct sb_answer answer = {.type = SB_ERROR, .error = &err};
    fail_frozen(&err);
    pthread_mutex_lock(&conn->lock);
    if (conn->epoch < epoch) /* else the supervisor has told of the thaw before */
        conn->frozen = epoch;
    pthread_mutex_unlock(&conn->lock);
    fail_calls(conn, taken, epoch, &answer);
}

void sb_conn_forget(struct sb_conn *conn, struct sb_call *call)
{
    struct sb_conn_slot *slot;
    pthread_mutex_lock(&conn->lock);
    slot = slot_find(conn, call->req);
    if (slot != NULL && slot->call == call) {
        slot->call = NULL;
        conn->in_flight--;
    }
    pthread_mutex_unlock(&conn->lock);
}

/* ---- receiving [io] ---- */

/* Closes the descriptor and forgets what waits to be sent. */
static void shut(struct sb_conn *conn)
{
    pthread_mutex_lock(&conn->lock);
    conn->state = SB_CONN_LOST;
    sb_timer_clear(&conn->retry);
    sb_source_remove(&conn->source);
    close(conn->source.fd);
    conn->source.fd = -1;
    sb_sending_drop(conn);
    pthread_mutex_unlock(&conn->lock);
}

static void lose(struct sb_conn *conn, const struct sb_error *err)
{
    sb_trace_turn("lost", conn->type->peer, err);
    if (conn->state != SB_CONN_OPEN)
        return;
    shut(conn);
    conn->type->lost(conn, err);
}

void sb_conn_break(struct sb_conn *conn, const char *what)
{
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_PROTOCOL, "the other side broke the protocol: %s", what);
    lose(conn, &err);
}

void sb_conn_fail_all(struct sb_conn *conn, const struct sb_error *err)
{
    struct sb_answer answer = {.type = SB_ERROR, .error = err, .lost = 1};
    fail_calls(conn, ALL_CALLS, 0, &answer);
}

void sb_conn_close(struct sb_conn *conn, const struct sb_error *err)
{
    if (conn->state != SB_CONN_OPEN)
        return;
    shut(conn);
    sb_conn_fail_all(conn, err);
}

/* NULL, or what is wrong with the message. The answer stays open for more if it is an SB_PART. */
static const char *deliver(struct sb_conn *conn, const struct sb_msg *head,
                           struct sb_answer *answer)
{
    struct sb_conn_slot *slot;
    struct sb_call *call;
    if (head->req == 0) {
        if (head->type != SB_REPLY && head->type != SB_ERROR && head->type != SB_PART)
            conn->type->event(conn, answer);
        return NULL;
    }
    if (head->type < SB_REPLY || head->type > SB_EXITED)
        return "an answer of an unknown type";
    pthread_mutex_lock(&conn->lock);
    slot = slot_find(conn, head->req);
    call = slot != NULL ? slot->call : NULL;
    if (slot != NULL && head->type != SB_PART)
        slot_drop(conn, slot);
    pthread_mutex_unlock(&conn->lock);
    /* Pid 1 answers for a worker that was killed, and cannot know whether that had answered before. */
    if (slot == NULL)
        return head->type == SB_ERROR ? NULL : "an answer to a request nobody made";
    if (call != NULL)
        call->answer(call, answer);
    return NULL;
}

static const char *check_and_deliver(struct sb_conn *conn, const struct msghdr *msg, size_t len,
                                     int *fds, unsigned nfds, uint16_t *type)
{
    struct sb_answer answer = {.fds = fds, .nfds = nfds};
    struct sb_field_view f;
    struct sb_reader walk;
    struct sb_error err;
    struct sb_msg head;
    int rc;
    if (msg->msg_flags & MSG_TRUNC)
        return "a message longer than allowed";
    if (sb_read_begin(&answer.fields, &head, inbox, len) < 0)
        return "a damaged message";
    if (head.flags != 0)
        return "a message with unknown flags";
    if ((msg->msg_flags & MSG_CTRUNC) && nfds >= SB_MSG_FDS)
        return "a message with too many descriptors";
    walk = answer.fields;
    while ((rc = sb_read_field(&walk, &f)) == 1)
        ;
    if (rc < 0)
        return "damaged fields";
    answer.type = *type = head.type;
    answer.raw = answer.fields.at;
    answer.raw_len = (size_t)(answer.fields.end - answer.fields.at);
    if (head.type == SB_ERROR) {
        sb_error_from_fields(&err, &answer.fields);
        answer.error = &err;
    } else if (msg->msg_flags & MSG_CTRUNC) {
        /* Fewer than allowed, and yet cut: it is this process that has no descriptors left. */
        err = (struct sb_error){SB_OK};
        sb_fail_errno(&err, EMFILE, "receive", "no descriptor is free for what was received");
        err.kind = SB_ERR_LIMIT_EXCEEDED;
        answer.error = &err;
        answer.starved = 1;
    }
    sb_trace_message("receive", conn->type->peer, &head, len, nfds, answer.error);
    return deliver(conn, &head, &answer);
}

/* One datagram. 1: an SB_PART was delivered and more may be there; 0: enough for this turn. */
static int receive(struct sb_conn *conn)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(SB_MSG_FDS * sizeof(int))];
    } control;
    struct iovec iov = {inbox, sizeof inbox};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    int fds[SB_MSG_FDS];
    unsigned nfds = 0;
    uint16_t type = 0;
    const char *wrong;
    ssize_t n = recvmsg(conn->source.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0 && errno == ECONNRESET)
        return 1; /* it ended with requests unread; what it had answered before comes now, then the end */
    if (n <= 0) {
        struct sb_error err = {SB_OK};
        sb_fail(&err, SB_ERR_NOT_RUNNING, "the connection has ended");
        err.sys = n < 0 ? errno : 0;
        if (n == 0 && msg.msg_controllen >= sizeof(struct cmsghdr))
            goto take; /* an empty datagram with descriptors: rubbish, but they must be closed */
        lose(conn, &err);
        return 0;
    }
take:
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && nfds < SB_MSG_FDS; i++)
            memcpy(&fds[nfds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    wrong = check_and_deliver(conn, &msg, (size_t)n, fds, nfds, &type);
    sb_fds_close(fds, nfds);
    if (wrong != NULL)
        sb_conn_break(conn, wrong);
    return wrong == NULL && type == SB_PART && conn->state == SB_CONN_OPEN;
}

static void ready(struct sb_source *source, uint32_t events)
{
    struct sb_conn *conn = (struct sb_conn *)source; /* its first member */
    if (events & EPOLLOUT)
        sb_sending_flush(conn);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        for (int turns = 0; turns < PARTS_PER_TURN && receive(conn); turns++)
            ;
}

int sb_conn_open(struct sb_conn *conn, const struct sb_conn_type *type, struct sb_object *owner,
                 int fd, uint32_t epoch, struct sb_error *err)
{
    conn->source = (struct sb_source){.fd = fd, .events = EPOLLIN, .ready = ready};
    conn->type = type;
    conn->owner = owner;
    conn->epoch = epoch;
    if (conn->slots == NULL) {
        pthread_mutex_init(&conn->lock, NULL);
        conn->free_slot = NO_SLOT;
    }
    conn->retry = (struct sb_timer){.fire = sb_sending_retry};
    conn->out_first = NULL;
    conn->out_last = &conn->out_first;
    conn->out_bytes = 0;
    if (sb_source_add(&conn->source, err) < 0) {
        close(fd);
        conn->source.fd = -1;
        return err ? -(int)err->kind : -(int)SB_ERR_PLATFORM;
    }
    conn->state = SB_CONN_OPEN;
    return 0;
}

void sb_conn_free(struct sb_conn *conn, int forked)
{
    if (conn->state == SB_CONN_NEW)
        return;
    if (!forked) /* in a forked child the lock may have been taken by a thread that is not here */
        pthread_mutex_destroy(&conn->lock);
    sb_sending_drop(conn);
    free(conn->slots);
    conn->slots = NULL;
    conn->state = SB_CONN_NEW;
}
