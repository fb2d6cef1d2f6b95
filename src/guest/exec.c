/* SB_C_EXEC: from fields to a running command. */
#include "mem.h"
#include "proc.h"
#include "spawn.h"
#include "str.h"

/* What the fields say. Strings point into the message, where string_of makes room for their zero: the
 * message can be searched by tag only before that. */
struct wish {
    size_t nargs, nenv, nstages, record;
    struct sb_field_view user, cwd, tag;
    uint64_t in, out, err, detached, clean, limit_ms, whole;
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
        default:
            break;
        }
    }
    if (w->nargs == 0 || (w->nstages > 0 && args_here == 0))
        w->wrong = "there is no program to run";
    if (w->nstages > 64)
        w->wrong = "more than 64 stages";
    if (w->in > SB_IO_PIPE || w->out > SB_IO_TAIL || w->err > SB_IO_MERGE)
        w->wrong = "an unknown stdio mode";
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

static void names_put(struct names *t, char *entry)
{
    size_t len = (size_t)(str_find(entry, strlen(entry), '=') - entry) + 1, at = 5381;
    for (size_t i = 0; i < len; i++)
        at = at * 33 ^ (unsigned char)entry[i];
    for (at &= t->mask; t->slots[at] != 0; at = (at + 1) & t->mask) {
        char **have = &t->env[t->slots[at] - 1];
        if (memcmp(*have, entry, len) == 0) {
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

/* fd[0] reads, fd[1] writes; our end does not block. */
static int pipe_make(int fd[2], int ours, int large)
{
    long r = SYS2(__NR_pipe2, fd, O_CLOEXEC);
    if (r < 0) {
        fd[0] = fd[1] = -1;
        return (int)r;
    }
    if (ours >= 0)
        sys_fcntl(fd[ours], F_SETFL, O_NONBLOCK | (ours == 1 ? O_WRONLY : O_RDONLY));
    if (large)
        sys_fcntl(fd[0], F_SETPIPE_SZ, SB_PIPE_BYTES);
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        sys_close(*fd);
    *fd = -1;
}

/* "what: why", in one line whatever `what` holds. */
static const char *sentence(const char *what, const char *why)
{
    static char text[400];
    size_t n = 0;
    while (what[n] != '\0' && n < sizeof text - 100) {
        text[n] = (unsigned char)what[n] < ' ' ? '?' : what[n];
        n++;
    }
    str_put(str_put(text + n, ": "), why);
    return text;
}

static void start_error(const struct request *r, const struct launch *l, const char *program)
{
    int e = l->error;
    const char *step = spawn_step_name(l->step), *kind = "StartFailed", *path = program, *text;
    switch (l->step) {
    case STEP_USER:
    case STEP_IDS:
        kind = e == EOPNOTSUPP ? "Unsupported" : "InvalidArgument";
        text = sentence(l->user, e == EOPNOTSUPP ? "this sandbox has one user only"
                                                 : "the sandbox has no such user or group");
        path = NULL;
        break;
    case STEP_CWD:
        kind = e == EINVAL ? "InvalidArgument" : kind_of_errno(e);
        path = l->cwd;
        text = sentence(path,
                        e == EINVAL ? "only one's own home can be named by ~" : text_of_errno(e));
        break;
    default:
        text = sentence(program, text_of_errno(e));
    }
    conn_error(r->conn, r->head.req, kind, e, step, text, path);
}

/* All stages, from left to right. 0, or -1 after an error answer: then what was started is killed with
 * all its children, and reaped like any stranger. */
static int stages_start(struct request *r, struct proc *p, struct launch *l, char **argv,
                        int last_out)
{
    int feed = l->in, link[2] = {-1, -1};
    for (unsigned i = 0; i < p->nstages; i++) {
        int last = i + 1 == p->nstages, pid = 0;
        int err = last ? 0 : pipe_make(link, -1, 0);
        l->argv = argv;
        l->in = feed;
        l->out = last ? last_out : link[1];
        if (err == 0)
            pid = spawn(l);
        if (i > 0)
            close_fd(&feed);
        feed = link[0];
        link[0] = -1;
        close_fd(&link[1]);
        if (err == 0 && pid > 0 && l->step == STEP_NONE) {
            p->stages[i] = pid;
            p->pid = pid;
            p->nalive++;
            while (*argv++ != NULL)
                ;
            continue;
        }
        if (!last)
            close_fd(&feed);
        if (err < 0 || pid <= 0) {
            err = err < 0 ? -err : -pid;
            conn_error(r->conn, r->head.req, err == EAGAIN ? "LimitExceeded" : kind_of_errno(err),
                       err, "clone", "no process can be started", NULL);
        } else {
            start_error(r, l, argv[0]);
        }
        if (i > 0)
            tree_signal(p, SIGKILL);
        return -1;
    }
    return 0;
}

void exec_request(struct request *r)
{
    static uint64_t serials;
    struct wish w;
    struct launch l = {.in = -1, .out = -1, .err = -1};
    struct proc *p = NULL;
    void *vectors = NULL;
    char **argv;
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, made = 0, started = 0;

    wish_read(&w, r);
    if (w.wrong != NULL) {
        conn_error(r->conn, r->head.req, "InvalidArgument", 0, "request", w.wrong, NULL);
        return;
    }
    if (guest.stopping) {
        conn_error(r->conn, r->head.req, "NotRunning", 0, NULL, "the sandbox is being stopped",
                   NULL);
        return;
    }
    if (guest.limit_commands != 0 && procs_running >= guest.limit_commands) {
        conn_error(r->conn, r->head.req, "LimitExceeded", 0, NULL,
                   "as many commands run as this sandbox may have", NULL);
        return;
    }

    l.user = guest.user != NULL ? guest.user : "user";
    if (w.user.len > 0) /* searched fields come first: string_of destroys the way there */
        l.user = NULL;
    if (l.user == NULL) {
        char *copy = mem_alloc(w.user.len + 1);
        if (copy != NULL)
            memcpy(copy, w.user.data, w.user.len);
        l.user = copy;
    }
    if (l.user != NULL)
        p = proc_make(&w, r, l.user);
    if (p != NULL)
        vectors = vectors_make(&w, r, &argv, &l);
    if (vectors != NULL) {
        made = 0;
        if (w.in == SB_IO_PIPE)
            made = pipe_make(in, 1, 0);
        if (made == 0 && (w.out == SB_IO_PIPE || w.out == SB_IO_TAIL))
            made = pipe_make(out, 0, 1);
        if (made == 0 && (w.err == SB_IO_PIPE || w.err == SB_IO_TAIL))
            made = pipe_make(err, 0, 1);
    } else {
        made = -ENOMEM;
    }
    if (made != 0) {
        conn_error(r->conn, r->head.req, kind_of_errno(-made), -made, "pipe",
                   "no memory or descriptors for the command", NULL);
        goto done;
    }

    l.clean = w.clean != 0;
    l.cwd = w.cwd.len > 0 ? string_of(&w.cwd) : w.cwd.data != NULL ? "" : guest.cwd;
    l.in = in[0];
    l.err = w.err == SB_IO_MERGE ? out[1] : err[1];
    p->leaf = leaf_take();
    l.leaf = &p->leaf;
    p->start_ns = sys_clock_ns(CLOCK_BOOTTIME);
    if (stages_start(r, p, &l, argv, out[1]) != 0) {
        leaf_park(&p->leaf);
        goto done;
    }

    started = 1;
    p->serial = ++serials;
    p->owner = r->conn;
    p->detached = w.detached != 0;
    if (w.limit_ms != 0)
        p->limit_at = sys_now_ms() + w.limit_ms + 1; /* now is rounded down: never early */
    proc_add(p);
    if (out[0] >= 0)
        stream_open(&p->out[0], out[0], w.out == SB_IO_PIPE ? r->conn : NULL);
    if (err[0] >= 0)
        stream_open(&p->out[1], err[0], w.err == SB_IO_PIPE ? r->conn : NULL);
    out[0] = err[0] = -1;
    if (w.whole && in[1] < 0 && w.out != SB_IO_TAIL && w.err != SB_IO_TAIL)
        started_hold(p, r->head.req);
    else
        started_tell(p, r->head.req, in[1]);
    if (p->detached) {
        p->stdin_fd = in[1];
        in[1] = -1;
    }

done:
    close_fd(&in[0]);
    close_fd(&in[1]);
    close_fd(&out[0]);
    close_fd(&out[1]);
    close_fd(&err[0]);
    close_fd(&err[1]);
    mem_free(vectors);
    if (w.user.len > 0)
        mem_free((void *)l.user);
    if (!started)
        mem_free(p);
}
