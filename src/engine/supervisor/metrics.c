/* A sample is put together from pid 1's look at its processes, the control groups, the relay's counts and the size of
 * the sandbox's uppers, which a process of its own adds up. Nothing is measured that nobody has asked for: a series
 * is begun by the first who wants one, and ends a while after the last. */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "disk.h"
#include "job.h"
#include "usage.h"

enum {
    EACH_MS = 5000,     /* of a series */
    WATCH_MS = 600000,  /* how long after the last request */
    SAMPLES = 720,      /* that are kept: an hour's */
    PATIENCE_MS = 5000, /* then a sample is what is known by then */
    WALK_S = 120,       /* a walk through the disk that takes longer comes to nothing */
    WALK_SHARE = 20,    /* it may take one part in so many of the time */
};

struct sample {
    int64_t at_ms; /* wall clock */
    uint64_t cpu_us, memory, tasks, disk, sent, received;
    bool has_cpu, has_memory, has_tasks, has_disk;
};

struct asker {
    struct asker *next;
    struct sb_conn *conn;
    uint32_t req;
    bool series;
    int64_t from_ms, to_ms;
};

/* Of a box that was ever asked about. In the list as long as there is something to do or to wait for. */
struct sb_metrics {
    struct sb_box *box;
    struct sb_metrics *next, **link; /* link NULL: not in the list */
    struct asker *askers;
    int64_t due_ms;               /* the sample under way is ended; 0: there is none */
    int64_t next_ms, watched_ms;  /* of a series, by the test clock; watched_ms: until then */
    bool wants_guest, wants_walk; /* by the sample under way */
    struct sample now;
    struct sample *ring;
    int first, n;
    struct sb_source walk; /* the process that adds up */
    uint64_t *sum;         /* shared with it; UINT64_MAX: not done */
    int64_t walk_at_ms, walk_took_ms;
};

static struct sb_metrics *active;

static void enlist(struct sb_metrics *m)
{
    if (m->link != NULL)
        return;
    m->next = active;
    m->link = &active;
    if (active != NULL)
        active->link = &m->next;
    active = m;
}

static void delist(struct sb_metrics *m)
{
    if (m->link == NULL)
        return;
    *m->link = m->next;
    if (m->next != NULL)
        m->next->link = m->link;
    m->link = NULL;
}

static struct sb_metrics *metrics_of(struct sb_box *b)
{
    if (b->metrics == NULL && (b->metrics = calloc(1, sizeof *b->metrics)) != NULL) {
        b->metrics->box = b;
        b->metrics->walk.fd = -1;
    }
    return b->metrics;
}

/* ---- answering ---- */

static void pack(struct sb_packer *p, const struct sample *s)
{
    sb_pack_u64(p, SB_F_MS, (uint64_t)s->at_ms);
    if (s->has_cpu)
        sb_pack_u64(p, SB_F_CPU_US, s->cpu_us);
    if (s->has_memory)
        sb_pack_u64(p, SB_F_MEMORY, s->memory);
    if (s->has_tasks)
        sb_pack_u64(p, SB_F_COUNT, s->tasks);
    if (s->has_disk)
        sb_pack_u64(p, SB_F_SIZE, s->disk);
    sb_pack_u64(p, SB_F_SENT, s->sent);
    sb_pack_u64(p, SB_F_RECEIVED, s->received);
}

static void answer_series(const struct sb_metrics *m, struct sb_conn *c, uint32_t req, int64_t from,
                          int64_t to)
{
    struct sb_packer p;
    for (int i = 0; m != NULL && i < m->n && c->src.fd >= 0; i++) {
        const struct sample *s = &m->ring[(m->first + i) % SAMPLES];
        if (s->at_ms < from || s->at_ms > to)
            continue;
        sb_conn_begin(&p, SB_PART, req);
        pack(&p, s);
        sb_conn_send(c, &p, NULL, 0);
    }
    sb_conn_done(c, req);
}

/* One at a time: an answer may end a connection, and with it others that wait. */
static void answer_all(struct sb_metrics *m, const struct sb_failure *f)
{
    struct sb_packer p;
    for (struct asker *a; (a = m->askers) != NULL; free(a)) {
        m->askers = a->next;
        if (a->conn == NULL)
            continue;
        if (f != NULL) {
            sb_conn_fail(a->conn, a->req, f);
        } else if (a->series) {
            answer_series(m, a->conn, a->req, a->from_ms, a->to_ms);
        } else {
            sb_conn_begin(&p, SB_REPLY, a->req);
            pack(&p, &m->now);
            sb_conn_send(a->conn, &p, NULL, 0);
        }
    }
}

