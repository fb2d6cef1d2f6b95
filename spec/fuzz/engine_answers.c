/* Whatever a hostile pid 1 sends to the program: messages on a real socket while commands are run, started,
 * attached to, waited for, cancelled and dropped. No answer may crash the program, keep an operation from ending
 * or leave memory or a descriptor behind. The caller's side of the engine is part of this file; the loop, operations,
 * releases and the way to the supervisor are played here, in one thread and by a clock of their own. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/conn.c"
#include "engine/sending.c"

#include "engine/answer.c"
#include "engine/box.c"
#include "engine/exec.c"
#include "engine/proc.c"
#include "runtime/error.c"
#include "runtime/object.c"
#include "runtime/transfer.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MANY 64 /* of each kind of thing, more are not made */
#define FOREVER_NS 1000000000000ull

#define MUST(condition)                                             \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            abort();                                                \
        }                                                           \
    } while (0)

/* ---- the loop ---- */

static struct sb_source *sources[4 * MANY];
static struct sb_timer *timers[4 * MANY];
static struct {
    void (*fn)(void *arg);
    void *arg;
} posted[16 * MANY];
static size_t nsources, ntimers, nposted;
static uint64_t now = 1;

uint64_t sb_generation(void)
{
    return 1;
}

uint64_t sb_now(void)
{
    return now;
}

int sb_loop_post(void (*fn)(void *arg), void *arg, struct sb_error *err)
{
    (void)err;
    MUST(nposted < sizeof posted / sizeof *posted);
    posted[nposted].fn = fn;
    posted[nposted++].arg = arg;
    return 0;
}

int sb_source_add(struct sb_source *source, struct sb_error *err)
{
    (void)err;
    MUST(nsources < sizeof sources / sizeof *sources && source->fd >= 0);
    sources[nsources++] = source;
    return 0;
}

void sb_source_change(struct sb_source *source, uint32_t events)
{
    source->events = events;
}

void sb_source_remove(struct sb_source *source)
{
    for (size_t i = 0; i < nsources; i++)
        if (sources[i] == source) {
            sources[i] = sources[--nsources];
            return;
        }
}

void sb_timer_clear(struct sb_timer *timer)
{
    for (size_t i = 0; i < ntimers; i++)
        if (timers[i] == timer) {
            timers[i] = timers[--ntimers];
            break;
        }
    timer->set = 0;
}

void sb_timer_set(struct sb_timer *timer, uint64_t at)
{
    sb_timer_clear(timer);
    if (at == SB_NEVER)
        return;
    MUST(ntimers < sizeof timers / sizeof *timers);
    timer->at = at;
    timer->set = 1;
    timers[ntimers++] = timer;
}

static void run_posted(void)
{
    for (size_t i = 0; i < nposted; i++) /* may post more */
        posted[i].fn(posted[i].arg);
    nposted = 0;
}

/* A few turns: whatever goes on for longer is not the end of the world, but must not be endless. */
static void turn(void)
{
    for (int turns = 0; turns < 8; turns++) {
        size_t n = nsources, busy = 0;
        run_posted();
        for (size_t i = 0; i < n && i < nsources; i++) {
            struct pollfd p = {sources[i]->fd, (short)sources[i]->events, 0};
            if (sources[i]->events == 0 || poll(&p, 1, 0) <= 0)
                continue;
            busy++;
            sources[i]->ready(sources[i], (uint32_t)p.revents);
        }
        if (busy == 0 && nposted == 0)
            return;
    }
}

static void pass_time(uint64_t ns)
{
    now += ns;
    for (size_t i = 0; i < ntimers; i++)
        if (timers[i]->at <= now) {
            struct sb_timer *timer = timers[i];
            sb_timer_clear(timer);
            timer->fire(timer);
            i = (size_t)-1; /* others may be gone */
        }
    turn();
}

/* ---- operations and releases ---- */

struct sb_op {
    struct sb_result result;
    void (*cancel)(struct sb_op *op, void *owner);
    void *owner;
    int done;
    enum sb_err asked;
    struct sb_timer deadline;
};
static struct sb_op *ops[MANY];
static size_t nops;

