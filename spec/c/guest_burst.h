/* More commands at once than there are groups in stock, before a supervisor that takes its time and has other things to
 * say first: each gets a group of its own. */

enum { BURST = 8 };

static int groups_in_use(void)
{
    int n = 0;
    for (int i = 0; i < leaf_serial; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/guest-test-%d-%d/cgroup.procs", cgroup2, getpid(), i);
        FILE *f = fopen(path, "r");
        n += f != NULL && fgetc(f) != EOF;
        if (f != NULL)
            fclose(f);
    }
    return n;
}

static void test_burst(struct box *b)
{
    static struct answer a;
    uint64_t serial[BURST];
    struct sb_packer p;
    int started = 0, before = groups_in_use(), spare[BURST], spares = 0;
    serve_control(b);
    for (int i = 0; i < BURST; i++) {
        exec_begin(&p, SB_IO_NULL, SB_IO_NULL, SB_IO_NULL);
        exec_args(&p, "/bin/sleep", "30", NULL);
        post(b->conn, &p, NULL, 0);
    }
    while (started < BURST) {
        struct pollfd at[2] = {{b->conn, POLLIN, 0}, {b->control, POLLIN, 0}};
        if (poll(at, 2, 5000) <= 0)
            break;
        if (at[1].revents != 0 && spares < BURST) {
            spare[spares++] = new_conn(b);
            usleep(30000); /* so long that one who waits a moment only has given up */
            serve_control(b);
        }
        if (at[0].revents == 0)
            continue;
        if (receive(b->conn, &a, 5000) != 1 || a.head.type != SB_REPLY)
            break;
        serial[started++] = num(&a, SB_F_SERIAL);
    }
    CHECK(started == BURST, "%d started: %d %s", started, a.head.type, text(&a, SB_F_MESSAGE));
    if (use_leaves)
        CHECK(groups_in_use() - before == BURST, "%d groups", groups_in_use() - before);
    for (int i = 0; i < started; i++) {
        begin(&p, SB_C_KILL);
        sb_pack_u64(&p, SB_F_SERIAL, serial[i]);
        post(b->conn, &p, NULL, 0);
    }
    for (int ended = 0; ended < started;) {
        if (receive(b->conn, &a, 5000) != 1)
            break;
        ended += a.head.type == SB_EXITED;
        CHECK(a.head.type != SB_ERROR, "%s", text(&a, SB_F_MESSAGE));
    }
    while (spares > 0)
        close(spare[--spares]);
    serve_control(b);
}
