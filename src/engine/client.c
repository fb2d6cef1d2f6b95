/* Connects to the supervisor, greets it, starts one if there is none, and brings requests across
 * its death. */
#include "client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "start.h"
#include "trace.h"

#define ROUNDS 5 /* connect, find nobody, start one: how often before giving up */
#define TRIES \
    4 /* of one request, each time with another supervisor, which ended before it answered */
#define MS 1000000ull
#define GREET_LIMIT (15000 * MS)
#define IN_PARTS "an answer in parts that has none"
#define LATER (20 * MS)
#define LATER_MAX 500 /* times LATER: a supervisor that takes no connections for ten seconds */
#define IDLE (1000 * MS)
#define BACKOFF_FIRST (1000 * MS)
#define BACKOFF_MAX (60000 * MS)

enum state {
    IDLE_STATE = 0, /* no connection; nothing is going on, or (timer) a new attempt is due */
    LATER_STATE,    /* the supervisor's queue was full: the timer tries again */
    STARTING,
    GREETING,
    HANDING, /* an older supervisor was asked to leave, so that ours takes its place */
    READY,
    PROBING, /* as READY, but what waits is sent once the supervisor has been heard again */
};

/* [io] Never freed: one small struct a root and process generation. */
struct sb_client {
    struct sb_client *next;
    char *root;
    uint64_t linger_ms; /* the newest engine's */
    enum state state;
    struct sb_conn conn;
    struct sb_start start;
    struct sb_timer timer; /* by state: next attempt, full queue, greeting, idle */
    int rootfd, v1fd;      /* -1 unless connecting */
    int rounds, laters;
    int asked; /* in this attempt: to leave. An older library may be faster to start the next one */
    struct sb_error
        refused; /* the greeting was, by one so old that it does not know ours; kind SB_OK: it was not */
    int unheard; /* what is in flight was sent behind a greeting that was not accepted: it was not done */
    uint64_t backoff;
    struct sb_call hello;
    uint64_t hello_linger;
    struct sb_client_call *waiting, **waiting_last;
    size_t calls; /* waiting or in flight */
    size_t needs;
};

static struct {
    uint64_t generation;
    struct sb_client *first;
} clients; /* [io] part of the one runtime */

static void attempt(struct sb_client *client);
static void idle_or_not(struct sb_client *client);

/* ---- engines ---- */

static void engine_destroy(struct sb_object *object)
{
    free(object);
}
const struct sb_object_type sb_engine_type = {"engine", engine_destroy};

struct sb_engine *sb_engine_new(const char *root, uint64_t linger_ms)
{
    /* The root stays the same when the host changes its directory. */
    char *here = root[0] != '/' ? getcwd(NULL, 0) : NULL;
    size_t len = (here ? strlen(here) + 1 : 0) + strlen(root);
    struct sb_engine *engine = malloc(sizeof *engine + len + 1);
    if (engine == NULL) {
        free(here);
        return NULL;
    }
    sb_object_init(&engine->object, &sb_engine_type);
    engine->linger_ms = linger_ms;
    snprintf(engine->root, len + 1, "%s%s%s", here ? here : "", here ? "/" : "", root);
    free(here);
    while (len > 1 && engine->root[len - 1] == '/')
        engine->root[--len] = '\0';
    return engine;
}

/* ---- calls ---- */

unsigned char *sb_client_message(uint16_t type, const void *fields, size_t len, size_t *msg_len)
{
    unsigned char *msg = malloc(sizeof(struct sb_msg) + len);
    struct sb_packer p;
    if (msg == NULL)
        return NULL;
    sb_pack_begin(&p, msg, sizeof(struct sb_msg) + len, type, 0, 0);
    if (len > 0)
        memcpy(msg + p.len, fields, len);
    *msg_len = p.len + len;
    return msg;
}

