/* The supervisor's side: set-up, connections, leaves, stop. */
#include "conn.h"
#include "mem.h"
#include "prepare.h"
#include "proc.h"
#include "str.h"
#include "worker.h"

enum {
    LEAVES_BACK = 4, /* given back at once: as many as come in their place */
    LEAVES_WAIT_MS = 500,
};

void control_send(const struct sb_packer *p)
{
    if (guest.control.fd >= 0)
        msg_send(guest.control.fd, p, NULL, 0, MSG_DONTWAIT);
}

void control_reply(uint32_t req)
{
    struct sb_packer p;
    answer_begin(&p, SB_REPLY, req);
    if (guest.limit_started != 0)
        sb_pack_u64(&p, SB_F_STARTED, guest.started);
    control_send(&p);
}

static char *copy_of(const struct sb_reader *fields, uint16_t tag)
{
    struct sb_field_view f;
    char *copy;
    if (!sb_read_find(fields, tag, &f) || f.len == 0 || str_find(f.data, f.len, '\0') != NULL)
        return NULL;
    copy = mem_alloc(f.len + 1);
    if (copy != NULL)
        memcpy(copy, f.data, f.len);
    return copy;
}

static void take_env(const struct sb_reader *fields)
{
    struct sb_reader at = *fields;
    struct sb_field_view f;
    size_t n = 0, bytes = 0;
    char *text;
    while (sb_read_field(&at, &f) == 1)
        if (f.tag == SB_F_ENV) {
            n++;
            bytes += f.len + 1;
        }
    guest.env = n == 0 ? NULL : mem_alloc((n + 1) * sizeof *guest.env + bytes);
    if (guest.env == NULL)
        return;
    text = (char *)(guest.env + n + 1);
    at = *fields;
    while (sb_read_field(&at, &f) == 1) {
        if (f.tag != SB_F_ENV || f.len == 0 || f.data[0] == '=' ||
            str_find(f.data, f.len, '=') == NULL || str_find(f.data, f.len, '\0') != NULL)
            continue;
        memcpy(text, f.data, f.len);
        guest.env[guest.nenv++] = text;
        text += f.len + 1;
    }
}

/* The groups in which our limits hold: we move in before anything else is here. Without them nothing may run. */
static void take_limits(struct request *r)
{
    unsigned joins = (unsigned)sb_read_u64(&r->fields, SB_F_JOIN, 0), taken = 0;
    guest.limit_started = sb_read_u64(&r->fields, SB_F_LIMIT_STARTED, 0);
    guest.started = sb_read_u64(&r->fields, SB_F_STARTED, 0);
    for (; taken < joins; taken++)
        if (taken >= r->nfds || sys_write(r->fds[taken], "0", 1) != 1)
            sys_exit(104);
        else
            sys_close(r->fds[taken]);
    if (sb_read_u64(&r->fields, SB_F_OOM, 0) != 0 && taken < r->nfds)
        memory_start(r->fds[taken++]);
    r->nfds -= taken;
    memmove(r->fds, r->fds + taken, r->nfds * sizeof *r->fds);
}

static void take_leaves(struct request *r)
{
    unsigned each = (unsigned)sb_read_u64(&r->fields, SB_F_LEAF_FDS, 2);
    struct sb_reader at = r->fields;
    struct sb_field_view f;
    guest.leaves_asked = LEAVES_NOT;
    if (each != 2 && each != 3)
        return;
    for (unsigned i = 0; i + each <= r->nfds && guest.nleaves < MAX_LEAVES; i += each) {
        int *fd = &r->fds[i], more;
        struct leaf *leaf = &guest.leaves[guest.nleaves++];
        *leaf = (struct leaf){fd[0], fd[1], each == 3 ? fd[2] : -1, 0};
        while ((more = sb_read_field(&at, &f)) == 1 && f.tag != SB_F_LEAF)
            ;
        if (more == 1)
            leaf->number = sb_field_u64(&f, 0);
        for (unsigned k = 0; k < each; k++)
            fd[k] = -1;
        guest.leaves_used = 1;
        guest.leaf_dirs |= each == 3;
    }
}