struct sb_op *sb_op_new(struct sb_mailbox *mailbox, void (*cancel)(struct sb_op *op, void *owner),
                        void *owner)
{
    struct sb_op *op = calloc(1, sizeof *op);
    (void)mailbox;
    MUST(op != NULL);
    op->cancel = cancel;
    op->owner = owner;
    op->result.fd = -1;
    return op;
}

struct sb_result *sb_op_result(struct sb_op *op)
{
    return &op->result;
}

enum sb_err sb_op_asked(const struct sb_op *op)
{
    return op->asked;
}

void sb_op_complete(struct sb_op *op)
{
    MUST(!op->done);
    op->done = 1;
    sb_timer_clear(&op->deadline);
}

void sb_op_fail(struct sb_op *op, const struct sb_error *err)
{
    MUST(err != NULL && err->kind != SB_OK);
    op->result.error = *err;
    sb_op_complete(op);
}

static void ask_op(struct sb_op *op, enum sb_err why)
{
    if (op->done || op->asked != SB_OK)
        return;
    op->asked = why;
    op->cancel(op, op->owner);
}

static void deadline_passed(struct sb_timer *timer)
{
    ask_op((struct sb_op *)((char *)timer - offsetof(struct sb_op, deadline)), SB_ERR_TIMEOUT);
}

void sb_op_deadline(struct sb_op *op, uint64_t at)
{
    op->deadline.fire = deadline_passed;
    sb_timer_set(&op->deadline, at);
}

struct sb_release {
    const struct sb_release_type *type;
    void *data;
    int refs, fired;
};

struct sb_release *sb_release_new(const struct sb_release_type *type, void *data, const char *id)
{
    struct sb_release *release = calloc(1, sizeof *release);
    MUST(release != NULL && strlen(id) > 0);
    *release = (struct sb_release){type, data, 1, 0};
    return release;
}

void sb_release_unref(struct sb_release *release)
{
    if (--release->refs > 0)
        return;
    release->type->free(release->data);
    free(release);
}

int sb_release_cancel(struct sb_release *release)
{
    int first = !release->fired;
    release->fired = 1;
    return first;
}

static void release_run(void *arg)
{
    struct sb_release *release = arg;
    release->type->run(release, release->data);
}

int sb_release_fire(struct sb_release *release, struct sb_op *op)
{
    (void)op;
    if (release->fired)
        return 0;
    release->fired = 1;
    release->refs++;
    sb_loop_post(release_run, release, NULL);
    return 1;
}

void sb_release_finish(struct sb_release *release, const struct sb_error *err)
{
    (void)err;
    sb_release_unref(release);
}

static void op_free(struct sb_op *op)
{
    free(op->result.fields);
    free(op->result.bytes);
    free(op->result.bytes2);
    sb_object_unref(op->result.object);
    if (op->result.release != NULL) {
        sb_release_fire(op->result.release, NULL);
        sb_release_unref(op->result.release);
    }
    free(op);
}

/* ---- streams ---- */

struct sb_stream {
    struct sb_object object;
    int fd;
};

static void stream_destroy(struct sb_object *object)
{
    close(((struct sb_stream *)object)->fd);
    free(object);
}
const struct sb_object_type sb_stream_type = {"stream", stream_destroy};

struct sb_stream *sb_stream_new(int fd, int readable, int writable, size_t high,
                                struct sb_error *err)
{
    struct sb_stream *stream = calloc(1, sizeof *stream);
    (void)readable, (void)writable, (void)high, (void)err;
    MUST(stream != NULL && fd >= 0);
    sb_object_init(&stream->object, &sb_stream_type);
    stream->fd = fd;
    return stream;
}

/* ---- the supervisor: it says how the sandbox is, and has no other connection to it ---- */

static struct sb_client_call *asked[MANY];
static size_t nasked;
static unsigned says; /* what: by the input */
static int needed;

struct sb_client *sb_client_get(const struct sb_engine *engine)
{
    return (struct sb_client *)(uintptr_t)engine;
}

void sb_client_need(struct sb_client *client)
{
    (void)client;
    needed++;
}

void sb_client_unneed(struct sb_client *client)
{
    (void)client;
    needed--;
}

void sb_client_call(struct sb_client *client, struct sb_client_call *call)
{
    (void)client;
    MUST(nasked < MANY);
    asked[nasked++] = call;
}

