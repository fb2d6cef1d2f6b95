/* SB_C_EXEC: from fields to a running command. */
#include "mem.h"
#include "pipes.h"
#include "proc.h"
#include "spawn.h"
#include "spool.h"
#include "str.h"
#include "term.h"

/* What the fields say. Strings point into the message, where string_of makes room for their zero: the
 * message can be searched by tag only before that. */
struct wish {
    size_t nargs, nenv, nstages, record;
    struct sb_field_view user, cwd, tag;
    uint64_t in, out, err, detached, clean, limit_ms, whole, keep_in, cols, rows;
    const char *wrong;
};

/* A zero-terminated string in place: moved over the last byte of its field's header. */
static char *string_of(const struct sb_field_view *f)
{
    char *at = (char *)f->data - 1;
    memmove(at, f->data, f->len);
    at[f->len] = '\0';
    return at;
}

static int has_zero(const struct sb_field_view *f)
{
    return str_find(f->data, f->len, '\0') != NULL;
}

static void wish_read(struct wish *w, const struct request *r)
{
    struct sb_reader at = r->fields;
    struct sb_field_view f;
    size_t args_here = 0;
    memset(w, 0, sizeof *w);
    while (sb_read_field(&at, &f) == 1) {
        switch (f.tag) {
        case SB_F_STAGE:
            if (w->nstages > 0 && args_here == 0)
                w->wrong = "a stage without a program";
            w->nstages++;
            args_here = 0;
            break;
        case SB_F_ARG:
            if (w->nstages == 0)
                w->nstages = 1;
            if (args_here == 0 && f.len == 0)
                w->wrong = "the program's name is empty";
            if (has_zero(&f))
                w->wrong = "an argument contains a zero byte";
            w->nargs++;
            args_here++;
            w->record += 8 + f.len;
            break;
        case SB_F_ENV:
            if (has_zero(&f))
                w->wrong = "an environment entry contains a zero byte";
            else if (f.len == 0 || f.data[0] == '=' || str_find(f.data, f.len, '=') == NULL)
                w->wrong = "an environment entry is not NAME=value";
            w->nenv++;
            break;
        case SB_F_USER:
            w->user = f;
            break;
        case SB_F_CWD:
            w->cwd = f;
            break;
        case SB_F_TAG:
            w->tag = f;
            break;
        case SB_F_IN_MODE:
            w->in = sb_field_u64(&f, 99);
            break;
        case SB_F_OUT_MODE:
            w->out = sb_field_u64(&f, 99);
            break;
        case SB_F_ERR_MODE:
            w->err = sb_field_u64(&f, 99);
            break;
        case SB_F_DETACHED:
            w->detached = sb_field_u64(&f, 0);
            break;
        case SB_F_CLEAN_ENV:
            w->clean = sb_field_u64(&f, 0);
            break;
        case SB_F_TIME_LIMIT_MS:
            w->limit_ms = sb_field_u64(&f, 0);
            break;
        case SB_F_WHOLE:
            w->whole = sb_field_u64(&f, 0);
            break;
        case SB_F_KEEP_IN:
            w->keep_in = sb_field_u64(&f, 0);
            break;
        case SB_F_COLS:
            w->cols = sb_field_u64(&f, 0);
            break;
        case SB_F_ROWS:
            w->rows = sb_field_u64(&f, 0);
            break;
        default:
            break;
        }
    }
    if (w->nargs == 0 || (w->nstages > 0 && args_here == 0))
        w->wrong = "there is no program to run";
    if (w->nstages > 64)
        w->wrong = "more than 64 stages";
    if (w->in > SB_IO_PIPE || (w->out > SB_IO_TAIL && w->out != SB_IO_SPOOL) ||
        w->err > SB_IO_SPOOL)
        w->wrong = "an unknown stdio mode";
    if (w->err == SB_IO_TERMINAL && (w->nstages > 1 || w->out == SB_IO_NULL))
        w->wrong = "a terminal is for one stage, whose output somebody takes";
    if (has_zero(&w->user) || has_zero(&w->cwd) || has_zero(&w->tag))
        w->wrong = "user, cwd or tag contain a zero byte";
    if (w->cwd.len >= PATH_MAX)
        w->wrong = "cwd is too long";
    if (w->tag.len > 1024 || w->user.len > 256)
        w->wrong = "tag or user are too long";
}

