/* exec and the connection to pid 1: what a command gives, and what a hostile pid 1 cannot do. */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "engine_fake.h"

static struct fake fake;
static struct sb_mailbox *mailbox;
static struct sb_engine *engine;

struct started {
    struct sb_msg head;
    int in, out, err; /* the command's ends; -1 none */
};

static struct sb_op *exec_with(struct sb_box *box, const struct sb_exec_options *options)
{
    unsigned char msg[512];
    struct sb_packer p;
    sb_pack_begin(&p, msg, sizeof msg, SB_C_EXEC, 0, 0);
    sb_pack_str(&p, SB_F_ARG, "true");
    return sb_exec(box, mailbox, msg, p.len, options);
}

static const struct sb_exec_options plain = {
    .max_output = 1 << 20, .grace_ns = 200 * MS, .timeout_ns = SB_NEVER};

static void receive(struct sb_msg *head, uint16_t type)
{
    static unsigned char buf[SB_MSG_MAX];
    struct sb_reader r;
    int fds[4];
    CHECK(recv_msg(fake.pid1, buf, sizeof buf, head, &r, fds) > 0);
    CHECK(head->type == type);
    CHECK(head->epoch == 7);
    for (int i = 0; i < 4; i++)
        CHECK(fds[i] < 0);
}

static void reply(uint32_t req, unsigned streams, const int *fds, unsigned nfds)
{
    unsigned char out[256];
    struct sb_packer p;
    sb_pack_begin(&p, out, sizeof out, SB_REPLY, req, 0);
    sb_pack_u64(&p, SB_F_SERIAL, 3);
    sb_pack_u64(&p, SB_F_PID, 42);
    sb_pack_u64(&p, SB_F_STREAMS, streams);
    send_msg(fake.pid1, out, p.len, fds, nfds);
}

/* Receives the request and starts the command, with pipes for the given streams. */
static struct started start(unsigned streams)
{
    struct started s = {.in = -1, .out = -1, .err = -1};
    int fds[3], far[3], n = 0;
    receive(&s.head, SB_C_EXEC);
    for (int i = 0; i < 3; i++)
        if (streams & (1u << i)) {
            int pair[2];
            CHECK(pipe2(pair, O_CLOEXEC) == 0);
            fds[n] = pair[i == 0];
            far[n++] = pair[i != 0];
            *(i == 0 ? &s.in : i == 1 ? &s.out : &s.err) = far[n - 1];
        }
    reply(s.head.req, streams, fds, (unsigned)n);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return s;
}

static void finish(struct started *s, unsigned status)
{
    unsigned char out[256];
    struct sb_packer p;
    if (s->in >= 0)
        close(s->in);
    if (s->out >= 0)
        close(s->out);
    if (s->err >= 0)
        close(s->err);
    sb_pack_begin(&p, out, sizeof out, SB_EXITED, 0, 0);
    sb_pack_u64(&p, SB_F_SERIAL, 3);
    sb_pack_u64(&p, SB_F_STATUS, status);
    sb_pack_str(&p, SB_F_REASON, "exit");
    send_msg(fake.pid1, out, p.len, NULL, 0);
}

static uint64_t number(const struct sb_result *r, uint16_t tag, uint64_t fallback)
{
    struct sb_reader all = {r->fields, r->fields + r->fields_len};
    return r->fields ? sb_read_u64(&all, tag, fallback) : fallback;
}

static struct sb_box *box_begin(void)
{
    return fake_box(&fake, mailbox, engine);
}

static void box_end(struct sb_box *box)
{
    sb_object_unref(box);
    close(fake.pid1);
    settle();
}

static void write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        CHECK(n > 0);
        data += n;
        len -= (size_t)n;
    }
}

static void captures(void)
{
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = start(6);
    write_all(s.out, "out\0put", 7);
    write_all(s.err, "error", 5);
    finish(&s, 3);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK);
    CHECK(r->bytes_len == 7 && memcmp(r->bytes, "out\0put", 7) == 0);
    CHECK(r->bytes2_len == 5 && memcmp(r->bytes2, "error", 5) == 0);
    CHECK(number(r, SB_F_PID, 0) == 42 && number(r, SB_F_STATUS, 99) == 3);
    CHECK(number(r, SB_F_DROPPED, 0) == 0);
    sb_op_unref(op);
    op = exec_with(box, &plain);
    s = start(6);
    finish(&s, 0);
    r = wait_for(mailbox, op);
    CHECK(r->bytes != NULL && r->bytes_len == 0);
    sb_op_unref(op);
    box_end(box);
    passed("exec gives the streams byte for byte, start and end in one record");
}