/* The call's last answer. */
static void end_call(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct sb_client *client = call->client;
    explicit_bzero(call->msg, call->len);
    free(call->msg);
    call->msg = NULL;
    client->calls--;
    call->answer(call, answer);
    idle_or_not(client);
}

static void fail_call(struct sb_client_call *call, const struct sb_error *err)
{
    struct sb_answer answer = {.type = SB_ERROR, .error = err, .lost = 1};
    end_call(call, &answer);
}

static void queue_call(struct sb_client *client, struct sb_client_call *call)
{
    call->next = NULL;
    *client->waiting_last = call;
    client->waiting_last = &call->next;
}

static void fail_waiting(struct sb_client *client, const struct sb_error *err)
{
    struct sb_client_call *call = client->waiting;
    client->waiting = NULL; /* an answer may ask again */
    client->waiting_last = &client->waiting;
    while (call != NULL) {
        struct sb_client_call *next = call->next;
        fail_call(call, err);
        call = next;
    }
}

/* NULL, or why no supervisor of ours has sent this part. */
static const char *part_is_wrong(struct sb_client_call *call, const struct sb_answer *answer)
{
    size_t len = answer->raw_len + sizeof(uint32_t); /* as it is stored */
    if (answer->nfds > 0 || answer->starved)
        return "a part with descriptors";
    if (call->parts == 0)
        return "an answer with more parts than were asked for";
    if (call->parts_room < len)
        return "an answer without end";
    call->parts--;
    call->parts_room -= len;
    return NULL;
}

static void answered(struct sb_call *inner, const struct sb_answer *answer)
{
    struct sb_client_call *call = (struct sb_client_call *)inner;
    if (answer->type == SB_PART) {
        const char *wrong = part_is_wrong(call, answer);
        call->tries = TRIES; /* what has been delivered cannot be taken back */
        if (wrong != NULL)
            sb_conn_break(&call->client->conn, wrong); /* which answers the call */
        else
            call->answer(call, answer);
        return;
    }
    if (call->client->unheard)
        call->tries--;
    if (answer->lost && call->again && call->tries < TRIES) {
        queue_call(call->client, call); /* the next attempt is the loss's business */
        return;
    }
    if (answer->lost) {
        struct sb_error err = {SB_OK};
        if (call->again && answer->error->kind == SB_ERR_PROTOCOL)
            err = *answer->error;
        else
            sb_fail(&err, call->again ? SB_ERR_UNAVAILABLE : SB_ERR_OUTCOME_UNKNOWN,
                    "the supervisor ended before it answered");
        fail_call(call, &err);
        return;
    }
    end_call(call, answer);
}

static void send_call(struct sb_client *client, struct sb_client_call *call)
{
    struct sb_error err = {SB_OK};
    call->tries++; /* before: it may be answered, and gone, when this returns */
    if (sb_conn_call(&client->conn, &call->call, call->msg, call->len, NULL, 0, &err) < 0) {
        call->tries--;
        fail_call(call, &err);
    }
}

/* Behind the greeting, which costs a change of processes less than waiting for its answer. Whoever does not
 * accept the greeting does nothing that comes behind it. In their order, and only what may come twice. */
static void send_ahead(struct sb_client *client)
{
    while (client->state == GREETING && client->waiting != NULL && client->waiting->again) {
        struct sb_client_call *call = client->waiting;
        client->waiting = call->next;
        if (call->next == NULL)
            client->waiting_last = &client->waiting;
        send_call(client, call);
    }
}

static void greet(struct sb_client *client);

/* The connection to a supervisor that was killed does not end before processes it had begun to start have closed their
 * copies. What may not come twice would be lost there; so it waits for a sign of life. */
static void probe(struct sb_client *client)
{
    sb_timer_clear(&client->timer);
    client->state = PROBING;
    greet(client);
}