static void supervisor_answers(void)
{
    static const char *const states[] = {"running", "paused", "failed"};
    while (nasked > 0) {
        struct sb_client_call *call = asked[--nasked];
        unsigned char buf[256];
        struct sb_error err = {SB_OK};
        struct sb_answer answer = {.type = SB_REPLY};
        struct sb_packer p;
        sb_pack_begin(&p, buf, sizeof buf, SB_REPLY, 1, 0);
        sb_pack_str(&p, SB_F_STATE, states[says % 3]);
        sb_pack_str(&p, SB_F_BOOT, says & 4 ? "boot" : "other");
        sb_pack_str(&p, SB_F_CAUSE, "pid1");
        answer.fields = (struct sb_reader){buf + sizeof(struct sb_msg), buf + p.len};
        if (says & 8) {
            sb_fail(&err, says & 16 ? SB_ERR_NOT_FOUND : SB_ERR_UNAVAILABLE, "no");
            answer.error = &err;
        }
        free(call->msg);
        call->answer(call, &answer);
    }
}

void sb_trace_message(const char *what, const char *peer, const struct sb_msg *head, size_t len,
                      unsigned nfds, const struct sb_error *err)
{
    (void)what, (void)peer, (void)head, (void)len, (void)nfds, (void)err;
}

void sb_trace_turn(const char *what, const char *which, const struct sb_error *err)
{
    (void)what, (void)which, (void)err;
}

/* ---- the program, and pid 1 as the input has it ---- */

struct input {
    const uint8_t *at, *end;
};

