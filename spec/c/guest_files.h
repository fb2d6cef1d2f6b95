/* File operations, and callers and users with bad intentions. Part of guest_test.c. */

static struct answer fa;

/* A file request under construction; ask() sends it. */
static struct sb_packer fp;

static void file_op(int op, const char *path)
{
    begin(&fp, SB_C_FILE);
    sb_pack_u64(&fp, SB_F_FILE_OP, (uint64_t)op);
    if (path != NULL)
        sb_pack_str(&fp, SB_F_PATH, path);
}

static int ask_with(struct box *b, int fd)
{
    uint32_t req = post(b->conn, &fp, &fd, fd >= 0);
    do
        if (receive(b->conn, &fa, 120000) != 1)
            return -1;
    while (fa.head.req != req);
    return fa.head.type;
}

static int ask(struct box *b)
{
    return ask_with(b, -1);
}

#define OK(op, path, ...)                                                                \
    do {                                                                                 \
        file_op(op, path);                                                               \
        __VA_ARGS__;                                                                     \
        int type_ = ask(b);                                                              \
        CHECK(type_ == SB_REPLY, "%s: type %d %s %s errno %ld at %s", #op, type_,        \
              text(&fa, SB_F_KIND), text(&fa, SB_F_MESSAGE), (long)num(&fa, SB_F_ERRNO), \
              text(&fa, SB_F_PATH));                                                     \
    } while (0)