void sb_client_call(struct sb_client *client, struct sb_client_call *call)
{
    call->client = client;
    call->call.answer = answered;
    call->tries = 0;
    client->calls++;
    if (client->state == READY && call->again) {
        sb_timer_clear(&client->timer);
        if (client->hello_linger != client->linger_ms)
            greet(client);
        send_call(client, call);
        return;
    }
    queue_call(client, call);
    if (client->state == IDLE_STATE)
        attempt(client);
    else if (client->state == READY)
        probe(client);
    else
        send_ahead(client);
}

/* ---- needs ---- */

void sb_client_need(struct sb_client *client)
{
    client->needs++;
    if (client->state == READY)
        sb_timer_clear(&client->timer);
}

void sb_client_unneed(struct sb_client *client)
{
    client->needs--;
    idle_or_not(client);
}

static void idle_or_not(struct sb_client *client)
{
    uint64_t wait = client->linger_ms * MS < IDLE ? client->linger_ms * MS : IDLE;
    if (client->state == READY && client->needs == 0 && client->calls == 0)
        sb_timer_set(&client->timer, sb_now() + wait);
}

/* ---- the connection ---- */

static void close_dirs(struct sb_client *client)
{
    if (client->rootfd >= 0)
        close(client->rootfd);
    if (client->v1fd >= 0)
        close(client->v1fd);
    client->rootfd = client->v1fd = -1;
}

/* No supervisor can be had now: everything waiting fails; what needs one is served by a later
 * attempt. */
static void give_up(struct sb_client *client, const struct sb_error *err)
{
    struct sb_error copy = *err;
    sb_trace_turn("give up", "supervisor", err);
    close_dirs(client);
    sb_timer_clear(&client->timer);
    client->state = IDLE_STATE;
    if (client->needs > 0) {
        client->backoff = client->backoff ? client->backoff * 2 : BACKOFF_FIRST;
        if (client->backoff > BACKOFF_MAX)
            client->backoff = BACKOFF_MAX;
        sb_timer_set(&client->timer, sb_now() + client->backoff);
    }
    fail_waiting(client, &copy);
}

static void try_connect(struct sb_client *client);

static void start_one(struct sb_client *client);

static void started(struct sb_start *start, const struct sb_error *err)
{
    struct sb_client *client =
        (struct sb_client *)((char *)start - offsetof(struct sb_client, start));
    struct sb_error left = {SB_OK};
    sb_fail(&left, SB_ERR_UNAVAILABLE, "the supervisor has left");
    if (client->conn.state == SB_CONN_OPEN) /* to the one before, which ours has replaced */
        sb_conn_close(&client->conn, &left);
    if (err != NULL && err->kind == SB_ERR_START_FAILED && start->len == 0)
        start_one(client); /* it was killed before it could say a word */
    else if (err != NULL)
        give_up(client, err);
    else
        try_connect(client);
}

static void start_one(struct sb_client *client)
{
    struct sb_error err = {SB_OK};
    if (++client->rounds > ROUNDS) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "the supervisor ended %d times before it answered",
                ROUNDS);
        give_up(client, &err);
        return;
    }
    client->state = STARTING;
    sb_trace_turn("start", "supervisor", NULL);
    if (sb_start_run(&client->start, client->rootfd, client->linger_ms, started, &err) < 0)
        give_up(client, &err);
}

static void event(struct sb_conn *conn, const struct sb_answer *answer)
{
    (void)conn; /* a later supervisor may have something to tell; this version asks for nothing */
    (void)answer;
}

static void lost(struct sb_conn *conn, const struct sb_error *err)
{
    struct sb_client *client =
        (struct sb_client *)((char *)conn - offsetof(struct sb_client, conn));
    enum state was = client->state;
    sb_timer_clear(&client->timer);
    client->state =
        STARTING; /* so that nobody who asks again starts an attempt from inside fail_all */
    client->unheard = was == GREETING && err->kind != SB_ERR_PROTOCOL;
    sb_conn_fail_all(conn, err);
    client->unheard = 0;
    if (was == STARTING) /* the one whose place ours takes */
        return;
    client->state = IDLE_STATE;
    client->refused.kind = SB_OK;
    if ((was == GREETING || was == HANDING) && err->kind == SB_ERR_PROTOCOL) {
        give_up(client, err);
    } else if (was == GREETING || was == HANDING) {
        start_one(client); /* it left as we came, or because we did */
    } else if (client->waiting != NULL || client->needs > 0) {
        attempt(client);
    }
}
static const struct sb_conn_type conn_type = {"supervisor", event, lost};

