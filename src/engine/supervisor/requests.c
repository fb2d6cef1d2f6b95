/* The requests of callers. Each handler answers at once or leaves a waiter at the sandbox. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "box.h"
#include "conn.h"
#include "create.h"
#include "disk.h"
#include "freeze.h"
#include "handover.h"
#include "hello.h"
#include "import.h"
#include "life.h"
#include "listing.h"
#include "metrics.h"
#include "named.h"
#include "slot.h"
#include "snapshot.h"
#include "snaptake.h"
#include "sockets.h"
#include "spare.h"

/* A record and, when it runs and that was asked for, a connection to its pid 1; -1: which it could not get. */
static int send_record(struct sb_conn *c, uint32_t req, struct sb_box *b, bool connect)
{
    struct sb_packer p;
    struct sb_failure f;
    int fd = -1;
    if (connect && b->rec.state == SB_BOX_RUNNING) {
        fd = sb_guest_connect(b, &f);
        if (fd < 0) {
            sb_conn_fail(c, req, &f);
            return -1;
        }
    }
    sb_conn_begin(&p, SB_REPLY, req);
    sb_record_show(&b->rec, &p);
    if (connect) {
        sb_named_tell(&b->start, &p);
    } else {
        sb_record_limits(&b->rec, &p);
        sb_network_show(b, &p);
    }
    sb_conn_send(c, &p, &fd, fd >= 0 ? 1 : 0);
    sb_close(&fd);
    return 0;
}

/* One that its maker cannot reach is none that he has. */
static void send_created(struct sb_conn *c, uint32_t req, struct sb_box *b)
{
    if (send_record(c, req, b, true) < 0)
        sb_life_destroy(b);
}

void sb_request_done(struct sb_box *b, const struct sb_waiter *w)
{
    struct sb_packer p;
    switch (w->type) {
    case SB_S_CREATE:
        send_created(w->conn, w->req, b);
        break;
    case SB_S_CONNECT:
    case SB_S_RESUME:
        send_record(w->conn, w->req, b, true);
        break;
    case SB_S_PAUSE:
        sb_conn_begin(&p, SB_REPLY, w->req);
        if (sb_kept_name(b->rec.kept) != NULL)
            sb_pack_str(&p, SB_F_KEPT, sb_kept_name(b->rec.kept));
        sb_conn_send(w->conn, &p, NULL, 0);
        break;
    default:
        sb_conn_done(w->conn, w->req);
    }
}

/* The sandbox a request names. */
static struct sb_box *named_or_ending(const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view v;
    char id[SB_ID_MAX + 1];
    if (!sb_read_find(&in->fields, SB_F_ID, &v) || !sb_id_valid((const char *)v.data, v.len)) {
        sb_failed(f, "InvalidArgument", 0, "id", "the id is missing or no valid one");
        return NULL;
    }
    memcpy(id, v.data, v.len);
    id[v.len] = '\0';
    struct sb_box *b = sb_box_find(id);
    if (b == NULL)
        sb_failed(f, "NotFound", 0, "id", "there is no sandbox %s", id);
    return b;
}

/* Once its destruction has begun nobody can do anything with it any more. */
static struct sb_box *named(const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named_or_ending(in, f);
    if (b == NULL || b->goal != SB_GOAL_DESTROY)
        return b;
    sb_failed(f, "NotFound", 0, "destroyed", "sandbox %s is being destroyed", b->rec.id);
    return NULL;
}

/* Its record was damaged: it can only be looked at and destroyed. */
static bool failed_for_good(const struct sb_box *b)
{
    return b->rec.base == NULL && b->rec.rootfs == NULL;
}

static int wait_for(struct sb_box *b, struct sb_conn *c, const struct sb_wire_in *in,
                    struct sb_failure *f)
{
    return sb_box_wait(b, c, in->head.req, in->head.type) < 0
               ? sb_failed(f, NULL, ENOMEM, "wait", "memory")
               : 0;
}

static bool same_token(const struct sb_box *b, const struct sb_field_view *token)
{
    return token->len == b->rec.token_len && memcmp(token->data, b->rec.token, token->len) == 0;
}