static unsigned byte(struct input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

static void engine_destroy(struct sb_object *object)
{
    (void)object;
    abort(); /* static */
}
static const struct sb_object_type engine_type = {"engine", engine_destroy};
static union {
    struct sb_engine engine;
    char room[sizeof(struct sb_engine) + 8];
} engine = {{{&engine_type, 1, 1}, 0}};

static struct sb_box *box;
static int peer;
static uint32_t reqs[16]; /* of the requests it got last */
static unsigned nreqs;

/* Takes what the program has sent, descriptors and all. */
static void hear(void)
{
    unsigned char buf[SB_SPILL_FROM + 64];
    struct sb_msg head;
    while (recv(peer, buf, sizeof buf, MSG_DONTWAIT) >= (ssize_t)sizeof head) {
        memcpy(&head, buf, sizeof head);
        reqs[nreqs++ % 16] = head.req;
    }
}

/* One that a pid 1 would send, mostly: an end of a pipe with something in it. */
static int give(unsigned kind)
{
    int ends[2];
    if (kind % 8 == 7)
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    MUST(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    MUST(write(ends[1], "some output", kind & 3) >= 0);
    close(ends[kind & 1]);
    return ends[!(kind & 1)];
}

/* Fields out of the input: well-made ones of a tag and a number or a text, up to tag 0; or its bytes as they are. */
static size_t fields_of(struct input *in, unsigned char *buf, size_t room, int raw)
{
    struct sb_packer p = {buf, room, 0, 0};
    unsigned tag, kind;
    if (raw) {
        p.len = byte(in);
        p.len = p.len < (size_t)(in->end - in->at) ? p.len : (size_t)(in->end - in->at);
        memcpy(buf, in->at, p.len);
        in->at += p.len;
        return p.len;
    }
    while ((tag = byte(in)) != 0 && !p.overflow) {
        kind = byte(in);
        if (kind < 128) {
            sb_pack_u64(&p, (uint16_t)tag, kind);
        } else {
            size_t len = kind - 128;
            len = len < (size_t)(in->end - in->at) ? len : (size_t)(in->end - in->at);
            sb_pack_bytes(&p, (uint16_t)tag, in->at, len);
            in->at += len;
        }
    }
    return p.len;
}

static void say(struct input *in)
{
    unsigned char copy[4096];
    unsigned how = byte(in), nfds = byte(in), which = byte(in);
    struct sb_msg head = {SB_PROTO_MAGIC, SB_REPLY, 0, 0, 0};
    int fds[SB_MSG_FDS];
    size_t len =
        sizeof head + fields_of(in, copy + sizeof head, sizeof copy - sizeof head, how % 32 == 31);
    /* Most shall get past the header. */
    head.type = (uint16_t)(how % 8 == 7 ? how : SB_REPLY + how % 4);
    head.req = which == 0 || nreqs == 0 ? which : reqs[which % (nreqs < 16 ? nreqs : 16)];
    head.flags = how == 255;
    if (how == 254)
        head.magic++;
    memcpy(copy, &head, sizeof head);
    if (how == 253)
        len /= 2;
    nfds = nfds & 16 ? nfds % (SB_MSG_FDS + 1) : nfds % 4;
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = give(how + which + i);
    send_now(peer, copy, len, fds, nfds);
    sb_fds_close(fds, nfds);
}

static struct sb_process *process_of(const struct sb_op *op)
{
    return op->done && op->result.object != NULL ? (struct sb_process *)op->result.object : NULL;
}

static void ask_for(unsigned what, struct input *in)
{
    struct sb_mailbox *mailbox = (struct sb_mailbox *)(uintptr_t)8;
    static const char input[70000];
    unsigned char msg[64];
    struct sb_packer p;
    struct sb_op *op = nops > 0 ? ops[byte(in) % nops] : NULL;
    struct sb_process *process = op != NULL ? process_of(op) : NULL;
    sb_pack_begin(&p, msg, sizeof msg, SB_C_PING, 0, 0);
    switch (what) {
    case 0: {
        unsigned options = byte(in);
        struct sb_exec_options o = {input, options & 1 ? sizeof input : 0,
                                    options & 2 ? 100 : 1u << 20, 1000,
                                    options & 4 ? 1000000 : SB_NEVER};
        op = sb_exec(box, mailbox, msg, p.len, &o);
        break;
    }
    case 1:
        op = sb_process_start(box, mailbox, msg, p.len);
        break;
    case 2:
        op = sb_process_attach(box, mailbox, msg, p.len);
        break;
    case 3:
        op = sb_box_request(box, mailbox, msg, p.len, NULL, 0);
        break;
    case 4:
        op = process != NULL ? sb_process_wait(process, mailbox) : NULL;
        break;
    case 5:
        if (process != NULL && op->result.release != NULL)
            sb_release_fire(op->result.release, NULL);
        return;
    case 6:
        if (process != NULL) {
            op->result.object = NULL;
            sb_object_unref(process);
        }
        return;
    default:
        if (op != NULL)
            ask_op(op, SB_ERR_CANCELLED);
        return;
    }
    if (op != NULL)
        ops[nops++] = op;
}

static void begin_run(void)
{
    unsigned char record[128];
    struct sb_error err = {SB_OK};
    struct sb_packer p;
    struct sb_reader fields;
    int pair[2];
    signal(SIGPIPE, SIG_IGN); /* as on the I/O thread */
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    sb_pack_begin(&p, record, sizeof record, SB_REPLY, 0, 0);
    sb_pack_str(&p, SB_F_ID, "box");
    sb_pack_str(&p, SB_F_BOOT, "boot");
    fields = (struct sb_reader){record + sizeof(struct sb_msg), record + p.len};
    box = sb_box_new(&engine.engine, &fields, pair[0], &err);
    MUST(box != NULL);
    peer = pair[1];
    nreqs = 0;
}

/* Pid 1 is gone, the supervisor answers, all time passes: everything must have come to its end. */
static void end_run(void)
{
    close(peer);
    for (int i = 0; i < 3; i++) {
        turn();
        supervisor_answers();
        pass_time(FOREVER_NS);
    }
    for (size_t i = 0; i < nops; i++) {
        MUST(ops[i]->done);
        op_free(ops[i]);
    }
    nops = 0;
    sb_box_close(box);
    sb_object_unref(box);
    for (int i = 0; i < 3; i++) {
        turn();
        supervisor_answers();
        pass_time(FOREVER_NS);
    }
    MUST(nsources == 0 && ntimers == 0 && nposted == 0 && nasked == 0 && needed == 0);
    MUST(engine.engine.object.refs == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, data + size};
    int before = dup(0), after;
    close(before);
    begin_run();
    says = byte(&in);
    while (in.at < in.end && nops < MANY) {
        unsigned what = byte(&in);
        if (what < 16)
            ask_for(what % 8, &in);
        else if (what < 20)
            pass_time(500000ull << 4 * (what % 4));
        else if (what == 20)
            sb_box_close(box);
        else if (what == 21)
            supervisor_answers();
        else
            say(&in);
        turn();
        hear();
    }
    end_run();
    after = dup(0);
    close(after);
    MUST(before == after);
    return 0;
}