/* Everything of a command that is kept: the entry in the table, its stages, what lists show of it. */
static struct proc *proc_make(const struct wish *w, const struct request *r, const char *user)
{
    enum { RECORD_MAX = 48 * 1024 };
    struct sb_reader at = r->fields;
    struct sb_field_view f;
    struct sb_packer p;
    size_t room = w->record + 24 + w->tag.len + strlen(user) + w->cwd.len;
    struct proc *made;
    if (room > RECORD_MAX)
        room = RECORD_MAX;
    made = mem_alloc(sizeof *made + w->nstages * sizeof(int) + room);
    if (made == NULL)
        return NULL;
    made->stages = (int *)(made + 1);
    made->record = (unsigned char *)(made->stages + w->nstages);
    made->nstages = (unsigned)w->nstages;
    made->stdin_fd = -1;
    made->leaf = (struct leaf){-1, -1, -1, 0};
    made->out[0].watch.fd = made->out[1].watch.fd = -1;
    p = (struct sb_packer){made->record, room, 0, 0};
    sb_pack_str(&p, SB_F_USER, user);
    if (w->tag.len > 0)
        sb_pack_bytes(&p, SB_F_TAG, w->tag.data, w->tag.len);
    if (w->cwd.len > 0)
        sb_pack_bytes(&p, SB_F_CWD, w->cwd.data, w->cwd.len);
    while (sb_read_field(&at, &f) == 1)
        if (f.tag == SB_F_ARG)
            sb_pack_bytes(&p, SB_F_ARG, f.data, f.len); /* what does not fit is left out */
    made->record_len = p.len;
    return made;
}

/* The environment: names found by hash, a later entry replaces an earlier one. */
struct names {
    char **env;
    size_t n;
    uint32_t *slots; /* index + 1 */
    size_t mask;
};

/* No further than either's end. */
static int starts_alike(const char *a, const char *b, size_t len)
{
    size_t i = 0;
    while (i < len && a[i] == b[i])
        i++;
    return i == len;
}

static void names_put(struct names *t, char *entry)
{
    size_t len = (size_t)(str_find(entry, strlen(entry), '=') - entry) + 1, at = 5381;
    for (size_t i = 0; i < len; i++)
        at = at * 33 ^ (unsigned char)entry[i];
    for (at &= t->mask; t->slots[at] != 0; at = (at + 1) & t->mask) {
        char **have = &t->env[t->slots[at] - 1];
        if (starts_alike(*have, entry, len)) {
            *have = entry;
            return;
        }
    }
    t->env[t->n++] = entry;
    t->slots[at] = (uint32_t)t->n;
}

/* Vectors for execve out of one piece of memory: argv of all stages, each with its NULL, then env. */
static void *vectors_make(const struct wish *w, const struct request *r, char ***argv,
                          struct launch *l)
{
    size_t inherited = w->clean ? 0 : guest.nenv, slots = 16, ptrs;
    struct sb_reader at = r->fields;
    struct sb_field_view f;
    struct names names = {0};
    char **block, **next;
    while (slots < 2 * (w->nenv + inherited))
        slots *= 2;
    ptrs = w->nargs + w->nstages + 1 + w->nenv + inherited + ENV_SPARE;
    block = mem_alloc(ptrs * sizeof *block + slots * sizeof(uint32_t));
    if (block == NULL)
        return NULL;
    next = block;
    names.env = block + w->nargs + w->nstages + 1;
    names.slots = (uint32_t *)(block + ptrs);
    names.mask = slots - 1;
    for (size_t i = 0; i < inherited; i++)
        names_put(&names, guest.env[i]);
    while (sb_read_field(&at, &f) == 1) {
        if (f.tag == SB_F_STAGE && next != block)
            *next++ = NULL;
        else if (f.tag == SB_F_ARG)
            *next++ = string_of(&f);
        else if (f.tag == SB_F_ENV)
            names_put(&names, string_of(&f));
    }
    *next = NULL;
    names.env[names.n] = NULL;
    *argv = block;
    l->env = names.env;
    l->nenv = names.n;
    return block;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        sys_close(*fd);
    *fd = -1;
}

/* "what: why", in one line whatever `what` holds. */
static const char *sentence(const char *option, const char *what, const char *why)
{
    static char text[400];
    char *end = str_put(text, option);
    for (; *what != '\0' && end < text + sizeof text - 100; what++)
        *end++ = *what;
    *end = '\0';
    for (char *c = text; c < end; c++)
        *c = (unsigned char)*c < ' ' ? '?' : *c;
    str_put(str_put(end, ": "), why);
    return text;
}

/* The command that is being started: from its request until its child has left our memory (see spawn.h).
 * pid is 0 when there is none. */
static struct {
    struct conn *conn;
    uint32_t req;
    struct wish w;
    struct launch l;
    struct proc *p;
    void *vectors;
    char **argv;      /* of the stage that is being started */
    int in, out, err; /* our ends of its pipes */
    struct term *term;
    struct spool *spool[2];
    int pid;
} start;