/* A create whose first answer was lost, if this one is: 1 it is answered, or will be; 0 one is to be made;
 * -1 see *f. */
static int created_before(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view token;
    struct sb_box *b = named_or_ending(in, f);
    if (b == NULL || !sb_read_find(&in->fields, SB_F_TOKEN, &token) || token.len == 0 ||
        !same_token(b, &token))
        return 0; /* a stranger of this id is found once more, and named */
    if (b->goal == SB_GOAL_DESTROY)
        return sb_failed(f, "NotFound", 0, "destroyed", "sandbox %s was destroyed meanwhile",
                         b->rec.id);
    /* Nobody has had it: it died with the supervisor that made it. */
    bool dying = b->dying, dead = b->rec.state == SB_BOX_FAILED;
    if (dying || dead)
        sb_life_destroy(b);
    if (dying)
        return sb_failed(f, "Unavailable", 0, "create", "it died with the supervisor that made it");
    if (dead)
        return 0;
    if (b->fresh || b->rec.state == SB_BOX_CREATING)
        return wait_for(b, c, in, f) < 0 ? -1 : 1;
    send_created(c, in->head.req, b);
    return 1;
}

static int create(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    int before = created_before(c, in, f);
    if (before != 0)
        return before < 0 ? -1 : 0;
    struct sb_box *b = sb_create_parse(in, f);
    if (b == NULL)
        return -1;
    if (wait_for(b, c, in, f) < 0) {
        sb_box_forget(b);
        return -1;
    }
    if (b->rec.owned && (c->pidfd < 0 || sb_ident_of(c->pidfd, c->pid, &b->rec.owner) < 0)) {
        sb_box_forget(b);
        return sb_failed(f, "Closed", 0, "owner", "the owner has ended");
    }
    int begun = sb_import_begin(b, f);
    if (begun == 0)
        begun = sb_disk_begin(b, f); /* as root, who imports nothing */
    if (begun < 0 || (begun == 0 && sb_boot_create(b, f) < 0)) {
        sb_box_forget(b);
        return -1;
    }
    if (b->rec.owned)
        sb_life_watch_owner(b, sb_lift(fcntl(c->pidfd, F_DUPFD_CLOEXEC, 0)));
    return 0;
}

static int connect_to(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    if (b == NULL)
        return -1;
    if (!sb_listing_labels_match(b, in))
        return sb_failed(f, "WrongOwner", 0, "labels",
                         "sandbox %s does not have the expected labels", b->rec.id);
    switch (b->rec.state) {
    case SB_BOX_CREATING:
    case SB_BOX_STOPPING:
    case SB_BOX_FREEZING:
        return wait_for(b, c, in, f);
    default:
        send_record(c, in->head.req, b, true);
        return 0;
    }
}

static int info(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named_or_ending(in, f);
    if (b == NULL)
        return -1;
    enum sb_state state = b->rec.state;
    if (b->goal == SB_GOAL_DESTROY)
        b->rec.state = SB_BOX_GONE; /* but for a moment longer its id is taken */
    send_record(c, in->head.req, b, false);
    b->rec.state = state;
    return 0;
}

static int destroy(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view token;
    struct sb_box *b = named_or_ending(in, f);
    if (b == NULL && strcmp(f->kind, "NotFound") != 0)
        return -1;
    /* What was made with this token is gone when another has its id. */
    if (b == NULL || (b->rec.token_len != 0 && sb_read_find(&in->fields, SB_F_TOKEN, &token) &&
                      !same_token(b, &token))) {
        sb_conn_done(c, in->head.req);
        return 0;
    }
    if (b->rec.newer)
        return sb_failed(f, "Unsupported", 0, "destroy",
                         "sandbox %s was made by a newer version of sandbar", b->rec.id);
    if (wait_for(b, c, in, f) < 0)
        return -1;
    sb_life_destroy(b);
    return 0;
}

