/* The connection to the supervisor: shared, made again, bounded; requests across its death; files by fake
 * descriptors of a sandbox. */
#include <sys/mman.h>

#include "engine/file.h"
#include "engine_fake.h"

static struct fake fake;
static struct sb_mailbox *mailbox;
static struct sb_engine *engine;

static struct sb_op *ask(uint16_t type, const char *id)
{
    unsigned char buf[128];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, 0, 0, 0);
    sb_pack_str(&p, SB_F_ID, id);
    if (type == SB_S_CREATE || type == SB_S_CONNECT)
        return sb_engine_open(engine, mailbox, type, buf + sizeof(struct sb_msg),
                              p.len - sizeof(struct sb_msg));
    return sb_engine_request(engine, mailbox, type, buf + sizeof(struct sb_msg),
                             p.len - sizeof(struct sb_msg));
}

static enum sb_err outcome(struct sb_op *op)
{
    enum sb_err kind = wait_for(mailbox, op)->error.kind;
    sb_op_unref(op);
    return kind;
}

static void shares(void)
{
    struct sb_engine *other = sb_engine_new(fake.root, 60000);
    struct sb_op *ops[20];
    for (int i = 0; i < 20; i++)
        ops[i] = sb_engine_request(i % 2 ? other : engine, mailbox, SB_S_INFO, NULL, 0);
    for (int i = 0; i < 20; i++)
        CHECK(outcome(ops[i]) == SB_OK);
    CHECK(fake.hellos == 1 && fake.infos == 20);
    sb_object_unref(other);
    passed("one connection serves every engine of a root");
}

static void parts(void)
{
    struct sb_op *op = ask(SB_S_LIST, "x");
    struct sb_result *r = wait_for(mailbox, op);
    size_t at = 0, n = 0;
    uint32_t len;
    CHECK(r->error.kind == SB_OK && r->parts);
    for (; at < r->fields_len; n++) {
        memcpy(&len, r->fields + at, sizeof len);
        at += sizeof len + (len & ~SB_PARTS_LAST);
        CHECK(((len & SB_PARTS_LAST) != 0) == (n == 3));
    }
    CHECK(n == 4 && at == r->fields_len);
    sb_op_unref(op);
    passed("parts and the answer that ends them are kept apart");
}

static void deaths(void)
{
    int hellos = fake.hellos;
    fake.hang_up = 1;
    CHECK(outcome(ask(SB_S_INFO, "x")) == SB_OK);
    CHECK(fake.hellos == hellos + 1);
    fake.hang_up = 4;
    CHECK(outcome(ask(SB_S_INFO, "x")) == SB_ERR_UNAVAILABLE);
    CHECK(outcome(ask(SB_S_INFO, "x")) == SB_OK);
    passed("a dead supervisor's requests go to the next one, not for ever");

    fake.hang_up = 1;
    CHECK(outcome(ask(SB_S_SNAPSHOT, "x")) == SB_ERR_OUTCOME_UNKNOWN); /* it may have been taken */
    CHECK(outcome(ask(SB_S_INFO, "x")) == SB_OK);
    fake.dead = 1;
    CHECK(outcome(ask(SB_S_SNAPSHOT, "x")) == SB_OK && !fake.dead);
    passed("what may not come twice does not go to one that was dead before");
}

static struct sb_op *ask_owned(const char *id)
{
    unsigned char buf[128];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, 0, 0, 0);
    sb_pack_str(&p, SB_F_ID, id);
    sb_pack_u64(&p, SB_F_OWNED, 1);
    return sb_engine_open(engine, mailbox, SB_S_CREATE, buf + sizeof(struct sb_msg),
                          p.len - sizeof(struct sb_msg));
}

static void await_destroys(int n)
{
    CHECK_SOON(fake.destroys >= n && sb_release_outstanding() == 0);
    settle();
    CHECK(fake.destroys == n);
}