static void start_error(const char *program)
{
    const struct launch *l = &start.l;
    int e = l->error;
    const char *step = spawn_step_name(l->step), *kind = "StartFailed", *path = program, *text;
    switch (l->step) {
    case STEP_USER:
    case STEP_IDS:
        kind = e == EOPNOTSUPP ? "Unsupported" : "InvalidArgument";
        text = sentence("", l->user,
                        e == EOPNOTSUPP ? "this sandbox has one user only"
                                        : "the sandbox has no such user or group");
        path = NULL;
        break;
    case STEP_CWD:
        kind = e == EINVAL ? "InvalidArgument" : kind_of_errno(e);
        path = l->cwd;
        text = sentence("cwd ", path,
                        e == EINVAL ? "only one's own home can be named by ~" : text_of_errno(e));
        break;
    default:
        text = sentence("", program, text_of_errno(e));
    }
    conn_error(start.conn, start.req, kind, e, step, text, path);
}

/* Frees what is not the command's. */
static void start_end(void)
{
    close_fd(&start.in);
    close_fd(&start.out);
    close_fd(&start.err);
    mem_free(start.vectors);
    mem_free(start.p);
    term_free(start.term);
    spool_free(start.spool[0]);
    spool_free(start.spool[1]);
    if (start.w.user.len > 0)
        mem_free((void *)start.l.user);
    start.pid = 0;
}

/* After an error answer. What was started of it is killed with all its children, and reaped like any
 * stranger. */
static void start_fail(void)
{
    if (start.p->nalive > 0)
        tree_signal(start.p, SIGKILL);
    leaf_park(&start.p->leaf);
    start_end();
}

/* 0, or -1 after an error answer. */
static int stage_end(void)
{
    struct proc *p = start.p;
    spawn_end(&start.l, start.pid);
    if (start.l.step != STEP_NONE) {
        start_error(start.argv[0]);
        return -1;
    }
    p->stages[p->nalive++] = start.pid;
    p->pid = start.pid;
    while (*start.argv++ != NULL)
        ;
    return 0;
}

/* All stages, from left to right; the last one is still on its way then. 0, or -1 after an error answer. */
static int stages_begin(int last_out)
{
    struct launch *l = &start.l;
    int feed = l->in, link[2] = {-1, -1};
    for (unsigned i = 0;; i++) {
        int last = i + 1 == start.p->nstages, pid = last ? 0 : pipe_make(link, -1);
        l->argv = start.argv;
        l->in = feed;
        l->out = last ? last_out : link[1];
        if (pid == 0)
            pid = spawn_begin(l);
        if (i > 0)
            close_fd(&feed);
        feed = link[0];
        link[0] = -1;
        close_fd(&link[1]);
        start.pid = pid;
        if (pid < 0)
            conn_error(start.conn, start.req,
                       pid == -EAGAIN ? "LimitExceeded" : kind_of_errno(-pid), -pid, "clone",
                       "no process can be started", NULL);
        else if (last)
            return 0;
        if (pid < 0 || stage_end() != 0) {
            if (!last)
                close_fd(&feed);
            return -1;
        }
    }
}

static void stream_begin(struct stream *s, int *fd, uint64_t mode)
{
    if (*fd >= 0)
        stream_open(s, *fd, mode == SB_IO_PIPE ? start.conn : NULL);
    *fd = -1;
}

/* By us, from its first byte on. */
static int is_ours(uint64_t mode)
{
    return mode == SB_IO_TAIL || mode == SB_IO_SPOOL;
}

/* The asker wants to hear of the end only. */
static int held(void)
{
    return start.w.whole && start.in < 0 && start.term == NULL && !is_ours(start.w.out) &&
           !is_ours(start.w.err);
}

int exec_starting(void)
{
    return start.pid > 0;
}

void exec_settle(void)
{
    static uint64_t serials;
    struct proc *p = start.p;
    if (start.pid <= 0)
        return;
    if (stage_end() != 0) {
        start_fail();
        return;
    }
    start.p = NULL;
    guest.started++;
    p->serial = ++serials;
    p->owner = start.conn;
    p->detached = start.w.detached != 0;
    if (start.w.limit_ms != 0)
        p->limit_at = sys_now_ms() + start.w.limit_ms + 1; /* now is rounded down: never early */
    p->term = start.term;
    start.term = NULL;
    for (int i = 0; i < 2; i++) {
        p->out[i].spool = start.spool[i];
        start.spool[i] = NULL;
    }
    proc_add(p);
    stream_begin(&p->out[0], &start.out, start.w.out);
    stream_begin(&p->out[1], &start.err, start.w.err);
    if (held())
        started_hold(p, start.req);
    else
        started_tell(p, start.req, start.in);
    if (p->detached || start.w.keep_in) {
        p->stdin_fd = start.in;
        start.in = -1;
    }
    start_end();
    if (p->term != NULL)
        term_start(p->term, p);
}