static int lifetime(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    uint64_t ms = sb_read_u64(&in->fields, SB_F_LIFETIME_MS, UINT64_MAX);
    if (b == NULL)
        return -1;
    if (ms > SB_LIFETIME_MAX_MS)
        return sb_failed(f, "InvalidArgument", 0, "lifetime", "no valid lifetime");
    if (!sb_box_runs(b))
        return sb_failed(f, "NotRunning", 0, "lifetime", "sandbox %s is not running", b->rec.id);
    bool enough = b->rec.deadline_ms == 0 || b->rec.deadline_ms >= sb_now_ms() + (int64_t)ms;
    bool extend = sb_read_u64(&in->fields, SB_F_EXTEND, 0) != 0;
    if (!(extend && enough) && sb_life_set(b, (int64_t)ms, f) < 0)
        return -1;
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    sb_pack_u64(&p, SB_F_ENDS_MS, (uint64_t)b->rec.ends_ms);
    sb_conn_send(c, &p, NULL, 0);
    return 0;
}

static int pause_box(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    struct sb_field_view v;
    if (b == NULL)
        return -1;
    if (b->rec.state == SB_BOX_PAUSED) {
        struct sb_waiter w = {NULL, c, in->head.req, SB_S_PAUSE};
        sb_request_done(b, &w);
        return 0;
    }
    bool disk =
        sb_read_find(&in->fields, SB_F_KEEP, &v) && v.len == 4 && memcmp(v.data, "disk", 4) == 0;
    if (!disk && sb_read_find(&in->fields, SB_F_KEEP, &v) &&
        (v.len != 6 || memcmp(v.data, "memory", 6) != 0))
        return sb_failed(f, "InvalidArgument", 0, "keep",
                         "keep is neither \"memory\" nor \"disk\"");
    if (b->copied && !sb_snapshot_given_up(b))
        return sb_failed(f, "Busy", 0, "pause", "a snapshot of sandbox %s is being taken",
                         b->rec.id);
    if (wait_for(b, c, in, f) < 0)
        return -1;
    if (b->copied) { /* once it is wound down; the first who asks says how */
        if (b->pause_next == SB_KEPT_NOTHING)
            b->pause_next = disk ? SB_KEPT_DISK : SB_KEPT_MEMORY;
        return 0;
    }
    if (b->rec.state == SB_BOX_STOPPING || b->rec.state == SB_BOX_FREEZING)
        return 0;
    if (b->rec.state == SB_BOX_CREATING) { /* once it runs; likewise */
        b->stop_asked = b->stop_asked || (disk && !b->freeze_asked);
        b->freeze_asked = !b->stop_asked;
        return 0;
    }
    if ((disk ? sb_life_pause(b, f) : sb_freeze_begin(b, f)) < 0)
        sb_box_settle(b, f);
    return 0;
}

static int resume(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    uint64_t ms = sb_read_u64(&in->fields, SB_F_LIFETIME_MS, UINT64_MAX);
    if (b == NULL)
        return -1;
    if (ms != UINT64_MAX && ms > SB_LIFETIME_MAX_MS)
        return sb_failed(f, "InvalidArgument", 0, "lifetime", "no valid lifetime");
    if (!sb_listing_labels_match(b, in))
        return sb_failed(f, "WrongOwner", 0, "labels",
                         "sandbox %s does not have the expected labels", b->rec.id);
    switch (b->rec.state) {
    case SB_BOX_CREATING:
        return wait_for(b, c, in, f);
    case SB_BOX_STOPPING: /* once it is paused: maybe on our own account, see adopt.c */
    case SB_BOX_FREEZING:
        if (wait_for(b, c, in, f) < 0)
            return -1;
        if (ms != UINT64_MAX) {
            b->rec.lifetime_ms = (int64_t)ms;
            b->renewed = true;
        }
        return 0;
    case SB_BOX_RUNNING:
        if (ms != UINT64_MAX && sb_life_set(b, (int64_t)ms, f) < 0)
            return -1;
        send_record(c, in->head.req, b, true);
        return 0;
    default:
        break;
    }
    if (failed_for_good(b))
        return sb_failed(f, "NotRunning", 0, "resume", "sandbox %s has failed for good", b->rec.id);
    if (sb_life_over(b, f))
        return -1;
    if (wait_for(b, c, in, f) < 0)
        return -1;
    if (ms != UINT64_MAX)
        b->rec.lifetime_ms = (int64_t)ms;
    if (!b->copied && sb_life_resume(b, f) < 0)
        sb_box_settle(b, f);
    return 0;
}

