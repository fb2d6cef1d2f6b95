/* The relay's process: its policy, its reports, its loop. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lockdown.h"
#include "relay.h"
#include "upstream.h"
#include "watch.h"

static struct sb_policy policy;
static struct sb_inject inject;
static int policy_taken;
static struct sb_watch control;
static unsigned char box[SB_MSG_MAX];

static struct sb_relay_counts uncounted;
struct sb_relay_counts *sb_relay_counts = &uncounted;
int sb_relay_counts_fd = -1;

/* A relay carries as well where it cannot count. */
static void share_counts(void)
{
    struct sb_relay_counts *at =
        mmap(NULL, SB_COUNTS * sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, SB_RELAY_COUNTS, 0);
    if (at == MAP_FAILED)
        return;
    sb_relay_counts = &at[SB_COUNTS_RELAY];
    sb_relay_counts_fd = SB_RELAY_COUNTS;
}

const struct sb_policy *sb_relay_policy(void)
{
    return &policy;
}

const struct sb_inject *sb_relay_inject(void)
{
    return &inject;
}

/* ---- what was refused ---- */

static struct refused {
    const char *protocol;
    sb_refusal why;
    uint64_t count, at_ms;
    unsigned int port;
    bool unsaid;
    char host[SB_NAME_MAX + 1];
} refused[SB_RELAY_DENIED];
static int unsaid;

static void say(struct refused *r)
{
    char text[SB_NAME_MAX + 160];
    unsigned char buf[sizeof text + 128];
    struct sb_packer p;
    int n = snprintf(text, sizeof text, "%s|%s|%u|%s|%llu|%llu", r->protocol, r->host, r->port,
                     r->why, (unsigned long long)r->count, (unsigned long long)r->at_ms);
    sb_pack_begin(&p, buf, sizeof buf, SB_R_DENIED, 0, 0);
    sb_pack_u64(&p, SB_F_INDEX, (uint64_t)(r - refused));
    sb_pack_bytes(&p, SB_F_DENIED, text, (size_t)n);
    if (send(control.fd, p.buf, p.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* said at a later tick */
    unsaid -= r->unsaid;
    sb_watch_timed(-(int)r->unsaid);
    r->unsaid = false;
}

static struct refused *entry_for(const char *protocol, const char *host, unsigned int port,
                                 sb_refusal why)
{
    struct refused *oldest = refused;
    for (struct refused *r = refused; r < refused + SB_RELAY_DENIED; r++) {
        if (r->count != 0 && r->port == port && r->why == why && r->protocol == protocol &&
            strcmp(r->host, host) == 0)
            return r;
        if (r->at_ms < oldest->at_ms)
            oldest = r;
    }
    oldest->protocol = protocol;
    oldest->port = port;
    oldest->why = why;
    oldest->count = 0;
    snprintf(oldest->host, sizeof oldest->host, "%s", host);
    return oldest;
}

void sb_relay_denied(const char *protocol, const char *host, unsigned int port, sb_refusal why)
{
    struct timespec t;
    struct refused *r = entry_for(protocol, host, port, why);
    clock_gettime(CLOCK_REALTIME, &t);
    r->at_ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    r->count++;
    if (!r->unsaid) {
        r->unsaid = true;
        unsaid++;
        sb_watch_timed(1);
    }
    if (r->count == 1)
        say(r);
}

/* ---- what the supervisor says ---- */

static void take_policy(const struct sb_reader *fields, uint32_t req, size_t n)
{
    static struct sb_inject next;
    unsigned char buf[64];
    struct sb_policy_error e;
    struct sb_packer p;
    /* It has been checked: then rather nothing. */
    if (sb_policy_read(&policy, fields, &e) < 0 || sb_inject_read(&next, fields, &e) < 0)
        policy.mode = SB_POLICY_DENY;
    bool changed = !sb_inject_same(&inject, &next);
    memcpy(&inject, &next, sizeof inject);
    sb_inject_wipe(&next);
    bool another_way = sb_upstream_take(fields);
    policy_taken = 1;
    sb_resolvers_set(fields);
    sb_opened_tell(box, n);
    sb_tcp_recheck(another_way, changed);
    sb_udp_recheck();
    sb_pack_begin(&p, buf, sizeof buf, SB_REPLY, req, 0);
    (void)!send(control.fd, p.buf, p.len, MSG_NOSIGNAL);
}

static void control_ready(struct sb_watch *w, uint32_t events)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } space;
    struct iovec io = {box, sizeof box};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct sb_msg head;
    struct sb_reader fields;
    (void)events;
    ssize_t n = recvmsg(w->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        _exit(0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int))) {
        int fd;
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
        sb_opened_take(fd);
    }
    if (sb_read_begin(&fields, &head, box, (size_t)n) == 0 && head.type == SB_R_POLICY)
        take_policy(&fields, head.req, (size_t)n);
    explicit_bzero(box, (size_t)n);
}

static void tick(int64_t now)
{
    sb_ask_tick(now);
    sb_tcp_tick(now);
    sb_udp_tick(now);
    for (struct refused *r = refused; unsaid > 0 && r < refused + SB_RELAY_DENIED; r++)
        if (r->unsaid)
            say(r);
}

/* Nobody is refused because the policy has not come yet. */
static void wait_for_policy(void)
{
    struct pollfd p = {control.fd, POLLIN, 0};
    while (policy_taken == 0) {
        poll(&p, 1, -1);
        control_ready(&control, 0);
    }
}

int sb_relay_main(int argc, char **argv)
{
    if (argc < 2 || sb_watch_open() < 0 ||
        sb_watch_add(&control, SB_RELAY_CONTROL, EPOLLIN, control_ready) < 0 ||
        sb_tcp_start() < 0 || sb_udp_start() < 0)
        return 1;
    share_counts();
    wait_for_policy();
    sb_lock_down(argv[1]);
    sb_watch_run(tick);
    return 0;
}
