/* All processes of one command: by its leaf group, else by a walk over /proc.
 *
 * Without groups a process that called setsid() and whose parents are gone has nothing left that says whose it is.
 * So each command starts with a number of its own as the hard limit of its real-time CPU time (RLIMIT_RTTIME, which
 * limits nothing in here, where nobody may become a real-time process). It is inherited, and can be lowered but
 * never raised: who gives up his mark does so knowingly, and is still caught by descent or session. */
#include "mem.h"
#include "proc.h"
#include "str.h"

enum { WALK_ROUNDS = 32, WALK_PATIENCE = 15000000 /* ns */, LEAVES_LOW = 1, PARKED_MAX = 16 };

/* Leaves whose last processes were killed but may not be gone yet. */
static struct leaf parked[PARKED_MAX];
static unsigned nparked;

static void parked_give(void)
{
    for (unsigned i = nparked; i-- > 0;)
        if (leaf_give(&parked[i]) == 0)
            parked[i] = parked[--nparked];
}

void leaf_park(struct leaf *leaf)
{
    if (leaf_give(leaf) == 0)
        return;
    if (nparked == PARKED_MAX)
        parked_give();
    if (nparked == PARKED_MAX)
        leaf_close(leaf); /* there will be others: the supervisor makes them */
    else
        parked[nparked++] = *leaf;
    leaf->procs = leaf->kill = leaf->dir = -1;
}

int leaf_fresh(const struct leaf *leaf)
{
    return leaf->dir >= 0 || !guest.leaf_dirs;
}

static unsigned leaves_fresh(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < guest.nleaves; i++)
        n += (unsigned)leaf_fresh(&guest.leaves[i]);
    return n;
}

/* The newest fresh one; else one that is used up, which a command can still move to. */
struct leaf leaf_take(void)
{
    struct leaf taken = {-1, -1, -1, 0};
    unsigned i;
    parked_give();
    if (guest.leaves_used && leaves_fresh() <= LEAVES_LOW)
        control_need_leaves();
    if (guest.nleaves == 0)
        return taken;
    for (i = guest.nleaves - 1; i > 0 && !leaf_fresh(&guest.leaves[i]); i--)
        ;
    if (!leaf_fresh(&guest.leaves[i]))
        i = guest.nleaves - 1;
    taken = guest.leaves[i];
    guest.leaves[i] = guest.leaves[--guest.nleaves];
    return taken;
}

/* What cgroup.procs says, into buf: its length. */
static long leaf_read(const struct leaf *leaf, char *buf, size_t cap, size_t at)
{
    long r;
    do
        r = SYS4(__NR_pread64, leaf->procs, buf, cap, at);
    while (r == -EINTR);
    return r;
}

int leaf_give(struct leaf *leaf)
{
    char c;
    if (leaf->procs < 0)
        return 0;
    if (leaf_read(leaf, &c, 1, 0) != 0)
        return -1;
    if (guest.nleaves < MAX_LEAVES)
        guest.leaves[guest.nleaves++] = *leaf;
    else
        leaf_close(leaf);
    leaf->procs = leaf->kill = leaf->dir = -1;
    return 0;
}

void leaf_close(const struct leaf *leaf)
{
    if (leaf->procs >= 0) {
        sys_close(leaf->procs);
        sys_close(leaf->kill);
    }
    if (leaf->dir >= 0)
        sys_close(leaf->dir);
}

/* Calls kill for each pid in the leaf; with sig 0 only counts. */
static uint64_t leaf_signal(const struct leaf *leaf, int sig)
{
    char buf[512];
    uint64_t count = 0;
    size_t at = 0;
    int pid = 0, digits = 0;
    long n;
    while ((n = leaf_read(leaf, buf, sizeof buf, at)) > 0) {
        at += (size_t)n;
        for (long i = 0; i < n; i++) {
            if (buf[i] >= '0' && buf[i] <= '9') {
                pid = pid * 10 + (buf[i] - '0');
                digits = 1;
                continue;
            }
            if (digits && pid > 1 && (sig == 0 || sys_kill(pid, sig) == 0))
                count++;
            pid = digits = 0;
        }
    }
    return count;
}

/* ---- without leaves ---- */

/* A process as /proc shows it. */
struct entry {
    uint64_t mark;
    int pid, parent, group, session;
    int in; /* belongs to the tree */
    char state;
};

struct table {
    struct entry *at;
    size_t n;
};