static void lost_creates(void)
{
    char first[sizeof fake.token];
    int creates = fake.creates, destroys = fake.destroys;
    fake.hang_up = 2;
    struct sb_op *op = ask(SB_S_CREATE, "mine");
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    CHECK(fake.creates == creates + 1 && fake.lost_creates == 2);
    CHECK(fake.token_len == 16 && memcmp(fake.token, fake.lost_token, 16) == 0);
    sb_op_unref(op);
    await_destroys(destroys + 1); /* nobody took it: by the token it was made with */
    CHECK(fake.token_len == 16 && memcmp(fake.token, fake.lost_token, 16) == 0);
    memcpy(first, fake.token, sizeof first);

    fake.hang_up = 4;
    CHECK(outcome(ask(SB_S_CREATE, "mine")) == SB_ERR_OUTCOME_UNKNOWN);
    await_destroys(destroys + 1); /* its sender looks what came of it */
    CHECK(fake.creates == creates + 1 && memcmp(fake.lost_token, first, 16) != 0);
    fake.hang_up = 4;
    CHECK(outcome(ask_owned("mine")) == SB_ERR_OUTCOME_UNKNOWN);
    await_destroys(destroys + 2); /* nobody else would */

    fake.deaf = 1;
    op = ask(SB_S_CREATE, "late");
    CHECK_SOON(fake.deaf != 1);
    sb_op_cancel(op);
    CHECK(outcome(op) == SB_ERR_CANCELLED);
    fake.deaf = 0;
    await_destroys(destroys + 3);
    CHECK(fake.creates == creates + 1);
    if (fake.pid1 >= 0)
        close(fake.pid1);
    fake.pid1 = -1;
    passed(
        "a create whose answer is lost is sent again; one that cannot be settled leaves nothing");
}

static void creates(void)
{
    struct sb_op *op = ask(SB_S_CREATE, "mine");
    struct sb_result *r = wait_for(mailbox, op);
    int destroys = fake.destroys;
    CHECK(r->error.kind == SB_OK && r->release != NULL && r->object != NULL);
    sb_op_unref(op); /* nobody took it */
    CHECK_SOON(sb_release_outstanding() == 0);
    CHECK(fake.destroys == destroys + 1);
    close(fake.pid1);
    fake.pid1 = -1;

    fake.refuse_create = 1;
    op = ask(SB_S_CREATE, "theirs");
    r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_ALREADY_EXISTS);
    CHECK(strcmp(r->error.message, "it is?[31m there") == 0);
    sb_op_unref(op);
    CHECK(sb_release_outstanding() == 0 && fake.destroys == destroys + 1);
    fake.refuse_create = 0;

    op = ask(SB_S_CREATE, "late");
    sb_op_cancel(op);
    r = wait_for(mailbox, op);
    sb_op_unref(op);
    CHECK_SOON(sb_release_outstanding() == 0);
    CHECK(fake.destroys <= destroys + 2);
    if (fake.pid1 >= 0)
        close(fake.pid1);
    CHECK(outcome(sb_engine_open(engine, mailbox, SB_S_CREATE, NULL, 0)) ==
          SB_ERR_INVALID_ARGUMENT);
    passed("a sandbox nobody took is destroyed, somebody else's is not");
}

static void roots(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/open", fake.root);
    CHECK(mkdir(path, 0700) == 0 && chmod(path, 0777) == 0);
    struct sb_engine *open_to_all = sb_engine_new(path, 0);
    CHECK(outcome(sb_engine_request(open_to_all, mailbox, SB_S_INFO, NULL, 0)) ==
          SB_ERR_PERMISSION_DENIED);
    sb_object_unref(open_to_all);
    rmdir(path);
    CHECK(symlink("/tmp", path) == 0);
    struct sb_engine *link = sb_engine_new(path, 0);
    enum sb_err kind = outcome(sb_engine_request(link, mailbox, SB_S_INFO, NULL, 0));
    CHECK(kind != SB_OK);
    sb_object_unref(link);
    unlink(path);
    passed("a state root that is open to others, or a link, is refused");
}

/* ---- files ---- */

static void file_reply(uint32_t req, int fd)
{
    unsigned char out[256];
    struct sb_packer p;
    sb_pack_begin(&p, out, sizeof out, SB_REPLY, req, 0);
    sb_pack_str(&p, SB_F_TOKEN, "token");
    sb_pack_str(&p, SB_F_PATH, "/final");
    send_msg(fake.pid1, out, p.len, &fd, fd >= 0);
}

static uint64_t receive_file(struct sb_msg *head, int *fd)
{
    static unsigned char buf[SB_MSG_MAX];
    struct sb_reader r;
    int fds[4];
    CHECK(recv_msg(fake.pid1, buf, sizeof buf, head, &r, fds) > 0 && head->type == SB_C_FILE);
    if (fd != NULL)
        *fd = fds[0];
    else if (fds[0] >= 0)
        close(fds[0]);
    return sb_read_u64(&r, SB_F_FILE_OP, 0);
}