static void exit_before_output(void)
{
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = start(6);
    int held = fcntl(s.out, F_DUPFD_CLOEXEC, 3);
    finish(&s, 0);
    for (int i = 0; i < 5; i++)
        on_loop(check_nothing, NULL); /* by then it knows of the end, and waits a moment */
    write_all(held, "late", 4);
    close(held);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes_len == 4);
    sb_op_unref(op);
    box_end(box);
    passed("output that comes right after the exit is not lost");
}

static void background_holder(void)
{
    struct sb_box *box = box_begin();
    uint64_t began = sb_now();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = start(6);
    int held = fcntl(s.out, F_DUPFD_CLOEXEC, 3);
    struct sb_msg head;
    write_all(s.out, "hi\n", 3);
    finish(&s, 0);
    struct sb_result *r = wait_for(mailbox, op);
    uint64_t took = sb_now() - began;
    CHECK(r->error.kind == SB_OK && r->bytes_len == 3);
    CHECK(took >= 190 * MS && took < 1500 * MS);
    receive(&head, SB_C_RELEASE);
    sb_op_unref(op);
    close(held);
    box_end(box);
    passed("a background child that holds the pipes costs the grace, and its output the lease");
}

static void caps(void)
{
    struct sb_box *box = box_begin();
    struct sb_exec_options small = plain;
    small.max_output = 100000;
    struct sb_op *op = exec_with(box, &small);
    struct started s = start(6);
    char *big = malloc(300000);
    for (int i = 0; i < 300000; i++)
        big[i] = (char)(i % 251);
    write_all(s.out, big, 300000);
    write_all(s.err, big, 300000);
    finish(&s, 0);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->bytes_len == 100000 && memcmp(r->bytes, big, 100000) == 0);
    CHECK(r->bytes2_len == 100000 && memcmp(r->bytes2, big + 200000, 100000) == 0);
    CHECK(number(r, SB_F_DROPPED, 0) == 200000 && number(r, SB_F_DROPPED_ERR, 0) == 200000);
    sb_op_unref(op);
    free(big);
    box_end(box);
    passed("above the cap stdout keeps its head, stderr its tail, and both say what was dropped");
}

static void large(void)
{
    struct sb_box *box = box_begin();
    struct sb_exec_options most = plain;
    most.max_output = 64 << 20;
    struct sb_op *op = exec_with(box, &most);
    struct started s = start(2);
    size_t size = 20 << 20;
    char *big = malloc(size);
    for (size_t i = 0; i < size; i++)
        big[i] = (char)(i * 7 % 253);
    write_all(s.out, big, size);
    finish(&s, 0);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->bytes_len == size && memcmp(r->bytes, big, size) == 0);
    CHECK(r->bytes2 == NULL);
    sb_op_unref(op);
    free(big);
    box_end(box);
    passed("20 MiB of output arrive whole");
}

static void *feeder_reads(void *arg)
{
    struct started *s = arg;
    char buf[65536];
    ssize_t n;
    while ((n = read(s->in, buf, sizeof buf)) > 0)
        write_all(s->out, buf, (size_t)n);
    return NULL;
}

static void feeds(void)
{
    struct sb_box *box = box_begin();
    size_t size = 5 << 20;
    char *big = malloc(size);
    struct sb_exec_options input = plain;
    pthread_t cat;
    for (size_t i = 0; i < size; i++)
        big[i] = (char)(i * 13 % 255);
    input.input = big;
    input.input_len = size;
    input.max_output = size;
    struct sb_op *op = exec_with(box, &input);
    struct started s = start(7);
    CHECK(pthread_create(&cat, NULL, feeder_reads, &s) == 0);
    pthread_join(cat, NULL); /* the end of its input comes */
    finish(&s, 0);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes_len == size && memcmp(r->bytes, big, size) == 0);
    sb_op_unref(op);

    op = exec_with(box, &input);
    s = start(7);
    char byte;
    CHECK(read(s.in, &byte, 1) == 1);
    close(s.in);
    s.in = -1;
    usleep(10000);
    finish(&s, 0);
    r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK);
    sb_op_unref(op);
    free(big);
    box_end(box);
    passed("stdin is fed while output is read; a command that stops reading is no failure");
}