void control_need_leaves(void)
{
    struct sb_packer p;
    unsigned kept = 0, back = 0;
    if (guest.leaves_asked != LEAVES_NOT || guest.control.fd < 0)
        return;
    guest.leaves_asked = LEAVES_ASKED;
    answer_begin(&p, SB_G_NEED_LEAVES, 0);
    for (unsigned i = 0; i < guest.nleaves; i++) {
        if (leaf_fresh(&guest.leaves[i]) || back == LEAVES_BACK) {
            guest.leaves[kept++] = guest.leaves[i];
            continue;
        }
        back++;
        sb_pack_u64(&p, SB_F_LEAF, guest.leaves[i].number);
        leaf_close(&guest.leaves[i]);
    }
    guest.nleaves = kept;
    control_send(&p);
}

/* They take a fraction of a millisecond, or as long as the supervisor waits for a busy processor; and a command without
 * one has a tree that is harder to kill. Whatever else it sends is taken meanwhile. One that has not answered in time is
 * stuck, and not waited for again. */
void control_await_leaves(void)
{
    uint64_t now = sys_now_ms(), end = now + LEAVES_WAIT_MS;
    control_need_leaves(); /* unless they are under way */
    while (guest.nleaves == 0 && guest.leaves_asked == LEAVES_ASKED && guest.control.fd >= 0) {
        struct {
            int fd;
            short events, revents;
        } p = {guest.control.fd, 1 /* POLLIN */, 0};
        struct sys_timespec limit = {(long)((end - now) / 1000),
                                     (long)((end - now) % 1000) * 1000000};
        SYS5(__NR_ppoll, &p, 1, &limit, NULL, 8);
        control_catch_up();
        now = sys_now_ms();
        if (now >= end) {
            if (guest.leaves_asked == LEAVES_ASKED)
                guest.leaves_asked = LEAVES_AWAITED;
            return;
        }
    }
}

/* Read once, and no copy of it stays in the buffer that every later message goes through. */
static void take_clone_at(const struct sb_reader *fields)
{
    struct sb_field_view f;
    if (!sb_read_find(fields, SB_F_CLONE_AT, &f))
        return;
    guest.clone_at = sb_field_u64(&f, 0);
    memset((void *)f.data, 0, f.len);
    __asm__ volatile("" ::"r"(f.data) : "memory");
}

static void life_changed(void)
{
    uint64_t in = control_life_tick();
    if (in != 0)
        loop_wake_at(sys_now_ms() + in);
}

static void take_life(const struct request *r)
{
    guest.ends_ms = sb_read_u64(&r->fields, SB_F_ENDS_MS, 0);
    guest.grace_ms = sb_read_u64(&r->fields, SB_F_GRACE_MS, 0);
    guest.owned = sb_read_u64(&r->fields, SB_F_OWNED, 0) != 0;
    life_changed();
}

/* The timer's clock stands still while the machine sleeps: then this comes late, never early. */
uint64_t control_life_tick(void)
{
    uint64_t now = sys_boot_ms(), end = 0, alone = 0;
    if (guest.grace_ms == 0) /* nothing was said */
        return 0;
    if (guest.ends_ms != 0 && guest.frozen == FREEZE_NOT)
        end = guest.ends_ms + guest.grace_ms;
    if (guest.owned && guest.alone_ms != 0)
        alone = guest.alone_ms + guest.grace_ms;
    if (alone != 0 && (end == 0 || alone < end))
        end = alone;
    if (end != 0 && now >= end)
        sys_exit(103);
    return end == 0 ? 0 : end - now;
}

static void take_init(struct request *r)
{
    if (!guest.ready) {
        guest.ready = 1;
        guest.limit_commands = sb_read_u64(&r->fields, SB_F_LIMIT_COMMANDS, 0);
        guest.limit_files = sb_read_u64(&r->fields, SB_F_LIMIT_FILES, 0);
        guest.user = copy_of(&r->fields, SB_F_USER);
        guest.cwd = copy_of(&r->fields, SB_F_CWD);
        take_env(&r->fields);
        take_clone_at(&r->fields);
        take_limits(r);
        if (guest.single && guest.user == NULL && (guest.user = mem_alloc(21)) != NULL)
            str_digits(guest.user, guest.uid);
    }
    guest.epoch = (uint32_t)sb_read_u64(&r->fields, SB_F_EPOCH, 0);
    take_life(r);
    take_leaves(r);
    control_reply(r->head.req);
}

void control_stop_check(void)
{
    if (guest.stopping == 1 && procs_running == 0) {
        guest.stopping = 2;
        guest.stop_kill_ms = 0;
        sys_kill(-1, SIGKILL); /* what the commands have left behind */
        control_reply(guest.stop_req);
    }
}