/* pid (name) state ppid pgrp session: the name may hold anything, also parentheses. */
static int stat_parse(const char *s, size_t len, struct entry *e)
{
    int *out[3] = {&e->parent, &e->group, &e->session};
    const char *end = s + len, *p = end;
    while (p > s && p[-1] != ')')
        p--;
    if (p == s || end - p < 4)
        return 0;
    e->state = p[1];
    p += 3; /* space, state, space */
    for (int i = 0; i < 3; i++) {
        const char *stop = str_find(p, (size_t)(end - p), ' ');
        uint64_t v;
        if (stop == NULL || !str_number(p, (size_t)(stop - p), 1 << 30, &v))
            return 0;
        *out[i] = (int)v;
        p = stop + 1;
    }
    return 1;
}

uint64_t tree_mark(void)
{
    static uint64_t marks;
    return ((uint64_t)1 << 62) + ++marks;
}

/* "Max realtime timeout  soft  hard  us": the hard one, 0 where it is none of our marks. */
static uint64_t mark_parse(const char *s, size_t len)
{
    static const char name[] = "Max realtime timeout";
    const char *end = s + len, *word = NULL;
    uint64_t mark = 0;
    while (s < end && ((size_t)(end - s) < sizeof name || memcmp(s, name, sizeof name - 1) != 0)) {
        const char *line = str_find(s, (size_t)(end - s), '\n');
        s = line != NULL ? line + 1 : end;
    }
    if (s == end)
        return 0;
    s += sizeof name - 1;
    for (int i = 0; i < 2; i++) {
        while (s < end && *s == ' ')
            s++;
        word = s;
        while (s < end && *s != ' ')
            s++;
    }
    return str_number(word, (size_t)(s - word), UINT64_MAX, &mark) ? mark : 0;
}

/* A small file under /proc: how much of it was read. */
static size_t text_read(int dir, const char *path, char *text, size_t cap)
{
    int fd = sys_openat(dir, path, O_RDONLY, 0);
    long n = -1;
    if (fd >= 0) {
        n = sys_read(fd, text, cap);
        sys_close(fd);
    }
    return n > 0 ? (size_t)n : 0;
}

static int table_read(struct table *t)
{
    static char dents[4096];
    char path[32], text[2048];
    int dir = sys_openat(AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY, 0);
    size_t room = 0;
    long got;
    t->at = NULL;
    t->n = 0;
    if (dir < 0)
        return dir;
    while ((got = SYS3(__NR_getdents64, dir, dents, sizeof dents)) > 0) {
        struct sys_dirent *d;
        for (long at = 0; at < got; at += d->reclen) {
            uint64_t pid;
            size_t len, n;
            d = (struct sys_dirent *)(dents + at);
            len = strlen(d->name);
            if (!str_number(d->name, len, 1 << 30, &pid) || pid <= 1)
                continue;
            memcpy(path, d->name, len);
            memcpy(path + len, "/stat", 6);
            n = text_read(dir, path, text, sizeof text);
            if (n == 0)
                continue;
            if (t->n == room) {
                struct entry *more =
                    mem_grow(t->at, t->n * sizeof *t->at, (room + 64) * 2 * sizeof *more);
                if (more == NULL)
                    break;
                t->at = more;
                room = (room + 64) * 2;
            }
            t->at[t->n].pid = (int)pid;
            t->at[t->n].in = 0;
            if (!stat_parse(text, n, &t->at[t->n]))
                continue;
            memcpy(path + len, "/limits", 8);
            n = text_read(dir, path, text, sizeof text);
            t->at[t->n++].mark = mark_parse(text, n);
        }
    }
    sys_close(dir);
    return 0;
}

static int is_stage(const struct proc *p, int pid)
{
    if (pid <= 1)
        return 0;
    for (unsigned i = 0; i < p->nstages; i++)
        if (p->stages[i] == pid || p->stages[i] == -pid)
            return 1;
    return 0;
}

/* Marks the tree in a fresh table: the stages, what descends from them, what is still in their sessions after its
 * parent has gone, and what bears the command's mark. */
static size_t table_mark(struct table *t, const struct proc *p)
{
    size_t found = 0, before;
    do {
        before = found;
        for (size_t i = 0; i < t->n; i++) {
            struct entry *e = &t->at[i];
            int in = is_stage(p, e->session) || is_stage(p, e->group);
            in = in || (p->mark != 0 && e->mark == p->mark);
            for (size_t j = 0; !in && e->parent > 1 && j < t->n; j++)
                in = t->at[j].in && t->at[j].pid == e->parent;
            if (in && !e->in) {
                e->in = 1;
                found++;
            }
        }
    } while (found != before);
    return found;
}

