/* Starts and watches the relays of sandboxes. A relay is this program again, in another role: its own process,
 * without rights, which gets listeners of the sandbox's network and its policy, and tells what it refused.
 * While there is none everything is refused. */
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../relay/inject.h"
#include "../relay/relay.h"
#include "box.h"
#include "netplace.h"
#include "relays.h"
#include "slot.h"
#include "wire.h"

enum { RETRY_MS = 1000, PER_TURN = 16, DENIED_BYTES = 480 };
enum { RELAY_ID = SB_RANGE_SIZE - 3 }; /* of a sandbox's range, as root: nobody inside */

/* What the relay's table holds, by its indexes. */
struct sb_denials {
    struct {
        uint16_t len;
        char text[DENIED_BYTES];
    } entry[SB_RELAY_DENIED];
};

/* ---- the policy ---- */

static int copy_lists(struct sb_record *r, const struct sb_reader *fields)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1) {
        struct sb_list *l = v.tag == SB_F_NET_ALLOW  ? &r->net_allow
                            : v.tag == SB_F_NET_DENY ? &r->net_deny
                                                     : NULL;
        if (l != NULL && sb_list_add(l, v.data, v.len) < 0)
            return -1;
    }
    return 0;
}

static struct sb_policy policy; /* the one that is looked at */

static int read_policy(const struct sb_reader *fields, struct sb_failure *f)
{
    static struct sb_inject inject;
    struct sb_policy_error e;
    int rc = sb_policy_read(&policy, fields, &e);
    if (rc == 0)
        rc = sb_inject_read(&inject, fields, &e);
    bool some = inject.rules > 0;
    sb_inject_wipe(&inject);
    if (rc == 0 && some && policy.mode != SB_POLICY_RULES)
        return sb_failed(f, "InvalidArgument", 0, "network.inject",
                         "network.inject: belongs to rules only");
    if (rc == 0)
        return 0;
    return sb_failed(f, "InvalidArgument", 0, e.field, "%s: \"%s\" %s", e.field, e.entry, e.what);
}

/* A sandbox keeps its authority, which it trusts, as long as there are rules. */
static int keep_authority(struct sb_list *l, const struct sb_list *before)
{
    struct sb_list all = {NULL, 0};
    bool own = false, rules = false;
    for (const char *e = NULL; (e = sb_list_next(l, e)) != NULL;) {
        own = own || *e == 'k';
        rules = rules || *e == 'h';
    }
    if (own || !rules || l->data == NULL || before->len == 0)
        return 0;
    all.data = malloc(l->len + before->len);
    if (all.data == NULL)
        return -1;
    memcpy(all.data, l->data, l->len);
    all.len = l->len;
    for (const char *e = NULL; (e = sb_list_next(before, e)) != NULL;)
        if (*e == 'c' || *e == 'k') {
            memcpy(all.data + all.len, e, strlen(e) + 1);
            all.len += strlen(e) + 1;
        }
    sb_list_wipe(l);
    *l = all;
    return 0;
}

/* The rules that inject: those of the request, or of the sandbox that it names, whose secrets nobody else has. */
static int copy_inject(struct sb_record *r, const struct sb_reader *fields, struct sb_failure *f)
{
    struct sb_field_view v;
    char id[SB_ID_MAX + 1];
    if (!sb_read_find(fields, SB_F_INJECT_OF, &v))
        return sb_list_secret(&r->net_inject, fields, SB_F_NET_INJECT) == 0
                   ? 0
                   : sb_failed(f, NULL, ENOMEM, "network", "memory");
    if (v.len >= sizeof id)
        return sb_failed(f, "InvalidArgument", 0, "network.inject", "no valid id");
    memcpy(id, v.data, v.len);
    id[v.len] = '\0';
    const struct sb_box *of = sb_box_find(id);
    if (of == NULL)
        return sb_failed(f, "NotFound", 0, "network.inject", "there is no sandbox %s", id);
    if (of->rec.net_inject.len == 0)
        return 0;
    r->net_inject.data = malloc(of->rec.net_inject.len);
    if (r->net_inject.data == NULL)
        return sb_failed(f, NULL, ENOMEM, "network", "memory");
    memcpy(r->net_inject.data, of->rec.net_inject.data, of->rec.net_inject.len);
    r->net_inject.len = of->rec.net_inject.len;
    return 0;
}

