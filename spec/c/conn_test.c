/* A connection whose datagrams the kernel refuses for want of resources. */
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/conn.h"

#define UID 64321 /* nobody's: what is in flight is counted by user */
#define FILES 64
#define CROWD 200 /* descriptors in flight, more than the user may have */

static struct sb_conn conn;
static struct sb_error error;

static void no_event(struct sb_conn *c, const struct sb_answer *event)
{
    (void)c, (void)event;
}

static void no_loss(struct sb_conn *c, const struct sb_error *err)
{
    (void)c, (void)err;
}
static const struct sb_conn_type type = {"test", no_event, no_loss};

static void open_conn(void *fd)
{
    CHECK(sb_conn_open(&conn, &type, NULL, *(int *)fd, 0, &error) == 0);
}

static void forget_calls(void *arg)
{
    (void)arg;
    sb_conn_fail_all(&conn, &error);
}

static void close_conn(void *arg)
{
    (void)arg;
    sb_conn_close(&conn, &error);
}

/* Opens the connection; what it sends comes out of the result, where answers go in. */
static int open_pair(void)
{
    int pair[2];
    conn = (struct sb_conn){0};
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) == 0);
    on_loop(open_conn, &pair[0]);
    return pair[1];
}

/* Sends a request, with `nfds` descriptors 0 along; `call` NULL: nobody hears the answer. */
static int ask(struct sb_call *call, unsigned nfds)
{
    unsigned char msg[64];
    struct sb_packer p;
    int none = 0;
    sb_pack_begin(&p, msg, sizeof msg, SB_C_PING, 0, 0);
    return sb_conn_call(&conn, call, msg, p.len, &none, nfds, &error);
}

static int give(int fd, unsigned count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(CROWD * sizeof(int))];
    } control = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
    int fds[CROWD];
    for (unsigned i = 0; i < count; i++)
        fds[i] = 0;
    msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
    control.align = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.align), fds, count * sizeof(int));
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* 0: kept its promise; 77: this machine does not refuse. */
static int short_of_room(void)
{
    struct rlimit limit = {FILES, FILES};
    int crowd[2], peer;
    unsigned char got[64];
    struct timeval patience = {.tv_sec = 5};
    if (geteuid() == 0 && setresuid(UID, UID, UID) < 0)
        return 77;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, crowd) == 0);
    peer = open_pair();
    if (give(crowd[0], CROWD) < 0 || give(crowd[0], 1) == 0)
        return 77;

    CHECK(ask(NULL, 1) == 0);
    double before = cpu();
    usleep(300000);
    CHECK(cpu() - before < 0.1);
    CHECK(read(peer, got, sizeof got) < 0);

    close(crowd[1]); /* nothing is in flight any more */
    close(crowd[0]);
    CHECK(setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    for (int i = 0; i < 500 && read(peer, got, sizeof got) < 0; i++)
        usleep(10000);
    CHECK(ask(NULL, 0) == 0);
    on_loop(close_conn, NULL);
    return 0;
}

/* What does not fit the queue either is refused with its kind, as the negative result. */
static void full_queue(void)
{
    int peer = open_pair(), rc = 0;
    size_t len = SB_SPILL_FROM;
    unsigned char *msg = calloc(1, len);
    struct sb_packer p;
    CHECK(msg != NULL);
    for (int i = 0; i < 1000 && rc == 0; i++) {
        sb_pack_begin(&p, msg, len, SB_C_PING, 0, 0);
        rc = sb_conn_call(&conn, NULL, msg, len, NULL, 0, &error);
    }
    CHECK(rc == -(int)SB_ERR_BUSY && error.kind == SB_ERR_BUSY);
    on_loop(close_conn, NULL);
    sb_conn_free(&conn, 0);
    close(peer);
    free(msg);
    passed("a full queue is Busy, as the negative result too");
}

static _Atomic int answers;
static void count_answer(struct sb_call *call, const struct sb_answer *answer)
{
    (void)call;
    answers += answer->lost ? 100 : 1;
}

/* Sends what pid 1 would: an answer of this type to the request. */
static void answer_with(int fd, uint16_t answer_type, uint32_t req)
{
    unsigned char buf[64];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, answer_type, req, 0);
    CHECK(write(fd, buf, p.len) == (ssize_t)p.len);
}

/* A worker of pid 1 may have answered before it was killed: then pid 1 answers once more. */
static void a_second_answer(void)
{
    struct sb_call call[2] = {{count_answer, 0}, {count_answer, 0}};
    int peer = open_pair();
    answers = 0;
    CHECK(ask(&call[0], 0) == 0 && ask(&call[1], 0) == 0);
    answer_with(peer, SB_REPLY, call[0].req);
    answer_with(peer, SB_ERROR, call[0].req);
    answer_with(peer, SB_REPLY, call[1].req);
    CHECK_SOON(answers == 2);
    CHECK(conn.state == SB_CONN_OPEN);
    CHECK(ask(&call[0], 0) == 0);
    answer_with(peer, SB_REPLY, call[1].req); /* a success that nobody asked for is rubbish */
    CHECK_SOON(conn.state == SB_CONN_LOST);
    on_loop(forget_calls, NULL);
    CHECK(answers == 102);
    sb_conn_free(&conn, 0);
    close(peer);
    passed("an error comes late and is dropped, a late success costs the connection");
}

struct leaving {
    int fd;
    uint32_t req;
};

/* On the I/O thread, which reads neither before both have happened. */
static void answer_and_leave(void *arg)
{
    const struct leaving *l = arg;
    answer_with(l->fd, SB_REPLY, l->req);
    close(l->fd);
}

/* Who ends with requests unread resets the connection: the kernel tells of that before it gives what was
 * answered. */
static void an_answer_before_the_end(void)
{
    struct sb_call call[2] = {{count_answer, 0}, {count_answer, 0}};
    int peer = open_pair();
    answers = 0;
    CHECK(ask(&call[0], 0) == 0 && ask(&call[1], 0) == 0);
    on_loop(answer_and_leave, &(struct leaving){peer, call[0].req});
    CHECK_SOON(conn.state == SB_CONN_LOST);
    CHECK(answers == 1);
    on_loop(forget_calls, NULL);
    CHECK(answers == 101);
    sb_conn_free(&conn, 0);
    passed("an answer given before the other side ended is heard, whatever it left unread");
}

int main(void)
{
    static const char promise[] = "a datagram the machine has no room for waits without busying "
                                  "the loop, and goes out later";
    if (under_valgrind()) {
        skipped(promise, VALGRIND_LIMITS);
    } else {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            _exit(short_of_room());
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
        if (WEXITSTATUS(status) == 0)
            passed(promise);
        else
            skipped(promise, "this machine takes any number of descriptors in flight");
    }
    full_queue();
    a_second_answer();
    an_answer_before_the_end();
    return 0;
}