static void files(void)
{
    struct sb_box *box = fake_box(&fake, mailbox, engine);
    size_t size = 1 << 20, len;
    unsigned char *data = malloc(size), fields[64];
    struct sb_packer p;
    struct sb_msg head;
    int memfd = memfd_create("file", MFD_CLOEXEC), fd;
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)(i * 31 % 247);
    sb_pack_begin(&p, fields, sizeof fields, 0, 0, 0);
    sb_pack_str(&p, SB_F_PATH, "f");
    const unsigned char *run = fields + sizeof(struct sb_msg);
    len = p.len - sizeof(struct sb_msg);

    struct sb_op *op = sb_box_write_all(box, mailbox, run, len, data, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_BEGIN);
    file_reply(head.req, memfd);
    CHECK(receive_file(&head, &fd) == SB_FILE_COMMIT);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && (size_t)st.st_size == size);
    close(fd);
    file_reply(head.req, -1);
    CHECK(outcome(op) == SB_OK);

    op = sb_box_read_all(box, mailbox, run, len, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_OPEN);
    file_reply(head.req, memfd);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes_len == size && memcmp(r->bytes, data, size) == 0);
    sb_op_unref(op);

    op = sb_box_read_all(box, mailbox, run, len, size - 1);
    CHECK(receive_file(&head, NULL) == SB_FILE_OPEN);
    file_reply(head.req, memfd);
    CHECK(outcome(op) == SB_ERR_LIMIT_EXCEEDED);

    /* no room: what was begun is taken back */
    int full = memfd_create("full", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fcntl(full, F_ADD_SEALS, F_SEAL_GROW) == 0);
    op = sb_box_write_all(box, mailbox, run, len, data, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_BEGIN);
    file_reply(head.req, full);
    CHECK(receive_file(&head, NULL) == SB_FILE_ABORT);
    CHECK(outcome(op) != SB_OK);
    close(full);

    /* a commit that is refused, too */
    op = sb_box_write_all(box, mailbox, run, len, data, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_BEGIN);
    file_reply(head.req, memfd);
    CHECK(receive_file(&head, NULL) == SB_FILE_COMMIT);
    unsigned char out[64];
    sb_pack_begin(&p, out, sizeof out, SB_ERROR, head.req, 0);
    sb_pack_str(&p, SB_F_KIND, "AlreadyExists");
    send_msg(fake.pid1, out, p.len, NULL, 0);
    CHECK(receive_file(&head, NULL) == SB_FILE_ABORT);
    CHECK(outcome(op) == SB_ERR_ALREADY_EXISTS);

    /* a cancel in the middle leaves nothing */
    op = sb_box_write_all(box, mailbox, run, len, data, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_BEGIN);
    sb_op_cancel(op);
    CHECK(outcome(op) == SB_ERR_CANCELLED);
    file_reply(head.req, memfd);
    CHECK(receive_file(&head, NULL) == SB_FILE_ABORT);

    /* what is no regular file is refused */
    int pipefd[2];
    CHECK(pipe2(pipefd, O_CLOEXEC) == 0);
    op = sb_box_read_all(box, mailbox, run, len, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_OPEN);
    file_reply(head.req, pipefd[0]);
    CHECK(outcome(op) == SB_ERR_PROTOCOL);
    close(pipefd[0]);
    close(pipefd[1]);

    /* nor a switch of the kernel's: what is written to it would be this process's doing */
    static const struct {
        const char *path;
        int flags;
    } control[] = {{"/proc/self/comm", O_RDWR},
                   {"/proc/self/oom_score_adj", O_WRONLY},
                   {"/sys/fs/cgroup/cgroup.procs", O_RDONLY},
                   {"/sys/kernel/notes", O_RDONLY}};
    for (size_t i = 0; i < sizeof control / sizeof *control; i++) {
        fd = open(control[i].path, control[i].flags | O_CLOEXEC);
        if (fd < 0)
            continue;
        op = sb_box_write_all(box, mailbox, run, len, data, size);
        CHECK(receive_file(&head, NULL) == SB_FILE_BEGIN);
        file_reply(head.req, fd);
        CHECK(receive_file(&head, NULL) == SB_FILE_ABORT);
        CHECK(outcome(op) == SB_ERR_UNSUPPORTED);
        close(fd);
    }
    fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    op = sb_box_read_all(box, mailbox, run, len, size);
    CHECK(receive_file(&head, NULL) == SB_FILE_OPEN);
    file_reply(head.req, fd);
    CHECK(outcome(op) == SB_OK);
    close(fd);

    op = sb_box_open_file(box, mailbox, SB_FILE_OPEN, run, len);
    CHECK(receive_file(&head, NULL) == SB_FILE_OPEN);
    file_reply(head.req, memfd);
    r = wait_for(mailbox, op);
    struct sb_file *file = (struct sb_file *)r->object;
    r->object = NULL;
    sb_op_unref(op);
    op = sb_file_read(file, mailbox, 5, 10);
    r = wait_for(mailbox, op);
    CHECK(r->bytes_len == 10 && memcmp(r->bytes, data + 5, 10) == 0);
    sb_op_unref(op);
    op = sb_file_read(file, mailbox, 1 << 30, 10);
    r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes == NULL);
    sb_op_unref(op);
    op = sb_file_write(file, mailbox, 0, "abc", 3);
    CHECK(wait_for(mailbox, op)->number == 3);
    sb_op_unref(op);
    sb_file_close(file);
    sb_file_close(file);
    CHECK(outcome(sb_file_size(file, mailbox)) == SB_ERR_CLOSED);
    sb_object_unref(file);
    close(memfd);
    free(data);
    sb_object_unref(box);
    settle();
    close(fake.pid1);
    passed("files: whole, bounded, all or nothing, and only files");
}