void sb_metrics_conn_gone(struct sb_box *b, const struct sb_conn *c)
{
    for (struct asker *a = b->metrics != NULL ? b->metrics->askers : NULL; a != NULL; a = a->next)
        if (a->conn == c)
            a->conn = NULL;
}

/* ---- measuring ---- */

static void walk(uint64_t *sum)
{
    uint64_t added = 0;
    if (sb_usage_add(3, "u", &added) == 0 && sb_usage_add(3, "usr.u", &added) == 0)
        *sum = added;
}

static void end_if_whole(struct sb_metrics *m);

static void walked(struct sb_source *src, uint32_t events)
{
    struct sb_metrics *m = SB_OWNER(src, struct sb_metrics, walk);
    (void)events;
    sb_job_end(src, NULL);
    int64_t now = sb_real_ms();
    m->walk_took_ms = now - m->walk_at_ms;
    m->walk_at_ms = now;
    m->now.has_disk = *m->sum != UINT64_MAX;
    m->now.disk = *m->sum;
    m->wants_walk = false;
    end_if_whole(m);
}

/* One that takes longer than a sample waits is for later ones. */
static void walk_begin(struct sb_metrics *m)
{
    int64_t now = sb_real_ms();
    if (m->box->rec.limit_disk != 0) { /* its file system knows */
        m->now.has_disk = sb_disk_used(m->box, &m->now.disk);
        return;
    }
    if (m->walk.fd >= 0 || now < m->walk_at_ms + WALK_SHARE * m->walk_took_ms)
        return;
    if (m->sum == NULL) {
        void *at =
            mmap(NULL, sizeof *m->sum, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return;
        m->sum = at;
    }
    *m->sum = UINT64_MAX;
    m->walk_at_ms = now;
    sb_autofd int dir = sb_box_dir(m->box);
    pid_t pid = dir < 0 ? -1 : fork();
    if (pid == 0) {
        setpriority(PRIO_PROCESS, 0, 5);
        const struct sigaction end = {.sa_handler = SIG_DFL};
        sigaction(SIGALRM, &end, NULL);
        alarm(WALK_S);
        if (dup2(dir, 3) == 3 && close_range(4, ~0U, 0) == 0)
            walk(m->sum);
        _exit(0);
    }
    m->wants_walk = sb_job_watch(&m->walk, pid, walked) == 0;
}

static void ask_guest(struct sb_metrics *m)
{
    unsigned char buf[32];
    struct sb_packer p;
    m->now.has_cpu = m->now.has_memory = m->now.has_tasks = false;
    sb_pack_begin(&p, buf, sizeof buf, SB_G_USAGE, SB_REQ_USAGE, 0);
    m->wants_guest = m->box->guest.fd >= 0 && sb_wire_send(m->box->guest.fd, &p, NULL, 0) == 0;
}

void sb_metrics_answered(struct sb_box *b, const struct sb_wire_in *in)
{
    struct sb_metrics *m = b->metrics;
    if (m == NULL || !m->wants_guest)
        return;
    m->wants_guest = false;
    if (in->head.type == SB_REPLY) {
        m->now.has_cpu = m->now.has_memory = m->now.has_tasks = true;
        m->now.cpu_us = sb_read_u64(&in->fields, SB_F_CPU_US, 0);
        m->now.memory = sb_read_u64(&in->fields, SB_F_MEMORY, 0);
        m->now.tasks = sb_read_u64(&in->fields, SB_F_COUNT, 0);
    }
    end_if_whole(m);
}

/* What control groups know is better than what pid 1 has found. */
static void ask_groups(struct sb_metrics *m)
{
    int64_t used = sb_limits_memory(&m->box->limits), cpu = sb_cgroup_cpu_us(&m->box->group);
    if (used >= 0) {
        m->now.memory = (uint64_t)used;
        m->now.has_memory = true;
    }
    if (cpu >= 0) {
        m->now.cpu_us = (uint64_t)cpu;
        m->now.has_cpu = true;
    }
}

static void keep(struct sb_metrics *m)
{
    if (m->ring == NULL)
        return;
    m->ring[(m->first + m->n) % SAMPLES] = m->now;
    if (m->n < SAMPLES)
        m->n++;
    else
        m->first = (m->first + 1) % SAMPLES;
}

static void end(struct sb_metrics *m)
{
    m->due_ms = 0;
    m->wants_guest = m->wants_walk = false;
    ask_groups(m);
    sb_network_counts(m->box, &m->now.sent, &m->now.received);
    m->now.at_ms = sb_wall_ms();
    m->next_ms = sb_now_ms() + EACH_MS;
    keep(m);
    answer_all(m, NULL);
}

static void end_if_whole(struct sb_metrics *m)
{
    if (m->due_ms != 0 && !m->wants_guest && !m->wants_walk)
        end(m);
}

static void begin(struct sb_metrics *m)
{
    if (m->due_ms != 0)
        return;
    enlist(m);
    m->due_ms = sb_real_ms() + PATIENCE_MS;
    ask_guest(m);
    walk_begin(m);
    end_if_whole(m);
}

static bool is_watched(const struct sb_metrics *m)
{
    return m->watched_ms > sb_now_ms() && sb_box_runs(m->box);
}

int64_t sb_metrics_tick(int64_t now)
{
    int64_t due = INT64_MAX;
    for (struct sb_metrics *m = active, *next; m != NULL; m = next) {
        next = m->next;
        if (m->due_ms != 0 && m->due_ms <= now)
            end(m);
        if (m->due_ms == 0 && is_watched(m) && m->next_ms <= sb_now_ms())
            begin(m);
        int64_t at = m->due_ms != 0  ? m->due_ms
                     : is_watched(m) ? m->next_ms - sup.clock_offset_ms
                                     : INT64_MAX;
        if (at == INT64_MAX)
            delist(m);
        due = at < due ? at : due;
    }
    return due;
}

/* ---- asking ---- */

int sb_metrics_request(struct sb_conn *c, const struct sb_wire_in *in, struct sb_box *b,
                       struct sb_failure *f)
{
    struct asker a = {.conn = c, .req = in->head.req};
    int64_t now = sb_now_ms();
    a.from_ms = (int64_t)sb_read_u64(&in->fields, SB_F_STARTED_MS, INT64_MAX);
    a.to_ms = (int64_t)sb_read_u64(&in->fields, SB_F_ENDS_MS, INT64_MAX);
    a.series = a.from_ms != INT64_MAX;
    if (!sb_box_runs(b) && !a.series)
        return sb_failed(f, "NotRunning", 0, "metrics", "sandbox %s is not running", b->rec.id);
    struct sb_metrics *m = metrics_of(b);
    struct asker *kept = malloc(sizeof *kept);
    if (m != NULL && a.series && m->ring == NULL)
        m->ring = calloc(SAMPLES, sizeof *m->ring);
    if (m == NULL || kept == NULL || (a.series && m->ring == NULL)) {
        free(kept);
        return sb_failed(f, NULL, ENOMEM, "metrics", "memory");
    }
    if (a.series) {
        m->watched_ms = now + WATCH_MS;
        enlist(m);
    }
    if (!sb_box_runs(b) || (a.series && m->n > 0 && m->next_ms > now)) {
        free(kept);
        answer_series(m, c, a.req, a.from_ms, a.to_ms);
        return 0;
    }
    a.next = m->askers;
    *kept = a;
    m->askers = kept;
    begin(m);
    return 0;
}

void sb_metrics_stop(struct sb_box *b)
{
    struct sb_metrics *m = b->metrics;
    struct sb_failure f;
    if (m == NULL)
        return;
    m->due_ms = 0;
    m->wants_guest = m->wants_walk = false;
    sb_failed(&f, "NotRunning", 0, "metrics", "sandbox %s is not running any more", b->rec.id);
    answer_all(m, &f);
}

void sb_metrics_forget(struct sb_box *b)
{
    struct sb_metrics *m = b->metrics;
    if (m == NULL)
        return;
    sb_metrics_stop(b);
    delist(m);
    if (m->walk.fd >= 0) {
        pidfd_send_signal(m->walk.fd, SIGKILL, NULL, 0);
        sb_job_end(&m->walk, NULL);
    }
    if (m->sum != NULL)
        munmap(m->sum, sizeof *m->sum);
    free(m->ring);
    b->metrics = NULL;
    sb_loop_bury(m);
}
