/* Whatever a caller sends to pid 1: requests on a real socket, commands that are not really started. The
 * input is a row of datagrams, each behind two bytes of length; with the highest bit set, fields are made of
 * the bytes after the header. The guest's sources are part of this file. */
#include "fuzz/guest.h"

#include "guest/conn.c"
#include "guest/errors.c"
#include "guest/exec.c"
#include "guest/freeze.c"
#include "guest/loop.c"
#include "guest/pipes.c"
#include "guest/proc.c"
#include "guest/proc_request.c"
#include "guest/spool.c"
#include "guest/started.c"
#include "guest/tail.c"
#include "guest/term.c"

/* Every string must end where the kernel would look for its end. */
static size_t touched;
int spawn_begin(struct launch *l)
{
    static int pid = 2;
    for (char **s = l->argv; *s != NULL; s++)
        touched += strlen(*s);
    for (char **s = l->env; *s != NULL; s++)
        if (str_find(*s, strlen(*s), '=') == NULL)
            abort();
    for (size_t i = 0; i < ENV_SPARE; i++)
        l->env[l->nenv + i] = NULL;
    touched += strlen(l->user) + (l->cwd != NULL ? strlen(l->cwd) : 0);
    l->step = STEP_NONE;
    return touched % 11 == 0 ? -EAGAIN : pid++;
}

/* Now it is known whether it got as far as its program. */
void spawn_end(struct launch *l, int pid)
{
    if (pid <= 0)
        abort();
    l->step = touched % 3 == 0 ? STEP_EXECVE : touched % 7 == 0 ? STEP_CWD : STEP_NONE;
    if (l->step == STEP_CWD && l->cwd == NULL)
        l->step = STEP_NONE;
    l->error = ENOENT;
}

const char *spawn_step_name(enum spawn_step step)
{
    return step == STEP_CWD ? "cwd" : "execve";
}

uint64_t memory_killed(void)
{
    return touched / 5;
}

uint64_t tree_mark(void)
{
    return 0;
}

struct leaf leaf_take(void)
{
    return (struct leaf){-1, -1};
}

int leaf_give(struct leaf *leaf)
{
    (void)leaf;
    return 0;
}

void leaf_park(struct leaf *leaf)
{
    (void)leaf;
}

void leaf_close(const struct leaf *leaf)
{
    (void)leaf;
}

uint64_t tree_signal(struct proc *p, int sig)
{
    (void)p;
    return (uint64_t)sig;
}

int tree_alive(struct proc *p)
{
    return p->running;
}

uint64_t tree_signal_stages(struct proc *p, int sig, int group)
{
    return p->nstages + (unsigned)sig + (unsigned)group;
}

void tree_stop_all(void)
{
}

void tree_continue_all(void)
{
}

int spool_file(void)
{
    return (int)SYS2(__NR_memfd_create, "spool", 1);
}

void control_synced(void)
{
}

void control_catch_up(void)
{
}

void control_await_leaves(void)
{
}

void control_reply(uint32_t req)
{
    (void)req;
}

unsigned worker_running(void)
{
    return 0;
}

unsigned worker_refuse_waiting(void)
{
    return 0;
}

void control_stop_check(void)
{
}

uint64_t control_life_tick(void)
{
    return 0;
}

void worker_request(struct request *r)
{
    conn_reply(r->conn, r->head.req);
}

int worker_reaped(int pid, int status)
{
    (void)pid;
    return status < 0;
}

void worker_stopped(int pid)
{
    (void)pid;
}

void worker_forget(struct conn *c)
{
    (void)c;
}

/* Fields of a tag, and a number below 128 or a text of that length less. */
static void fields_of(struct sb_packer *p, const uint8_t *at, const uint8_t *end)
{
    while (end - at >= 2) {
        unsigned tag = at[0], kind = at[1];
        at += 2;
        if (kind < 128) {
            sb_pack_u64(p, (uint16_t)tag, kind);
        } else {
            size_t len = kind - 128u, left = (size_t)(end - at);
            len = len < left ? len : left;
            sb_pack_bytes(p, (uint16_t)tag, at, len);
            at += len;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char *env[] = {"A=1", "PATH=/bin", NULL};
    int pair[2];
    if (guest.epoll == 0) {
        guest.timer.fd = guest.control.fd = -1;
        if (loop_start() != 0)
            abort();
        guest.ready = 1;
        guest.env = env;
        guest.nenv = 2;
    }
    if (SYS4(__NR_socketpair, 1, 5 | O_CLOEXEC | O_NONBLOCK, 0, pair) != 0)
        abort();
    conn_add(pair[1]);
    while (size >= 2 && guest.conns != NULL) {
        size_t len = (size_t)(data[0] | (data[1] & 127) << 8);
        int made = data[1] & 128;
        unsigned char copy[4096];
        struct sb_packer p = {copy, 0, 0, 0};
        struct sb_msg head = {SB_PROTO_MAGIC, SB_C_PING, 0, 1, 0};
        data += 2;
        size -= 2;
        len = len < size ? len : size;
        len = len < sizeof copy ? len : sizeof copy;
        memcpy(copy, data, len);
        /* Most inputs shall get past the header. */
        if (len >= sizeof head && copy[0] != 0xff) {
            head.type = (uint16_t)(SB_C_PING + copy[4] % 13);
            head.req = 1 + copy[8];
            memcpy(copy, &head, sizeof head);
        }
        p.len = len;
        if (made && len >= sizeof head) {
            p = (struct sb_packer){copy, sizeof copy, sizeof head, 0};
            fields_of(&p, data + sizeof head, data + len);
        }
        msg_send(pair[0], &p, NULL, 0, MSG_DONTWAIT);
        exec_settle(); /* as the loop does */
        guest.conns->watch.ready(&guest.conns->watch, EPOLLIN);
        for (struct proc *q = procs; q != NULL; q = q->next)
            if (q->running && copy[len / 2] % 2 == 0) {
                struct sys_rusage none = {0};
                int pid = q->stages[q->nstages - 1];
                if (pid > 0)
                    reaped(pid, copy[0], &none);
                break;
            }
        conn_reap_dead();
        data += len;
        size -= len;
    }
    exec_settle();
    sys_close(pair[0]);
    if (guest.conns != NULL) {
        guest.conns->dead = any_dead = 1;
        conn_reap_dead();
    }
    while (procs != NULL) {
        struct waiter *w;
        if (procs->running)
            procs_running--;
        else if (!procs->hidden)
            procs_ended--;
        while ((w = procs->waiters) != NULL) {
            procs->waiters = w->next;
            mem_free(w);
        }
        proc_free(procs);
    }
    return 0;
}