/* Why it cannot be started, or NULL. */
static const char *refusal(const char **kind)
{
    *kind = "NotRunning";
    if (guest.stopping)
        return "the sandbox is being stopped";
    *kind = "LimitExceeded";
    if (guest.limit_commands != 0 && procs_running >= guest.limit_commands)
        return "as many commands run as this sandbox may have";
    if (guest.limit_started != 0 && guest.started >= guest.limit_started)
        return "this sandbox has started as many commands as its limits.max_commands";
    return NULL;
}

static int pipes_make(int in[2], int out[2], int err[2])
{
    const struct wish *w = &start.w;
    int made = 0;
    if (w->in == SB_IO_PIPE)
        made = pipe_make(in, 1);
    if (made == 0 && (w->out == SB_IO_PIPE || is_ours(w->out)))
        made = pipe_make_output(out);
    if (made == 0 && (w->err == SB_IO_PIPE || is_ours(w->err)))
        made = pipe_make_output(err);
    start.in = in[1];
    start.out = out[0];
    start.err = err[0];
    start.l.terminal = -1;
    if (made == 0 &&
        w->err == SB_IO_TERMINAL) { /* the pipes' other ends are not the command's then */
        made = term_open(&start.term, &start.l.terminal, w->cols, w->rows, in[0], out[1]);
        in[0] = out[1] = -1;
    }
    return made;
}

static int spools_make(void)
{
    int made = start.w.out == SB_IO_SPOOL ? spool_new(&start.spool[0]) : 0;
    if (made == 0 && start.w.err == SB_IO_SPOOL)
        made = spool_new(&start.spool[1]);
    return made;
}

void exec_request(struct request *r)
{
    struct wish *w = &start.w;
    struct launch *l = &start.l;
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, made = -ENOMEM, begun = -1;
    const char *kind, *why;

    memset(&start, 0, sizeof start);
    start.conn = r->conn;
    start.req = r->head.req;
    start.in = start.out = start.err = -1;
    wish_read(w, r);
    if (w->wrong != NULL) {
        conn_error(r->conn, r->head.req, "InvalidArgument", 0, "request", w->wrong, NULL);
        return;
    }
    why = refusal(&kind);
    if (why != NULL) {
        conn_error(r->conn, r->head.req, kind, 0, NULL, why, NULL);
        return;
    }

    l->user = guest.user != NULL ? guest.user : "user";
    if (w->user.len > 0) { /* searched fields come first: string_of destroys the way there */
        char *copy = mem_alloc(w->user.len + 1);
        if (copy != NULL)
            memcpy(copy, w->user.data, w->user.len);
        l->user = copy;
    }
    if (l->user != NULL)
        start.p = proc_make(w, r, l->user);
    if (start.p != NULL)
        start.vectors = vectors_make(w, r, &start.argv, l);
    if (start.vectors != NULL)
        made = pipes_make(in, out, err);
    if (made != 0) {
        conn_error(r->conn, r->head.req, made == -ENOSPC ? "LimitExceeded" : kind_of_errno(-made),
                   -made, "pipe", "no memory, descriptors or terminal for the command", NULL);
    } else if ((made = spools_make()) != 0) {
        conn_error(r->conn, r->head.req, kind_of_errno(-made), -made, "spool",
                   "no file for the output that is to be kept", NULL);
    } else {
        l->clean = w->clean != 0;
        l->cwd = w->cwd.len > 0 ? string_of(&w->cwd) : w->cwd.data != NULL ? "" : guest.cwd;
        l->in = in[0];
        l->err = w->err == SB_IO_MERGE ? out[1] : err[1];
        start.p->leaf = leaf_take();
        l->leaf = &start.p->leaf;
        l->mark = start.p->mark = start.p->leaf.procs < 0 ? tree_mark() : 0;
        start.p->start_ns = sys_clock_ns(CLOCK_BOOTTIME);
        start.p->memory_before = memory_killed();
        begun = stages_begin(out[1]);
    }
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&err[1]);
    if (made != 0)
        start_end();
    else if (begun != 0)
        start_fail();
    else if (!held() || r->spill != NULL || !started_idle())
        exec_settle();
}