static void timeouts(void)
{
    struct sb_box *box = box_begin();
    struct sb_exec_options limit = plain;
    struct sb_msg head;
    limit.timeout_ns = 50 * MS;
    struct sb_op *op = exec_with(box, &limit);
    struct started s = start(6);
    write_all(s.out, "part", 4);
    receive(&head, SB_C_KILL);
    finish(&s, 137);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_EXEC_TIMED_OUT);
    CHECK(r->bytes_len == 4 && number(r, SB_F_STATUS, 0) == 137 && number(r, SB_F_PID, 0) == 42);
    sb_op_unref(op);

    op = exec_with(box, &plain);
    s = start(6);
    settle();
    sb_op_cancel(op);
    receive(&head, SB_C_KILL);
    finish(&s, 137);
    r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_CANCELLED);
    sb_op_unref(op);

    /* a pid 1 that does not answer at all */
    uint64_t began = sb_now();
    op = exec_with(box, &plain);
    receive(&s.head, SB_C_EXEC);
    sb_op_cancel(op);
    r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_CANCELLED && sb_now() - began < 3ull * SECOND);
    sb_op_unref(op);
    receive(&head, SB_C_KILL); /* of whatever that request started */
    receive(
        &head,
        SB_C_TELL); /* in case that it only holds its answer back, and does not know such a kill */
    reply(s.head.req, 0, NULL, 0);
    receive(&head, SB_C_KILL); /* it started after all */
    box_end(box);
    passed(
        "a timeout kills the tree and keeps what there was; a cancel kills too, even a late start");
}

/* A command that ended before it was answered for. */
static void whole(void)
{
    struct sb_box *box = box_begin();
    struct sb_exec_options small = plain;
    unsigned char out[512];
    small.max_output = 4;
    for (int i = 0; i < 3; i++) {
        struct sb_op *op = exec_with(box, i == 1 ? &small : &plain);
        struct sb_field_view f;
        struct sb_packer p;
        struct sb_msg head;
        receive(&head, SB_C_EXEC);
        sb_pack_begin(&p, out, sizeof out, SB_REPLY, head.req, 0);
        sb_pack_u64(&p, SB_F_SERIAL, 3);
        sb_pack_u64(&p, SB_F_PID, 42);
        sb_pack_u64(&p, SB_F_STREAMS, 0);
        sb_pack_u64(&p, SB_F_STATUS, 3);
        if (i < 2) {
            sb_pack_bytes(&p, SB_F_DATA, "out\0put", 7);
            sb_pack_bytes(&p, SB_F_DATA_ERR, "error", 5);
        }
        send_msg(fake.pid1, out, p.len, NULL, 0);
        struct sb_result *r = wait_for(mailbox, op);
        struct sb_reader all = {r->fields, r->fields + r->fields_len};
        CHECK(r->error.kind == SB_OK);
        CHECK(number(r, SB_F_PID, 0) == 42 && number(r, SB_F_STATUS, 99) == 3);
        CHECK(!sb_read_find(&all, SB_F_DATA, &f) && !sb_read_find(&all, SB_F_DATA_ERR, &f));
        if (i == 0) {
            CHECK(r->bytes_len == 7 && memcmp(r->bytes, "out\0put", 7) == 0);
            CHECK(r->bytes2_len == 5 && memcmp(r->bytes2, "error", 5) == 0);
        } else if (i == 1) {
            CHECK(r->bytes_len == 4 && memcmp(r->bytes, "out", 4) == 0);
            CHECK(r->bytes2_len == 4 && memcmp(r->bytes2, "rror", 4) == 0);
            CHECK(number(r, SB_F_DROPPED, 0) == 3 && number(r, SB_F_DROPPED_ERR, 0) == 1);
        } else {
            CHECK(r->bytes == NULL && r->bytes2 == NULL);
        }
        sb_op_unref(op);
    }
    box_end(box);
    passed("a start, its end and its output may come in one answer, and obey the same caps");
}

/* What pid 1 sends instead of an answer; the exec must fail with Protocol and the connection end. */
static void rubbish(const char *what, void (*send)(uint32_t req))
{
    int before = open_fds();
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct sb_msg head;
    unsigned char buf[16];
    receive(&head, SB_C_EXEC);
    send(head.req);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_PROTOCOL);
    CHECK(recv(fake.pid1, buf, sizeof buf, 0) <= 0);
    CHECK(!sb_box_is_open(box));
    sb_op_unref(op);
    box_end(box);
    settle();
    CHECK_SOON(open_fds() == before);
    passed(what);
}

