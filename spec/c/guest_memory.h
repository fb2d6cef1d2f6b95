/* Commands that the kernel kills for memory, as pid 1 tells them from others. Part of guest_test.c. */

/* A command that is killed while that file says `during`, and said `before` when it began. */
static void killed_while(struct box *b, const char *before, const char *during, const char *reason,
                         int line)
{
    struct sb_packer p;
    struct run r;
    CHECK(pwrite(oom, before, strlen(before), 0) == (ssize_t)strlen(before), "%m");
    exec_begin(&p, SB_IO_PIPE, SB_IO_NULL, SB_IO_NULL);
    exec_args(&p, "/bin/sh", "-c", "read go; kill -9 $$", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    CHECK(pwrite(oom, during, strlen(during), 0) == (ssize_t)strlen(during), "%m");
    CHECK(write(r.fds[0], "\n", 1) == 1, "%m");
    CHECK(await_exit(b->conn, &r, 5000) == 0 && same(r.reason, reason), "line %d: %s", line,
          r.reason);
    run_free(&r);
}

/* Of version 2 the file is memory.events, of version 1 memory.oom_control; one of the two the machine may not have. */
static void test_memory(struct box *unused)
{
    struct box b;
    (void)unused;
    oom = memfd_create("oom", MFD_CLOEXEC);
    box_start_with(&b, 0);
    static const char two[] = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n",
                      more[] = "low 0\nhigh 0\nmax 8\noom 4\noom_kill 3\noom_group_kill 0\n",
                      others[] = "low 1\nhigh 1\nmax 9\noom 9\noom_kill 2\noom_group_kill 9\n";
    killed_while(&b, two, more, "memory", __LINE__);
    killed_while(&b, two, two, "signal", __LINE__);
    killed_while(&b, two, others, "signal", __LINE__);
    CHECK(ftruncate(oom, 0) == 0, "%m");
    killed_while(&b, "oom_kill_disable 0\nunder_oom 0\noom_kill 9\n",
                 "oom_kill_disable 0\nunder_oom 1\noom_kill 10\n", "memory", __LINE__);
    box_end(&b);
    close(oom);
    oom = -1;
}