static void free_lists(struct sb_record *r)
{
    free(r->net_allow.data);
    free(r->net_deny.data);
    r->net_allow = r->net_deny = (struct sb_list){NULL, 0};
    sb_list_wipe(&r->net_inject);
}

static unsigned char message[SB_MSG_MAX]; /* to a relay */

/* A relay can be told of it. */
static bool fits(const struct sb_record *r)
{
    enum { RESOLVERS = 512 };
    struct sb_packer p;
    sb_pack_begin(&p, message, sizeof message - RESOLVERS, SB_R_POLICY, 0, 0);
    sb_record_network(r, &p, true);
    explicit_bzero(message, p.len);
    return !p.overflow;
}

static int take(struct sb_record *r, const struct sb_list *before, const struct sb_reader *fields,
                struct sb_failure *f)
{
    struct sb_record next = {.id = ""};
    if (read_policy(fields, f) < 0)
        return -1;
    int rc = copy_lists(&next, fields) == 0 ? copy_inject(&next, fields, f)
                                            : sb_failed(f, NULL, ENOMEM, "network", "memory");
    if (rc == 0 && keep_authority(&next.net_inject, before) < 0)
        rc = sb_failed(f, NULL, ENOMEM, "network", "memory");
    next.network = sb_network_word(fields);
    if (rc == 0 && !fits(&next))
        rc = sb_failed(f, "LimitExceeded", 0, "network", "the network policy is too long");
    if (rc < 0) {
        free_lists(&next);
        return rc;
    }
    free_lists(r);
    r->network = next.network;
    r->net_allow = next.net_allow;
    r->net_deny = next.net_deny;
    r->net_inject = next.net_inject;
    return 0;
}

int sb_network_take(struct sb_record *r, const struct sb_reader *fields, struct sb_failure *f)
{
    return take(r, &r->net_inject, fields, f);
}

/* Of the sandbox's record, as fields. */
static const struct sb_policy *policy_of(const struct sb_record *r, struct sb_packer *p)
{
    struct sb_failure f;
    struct sb_msg head;
    struct sb_reader fields;
    sb_record_network(r, p, true);
    if (r->network == NULL || p->overflow || sb_read_begin(&fields, &head, p->buf, p->len) < 0 ||
        read_policy(&fields, &f) < 0)
        policy.mode = SB_POLICY_DENY;
    return &policy;
}

/* The host's resolvers, as of now. */
static void pack_resolvers(struct sb_packer *p)
{
    static const char word[] = "nameserver";
    sb_autofree char *text = sb_read_at(AT_FDCWD, "/etc/resolv.conf", 65536, NULL);
    char *rest = text, *line;
    int n = 0;
    while (rest != NULL && n < SB_RESOLVERS && (line = strsep(&rest, "\n")) != NULL) {
        char *at = line + sizeof word - 1;
        if (strncmp(line, word, sizeof word - 1) != 0 || (*at != ' ' && *at != '\t'))
            continue;
        at += strspn(at, " \t");
        at[strcspn(at, " \t\r")] = '\0';
        struct sb_cidr c;
        if (!sb_cidr_read(&c, at, strlen(at)))
            continue; /* an address with a scope, or none */
        sb_pack_str(p, SB_F_RESOLVER, at);
        n++;
    }
}

/* ---- its process ---- */

/* From now on everything is refused. That it is gone, and its addresses are free, proc_ready is told. */
static void kill_relay(struct sb_box *b)
{
    sb_loop_drop(&b->net.control);
    b->net.opens = false;
    if (b->net.proc.fd >= 0)
        pidfd_send_signal(b->net.proc.fd, SIGKILL, NULL, 0);
}

static void forget_relay(struct sb_box *b)
{
    kill_relay(b);
    if (b->net.proc.fd < 0)
        return;
    int fd = fcntl(b->net.proc.fd, F_DUPFD_CLOEXEC, SB_FD_END);
    sb_loop_drop(&b->net.proc);
    if (fd >= 0)
        sb_relay_reap(fd);
}

void sb_network_counts(const struct sb_box *b, uint64_t *sent, uint64_t *received)
{
    const volatile struct sb_relay_counts *c = b->net.counts;
    *sent = b->net.sent;
    *received = b->net.received;
    for (int i = 0; c != NULL && i < SB_COUNTS; i++) {
        *sent += c[i].sent;
        *received += c[i].received;
    }
}

/* What the last one has counted becomes what those before have. */
static void end_counts(struct sb_box *b)
{
    sb_network_counts(b, &b->net.sent, &b->net.received);
    if (b->net.counts != NULL)
        munmap(b->net.counts, SB_COUNTS * sizeof *b->net.counts);
    b->net.counts = NULL;
}