static void send_short(uint32_t req)
{
    (void)req;
    send_msg(fake.pid1, "rubbish!", 8, NULL, 0);
}

static void send_magic(uint32_t req)
{
    struct sb_msg head = {0x12345678, SB_REPLY, 0, req, 0};
    send_msg(fake.pid1, &head, sizeof head, NULL, 0);
}

static void send_damaged(uint32_t req)
{
    struct {
        struct sb_msg head;
        uint16_t tag, zero;
        uint32_t len;
    } m = {{SB_PROTO_MAGIC, SB_REPLY, 0, req, 0}, SB_F_SERIAL, 0, 1000};
    send_msg(fake.pid1, &m, sizeof m, NULL, 0);
}

static void send_spilled(uint32_t req)
{
    struct sb_msg head = {SB_PROTO_MAGIC, SB_REPLY, SB_MSG_SPILLED, req, 0};
    send_msg(fake.pid1, &head, sizeof head, NULL, 0);
}

static void send_huge(uint32_t req)
{
    static unsigned char m[SB_MSG_MAX + 4096];
    struct sb_msg head = {SB_PROTO_MAGIC, SB_REPLY, 0, req, 0};
    memcpy(m, &head, sizeof head);
    send_msg(fake.pid1, m, sizeof m, NULL, 0);
}

static void send_stranger(uint32_t req)
{
    reply(req + 0x10000, 0, NULL, 0);
}

static void send_type(uint32_t req)
{
    struct sb_msg head = {SB_PROTO_MAGIC, SB_C_EXEC, 0, req, 0};
    send_msg(fake.pid1, &head, sizeof head, NULL, 0);
}

static void send_not_a_pipe(uint32_t req)
{
    int fds[2] = {open("/dev/zero", O_RDONLY | O_CLOEXEC), open("/tmp", O_RDONLY | O_CLOEXEC)};
    reply(req, 6, fds, 2);
    close(fds[0]);
    close(fds[1]);
}

static void send_count(uint32_t req)
{
    int fds[2];
    CHECK(pipe2(fds, O_CLOEXEC) == 0);
    reply(req, 2, fds, 2);
    close(fds[0]);
    close(fds[1]);
}

static void send_many(uint32_t req)
{
    int fds[40];
    for (int i = 0; i < 40; i++)
        fds[i] = 0;
    reply(req, 2, fds, 40);
}

static void flood(void)
{
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = {.in = -1, .out = -1, .err = -1};
    unsigned char out[64];
    struct sb_packer p;
    receive(&s.head, SB_C_EXEC);
    for (int i = 0; i < 3000; i++) {
        sb_pack_begin(&p, out, sizeof out, i % 2 ? SB_EXITED : 200, 0, 0);
        sb_pack_u64(&p, SB_F_SERIAL, (uint64_t)i + 100);
        send_msg(fake.pid1, out, p.len, NULL, 0);
    }
    reply(s.head.req, 0, NULL, 0);
    finish(&s, 0);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
    box_end(box);
    passed("events about nothing are passed over");
}

static void losses(void)
{
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = start(6);
    int infos = fake.infos;
    write_all(s.out, "half", 4);
    settle();
    shutdown(fake.pid1, SHUT_RDWR);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_OUTCOME_UNKNOWN);
    CHECK(r->bytes_len == 4 && number(r, SB_F_PID, 0) == 42);
    CHECK(fake.infos == infos + 1);
    sb_op_unref(op);
    op = exec_with(box, &plain);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_NOT_RUNNING);
    sb_op_unref(op);
    close(s.out);
    close(s.err);
    box_end(box);

    fake.state = "paused";
    box = box_begin();
    op = exec_with(box, &plain);
    receive(&s.head, SB_C_EXEC);
    shutdown(fake.pid1, SHUT_RDWR);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_NOT_RUNNING);
    sb_op_unref(op);
    box_end(box);
    fake.state = "running";
    passed("a lost connection is told apart: outcome unknown, not running; output so far is kept");
}