/* Nobody in it runs. */
static int table_stands(const struct table *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->at[i].in && str_find("TtZX", 4, t->at[i].state) == NULL)
            return 0;
    return 1;
}

/* Stops the tree, so that nobody slips away while it is being counted, then signals it. Whoever is in the middle
 * of a fork when he is told to stop still ends it, and the child could leave the tree by setsid() once he is dead.
 * So it is counted once more after all were seen to stand. */
static uint64_t walk_signal(const struct proc *p, int sig)
{
    struct sys_timespec moment = {0, 200000};
    struct table t = {NULL, 0};
    size_t last = 0;
    int stood = 0;
    uint64_t count = 0;
    for (int round = 0; round < WALK_ROUNDS; round++) {
        size_t found;
        mem_free(t.at);
        if (table_read(&t) != 0)
            break;
        found = table_mark(&t, p);
        if (found == last && stood)
            break;
        stood = table_stands(&t);
        if (found == last && !stood) {
            if (moment.nsec > WALK_PATIENCE)
                break;
            SYS2(__NR_nanosleep, &moment, NULL);
            moment.nsec *= 2;
        }
        last = found;
        for (size_t i = 0; i < t.n; i++)
            if (t.at[i].in)
                sys_kill(t.at[i].pid, SIGSTOP);
    }
    for (size_t i = 0; i < t.n; i++)
        if (t.at[i].in && sys_kill(t.at[i].pid, sig) == 0)
            count++;
    for (size_t i = 0; sig != SIGSTOP && i < t.n; i++)
        if (t.at[i].in)
            sys_kill(t.at[i].pid, SIGCONT);
    mem_free(t.at);
    return count;
}

static int walk_alive(const struct proc *p)
{
    struct table t;
    size_t found = 0;
    if (table_read(&t) == 0)
        found = table_mark(&t, p);
    mem_free(t.at);
    return found > 0;
}

/* ---- either way ---- */

uint64_t tree_signal(struct proc *p, int sig)
{
    uint64_t count;
    if (p->leaf.procs < 0)
        return p->leafed ? 0 : walk_signal(p, sig);
    if (sig == SIGKILL) {
        count = leaf_signal(&p->leaf, 0);
        if (sys_write(p->leaf.kill, "1", 1) == 1) {
            if (p->leaf.dir >= 0)
                sys_close(p->leaf.dir);
            p->leaf.dir = -1;
            return count;
        }
    }
    count = leaf_signal(&p->leaf, sig);
    if (sig != 0 && sig != SIGKILL && sig != SIGSTOP)
        leaf_signal(&p->leaf, SIGCONT); /* a stopped one would not notice */
    return count;
}

int tree_alive(struct proc *p)
{
    char c;
    if (p->leaf.procs >= 0)
        return leaf_read(&p->leaf, &c, 1, 0) > 0;
    return p->leafed ? 0 : walk_alive(p);
}

/* Those that somebody inside had stopped. Without memory for them they go on as well. */
static struct table stood;

void tree_stop_all(void)
{
    size_t n = 0;
    mem_free(stood.at);
    if (table_read(&stood) != 0)
        stood.n = 0;
    for (size_t i = 0; i < stood.n; i++)
        if (str_find("Tt", 2, stood.at[i].state) != NULL)
            stood.at[n++] = stood.at[i];
    stood.n = n;
    sys_kill(-1, SIGSTOP); /* no fork slips through */
}

void tree_continue_all(void)
{
    struct table t;
    if (stood.n == 0) {
        sys_kill(-1, SIGCONT);
    } else if (table_read(&t) == 0) {
        for (size_t i = 0; i < t.n; i++) {
            int before = 0;
            for (size_t j = 0; j < stood.n; j++)
                before |= stood.at[j].pid == t.at[i].pid;
            if (!before)
                sys_kill(t.at[i].pid, SIGCONT);
        }
        mem_free(t.at);
    }
    mem_free(stood.at);
    stood = (struct table){NULL, 0};
}

uint64_t tree_signal_stages(struct proc *p, int sig, int group)
{
    struct table t;
    uint64_t count = 0;
    if (!group) {
        for (unsigned i = 0; i < p->nstages; i++)
            if (p->stages[i] > 0 && sys_kill(p->stages[i], sig) == 0)
                count++;
        return count;
    }
    if (table_read(&t) == 0)
        for (size_t i = 0; i < t.n; i++)
            if (is_stage(p, t.at[i].group) && sys_kill(t.at[i].pid, sig) == 0)
                count++;
    mem_free(t.at);
    return count;
}
