#include "worker.h"

#include "file.h"
#include "mem.h"
#include "proc.h"

/* One caller that reads nothing can only hold up itself. Watches are not among these: they stay. */
enum { MAX_RUNNING = 32, MAX_RUNNING_EACH = 8, MAX_STAYING = 32 };

/* A file operation: waiting with a copy of its request, or running as a process. */
struct job {
    struct job *next;
    struct conn *conn;      /* NULL: the asker is gone */
    int pid;                /* 0: waiting */
    int stays;              /* a watch: neither waits nor is waited for */
    struct request request; /* fds and spill are ours while it waits */
    size_t len;
    unsigned char message[];
};

static struct job *jobs; /* oldest first */
static unsigned running, staying;

/* In the child: only the connection and what came with the request stay open. */
static _Noreturn void worker_child(struct request *r)
{
    uint64_t none = 0;
    int conn = sys_fcntl(r->conn->watch.fd, F_DUPFD_CLOEXEC, 64);
    int with = r->nfds > 0 ? sys_fcntl(r->fds[0], F_DUPFD_CLOEXEC, 64) : -1;
    if (conn < 0 || (r->nfds > 0 && with < 0))
        sys_exit(1);
    SYS3(__NR_dup3, conn, FILE_CONN, O_CLOEXEC);
    if (with >= 0)
        SYS3(__NR_dup3, with, FILE_WITH, O_CLOEXEC);
    SYS3(__NR_close_range, with >= 0 ? FILE_WITH + 1 : FILE_WITH, ~0u, 0);
    SYS4(__NR_rt_sigprocmask, 2, &none, 0, sizeof none);
    SYS0(__NR_setsid); /* not in any command's tree, nor in ours */
    file_serve(r, with >= 0);
}

static void job_drop(struct job *j)
{
    struct job **at = &jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    if (j->pid == 0)
        request_end(&j->request);
    else if (!j->stays)
        running--;
    staying -= j->stays;
    if (j->conn != NULL && !j->stays) {
        j->conn->workers--;
        conn_update(j->conn);
    }
    mem_free(j);
}

static int may_start(const struct conn *c)
{
    unsigned each = 0;
    if (running >= MAX_RUNNING)
        return 0;
    for (const struct job *j = jobs; j != NULL; j = j->next)
        each += j->conn == c && j->pid != 0 && !j->stays;
    return each < MAX_RUNNING_EACH;
}

static int job_start(struct job *j, struct request *r)
{
    long pid = sys_call(__NR_clone, SIGCHLD, 0, 0, 0, 0, 0);
    if (pid == 0)
        worker_child(r);
    if (pid < 0) {
        conn_error(j->conn, r->head.req, "LimitExceeded", (int)-pid, "clone",
                   "no process can be started for the file operation", NULL);
        return -1;
    }
    j->pid = (int)pid;
    running += !j->stays;
    return 0;
}

static void jobs_start_waiting(void)
{
    for (struct job *j = jobs, *after; j != NULL; j = after) {
        struct request r;
        after = j->next;
        if (j->pid != 0 || !may_start(j->conn))
            continue;
        r = j->request;
        if (r.spill == NULL) {
            r.fields.at = j->message;
            r.fields.end = j->message + j->len;
        }
        if (job_start(j, &r) != 0) {
            job_drop(j);
            continue;
        }
        request_end(&j->request);
    }
}

void worker_request(struct request *r)
{
    size_t len = r->spill == NULL ? (size_t)(r->fields.end - r->fields.at) : 0;
    int stays = sb_read_u64(&r->fields, SB_F_FILE_OP, 0) == SB_FILE_WATCH;
    int wait = !stays && !may_start(r->conn);
    struct job *j = mem_alloc(sizeof *j + (wait ? len : 0));
    struct job **end = &jobs;
    if (j == NULL || guest.stopping) {
        mem_free(j);
        conn_error(r->conn, r->head.req, guest.stopping ? "NotRunning" : "LimitExceeded", 0, NULL,
                   "the file operation cannot be started now", NULL);
        return;
    }
    if (stays && staying == MAX_STAYING) {
        mem_free(j);
        conn_error(r->conn, r->head.req, "LimitExceeded", 0, NULL,
                   "the sandbox has 32 watches already", NULL);
        return;
    }
    j->conn = r->conn;
    j->stays = stays;
    staying += stays;
    j->conn->workers += !stays;
    j->request = *r;
    while (*end != NULL)
        end = &(*end)->next;
    *end = j;
    if (wait) {
        j->len = len;
        memcpy(j->message, r->fields.at, len);
        r->nfds = 0; /* the job's now */
        r->spill = NULL;
    } else {
        j->request.nfds = 0;
        j->request.spill = NULL;
        if (job_start(j, r) != 0)
            job_drop(j);
    }
    conn_update(r->conn);
}

void worker_stopped(int pid)
{
    for (const struct job *j = jobs; j != NULL; j = j->next)
        if (j->pid == pid)
            sys_kill(pid, SIGKILL);
}

int worker_reaped(int pid, int status)
{
    for (struct job *j = jobs; j != NULL; j = j->next) {
        if (j->pid != pid)
            continue;
        if (status != 0 && j->conn != NULL && guest.stopping)
            conn_error(j->conn, j->request.head.req, "NotRunning", 0, NULL,
                       "the sandbox is being stopped", NULL);
        else if (status != 0 && j->conn != NULL)
            conn_error(j->conn, j->request.head.req, "OutcomeUnknown", 0, NULL,
                       "the worker of the file operation was killed from inside the sandbox", NULL);
        job_drop(j);
        jobs_start_waiting();
        freeze_check();
        return 1;
    }
    return 0;
}

void worker_forget(struct conn *c)
{
    for (struct job *j = jobs, *after; j != NULL; j = after) {
        after = j->next;
        if (j->conn != c)
            continue;
        if (j->pid == 0)
            job_drop(j);
        else
            j->conn = NULL;
    }
}

void worker_drop_waiting(void)
{
    for (struct job *j = jobs, *after; j != NULL; j = after) {
        after = j->next;
        if (j->pid == 0)
            job_drop(j);
    }
}

unsigned worker_running(void)
{
    return running;
}

unsigned worker_refuse_waiting(void)
{
    for (const struct job *j = jobs; j != NULL; j = j->next)
        if (j->pid == 0)
            conn_error(j->conn, j->request.head.req, "NotRunning", 0, NULL,
                       "the sandbox is being paused", NULL);
    worker_drop_waiting();
    return running;
}