static void spills(void)
{
    static unsigned char msg[200000], buf[SB_MSG_MAX];
    struct sb_box *box = box_begin();
    struct sb_packer p;
    struct sb_msg head;
    struct sb_reader r;
    int fds[4];
    char arg[100000];
    memset(arg, 'x', sizeof arg);
    sb_pack_begin(&p, msg, sizeof msg, SB_C_EXEC, 0, 0);
    sb_pack_bytes(&p, SB_F_ARG, arg, sizeof arg);
    struct sb_op *op = sb_exec(box, mailbox, msg, p.len, &plain);
    CHECK(recv_msg(fake.pid1, buf, sizeof buf, &head, &r, fds) < 100);
    CHECK(head.flags == SB_MSG_SPILLED && head.type == SB_C_EXEC && head.epoch == 7);
    CHECK(fds[0] >= 0 && fds[1] < 0);
    CHECK(sb_read_u64(&r, SB_F_SPILL, 0) == sizeof arg + 8);
    CHECK(fcntl(fds[0], F_GET_SEALS) == (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
    struct stat st;
    CHECK(fstat(fds[0], &st) == 0 && st.st_size == sizeof arg + 8);
    char *back = malloc(sizeof arg + 8);
    CHECK(pread(fds[0], back, sizeof arg + 8, 0) == sizeof arg + 8 &&
          memcmp(back + 8, arg, sizeof arg) == 0);
    free(back);
    close(fds[0]);
    reply(head.req, 0, NULL, 0);
    struct started s = {.in = -1, .out = -1, .err = -1};
    finish(&s, 0);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
    box_end(box);
    passed("a request above 60 kB travels in a sealed memfd");
}

static void pressure(void)
{
    static unsigned char msg[60000], ballast[50000];
    static struct sb_op *ops[400];
    struct sb_box *box = box_begin();
    struct sb_packer p;
    int sent = 0, busy = 0;
    for (int i = 0; i < 400; i++) {
        sb_pack_begin(&p, msg, sizeof msg, SB_C_PING, 0, 0);
        sb_pack_bytes(&p, SB_F_DATA, ballast, sizeof ballast);
        ops[i] = sb_box_request(box, mailbox, msg, p.len, NULL, 0);
        if (sb_op_done(ops[i]) && sb_op_result(ops[i])->error.kind == SB_ERR_BUSY)
            busy++;
        else
            sent++;
    }
    CHECK(busy > 0 && sent > 50);
    for (int i = 0; i < sent; i++) {
        struct sb_msg head;
        receive(&head, SB_C_PING);
        reply(head.req, 0, NULL, 0);
    }
    for (int i = 0; i < 400; i++) {
        struct sb_result *r = wait_for(mailbox, ops[i]);
        CHECK(r->error.kind == SB_OK || r->error.kind == SB_ERR_BUSY);
        sb_op_unref(ops[i]);
    }
    box_end(box);
    passed("a peer that does not read fills a bounded queue, then Busy; what was queued arrives");
}

static struct sb_op *start_server(struct sb_box *box)
{
    unsigned char msg[256];
    struct sb_packer p;
    sb_pack_begin(&p, msg, sizeof msg, SB_C_EXEC, 0, 0);
    sb_pack_str(&p, SB_F_ARG, "server");
    return sb_process_start(box, mailbox, msg, p.len);
}

static void processes(void)
{
    struct sb_box *box = box_begin();
    struct sb_msg head;
    struct sb_op *op = start_server(box);
    struct started s = start(7);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->object != NULL && r->release != NULL);
    struct sb_process *process = (struct sb_process *)r->object;
    r->object = NULL;
    CHECK(process->pid == 42 && process->streams[0] && process->streams[1] && process->streams[2]);
    struct sb_op *waiting = sb_process_wait(process, mailbox),
                 *second = sb_process_wait(process, mailbox);
    settle();
    sb_op_cancel(second);
    CHECK(wait_for(mailbox, second)->error.kind == SB_ERR_CANCELLED);
    CHECK(process->exited == NULL);
    struct sb_op *killed = sb_op_new(mailbox, NULL, NULL);
    CHECK(sb_release_fire(r->release, killed) == 1);
    receive(&head, SB_C_KILL);
    finish(&s, 137);
    reply(head.req, 0, NULL, 0);
    CHECK(wait_for(mailbox, killed)->error.kind == SB_OK);
    CHECK(number(wait_for(mailbox, waiting), SB_F_STATUS, 0) == 137);
    sb_op_unref(waiting);
    waiting = sb_process_wait(process, mailbox);
    CHECK(number(wait_for(mailbox, waiting), SB_F_STATUS, 0) == 137);
    CHECK(process->exited != NULL);
    sb_op_unref(waiting);
    sb_op_unref(second);
    sb_op_unref(killed);
    sb_op_unref(op);
    sb_object_unref(process);
    box_end(box);
    passed("a started process is waited for by many, and killed by its release");
}

/* The sandbox's handle is closed before the process's release is fired. */
static void late_kill(void)
{
    struct sb_box *box = box_begin();
    struct sb_msg head;
    struct sb_op *op = start_server(box);
    struct started s = start(0);
    struct sb_result *r = wait_for(mailbox, op);
    int old = fake.pid1;
    fake.pid1 = -1;
    struct sb_op *waiting = sb_process_wait((struct sb_process *)r->object, mailbox);
    settle();
    sb_box_close(box);
    CHECK(wait_for(mailbox, waiting)->error.kind == SB_ERR_CLOSED);
    sb_op_unref(waiting);
    settle();
    struct sb_op *killed = sb_op_new(mailbox, NULL, NULL);
    CHECK(sb_release_fire(r->release, killed) == 1);
    for (int i = 0; i < 500 && fake.pid1 < 0; i++)
        usleep(2000);
    receive(&head, SB_C_KILL);
    reply(head.req, 0, NULL, 0);
    CHECK(wait_for(mailbox, killed)->error.kind == SB_OK);
    sb_op_unref(killed);
    sb_op_unref(op);
    close(old);
    (void)s;
    box_end(box);
    passed("a process outliving its connection is killed through a new one");
}

static void starvation(void)
{
    static const char promise[] =
        "without free descriptors an exec fails, what it started is killed, the connection lives";
    if (under_valgrind()) {
        skipped(promise, VALGRIND_LIMITS);
        return;
    }
    struct sb_box *box = box_begin();
    struct sb_op *op = exec_with(box, &plain);
    struct started s = {.in = -1, .out = -1, .err = -1};
    struct rlimit old, none;
    struct sb_msg head;
    int fds[4];
    receive(&s.head, SB_C_EXEC);
    CHECK(pipe2(fds, O_CLOEXEC) == 0 && pipe2(fds + 2, O_CLOEXEC) == 0);
    getrlimit(RLIMIT_NOFILE, &old);
    none = old;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    int ends[2] = {fds[0], fds[2]};
    reply(s.head.req, 6, ends, 2);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_LIMIT_EXCEEDED && r->error.sys == EMFILE);
    setrlimit(RLIMIT_NOFILE, &old);
    receive(&head, SB_C_KILL);
    CHECK(sb_box_is_open(box));
    sb_op_unref(op);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    box_end(box);
    passed(promise);
}