#define ERR(code, op, path, ...)                                                               \
    do {                                                                                       \
        double t_ = now();                                                                     \
        file_op(op, path);                                                                     \
        __VA_ARGS__;                                                                           \
        int type_ = ask(b);                                                                    \
        CHECK(type_ == SB_ERROR && num(&fa, SB_F_ERRNO) == (code), "%s: type %d errno %ld %s", \
              #op, type_, (long)num(&fa, SB_F_ERRNO), text(&fa, SB_F_MESSAGE));                \
        CHECK(now() - t_ < 1, "%s took long", #op);                                            \
    } while (0)
#define KIND(kind, op, path, ...)                                                                  \
    do {                                                                                           \
        file_op(op, path);                                                                         \
        __VA_ARGS__;                                                                               \
        int type_ = ask(b);                                                                        \
        CHECK(type_ == SB_ERROR && same(text(&fa, SB_F_KIND), kind), "%s: type %d %s", #op, type_, \
              text(&fa, SB_F_KIND));                                                               \
    } while (0)
#define U(tag, v) sb_pack_u64(&fp, SB_F_##tag, v)
#define S(tag, v) sb_pack_str(&fp, SB_F_##tag, v)
#define ROOT S(USER, "root")

static char *at(struct box *b, const char *name)
{
    static char ring[8][4200];
    static int i;
    char *out = ring[i++ & 7];
    snprintf(out, sizeof ring[0], "%s/%s", b->dir, name);
    return out;
}

static int content_is(const char *path, const void *want, size_t len)
{
    size_t n = 0;
    int fd = open(path, O_RDONLY);
    char *got;
    int ok;
    if (fd < 0)
        return 0;
    got = slurp(fd, &n, 1000);
    close(fd);
    ok = n == len && memcmp(got, want, len) == 0;
    free(got);
    return ok;
}

static int count_in(const char *dir)
{
    char cmd[256];
    FILE *f;
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls -A %s | wc -l", dir);
    f = popen(cmd, "r");
    if (f == NULL || fscanf(f, "%d", &n) != 1)
        n = -1;
    if (f != NULL)
        pclose(f);
    return n;
}

static int list_names(struct box *b, const char *path, int depth, char *out, size_t cap)
{
    int n = 0;
    uint32_t req;
    file_op(SB_FILE_LIST, path);
    U(DEPTH, (uint64_t)depth);
    req = post(b->conn, &fp, NULL, 0);
    out[0] = '\0';
    while (receive(b->conn, &fa, 20000) == 1) {
        if (fa.head.req != req)
            continue;
        if (fa.head.type != SB_PART)
            break;
        n++;
        if (strlen(out) + 300 < cap) {
            strcat(out, text(&fa, SB_F_NAME));
            strcat(out, " ");
        }
    }
    return fa.head.type == SB_REPLY ? n : -1;
}

static void test_files(struct box *b)
{
    struct stat st;
    char names[8192], all[256];
    struct run r;
    int fd, n;
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    chown(b->dir, 1000, 1000);

    /* write: bytes, empty, shorter, parents, modes, owners */
    OK(SB_FILE_WRITE, at(b, "a/b/c/f"), U(PARENTS, 1); sb_pack_bytes(&fp, SB_F_DATA, all, 256));
    CHECK(content_is(at(b, "a/b/c/f"), all, 256), "content");
    CHECK(same(text(&fa, SB_F_FTYPE), "file") && num(&fa, SB_F_SIZE) == 256 &&
              num(&fa, SB_F_MODE) == 0644 && num(&fa, SB_F_UID) == 1000 &&
              same(text(&fa, SB_F_NAME), "f"),
          "entry %s", text(&fa, SB_F_NAME));
    CHECK(stat(at(b, "a/b"), &st) == 0 && (st.st_mode & 07777) == 0755 && st.st_uid == 1000,
          "parents %o", st.st_mode);
    OK(SB_FILE_WRITE, at(b, "a/b/c/f"), S(DATA, ""));
    CHECK(content_is(at(b, "a/b/c/f"), "", 0), "empty");
    chmod(at(b, "a/b/c/f"), 0751);
    OK(SB_FILE_WRITE, at(b, "a/b/c/f"), S(DATA, "xyz"));
    CHECK(stat(at(b, "a/b/c/f"), &st) == 0 && (st.st_mode & 07777) == 0751 && st.st_size == 3,
          "keeps its mode: %o", st.st_mode);
    OK(SB_FILE_WRITE, at(b, "a/b/c/f"), S(DATA, "xyz"); U(MODE, 0600));
    CHECK(stat(at(b, "a/b/c/f"), &st) == 0 && (st.st_mode & 07777) == 0600, "asked mode");
    OK(SB_FILE_WRITE, at(b, "a/b/c/f"), S(DATA, "root"); ROOT);
    CHECK(stat(at(b, "a/b/c/f"), &st) == 0 && st.st_uid == 1000, "root keeps the owner");
    OK(SB_FILE_WRITE, at(b, "given"), S(DATA, "1"); ROOT; S(OWNER, "1000:1000"));
    CHECK(stat(at(b, "given"), &st) == 0 && st.st_uid == 1000 && st.st_gid == 1000, "given away");
    write_file(at(b, "shared"), "old old old");
    chmod(at(b, "shared"), 0666);
    OK(SB_FILE_WRITE, at(b, "shared"), S(DATA, "new"));
    CHECK(stat(at(b, "shared"), &st) == 0 && st.st_uid == 0 && (st.st_mode & 07777) == 0666 &&
              content_is(at(b, "shared"), "new", 3),
          "another's writable file keeps its owner");
    write_file(at(b, "locked"), "keep");
    ERR(EACCES, SB_FILE_WRITE, at(b, "locked"), S(DATA, "x"));
    CHECK(content_is(at(b, "locked"), "keep", 4), "unwritable");
    ERR(EEXIST, SB_FILE_WRITE, at(b, "given"), S(DATA, "x"); U(EXCLUSIVE, 1));
    OK(SB_FILE_WRITE, at(b, "fresh"), S(DATA, "x"); U(EXCLUSIVE, 1));
    OK(SB_FILE_WRITE, at(b, "fresh"), S(DATA, "yz"); U(APPEND, 1));
    CHECK(content_is(at(b, "fresh"), "xyz", 3), "append");
    OK(SB_FILE_WRITE, at(b, "fresh"), S(DATA, "q"); U(ATOMIC, 0));
    CHECK(content_is(at(b, "fresh"), "q", 1), "in place");
    ERR(EISDIR, SB_FILE_WRITE, at(b, "a"), S(DATA, "x"));
    ERR(EISDIR, SB_FILE_WRITE, "/", S(DATA, "x"));
    ERR(ENOTDIR, SB_FILE_WRITE, at(b, "fresh/x"), S(DATA, "x"); U(PARENTS, 1));
    ERR(ENOENT, SB_FILE_WRITE, at(b, "no/x"), S(DATA, "x"));
    ERR(EACCES, SB_FILE_WRITE, "/etc/x", S(DATA, "x"));
    ERR(EACCES, SB_FILE_WRITE, "/newdir/x", S(DATA, "x"); U(PARENTS, 1));
    KIND("InvalidArgument", SB_FILE_WRITE, NULL, sb_pack_bytes(&fp, SB_F_PATH, "a\0b", 3));
    KIND("InvalidArgument", SB_FILE_WRITE, "", S(DATA, "x"));
    KIND("InvalidArgument", SB_FILE_WRITE, "~root/x", S(DATA, "x"));
    KIND("InvalidArgument", SB_FILE_STAT, "/", S(USER, "nobody-such"));
    KIND("InvalidArgument", SB_FILE_STAT, NULL, U(MODE, 1));

    /* links */
    symlink("given", at(b, "link"));
    OK(SB_FILE_WRITE, at(b, "link"), S(DATA, "through"));
    CHECK(lstat(at(b, "link"), &st) == 0 && S_ISLNK(st.st_mode) &&
              content_is(at(b, "given"), "through", 7),
          "through the link");
    symlink("sub/deep", at(b, "dangling"));
    mkdir(at(b, "sub"), 0777);
    chown(at(b, "sub"), 1000, 1000);
    OK(SB_FILE_WRITE, at(b, "dangling"), S(DATA, "made"));
    CHECK(content_is(at(b, "sub/deep"), "made", 4), "dangling link");
    symlink("loop2", at(b, "loop1"));
    symlink("loop1", at(b, "loop2"));
    ERR(ELOOP, SB_FILE_WRITE, at(b, "loop1"), S(DATA, "x"));
    ERR(EEXIST, SB_FILE_WRITE, at(b, "loop1"), S(DATA, "x"); U(EXCLUSIVE, 1));
    OK(SB_FILE_STAT, at(b, "link"), U(NOFOLLOW, 1));
    CHECK(same(text(&fa, SB_F_FTYPE), "link") && same(text(&fa, SB_F_TARGET), "given"),
          "stat of a link");
    OK(SB_FILE_STAT, at(b, "link"));
    CHECK(same(text(&fa, SB_F_FTYPE), "file"), "stat through a link");
    OK(SB_FILE_READLINK, at(b, "link"));
    CHECK(same(text(&fa, SB_F_TARGET), "given"), "readlink");
    ERR(EINVAL, SB_FILE_READLINK, at(b, "given"));
    OK(SB_FILE_SYMLINK, at(b, "made-link"), S(TARGET, "anywhere/at all"));
    ERR(EEXIST, SB_FILE_SYMLINK, at(b, "made-link"), S(TARGET, "x"));

    /* nothing hangs on these */
    mkfifo(at(b, "fifo"), 0666);
    chmod(at(b, "fifo"), 0666);
    ERR(ENXIO, SB_FILE_OPEN, at(b, "fifo"), U(OFLAGS, O_RDONLY));
    ERR(ENXIO, SB_FILE_OPEN, at(b, "fifo"), U(OFLAGS, O_WRONLY));
    ERR(ENXIO, SB_FILE_WRITE, at(b, "fifo"), S(DATA, "x"));
    ERR(ENXIO, SB_FILE_WRITE, at(b, "fifo"), S(DATA, "x"); U(ATOMIC, 0));
    ERR(ENXIO, SB_FILE_WRITE, at(b, "fifo"), S(DATA, "x"); U(APPEND, 1));
    ERR(ENXIO, SB_FILE_OPEN, "/dev/zero", U(OFLAGS, O_RDONLY));
    ERR(ENXIO, SB_FILE_WRITE, "/dev/null", S(DATA, "x"));
    ERR(ENOTDIR, SB_FILE_LIST, at(b, "fifo"), U(DEPTH, 1));
    ERR(EISDIR, SB_FILE_OPEN, at(b, "a"), U(OFLAGS, O_RDONLY));
    ERR(EISDIR, SB_FILE_OPEN, "/", U(OFLAGS, O_RDONLY));
    ERR(ENOENT, SB_FILE_OPEN, at(b, "none"), U(OFLAGS, O_RDONLY));
    KIND("InvalidArgument", SB_FILE_OPEN, at(b, "given"), U(OFLAGS, O_RDONLY | O_NONBLOCK));

    /* open, and whose rights */
    OK(SB_FILE_OPEN, at(b, "given"), U(OFLAGS, O_RDONLY));
    CHECK(fa.nfds == 1 && fstat(fa.fds[0], &st) == 0 && st.st_size == 7, "descriptor");
    if (fa.nfds == 1)
        close(fa.fds[0]);
    write_file(at(b, "secret"), "s");
    chmod(at(b, "secret"), 0600);
    ERR(EACCES, SB_FILE_OPEN, at(b, "secret"), U(OFLAGS, O_RDONLY));
    OK(SB_FILE_OPEN, at(b, "secret"), U(OFLAGS, O_RDONLY); ROOT);
    if (fa.nfds == 1)
        close(fa.fds[0]);
    OK(SB_FILE_OPEN, at(b, "op/en"), U(OFLAGS, O_RDWR | O_CREAT | O_EXCL); U(MODE, 0640);
       U(PARENTS, 1));
    CHECK(fa.nfds == 1 && num(&fa, SB_F_MODE) == 0640, "mode");
    if (fa.nfds == 1)
        close(fa.fds[0]);

    /* begin and commit */
    n = count_in(b->dir);
    for (int round = 0; round < 2; round++) {
        char token[64], path[4200];
        OK(SB_FILE_BEGIN, at(b, round == 0 ? "big" : "link"), U(PARENTS, 1));
        fd = fa.nfds == 1 ? fa.fds[0] : -1;
        snprintf(token, sizeof token, "%s", text(&fa, SB_F_TOKEN));
        snprintf(path, sizeof path, "%s", text(&fa, SB_F_PATH));
        CHECK(fd >= 0 && same(path, at(b, round == 0 ? "big" : "given")), "%s", path);
        CHECK(write(fd, "whole", 5) == 5, "write");
        CHECK(count_in(b->dir) == n + round, "nothing shows before the commit");
        file_op(SB_FILE_COMMIT, path);
        S(TOKEN, token);
        CHECK(ask_with(b, fd) == SB_REPLY && num(&fa, SB_F_SIZE) == 5, "commit: %s",
              text(&fa, SB_F_MESSAGE));
        CHECK(content_is(path, "whole", 5) && count_in(b->dir) == n + 1, "committed");
        close(fd);
    }
    OK(SB_FILE_BEGIN, at(b, "once"), U(EXCLUSIVE, 1));
    {
        char token[64];
        snprintf(token, sizeof token, "%s", text(&fa, SB_F_TOKEN));
        fd = fa.fds[0];
        write_file(at(b, "once"), "first");
        file_op(SB_FILE_COMMIT, at(b, "once"));
        S(TOKEN, token);
        CHECK(ask_with(b, fd) == SB_ERROR && num(&fa, SB_F_ERRNO) == EEXIST &&
                  content_is(at(b, "once"), "first", 5),
              "exclusive");
        OK(SB_FILE_ABORT, at(b, "once"), S(TOKEN, token));
        close(fd);
        KIND("InvalidArgument", SB_FILE_ABORT, at(b, "once"), S(TOKEN, "n-../given"));
        KIND("InvalidArgument", SB_FILE_ABORT, at(b, "once"), S(TOKEN, "n-given"));
        KIND("InvalidArgument", SB_FILE_COMMIT, at(b, "once"), S(TOKEN, "u-"));
    }
    CHECK(shell(b, &r, "") == 0, "%s", r.kind);
    run_free(&r);

    /* odd names */
    static const char *const odd[] = {"a b",          "a+b",  "a%20b",   "100%", "a#b",
                                      "a?b=c&d",      "-rf",  "--help",  "a;id", "$(id)",
                                      "a'b\"c",       "a\\b", ".hidden", "..x",  "...",
                                      "\346\227\245", "~",    "~x",      "\n",   "\377\376"};
    OK(SB_FILE_MKDIR, at(b, "odd"), U(MODE, 0755));
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char path[512], second[512];
        snprintf(path, sizeof path, "%s/odd/%s", b->dir, odd[i]);
        snprintf(second, sizeof second, "%s/odd/%s2", b->dir, odd[i]);
        OK(SB_FILE_WRITE, path, S(DATA, odd[i]));
        CHECK(list_names(b, at(b, "odd"), 1, names, sizeof names) == 1 &&
                  strlen(names) == strlen(odd[i]) + 1 && memcmp(names, odd[i], strlen(odd[i])) == 0,
              "list of '%s': '%s'", odd[i], names);
        OK(SB_FILE_MOVE, path, S(PATH2, second));
        OK(SB_FILE_REMOVE, second);
    }
    CHECK(count_in(at(b, "odd")) == 0, "left over");
    {
        char path[700];
        snprintf(path, sizeof path, "%s/odd/%0255d", b->dir, 7);
        OK(SB_FILE_WRITE, path, S(DATA, "x"));
        OK(SB_FILE_REMOVE, path);
        snprintf(path, sizeof path, "%s/odd/%0256d", b->dir, 7);
        ERR(ENAMETOOLONG, SB_FILE_WRITE, path, S(DATA, "x"));
    }

    /* list */
    ERR(ENOENT, SB_FILE_LIST, at(b, "none"), U(DEPTH, 1));
    ERR(ENOTDIR, SB_FILE_LIST, at(b, "given"), U(DEPTH, 1));
    CHECK(list_names(b, at(b, "odd"), 1, names, sizeof names) == 0, "empty");
    CHECK(shell(b, &r, "true") == 0, "%s", r.kind);
    run_free(&r);
    char script[2048];
    snprintf(
        script, sizeof script,
        "cd %s && mkdir -p t/1/2/3 t/shut && touch t/x t/1/y t/1/2/z t/1/2/3/w && ln -s . t/loop "
        "&& ln -s b t/c && ln -s c t/b && ln -s none t/dead && chmod 0 t/shut; ln -s t tlink",
        b->dir);
    CHECK(shell(b, &r, script) == 0 && r.status == 0, "%s", r.data[1]);
    run_free(&r);
    CHECK(list_names(b, at(b, "t"), 1, names, sizeof names) == 7 &&
              same(names, "1 b c dead loop shut x "),
          "'%s'", names);
    CHECK(list_names(b, at(b, "tlink"), 2, names, sizeof names) == 9 &&
              same(names, "1 2 y b c dead loop shut x "),
          "'%s'", names);
    CHECK(list_names(b, at(b, "t"), 3, names, sizeof names) == 11, "'%s'", names);
    CHECK(list_names(b, at(b, "t"), 0, names, sizeof names) == 12 &&
              same(names, "1 2 3 w z y b c dead loop shut x "),
          "'%s'", names);
    ERR(EACCES, SB_FILE_LIST, at(b, "t/shut"), U(DEPTH, 1));

    /* copy, move */
    OK(SB_FILE_MKDIR, at(b, "src/in"), U(PARENTS, 1));
    OK(SB_FILE_MKDIR, at(b, "src/in"));
    CHECK(num(&fa, SB_F_CREATED) == 0, "created twice");
    ERR(EEXIST, SB_FILE_MKDIR, at(b, "given"));
    OK(SB_FILE_WRITE, at(b, "src/in/f"), S(DATA, "data"); U(MODE, 0750));
    symlink("/etc/passwd", at(b, "src/in/abs"));
    mkfifo(at(b, "src/in/pipe"), 0644);
    chmod(at(b, "src/in"), 0555);
    OK(SB_FILE_COPY, at(b, "src"), S(PATH2, at(b, "dst")));
    CHECK(content_is(at(b, "dst/in/f"), "data", 4) && stat(at(b, "dst/in/f"), &st) == 0 &&
              (st.st_mode & 07777) == 0750,
          "copied");
    CHECK(stat(at(b, "dst/in"), &st) == 0 && (st.st_mode & 07777) == 0555,
          "mode of a copied directory");
    CHECK(lstat(at(b, "dst/in/abs"), &st) == 0 && S_ISLNK(st.st_mode), "link copied as a link");
    CHECK(lstat(at(b, "dst/in/pipe"), &st) == 0 && S_ISFIFO(st.st_mode), "fifo copied as a fifo");
    ERR(EEXIST, SB_FILE_COPY, at(b, "src"), S(PATH2, at(b, "dst")));
    ERR(EINVAL, SB_FILE_COPY, at(b, "src"), S(PATH2, at(b, "src/in/again")));
    ERR(EINVAL, SB_FILE_COPY, at(b, "given"), S(PATH2, at(b, "given")));
    CHECK(content_is(at(b, "given"), "whole", 5), "copy onto itself must not empty it");
    OK(SB_FILE_COPY, at(b, "given"), S(PATH2, at(b, "fresh")));
    CHECK(content_is(at(b, "fresh"), "whole", 5), "copy over");
    OK(SB_FILE_MOVE, at(b, "fresh"), S(PATH2, at(b, "given")));
    ERR(ENOENT, SB_FILE_MOVE, at(b, "fresh"), S(PATH2, at(b, "given")));
    ERR(ENOTEMPTY, SB_FILE_MOVE, at(b, "a"), S(PATH2, at(b, "t")));
    OK(SB_FILE_COPY, "/proc/self/status", S(PATH2, at(b, "status")));
    CHECK(stat(at(b, "status"), &st) == 0 && st.st_size > 100, "a file without a size");
    chmod(at(b, "src/in"), 0755);
    OK(SB_FILE_MOVE, at(b, "src"), S(PATH2, "/dev/shm/guest-test-moved"));
    CHECK(content_is("/dev/shm/guest-test-moved/in/f", "data", 4) &&
              access(at(b, "src"), F_OK) != 0 && stat("/dev/shm/guest-test-moved/in/f", &st) == 0 &&
              st.st_uid == 1000,
          "moved to another file system");
    OK(SB_FILE_REMOVE, "/dev/shm/guest-test-moved", U(RECURSIVE, 1));

    /* remove */
    ERR(ENOENT, SB_FILE_REMOVE, at(b, "none"));
    ERR(ENOENT, SB_FILE_REMOVE, at(b, "none"), U(RECURSIVE, 1));
    ERR(ENOTEMPTY, SB_FILE_REMOVE, at(b, "t"));
    OK(SB_FILE_REMOVE, at(b, "tlink"), U(RECURSIVE, 1));
    CHECK(stat(at(b, "t/x"), &st) == 0, "the link, not what it names");
    OK(SB_FILE_REMOVE, at(b, "t"), U(RECURSIVE, 1));
    CHECK(access(at(b, "t"), F_OK) != 0, "removed");
    ERR(EBUSY, SB_FILE_REMOVE, "/", U(RECURSIVE, 1));
    ERR(EBUSY, SB_FILE_REMOVE, "/..", U(RECURSIVE, 1); ROOT);
    mkdir(at(b, "theirs"), 0755);
    write_file(at(b, "theirs/f"), "x");
    ERR(EACCES, SB_FILE_REMOVE, at(b, "theirs"), U(RECURSIVE, 1));

    /* the rest */
    OK(SB_FILE_CHMOD, at(b, "given"), U(MODE, 0604));
    CHECK(stat(at(b, "given"), &st) == 0 && (st.st_mode & 07777) == 0604, "chmod");
    KIND("InvalidArgument", SB_FILE_CHMOD, at(b, "given"), U(MODE, 010000));
    ERR(EPERM, SB_FILE_CHOWN, at(b, "given"), S(OWNER, "root"));
    OK(SB_FILE_CHOWN, at(b, "given"), S(OWNER, "root:root"); ROOT);
    CHECK(stat(at(b, "given"), &st) == 0 && st.st_uid == 0, "chown");
    KIND("InvalidArgument", SB_FILE_CHOWN, at(b, "given"), S(OWNER, "-1"); ROOT);
    OK(SB_FILE_TEMPDIR, NULL);
    CHECK(stat(text(&fa, SB_F_PATH), &st) == 0 && S_ISDIR(st.st_mode) &&
              (st.st_mode & 07777) == 0700 && st.st_uid == 1000,
          "%s", text(&fa, SB_F_PATH));
    rmdir(text(&fa, SB_F_PATH));
    OK(SB_FILE_SETXATTR, at(b, "once"), ROOT;
       sb_pack_bytes(&fp, SB_F_XATTR, "user.color\0blue", 15));
    OK(SB_FILE_GETXATTR, at(b, "once"));
    {
        struct sb_field_view f;
        CHECK(sb_read_find(&fa.fields, SB_F_XATTR, &f) && f.len == 15 &&
                  memcmp(f.data, "user.color\0blue", 15) == 0,
              "xattr");
    }
    OK(SB_FILE_SETXATTR, at(b, "once"), ROOT; sb_pack_bytes(&fp, SB_F_XATTR, "user.size\0one", 13);
       sb_pack_bytes(&fp, SB_F_XATTR, "user.col", 8));
    OK(SB_FILE_GETXATTR, at(b, "once"));
    {
        struct sb_field_view f;
        CHECK(sb_read_find(&fa.fields, SB_F_XATTR, &f) && f.len == 13 &&
                  memcmp(f.data, "user.size\0one", 13) == 0,
              "an xattr without a value takes those away that begin so");
    }

    /* home: relative, ~ */
    chmod(b->dir, 0755);
    snprintf(script, sizeof script, "mkdir -p /home/user && chown 1000:1000 /home/user");
    if (access("/home/user", F_OK) != 0 && system(script) == 0) {
        static const char *const ways[] = {"x",      "~/x",          "./x",
                                           "a/../x", "/home/user/x", "../../../home/user//x"};
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            OK(SB_FILE_WRITE, ways[i], S(DATA, ways[i]));
            CHECK(same(text(&fa, SB_F_PATH), "/home/user/x") &&
                      content_is("/home/user/x", ways[i], strlen(ways[i])),
                  "%s: %s", ways[i], text(&fa, SB_F_PATH));
        }
        if (system("rm -rf /home/user") != 0)
            printf("?\n");
    }

    /* many at once, and a worker that is killed */
    uint32_t first = next_req;
    for (int i = 0; i < 60; i++) {
        file_op(SB_FILE_WRITE, at(b, "many"));
        sb_pack_bytes(&fp, SB_F_DATA, names, sizeof names);
        post(b->conn, &fp, NULL, 0);
    }
    n = 0;
    while (n < 60 && receive(b->conn, &fa, 5000) == 1)
        n += fa.head.type == SB_REPLY && fa.head.req >= first;
    CHECK(n == 60, "%d of 60 answers", n);
    double t = now();
    for (int i = 0; i < 100; i++)
        OK(SB_FILE_STAT, "/etc/passwd");
    printf("  stat: %.0f us each\n", (now() - t) * 1e4);
    CHECK(stat(at(b, "many"), &st) == 0 && st.st_size == sizeof names, "many");
    CHECK(shell(b, &r, "ps ax -o stat= | grep -c Z") == 0 && same(r.data[0], "0\n"), "zombies: %s",
          r.data[0]);
    run_free(&r);
}