static int snapshot(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view v;
    if (sb_read_find(&in->fields, SB_F_ROOTFS, &v))
        return sb_snapshot_import(c, in, f);
    struct sb_box *b = named(in, f);
    if (b == NULL)
        return -1;
    if (failed_for_good(b))
        return sb_failed(f, "NotRunning", 0, "snapshot", "sandbox %s has failed for good",
                         b->rec.id);
    return sb_snapshot_take(c, in, b, f);
}

static int sockets(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    int fd[2];
    if (b == NULL)
        return -1;
    if (!sb_box_runs(b))
        return sb_failed(f, "NotRunning", 0, "socket", "sandbox %s is not running", b->rec.id);
    if (sb_sockets_make(b->proc.fd, fd, f) < 0)
        return -1;
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    sb_conn_send(c, &p, fd, fd[1] >= 0 ? 2 : 1);
    sb_close(&fd[0]);
    sb_close(&fd[1]);
    return 0;
}

static int set_exposed(struct sb_box *b, const char *port, bool on)
{
    sb_list_remove(&b->rec.exposed, port);
    return on ? sb_list_add(&b->rec.exposed, port, strlen(port)) : 0;
}

static int expose(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    uint64_t port = sb_read_u64(&in->fields, SB_F_PORT, 0);
    char text[8];
    if (b == NULL)
        return -1;
    if (failed_for_good(b))
        return sb_failed(f, "NotRunning", 0, "expose", "sandbox %s has failed for good", b->rec.id);
    if (port < 1 || port > 65535)
        return sb_failed(f, "InvalidArgument", 0, "port", "no valid port");
    snprintf(text, sizeof text, "%u", (unsigned)port);
    const bool was = sb_list_has(&b->rec.exposed, text, strlen(text));
    int rc = 0;
    if (set_exposed(b, text, sb_read_u64(&in->fields, SB_F_ON, 1) != 0) < 0)
        rc = sb_failed(f, NULL, ENOMEM, "expose", "memory");
    size_t shown = sb_record_shown(&b->rec);
    if (rc == 0 && (shown == 0 || shown > SB_SHOWN_MAX))
        rc = sb_failed(f, "LimitExceeded", 0, "expose", "sandbox %s has too many exposed ports",
                       b->rec.id);
    if (rc == 0 && sb_box_save(b) < 0)
        rc = sb_failed_errno(f, "record", "cannot write the record");
    if (rc < 0) {
        set_exposed(b, text, was);
        return rc;
    }
    sb_conn_done(c, in->head.req);
    return 0;
}

static int metrics(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    return b == NULL ? -1 : sb_metrics_request(c, in, b, f);
}

static int network(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    if (b == NULL)
        return -1;
    if (!sb_box_runs(b))
        return sb_failed(f, "NotRunning", 0, "network", "sandbox %s is not running", b->rec.id);
    if (wait_for(b, c, in, f) < 0)
        return -1;
    struct sb_failure why;
    if (sb_network_change(b, &in->fields, &why) < 0)
        sb_box_settle_type(b, SB_S_NETWORK, &why);
    return 0;
}

/* It was its maker's until it was prepared, and is nobody's from now on. */
static int keep(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_box *b = named(in, f);
    if (b == NULL)
        return -1;
    bool owned = b->rec.owned;
    b->rec.owned = false;
    if (sb_box_save(b) < 0) {
        b->rec.owned = owned;
        return sb_failed_errno(f, "record", "cannot write the record");
    }
    sb_loop_drop(&b->owner);
    if (b->rec.state == SB_BOX_RUNNING && !b->dying)
        sb_guest_tell_life(b);
    sb_conn_done(c, in->head.req);
    return 0;
}