static void forks(void)
{
    struct sb_box *box = box_begin();
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (sb_box_is_open(box))
            _exit(1);
        sb_object_unref(box);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    struct sb_op *op = exec_with(box, &plain);
    struct started s = start(0);
    finish(&s, 0);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
    box_end(box);
    passed(
        "a forked child's copy of a handle is dead, and dropping it takes nothing from the parent");
}

int main(void)
{
    alarm(120);
    mailbox = new_mailbox();
    fake_begin(&fake);
    engine = sb_engine_new(fake.root, 60000);
    struct sb_box *first =
        box_begin(); /* so that lasting descriptors are there before any are counted */
    int pid1 = fake.pid1;
    captures();
    int before = open_fds();
    exit_before_output();
    background_holder();
    caps();
    large();
    feeds();
    timeouts();
    whole();
    rubbish("a message too short is rubbish", send_short);
    rubbish("a wrong magic is rubbish", send_magic);
    rubbish("a field longer than its message is rubbish", send_damaged);
    rubbish("a spilled answer is rubbish", send_spilled);
    rubbish("a message longer than allowed is rubbish", send_huge);
    rubbish("an answer nobody asked for is rubbish", send_stranger);
    rubbish("an answer of a request's type is rubbish", send_type);
    rubbish("a stream that is no pipe is rubbish, and closed", send_not_a_pipe);
    rubbish("streams and descriptors must match", send_count);
    rubbish("too many descriptors are rubbish, and closed", send_many);
    flood();
    losses();
    spills();
    pressure();
    processes();
    late_kill();
    starvation();
    forks();
    CHECK_SOON(open_fds() == before);
    passed("no descriptor is left over");
    sb_object_unref(first);
    close(pid1);
    settle();
    sb_object_unref(engine);
    fake_end(&fake);
    drain(mailbox);
    sb_mailbox_unref(mailbox);
    return 0;
}