/* 100,000 directories in each other, and 5,000 files in one (with DEEP in the environment; 1,000 without). */
static void test_deep(struct box *b)
{
    char names[64];
    double t = now();
    int fd, n, depth = getenv("DEEP") != NULL ? 100000 : 1000;
    chown(b->dir, 1000, 1000);
    if (chdir(b->dir) != 0)
        abort();
    for (int i = 0; i < depth; i++) {
        if (mkdir("d", 0777) != 0 || chown("d", 1000, 1000) != 0 || chdir("d") != 0) {
            printf("  depth %d only: %s\n", i, strerror(errno));
            break;
        }
    }
    fd = open("bottom", O_CREAT | O_WRONLY, 0644);
    close(fd);
    if (chdir(start_dir) != 0)
        abort();
    printf("  made in %.1f s\n", now() - t);
    t = now();
    n = list_names(b, b->dir, 0, names, 1);
    printf("  listed %d of them in %.1f s\n", n, now() - t);
    CHECK(n == depth + 2 || n > 16000, "list %d errno %ld %s", n, (long)num(&fa, SB_F_ERRNO),
          text(&fa, SB_F_PATH));
    t = now();
    OK(SB_FILE_COPY, at(b, "d"), S(PATH2, at(b, "e")));
    printf("  copied in %.1f s\n", now() - t);
    t = now();
    OK(SB_FILE_REMOVE, at(b, "d"), U(RECURSIVE, 1));
    OK(SB_FILE_REMOVE, at(b, "e"), U(RECURSIVE, 1));
    printf("  removed both in %.1f s\n", now() - t);
    CHECK(access(at(b, "d"), F_OK) != 0 && access(at(b, "e"), F_OK) != 0, "left");
    mkdir(at(b, "wide"), 0777);
    for (int i = 0; i < 5000; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/wide/%d", b->dir, i);
        fd = open(path, O_CREAT | O_WRONLY, 0644);
        close(fd);
    }
    t = now();
    n = list_names(b, at(b, "wide"), 1, names, 1);
    CHECK(n == 5000, "wide: %d", n);
    printf("  listed 5000 in %.2f s\n", now() - t);
    chown(at(b, "wide"), 1000, 1000);
    OK(SB_FILE_REMOVE, at(b, "wide"), U(RECURSIVE, 1));
}