static int advance(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    char text[64];
    if (faccessat(sup.v1, "test-clock", W_OK, 0) < 0)
        return sb_failed(f, "PermissionDenied", errno, "test clock", "there is no test clock");
    uint64_t ms = sb_read_u64(&in->fields, SB_F_MS, 0);
    if (ms > SB_LIFETIME_MAX_MS)
        return sb_failed(f, "InvalidArgument", 0, "test clock", "too far");
    sup.clock_offset_ms += (int64_t)ms;
    sb_life_clock_moved();
    int n = snprintf(text, sizeof text, "%lld %lld\n", (long long)sup.clock_offset_ms,
                     (long long)sup.grace_ms);
    if (sb_write_at(sup.v1, "test-clock", text, (size_t)n, 0600) < 0)
        return sb_failed_errno(f, "test clock", "cannot write");
    sb_conn_done(c, in->head.req);
    return 0;
}

static void count_live(struct sb_box *b, void *arg)
{
    *(uint64_t *)arg += b->proc.fd >= 0 && !b->spare;
}

static int stats(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    uint64_t live = 0, fds = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL)
        return sb_failed_errno(f, "stats", "/proc/self/fd");
    while (readdir(d) != NULL)
        fds++;
    closedir(d);
    sb_box_each(count_live, &live);
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    sb_pack_u64(&p, SB_F_LIVE, live);
    sb_pack_u64(&p, SB_F_POOLED, (uint64_t)sb_slot_pooled() + (uint64_t)sb_spare_count());
    sb_pack_u64(&p, SB_F_OPEN_FDS, fds - 3); /* ".", ".." and the directory itself */
    sb_conn_send(c, &p, NULL, 0);
    return 0;
}

/* 0: answered, or it will be. -1: the failure is the answer. */
static int (*const handler[])(struct sb_conn *, const struct sb_wire_in *, struct sb_failure *) = {
    [0] = sb_hello,
    [SB_S_CREATE - SB_S_HELLO] = create,
    [SB_S_CONNECT - SB_S_HELLO] = connect_to,
    [SB_S_INFO - SB_S_HELLO] = info,
    [SB_S_LIST - SB_S_HELLO] = sb_listing,
    [SB_S_DESTROY - SB_S_HELLO] = destroy,
    [SB_S_LIFETIME - SB_S_HELLO] = lifetime,
    [SB_S_PAUSE - SB_S_HELLO] = pause_box,
    [SB_S_RESUME - SB_S_HELLO] = resume,
    [SB_S_SOCKET - SB_S_HELLO] = sockets,
    [SB_S_EXPOSE - SB_S_HELLO] = expose,
    [SB_S_ADVANCE - SB_S_HELLO] = advance,
    [SB_S_STATS - SB_S_HELLO] = stats,
    [SB_S_SNAPSHOT - SB_S_HELLO] = snapshot,
    [SB_S_SNAPSHOTS - SB_S_HELLO] = sb_snapshot_list,
    [SB_S_UNSNAPSHOT - SB_S_HELLO] = sb_snapshot_delete,
    [SB_S_NETWORK - SB_S_HELLO] = network,
    [SB_S_METRICS - SB_S_HELLO] = metrics,
    [SB_S_HANDOVER - SB_S_HELLO] = sb_handover_ask,
    [SB_S_TEMPLATE - SB_S_HELLO] = sb_named_publish,
    [SB_S_TEMPLATES - SB_S_HELLO] = sb_named_list,
    [SB_S_UNTEMPLATE - SB_S_HELLO] = sb_named_delete,
    [SB_S_KEEP - SB_S_HELLO] = keep,
    [SB_S_GIVE_UP - SB_S_HELLO] = sb_snapshot_give_up,
};

void sb_request_handle(struct sb_conn *c, struct sb_wire_in *in)
{
    struct sb_failure f = {.kind = NULL};
    unsigned int at = in->head.type - (unsigned int)SB_S_HELLO;
    int rc;
    if (!c->greeted && in->head.type != SB_S_HELLO && in->head.type != SB_S_HANDOVER)
        rc = sb_failed(&f, "Protocol", 0, "hello", "the first message must be a hello");
    else if (in->head.type < SB_S_HELLO || at >= sizeof handler / sizeof *handler ||
             handler[at] == NULL)
        rc =
            sb_failed(&f, "Unsupported", 0, "request", "request %u is unknown here", in->head.type);
    else
        rc = handler[at](c, in, &f);
    if (rc < 0)
        sb_conn_fail(c, in->head.req, &f);
}