static void host_files(void)
{
    char path[128], other[128];
    snprintf(path, sizeof path, "%s/a", fake.root);
    snprintf(other, sizeof other, "%s/b", fake.root);
    struct sb_op *op = sb_file_host_open(mailbox, path, "wx", 0600);
    struct sb_file *a = (struct sb_file *)wait_for(mailbox, op)->object;
    sb_object_ref(a);
    sb_op_unref(op);
    CHECK(outcome(sb_file_host_open(mailbox, path, "wx", 0600)) == SB_ERR_ALREADY_EXISTS);
    CHECK(outcome(sb_file_host_open(mailbox, fake.root, "r", 0)) != SB_OK);
    char *big = calloc(1, 20 << 20);
    CHECK(outcome(sb_file_write(a, mailbox, 0, big, 20 << 20)) == SB_OK);
    free(big);
    sb_object_unref(a);
    op = sb_file_host_open(mailbox, path, "rn", 0);
    a = (struct sb_file *)wait_for(mailbox, op)->object;
    sb_object_ref(a);
    sb_op_unref(op);
    op = sb_file_host_open(mailbox, other, "w", 0600);
    struct sb_file *b = (struct sb_file *)wait_for(mailbox, op)->object;
    sb_object_ref(b);
    sb_op_unref(op);
    op = sb_file_pump(a, b, mailbox, 262144);
    CHECK(wait_for(mailbox, op)->number == 20 << 20);
    sb_op_unref(op);
    sb_object_unref(a);
    sb_object_unref(b);
    unlink(path);
    unlink(other);
    passed("host files are opened, written and pumped");
}

/* Two descriptors of this process are the connection's: the fake has the other end. */
static void idles(int before)
{
    sb_clock_advance(2ull * SECOND);
    CHECK_SOON(open_fds() == before - 2);
    int hellos = fake.hellos;
    CHECK(outcome(ask(SB_S_INFO, "x")) == SB_OK);
    CHECK(fake.hellos == hellos + 1);
    passed("a connection that nobody needs is closed, and made again for the next request");
}

int main(void)
{
    alarm(120);
    mailbox = new_mailbox();
    fake_begin(&fake);
    engine = sb_engine_new(fake.root, 60000);
    shares();
    /* needs the connection, which would end when this machine is slow between two requests */
    struct sb_box *first = fake_box(&fake, mailbox, engine);
    int pid1 = fake.pid1, before = open_fds();
    fake.pid1 = -1;
    parts();
    deaths();
    lost_creates();
    creates();
    roots();
    files();
    host_files();
    CHECK_SOON(open_fds() == before);
    passed("no descriptor is left over");
    sb_object_unref(first);
    close(pid1);
    idles(before - 2);
    sb_object_unref(engine);
    fake_end(&fake);
    drain(mailbox);
    sb_mailbox_unref(mailbox);
    return 0;
}