/* A memory file whose size nobody can change any more: who touches what is gone is killed. -1: it is not counted. */
static int share_counts(struct sb_box *b)
{
    const size_t size = SB_COUNTS * sizeof *b->net.counts;
    int fd = memfd_create("counts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    end_counts(b);
    if (fd < 0)
        return -1;
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)size) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    b->net.counts = at != MAP_FAILED ? at : NULL;
    return fd;
}

void sb_network_end(struct sb_box *b)
{
    forget_relay(b);
    end_counts(b);
    b->net.sent = b->net.received = 0;
    b->net.retry_ms = 0;
    free(b->net.denials);
    b->net.denials = NULL;
}

/* ---- what it says ---- */

static void keep_denied(struct sb_box *b, const struct sb_wire_in *in)
{
    struct sb_field_view v;
    uint64_t i = sb_read_u64(&in->fields, SB_F_INDEX, SB_RELAY_DENIED);
    if (i >= SB_RELAY_DENIED || !sb_read_find(&in->fields, SB_F_DENIED, &v) || v.len > DENIED_BYTES)
        return;
    if (b->net.denials == NULL && (b->net.denials = calloc(1, sizeof *b->net.denials)) == NULL)
        return;
    b->net.denials->entry[i].len = (uint16_t)v.len;
    memcpy(b->net.denials->entry[i].text, v.data, v.len);
}

void sb_network_show(const struct sb_box *b, struct sb_packer *p)
{
    for (int i = 0; b->net.denials != NULL && i < SB_RELAY_DENIED; i++) {
        struct sb_packer before = *p;
        if (b->net.denials->entry[i].len != 0)
            sb_pack_bytes(p, SB_F_DENIED, b->net.denials->entry[i].text,
                          b->net.denials->entry[i].len);
        if (p->overflow && !before.overflow)
            *p = before;
    }
}

/* It has ended: everything is refused, until there is another. */
static void lost(struct sb_box *b)
{
    int64_t now = sb_real_ms();
    sb_box_stir(b);
    forget_relay(b);
    b->net.retry_ms = b->net.started_ms + RETRY_MS > now ? b->net.started_ms + RETRY_MS : now;
}

static void control_ready(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, net.control);
    struct sb_wire_in in;
    (void)events;
    for (int i = 0; i < PER_TURN && b->net.control.fd >= 0; i++) {
        int rc = sb_wire_receive(b->net.control.fd, &in, 0);
        if (rc == 0)
            return;
        if (rc < 0) {
            kill_relay(b);
            return;
        }
        if (in.head.type == SB_R_DENIED)
            keep_denied(b, &in);
        else if (in.head.type == SB_REPLY && in.head.req == b->net.asked)
            sb_box_settle_type(b, SB_S_NETWORK, NULL);
        sb_wire_done(&in);
    }
}

static void proc_ready(struct sb_source *src, uint32_t events)
{
    (void)events;
    lost(SB_OWNER(src, struct sb_box, net.proc));
}

/* ---- starting and changing ---- */

static const char *relay_id(const struct sb_box *b, char text[12])
{
    if (sup.mode == SB_MODE_ROOT)
        snprintf(text, 12, "%u", sb_slot_root(b->rec.range) + RELAY_ID);
    else
        snprintf(text, 12, "-");
    return text;
}

/* Whether an authority comes with the rules (relay/inject.h). */
static bool has_authority(const struct sb_record *r)
{
    for (const char *e = NULL; (e = sb_list_next(&r->net_inject, e)) != NULL;)
        if (*e == 'k')
            return true;
    return false;
}

/* With the way to the relay's second process, if it is to have one from now on. */
static int tell(struct sb_box *b, struct sb_packer *p, struct sb_failure *f)
{
    char id[12];
    sb_autofd int opener = -1;
    if (!b->net.opens && has_authority(&b->rec) && sb_tlsrelay_works()) {
        opener = sb_tlsrelay_start(relay_id(b, id));
        if (opener < 0)
            return sb_failed_errno(f, "network", "cannot start a relay for TLS");
    }
    pack_resolvers(p);
    if (p->overflow || sb_wire_send(b->net.control.fd, p, &opener, opener >= 0) < 0)
        return sb_failed_errno(f, "network", "the relay takes no policy");
    b->net.opens = b->net.opens || opener >= 0;
    return 0;
}

