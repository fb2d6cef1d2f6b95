/* Process generations: a child has its own runtime, the parent's goes on undisturbed. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/stream.h"

CHECK_FORKS;

static struct sb_mailbox *mailbox;
static struct sb_op *of_parent;
static struct sb_stream *stream;
static int stream_fd;

static int reap(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void child_use(void)
{
    struct sb_error err;
    struct sb_op *op;
    CHECK(sb_generation() == 2);
    CHECK(sb_op_new(mailbox, NULL, NULL) == NULL);
    CHECK(drain(mailbox) == 0);
    CHECK(fcntl(stream_fd, F_GETFD) < 0 &&
          errno == EBADF); /* it was watched by the parent's thread */

    CHECK(sb_mailbox_renew(mailbox, &err) == 0 && sb_mailbox_renew(mailbox, &err) == 0);
    CHECK(sb_mailbox_pending(mailbox) == 0);
    sb_op_cancel(of_parent);
    sb_op_deadline(of_parent, 0);
    CHECK(!sb_op_done(of_parent) && sb_op_generation(of_parent) != sb_generation());
    sb_op_unref(of_parent);

    op = sb_op_timer(mailbox, MS);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);

    op = sb_stream_read(stream, mailbox, SB_READ_SOME, 1);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_FORKED);
    sb_op_unref(op);
    op = sb_stream_write(stream, mailbox, "x", 1);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_FORKED);
    sb_op_unref(op);
    sb_stream_close_write(stream);
    sb_stream_close(stream);

    /* and so on, one generation further */
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(sb_generation() == 3 && sb_mailbox_renew(mailbox, &err) == 0);
        op = sb_op_timer(mailbox, MS);
        CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
        exit(0);
    }
    CHECK(reap(pid) == 0);
}

static void a_child_has_its_own_runtime(void)
{
    int p[2];
    struct sb_error err;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    stream_fd = p[0];
    stream = sb_stream_new(p[0], 1, 1, 0, &err);
    struct sb_op *read_op = sb_stream_read(stream, mailbox, SB_READ_SOME, 10);
    of_parent = sb_op_timer(mailbox, 200 * MS);
    on_loop(check_nothing, NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(p[1]);
        child_use();
        exit(0);
    }
    CHECK(reap(pid) == 0);
    CHECK(sb_generation() == 1);
    passed("a forked child has its own runtime; what was the parent's is Forked there");

    CHECK(wait_for(mailbox, of_parent)->error.kind == SB_OK);
    sb_op_unref(of_parent);
    CHECK(!sb_op_done(read_op) && write(p[1], "hello", 5) == 5);
    CHECK(wait_for(mailbox, read_op)->bytes_len == 5);
    sb_op_unref(read_op);
    sb_object_unref(stream);
    close(p[1]);
    drain(mailbox);
    passed("the parent's operations and streams go on undisturbed");
}

static void bare(void *arg)
{
    sb_op_complete(arg);
}

/* Locks held by the other thread at the moment of the fork would hang the child. */
static void forking_in_the_middle_of_work(void)
{
    for (int i = 0; i < 60; i++) {
        for (int k = 0; k < 200; k++) {
            struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
            CHECK(op != NULL && sb_loop_post(bare, op, NULL) == 0);
            sb_op_unref(op);
        }
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            struct sb_error err;
            alarm(20);
            CHECK(sb_mailbox_renew(mailbox, &err) == 0);
            struct sb_op *op = sb_op_timer(mailbox, 0);
            CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
            exit(0);
        }
        drain(mailbox);
        CHECK(reap(pid) == 0);
    }
    while (sb_mailbox_pending(mailbox) > 0) {
        sb_mailbox_poll(mailbox, sb_now() + SECOND);
        drain(mailbox);
    }
    drain(mailbox);
    passed("forking in the middle of work hangs nobody");
}

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("# skipped: ThreadSanitizer knows no threads in the child of a process with threads\n");
    return 0;
#endif
    sb_loop_pin();
    mailbox = new_mailbox();
    a_child_has_its_own_runtime();
    forking_in_the_middle_of_work();
    sb_mailbox_unref(mailbox);
    return 0;
}