static void take_stop(struct request *r)
{
    uint64_t grace = sb_read_u64(&r->fields, SB_F_GRACE_MS, 0);
    if (guest.stopping == 0) {
        guest.stopping = 1;
        worker_drop_waiting();
        /* Everybody but us, at once: no fork slips through. A stopped one would not notice. */
        sys_kill(-1, grace > 0 ? SIGTERM : SIGKILL);
        sys_kill(-1, SIGCONT);
        if (grace > 0) {
            guest.stop_kill_ms = sys_now_ms() + grace;
            loop_wake_at(guest.stop_kill_ms);
        }
    }
    guest.stop_req = r->head.req;
    if (guest.stopping == 2)
        control_reply(guest.stop_req);
    control_stop_check();
}

/* Before its set-up pid 1 is nobody's: whoever started it cannot find it again where the kernel has no
 * unique numbers for processes. */
static void control_lost(void)
{
    if (!guest.ready)
        sys_exit(102);
    loop_unwatch(&guest.control);
    sys_close(guest.control.fd);
    guest.control.fd = -1;
    guest.leaves_asked = LEAVES_NOT;
    guest.alone_ms = sys_boot_ms();
    life_changed();
}

/* One message: 0 when there was none. */
static int control_take(void)
{
    struct request r;
    long n = msg_receive(guest.control.fd, &r);
    if (n == -EAGAIN)
        return 0;
    if (n <= 0 || sb_read_begin(&r.fields, &r.head, guest.in, (size_t)n) != 0 ||
        msg_unspill(&r) != 0) {
        request_end(&r);
        control_lost();
        return 1;
    }
    switch (r.head.type) {
    case SB_G_INIT:
        take_init(&r);
        break;
    case SB_G_CONN:
        guest.epoch = (uint32_t)sb_read_u64(&r.fields, SB_F_EPOCH, guest.epoch);
        for (unsigned i = 0; i < r.nfds; i++)
            conn_add(r.fds[i]);
        r.nfds = 0;
        break;
    case SB_G_LEAVES:
        take_leaves(&r);
        break;
    case SB_G_STOP:
        take_stop(&r);
        break;
    case SB_G_LIFE:
        take_life(&r);
        break;
    case SB_G_FREEZE:
        freeze_begin(r.head.req, (uint32_t)sb_read_u64(&r.fields, SB_F_EPOCH, guest.epoch),
                     sb_read_u64(&r.fields, SB_F_GRACE_MS, 0),
                     sb_read_u64(&r.fields, SB_F_STOP, 0) != 0);
        break;
    case SB_G_THAW:
        freeze_end((uint32_t)sb_read_u64(&r.fields, SB_F_EPOCH, guest.epoch));
        break;
    case SB_G_USAGE:
        usage_answer(r.head.req);
        break;
    case SB_G_SPARE:
        if (!guest.ready)
            prepare();
        break;
    default: { /* from a newer supervisor */
        struct sb_packer p;
        answer_begin(&p, SB_ERROR, r.head.req);
        sb_pack_str(&p, SB_F_KIND, "Unsupported");
        if (r.head.req != 0)
            control_send(&p);
    }
    }
    request_end(&r);
    return 1;
}

static void control_ready(struct watch *w, uint32_t events)
{
    (void)w;
    (void)events;
    control_take();
}

void control_catch_up(void)
{
    guest.listener.ready(&guest.listener, EPOLLIN); /* a later supervisor may be waiting there */
    while (guest.control.fd >= 0 && control_take())
        ;
}

/* A first or a later supervisor. */
void control_adopt(int fd)
{
    struct sb_packer p;
    if (guest.control.fd >= 0 && !guest.ready)
        control_ready(&guest.control, EPOLLIN); /* its set-up may be waiting there */
    if (guest.control.fd >= 0)
        control_lost();
    if (loop_watch(&guest.control, fd, EPOLLIN, control_ready) != 0) {
        sys_close(fd);
        return;
    }
    guest.alone_ms = 0;
    answer_begin(&p, SB_G_HELLO, 0);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    if (guest.ready) {
        sb_pack_u64(&p, SB_F_EPOCH, guest.epoch);
        sb_pack_u64(&p, SB_F_STOP, guest.frozen != FREEZE_NOT);
        sb_pack_u64(&p, SB_F_STARTED, guest.started);
    }
    control_send(&p);
}