static int start_relay(struct sb_box *b, struct sb_packer *p, struct sb_failure *f)
{
    struct sb_net_sockets s;
    char id[12];
    int pair[2];
    if (sb_netplace_make(b->proc.fd, &s, f) < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        sb_netplace_close(&s);
        return sb_failed_errno(f, "network", "socketpair");
    }
    sb_autofd int counts = sb_lift(share_counts(b));
    const int fd[] = {pair[1], s.tcp4, s.udp4, s.raw4, s.tcp6, s.udp6, s.raw6, s.kept, counts};
    int pidfd =
        sb_relay_spawn(SB_RELAY_NAME, sup.self, relay_id(b, id), fd, sizeof fd / sizeof *fd);
    close(pair[1]);
    sb_netplace_close(&s);
    if (pidfd < 0) {
        close(pair[0]);
        return sb_failed_errno(f, "network", "cannot start a relay");
    }
    b->net.retry_ms = 0;
    b->net.started_ms = sb_real_ms();
    if (sb_loop_add(&b->net.proc, pidfd, EPOLLIN, proc_ready) < 0) {
        close(pair[0]); /* which ends it */
        return sb_failed_errno(f, "network", "epoll");
    }
    if (sb_loop_add(&b->net.control, pair[0], EPOLLIN, control_ready) < 0 || tell(b, p, f) < 0) {
        forget_relay(b);
        return -1;
    }
    return 0;
}

static void begin(struct sb_box *b, struct sb_packer *p)
{
    sb_pack_begin(p, message, sizeof message, SB_R_POLICY, ++b->net.asked, 0);
}

int sb_network_start(struct sb_box *b, struct sb_failure *f)
{
    struct sb_packer p;
    if (b->rec.network == NULL)
        return 0;
    begin(b, &p);
    int rc = sb_policy_opens(policy_of(&b->rec, &p)) ? start_relay(b, &p, f) : 0;
    explicit_bzero(message, sizeof message);
    return rc;
}

void sb_network_again(struct sb_box *b)
{
    struct sb_failure f;
    b->net.retry_ms = 0;
    if (sb_network_start(b, &f) == 0) {
        if (b->net.control.fd < 0) /* nothing is open, for which no relay is needed */
            sb_box_settle_type(b, SB_S_NETWORK, NULL);
        return;
    }
    b->net.retry_ms = sb_real_ms() + RETRY_MS;
    sb_box_settle_type(b, SB_S_NETWORK, &f);
}

/* To the relay there is, or to a new one. */
static int carry_out(struct sb_box *b, struct sb_failure *f)
{
    struct sb_packer p;
    begin(b, &p);
    bool opens = sb_policy_opens(policy_of(&b->rec, &p));
    if (b->net.control.fd >= 0) {
        if (tell(b, &p, f) == 0)
            return 0;
        kill_relay(b); /* closed, rather than as it was */
        if (opens)
            return 0;   /* the next one answers */
    } else if (opens) { /* one that is being killed is followed by the next when it is gone */
        return b->net.proc.fd >= 0 ? 0 : start_relay(b, &p, f);
    }
    sb_box_settle_type(b, SB_S_NETWORK, NULL);
    return 0;
}

int sb_network_change(struct sb_box *b, const struct sb_reader *fields, struct sb_failure *f)
{
    struct sb_record before = {.network = b->rec.network};
    before.net_allow = b->rec.net_allow;
    before.net_deny = b->rec.net_deny;
    before.net_inject = b->rec.net_inject;
    b->rec.net_allow = b->rec.net_deny = b->rec.net_inject = (struct sb_list){NULL, 0};
    int rc = take(&b->rec, &before.net_inject, fields, f);
    size_t shown = rc == 0 ? sb_record_shown(&b->rec) : 0;
    if (rc == 0 && (shown == 0 || shown > SB_SHOWN_MAX))
        rc = sb_failed(f, "LimitExceeded", 0, "network", "the network policy is too long");
    if (rc == 0 && sb_box_save(b) < 0)
        rc = sb_failed_errno(f, "record", "cannot write the record");
    if (rc == 0) {
        free_lists(&before);
    } else {
        free_lists(&b->rec);
        b->rec.network = before.network;
        b->rec.net_allow = before.net_allow;
        b->rec.net_deny = before.net_deny;
        b->rec.net_inject = before.net_inject;
        return rc;
    }
    rc = carry_out(b, f);
    explicit_bzero(message, sizeof message);
    return rc;
}