static void ready(struct sb_client *client)
{
    struct sb_client_call *list;
    close_dirs(client);
    sb_timer_clear(&client->timer);
    client->state = READY;
    client->backoff = 0;
    list = client->waiting;
    client->waiting = NULL;
    client->waiting_last = &client->waiting;
    while (list != NULL) {
        struct sb_client_call *next = list->next;
        if (client->state == READY)
            send_call(client, list);
        else
            queue_call(client, list);
        list = next;
    }
    idle_or_not(client);
}

/* The older supervisor does not leave: it serves us as it can. */
static void stays(struct sb_client *client)
{
    struct sb_error err = client->refused;
    if (err.kind == SB_OK) {
        ready(client);
        return;
    }
    sb_conn_close(&client->conn, &err);
    give_up(client, &err);
}

static void handed(struct sb_call *call, const struct sb_answer *answer)
{
    struct sb_client *client =
        (struct sb_client *)((char *)call - offsetof(struct sb_client, hello));
    if (answer->lost)
        return; /* `lost` decides */
    if (answer->type == SB_PART) {
        sb_conn_break(&client->conn, IN_PARTS);
        return;
    }
    /* It leaves once it sees ours at its door: one that others start when they lose it comes too late. */
    if (answer->error != NULL) {
        stays(client);
        return;
    }
    client->refused.kind = SB_OK;
    start_one(client);
}

static void hand_over(struct sb_client *client)
{
    unsigned char buf[64];
    struct sb_packer p;
    sb_trace_turn("hand over", "supervisor", NULL);
    sb_pack_begin(&p, buf, sizeof buf, SB_S_HANDOVER, 0, 0);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    sb_pack_u64(&p, SB_F_RELEASE, SB_RELEASE);
    client->asked = 1;
    client->state = HANDING;
    client->hello.answer = handed;
    if (sb_conn_call(&client->conn, &client->hello, buf, p.len, NULL, 0, NULL) < 0)
        sb_conn_break(&client->conn, "it takes no request to leave");
}

static void greeted(struct sb_call *call, const struct sb_answer *answer)
{
    struct sb_client *client =
        (struct sb_client *)((char *)call - offsetof(struct sb_client, hello));
    struct sb_error err = {SB_OK};
    if (answer->lost)
        return; /* `lost` decides */
    if (answer->type == SB_PART) {
        sb_conn_break(&client->conn, IN_PARTS);
        return;
    }
    if (client->state != GREETING && client->state != PROBING)
        return; /* a later greeting, for a new linger time */
    if (answer->error != NULL && client->state == PROBING) {
        sb_conn_break(&client->conn, "it greets no more");
        return;
    }
    if (answer->error != NULL) {
        err = *answer->error;
        client->unheard = 1;
        sb_conn_close(&client->conn, &err);
        client->unheard = 0;
        if (err.kind != SB_ERR_UNSUPPORTED || client->asked) {
            give_up(client, &err);
            return;
        }
        client->refused = err; /* on a new connection it is asked to leave */
        client->state = LATER_STATE;
        sb_timer_set(&client->timer, sb_now());
        return;
    }
    if (sb_read_u64(&answer->fields, SB_F_RELEASE, 0) < SB_RELEASE && !client->asked &&
        client->state == GREETING) {
        hand_over(client);
        return;
    }
    if (sb_read_u64(&answer->fields, SB_F_VERSION, 0) + 1 < SB_PROTO_VERSION) {
        sb_fail(&err, SB_ERR_UNSUPPORTED,
                "the running supervisor is of a version too old for this library");
        sb_conn_close(&client->conn, &err);
        give_up(client, &err);
        return;
    }
    ready(client);
}

