/* Commands on their way to execve while something else happens. Part of guest_test.c.
 *
 * They write nothing: on a busy machine what is written may come as a pipe, and at another time. */

static uint32_t silent_post(int conn, const char *user, const char *tag, const char *script)
{
    struct sb_packer p;
    exec_begin(&p, 0, 1, 1);
    sb_pack_u64(&p, SB_F_WHOLE, 1);
    if (user != NULL)
        sb_pack_str(&p, SB_F_USER, user);
    if (tag != NULL)
        sb_pack_str(&p, SB_F_TAG, tag);
    exec_args(&p, "sh", "-c", script, NULL);
    return post(conn, &p, NULL, 0);
}

/* The next message is the answer to `req`: all in one, and this exit code. */
static void is_over(int conn, uint32_t req, int code, int line)
{
    static struct answer a;
    int got = receive(conn, &a, 5000);
    CHECK(got == 1 && a.head.req == req && a.head.type == SB_REPLY && a.nfds == 0 &&
              WEXITSTATUS((int)num(&a, SB_F_STATUS)) == code,
          "line %d: %d, answer %u to %u, type %u, status %llx", line, got, a.head.req, req,
          a.head.type, (unsigned long long)num(&a, SB_F_STATUS));
}

/* Two commands and a request between them, all there at once: none waits for another's end, none is mixed
 * up with another. */
static void test_starting_together(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    uint32_t req[3];
    for (int i = 0; i < 30; i++) {
        int seen = 0;
        req[0] = silent_post(b->conn, NULL, NULL, "sleep 0.01; exit 10");
        begin(&p, SB_C_PING);
        req[1] = post(b->conn, &p, NULL, 0);
        req[2] = silent_post(b->conn, "root", NULL, "sleep 0.01; exit 12");
        for (int j = 0; j < 3 && receive(b->conn, &a, 5000) == 1; j++)
            for (int k = 0; k < 3; k++)
                if (a.head.req == req[k] && a.head.type == SB_REPLY &&
                    (k == 1 || WEXITSTATUS((int)num(&a, SB_F_STATUS)) == 10 + k))
                    seen |= 1 << k;
        CHECK(seen == 7, "answers %x", (unsigned)seen);
        serve_control(b);
    }
}

static void test_starting(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    char tag[32];
    int before = 0;
    double end;
    test_starting_together(b);

    /* the pipes were there before anybody knew whose they would be */
    for (int i = 0; i < 10; i++) {
        const char *user = i % 2 == 0 ? "1234" : "0";
        const char *script =
            "test \"$(stat -L -c %u /proc/$$/fd/1 /proc/$$/fd/2 | sort -u)\" = $(id -u)";
        is_over(b->conn, silent_post(b->conn, user, NULL, script), 0, __LINE__);
        serve_control(b);
    }

    /* no descriptor reaches a command (3 is the listing's own), none stays */
    for (int i = 0; i < 30; i++) {
        is_over(b->conn,
                silent_post(b->conn, NULL, NULL,
                            "cd /proc/self/fd && set -- * && test \"$*\" = '0 1 2 3'"),
                0, __LINE__);
        serve_control(b);
        if (i == 0) {
            test_ping(b); /* answered when all is done that comes after an end */
            before = fds_open(b->pid);
        }
    }
    fds_return(b, before);
    for (int i = 0; i < 30; i++) {
        exec_begin(&p, 0, 1, 1);
        exec_args(&p, "/no/such", NULL);
        expect_error(b, &p, "StartFailed", "execve", ENOENT, __LINE__);
        serve_control(b);
    }
    fds_return(b, before);

    /* the asker leaves meanwhile: it goes on, and others find it */
    for (int i = 0; i < 20; i++) {
        int other = new_conn(b);
        snprintf(tag, sizeof tag, "left-%d", i);
        silent_post(other, NULL, tag, "exec sleep 30");
        close(other);
        end = now() + 5;
        do {
            begin(&p, SB_C_ATTACH);
            sb_pack_str(&p, SB_F_TAG, tag);
            post(b->conn, &p, NULL, 0);
        } while (receive(b->conn, &a, 5000) == 1 && a.head.type != SB_REPLY && now() < end);
        CHECK(a.head.type == SB_REPLY, "%s is not there", tag);
        kill_serial(b, num(&a, SB_F_SERIAL));
        serve_control(b);
    }
}