static uint64_t rng = 88172645463325252u;

static uint32_t dice(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* Requests that are not, or nearly, and callers that do not read. */
static void test_hostile(struct box *b)
{
    static unsigned char buf[SB_MSG_MAX];
    static struct answer a;
    struct sb_packer p;
    struct run r;
    int conn, closed = 0, answered = 0, before = fds_of(b);
    conn = new_conn(b);
    for (int i = 0; i < 20000; i++) {
        size_t len;
        int fds[3], nfds = 0;
        if (dice(4) == 0) {
            len = dice(64);
            for (size_t j = 0; j < len; j++)
                buf[j] = (unsigned char)dice(256);
        } else {
            static const uint16_t tags[] = {
                SB_F_STAGE,   SB_F_ARG,      SB_F_ENV,      SB_F_USER,   SB_F_CWD,  SB_F_TAG,
                SB_F_IN_MODE, SB_F_OUT_MODE, SB_F_ERR_MODE, SB_F_SERIAL, SB_F_PID,  SB_F_SIGNAL,
                SB_F_FILE_OP, SB_F_PATH,     SB_F_PATH2,    SB_F_TOKEN,  SB_F_MODE, SB_F_SPILL,
                SB_F_DATA,    SB_F_OFLAGS,   SB_F_LEASE,    SB_F_XATTR,  77,        6000};
            begin(&p, (uint16_t)(SB_C_PING + dice(12)));
            if (dice(20) == 0)
                ((struct sb_msg *)p.buf)->flags = (uint16_t)dice(4);
            for (uint32_t n = dice(12); n > 0; n--) {
                static const char *const texts[] = {"true", "",       "root", "user", "/tmp/none/x",
                                                    "A=b",  "=",      "~",    "..",   "/etc/passwd",
                                                    "u-",   "nx.sb-1"};
                uint16_t tag = tags[dice(sizeof tags / sizeof *tags)];
                if (dice(3) == 0)
                    sb_pack_u64(&p, tag, dice(6) == 0 ? ~0ull : dice(30));
                else
                    sb_pack_str(&p, tag, texts[dice(sizeof texts / sizeof *texts)]);
            }
            len = p.len;
            memcpy(buf, p.buf, len);
            for (uint32_t n = dice(4); n > 0 && len > 16; n--)
                buf[dice(2) ? dice((uint32_t)len) : 16 + dice((uint32_t)len - 16)] ^=
                    (unsigned char)(1u << dice(8));
            if (dice(10) == 0)
                len -= dice((uint32_t)len);
        }
        if (dice(10) == 0) {
            fds[nfds++] = open("/dev/null", O_RDONLY);
            fds[nfds++] = memfd_create("x", MFD_ALLOW_SEALING);
            if (dice(2))
                fds[nfds++] = dup(conn);
        }
        if (transmit(conn, buf, len, fds, nfds) != 0) {
            close(conn);
            conn = new_conn(b);
            closed++;
        }
        for (int j = 0; j < nfds; j++)
            close(fds[j]);
        while (receive(conn, &a, 0) == 1) {
            answered++;
            for (int j = 0; j < a.nfds; j++)
                close(a.fds[j]);
        }
    }
    close(conn);
    printf("  20000 odd messages: %d connections closed, %d answers\n", closed, answered);
    usleep(300000);
    CHECK(shell(b, &r, "echo alive") == 0 && same(r.data[0], "alive\n"), "%s", r.kind);
    run_free(&r);

    /* a caller that never reads */
    conn = new_conn(b);
    fcntl(conn, F_SETFL, O_NONBLOCK);
    int sent = 0, stuck = 0;
    while (stuck < 200 && sent < 100000) {
        begin(&p, sent % 50 == 0 ? SB_C_LIST : SB_C_PING);
        if (send(conn, p.buf, p.len, MSG_NOSIGNAL) < 0) {
            if (errno != EAGAIN)
                break;
            stuck++;
            usleep(1000);
        } else {
            sent++;
        }
    }
    printf("  %d requests of a caller that does not read\n", sent);
    double t = now();
    CHECK(shell(b, &r, "echo alive") == 0 && now() - t < 1, "blocked by it: %.2f", now() - t);
    run_free(&r);
    close(conn);
    fds_return(b, before);
}