static void greet(struct sb_client *client)
{
    unsigned char buf[128];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, SB_S_HELLO, 0, 0);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    sb_pack_u64(&p, SB_F_LINGER_MS, client->linger_ms);
    client->hello_linger = client->linger_ms;
    if (client->state == READY) { /* nothing waits for this one */
        sb_conn_call(&client->conn, NULL, buf, p.len, NULL, 0, NULL);
        return;
    }
    client->hello.answer = greeted;
    if (sb_conn_call(&client->conn, &client->hello, buf, p.len, NULL, 0, NULL) < 0)
        sb_conn_break(&client->conn, "it takes no greeting");
}

static void try_connect(struct sb_client *client)
{
    struct sb_error err = {SB_OK};
    int fd, rc = sb_root_connect(client->v1fd, &fd, &err);
    if (rc == SB_CONNECT_START) {
        start_one(client);
    } else if (rc == SB_CONNECT_LATER && client->laters++ < LATER_MAX) {
        client->state = LATER_STATE;
        sb_timer_set(&client->timer, sb_now() + LATER);
    } else if (rc == SB_CONNECT_LATER) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "the supervisor takes no connections");
        give_up(client, &err);
    } else if (rc < 0 || sb_conn_open(&client->conn, &conn_type, NULL, fd, 0, &err) < 0) {
        give_up(client, &err);
    } else {
        client->state = GREETING;
        sb_timer_set(&client->timer, sb_now() + GREET_LIMIT);
        if (client->refused.kind != SB_OK) {
            hand_over(client);
            return;
        }
        greet(client);
        send_ahead(client);
    }
}

static void attempt(struct sb_client *client)
{
    struct sb_error err = {SB_OK};
    client->rounds = client->laters = client->asked = 0;
    client->refused.kind = SB_OK;
    sb_timer_clear(&client->timer);
    if (sb_root_open(client->root, &client->rootfd, &client->v1fd, &err) < 0)
        give_up(client, &err);
    else
        try_connect(client);
}

static void timer_fired(struct sb_timer *timer)
{
    struct sb_client *client =
        (struct sb_client *)((char *)timer - offsetof(struct sb_client, timer));
    struct sb_error err = {SB_OK};
    switch (client->state) {
    case IDLE_STATE:
        attempt(client);
        break;
    case LATER_STATE:
        try_connect(client);
        break;
    case GREETING:
        sb_fail(&err, SB_ERR_UNAVAILABLE, "the supervisor does not answer");
        sb_conn_close(&client->conn, &err);
        give_up(client, &err);
        break;
    case HANDING:
        stays(client);
        break;
    case READY: /* idle */
        sb_fail(&err, SB_ERR_CLOSED, "closed");
        client->state = IDLE_STATE;
        sb_conn_close(&client->conn, &err);
        break;
    case STARTING:
    case PROBING:
        break;
    }
}

struct sb_client *sb_client_get(const struct sb_engine *engine)
{
    struct sb_client *client;
    if (clients.generation != sb_generation()) { /* those of a parent process are not ours */
        clients.generation = sb_generation();
        clients.first = NULL;
    }
    for (client = clients.first; client != NULL; client = client->next)
        if (strcmp(client->root, engine->root) == 0)
            break;
    if (client == NULL) {
        client = calloc(1, sizeof *client);
        if (client == NULL || (client->root = strdup(engine->root)) == NULL) {
            free(client);
            return NULL;
        }
        client->rootfd = client->v1fd = -1;
        client->waiting_last = &client->waiting;
        client->timer.fire = timer_fired;
        client->next = clients.first;
        clients.first = client;
    }
    client->linger_ms = engine->linger_ms;
    return client;
}
