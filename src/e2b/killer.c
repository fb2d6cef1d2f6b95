/* Ending commands. What the I/O thread holds while one runs is the release itself, which does not go before its end. */
#include "e2b/killer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "e2b/envelope.h"
#include "e2b/event.h"
#include "e2b/wire.h"
#include "http/core.h"
#include "http/fetch.h"
#include "http/peek.h"

#define ANSWER_MOST (16u << 20)
#define PATIENCE 15000000000ull /* ns without an answer */
#define COMING 3000000000ull    /* ns after which one that is not to be seen never began */

struct lines {
    struct sb_slice *at;
    size_t count;
};

struct helper {
    unsigned char *body; /* NULL: there is none */
    size_t len, pid_at;
};

struct sb_killer {
    struct sb_object object;
    struct sb_port *port;
    char *id, *list, *start;
    struct lines listing, starting;
    struct helper all, left;
};

/* One command. */
struct sb_doomed {
    struct sb_killer *killer; /* a reference */
    uint32_t pid;             /* 0: not told yet */
    char *token;              /* "#" and it; NULL: it has none */
    /* [io] while it runs */
    struct sb_release *running;
    struct sb_fetch *fetch; /* until it has told */
    struct sb_timer patience;
    uint64_t since; /* of the first list */
};

/* ---- the killer ---- */

static void free_lines(struct lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        char *line = (char *)(uintptr_t)lines->at[i].data; /* ours */
        explicit_bzero(line, lines->at[i].len);
        free(line);
    }
    free(lines->at);
}

static void destroy(struct sb_object *object)
{
    struct sb_killer *killer = (struct sb_killer *)object;
    free_lines(&killer->listing);
    free_lines(&killer->starting);
    free(killer->id);
    free(killer->list);
    free(killer->start);
    free(killer->all.body);
    free(killer->left.body);
    sb_object_unref(killer->port);
    free(killer);
}

const struct sb_object_type sb_killer_type = {"killer", destroy};

static int copy_lines(struct lines *to, const struct sb_killer_lines *from)
{
    to->at = calloc(from->count + 1, sizeof *to->at);
    if (to->at == NULL)
        return -1;
    for (size_t i = 0; i < from->count; i++) {
        char *line = malloc(from->at[i].len + 1);
        if (line == NULL)
            return -1;
        memcpy(line, from->at[i].data, from->at[i].len);
        to->at[i] = (struct sb_slice){line, from->at[i].len};
        to->count++;
    }
    return 0;
}

static int copy_helper(struct helper *to, const struct sb_killer_helper *from)
{
    if (from->body.len == 0)
        return 0;
    to->body = malloc(from->body.len);
    if (to->body == NULL)
        return -1;
    memcpy(to->body, from->body.data, from->body.len);
    to->len = from->body.len;
    to->pid_at = from->pid_at;
    return 0;
}

struct sb_killer *sb_killer_new(struct sb_port *port, const struct sb_killer_options *options,
                                struct sb_error *err)
{
    struct sb_killer *killer = calloc(1, sizeof *killer);
    if (killer == NULL)
        goto no_memory;
    sb_object_init(&killer->object, &sb_killer_type);
    killer->port = sb_object_ref(port);
    killer->id = strdup(options->id);
    killer->list = strdup(options->list);
    killer->start = strdup(options->start);
    if (killer->id == NULL || killer->list == NULL || killer->start == NULL ||
        copy_helper(&killer->all, &options->all) < 0 ||
        copy_helper(&killer->left, &options->left) < 0 ||
        copy_lines(&killer->listing, &options->listing) < 0 ||
        copy_lines(&killer->starting, &options->starting) < 0) {
        sb_object_unref(killer);
        goto no_memory;
    }
    return killer;
no_memory:
    sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    return NULL;
}

/* ---- running ---- */

static void finish(struct sb_doomed *d, const struct sb_error *err)
{
    struct sb_release *release = d->running;
    d->running = NULL;
    d->fetch = NULL;
    sb_timer_clear(&d->patience);
    sb_release_finish(release, err);
}

/* The proxy in front of the sandbox says so itself, in JSON; nobody else does. */
static int is_gone(const struct sb_answered *answer)
{
    static const char gone[] = "sandbox was not found";
    return answer->status == 502 && sb_peek_has_code(502, answer->body, answer->body_len) &&
           memmem(answer->body, answer->body_len, gone, sizeof gone - 1) != NULL;
}

/* What an answer means to somebody who wants the command to be gone. 1: it is as asked for; 0: all is gone, and it
 * with that; -1 and an error. */
static int judge(const struct sb_answered *answer, struct sb_error *err)
{
    if (answer->error != NULL) {
        *err = *answer->error;
        if (err->kind == SB_ERR_OUTCOME_UNKNOWN || err->kind == SB_ERR_PROTOCOL)
            err->kind = SB_ERR_UNAVAILABLE; /* killing may be tried again */
        return -1;
    }
    if (answer->status / 100 == 2)
        return 1;
    if (is_gone(answer))
        return 0;
    enum sb_err kind = answer->status == 401   ? SB_ERR_UNAUTHENTICATED
                       : answer->status == 403 ? SB_ERR_PERMISSION_DENIED
                       : answer->status == 404 || answer->status == 429 || answer->status / 100 == 5
                           ? SB_ERR_UNAVAILABLE
                           : SB_ERR_PROTOCOL;
    sb_fail(err, kind, "the answer is %ld", answer->status);
    return -1;
}

static int ask(struct sb_doomed *d, const char *target, const struct lines *lines,
               struct sb_slice body, sb_told_fn *told, struct sb_error *err)
{
    struct sb_request request = {
        .method = {"POST", 4},
        .target = {target, strlen(target)},
        .headers = lines->at,
        .header_count = lines->count,
        .body = body,
        .has_body = 1,
        .max_body = ANSWER_MOST,
        .repeatable = 1,
    };
    sb_timer_set(&d->patience, sb_now() + PATIENCE);
    d->fetch = sb_fetch_told(d->killer->port, &request, told, d, err);
    return d->fetch != NULL ? 0 : -1;
}

static int look_at_end(void *arg, unsigned flags, const unsigned char *payload, size_t len)
{
    int *failed = arg;
    if ((flags & SB_ENVELOPE_END) != 0)
        *failed = (flags & SB_ENVELOPE_COMPRESSED) != 0 ? -1 : sb_end_failed(payload, len);
    return 0;
}

/* Whether the helper's stream came to its end and that says nothing of an error: whatever the daemon has against a
 * command, the status of the answer is 200. */
static int has_run(const struct sb_answered *answer)
{
    struct sb_envelopes envelopes = {0};
    int failed = -1;
    if (answer->body_len > 0)
        sb_envelopes_feed(&envelopes, answer->body, answer->body_len, look_at_end, &failed);
    sb_envelopes_free(&envelopes);
    return failed == 0;
}

static void on_killed(void *arg, const struct sb_answered *answer)
{
    struct sb_error err = {0};
    int rc = judge(answer, &err);
    if (rc > 0 && !has_run(answer))
        rc = sb_fail(&err, SB_ERR_UNAVAILABLE, "what was to kill it could not be started");
    finish(arg, rc < 0 ? &err : NULL);
}

static int start_helper(struct sb_doomed *d, const struct helper *helper, uint32_t pid,
                        struct sb_error *err)
{
    char digits[SB_KILLER_DIGITS + 1];
    unsigned char *body = malloc(helper->len);
    if (body == NULL)
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    snprintf(digits, sizeof digits, "%0*u", SB_KILLER_DIGITS, pid);
    memcpy(body, helper->body, helper->len);
    memcpy(body + helper->pid_at, digits, SB_KILLER_DIGITS);
    int rc = ask(d, d->killer->start, &d->killer->starting,
                 (struct sb_slice){(char *)body, helper->len}, on_killed, err);
    free(body);
    return rc;
}

/* The number of the process in a ListResponse whose record has these bytes; 0: there is none; -1: it is no such list. */
static int64_t pid_of(const char *token, struct sb_wire list)
{
    struct sb_wire_field at, in;
    int64_t pid = 0;
    int more;
    while ((more = sb_wire_next(&list, &at)) > 0) {
        if (at.number != 1)
            continue;
        if (at.type != SB_WIRE_BYTES)
            return -1;
        struct sb_wire info = at.bytes;
        if (memmem(info.at, (size_t)(info.end - info.at), token, strlen(token)) == NULL)
            continue;
        while ((more = sb_wire_next(&info, &in)) > 0)
            if (in.number == 2 && in.type == SB_WIRE_VARINT)
                pid = (uint32_t)in.value;
        if (more < 0)
            return -1;
    }
    return more < 0 ? -1 : pid;
}

static int64_t listed(const char *token, const struct sb_answered *answer)
{
    if (answer->body_len == 0)
        return 0;
    return pid_of(token, (struct sb_wire){answer->body, answer->body + answer->body_len});
}

/* Is it an answer of the daemon's? What lies on the way may succeed as well, and an empty body is a list, too. */
static int is_list(const struct sb_answered *answer)
{
    static const char name[] = "content-type:", type[] = "application/proto";
    const char *at = (const char *)answer->head, *end, *stop;
    for (stop = at + answer->head_len; at < stop; at = end + 1) {
        end = memchr(at, '\n', (size_t)(stop - at));
        if (end == NULL)
            end = stop;
        if ((size_t)(end - at) < sizeof name - 1 || strncasecmp(at, name, sizeof name - 1) != 0)
            continue;
        for (at += sizeof name - 1; at < end && *at == ' '; at++)
            ;
        return (size_t)(end - at) >= sizeof type - 1 && strncmp(at, type, sizeof type - 1) == 0;
    }
    return 0;
}

static void on_listed(void *arg, const struct sb_answered *answer)
{
    struct sb_doomed *d = arg;
    struct sb_error err = {0};
    d->fetch = NULL;
    int rc = judge(answer, &err);
    if (rc <= 0) {
        finish(d, rc < 0 ? &err : NULL);
        return;
    }
    int64_t pid = is_list(answer) ? listed(d->token, answer) : -1;
    if (pid < 0) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "the answer is no list of processes");
        finish(d, &err);
        return;
    }
    if (d->since == 0)
        d->since = sb_now();
    if (pid == 0 && d->pid == 0 && sb_now() - d->since < COMING) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "there is no sign of it yet");
        finish(d, &err);
        return;
    }
    rc = pid != 0 ? start_helper(d, &d->killer->all, (uint32_t)pid, &err)
         : d->pid != 0 && d->killer->left.body != NULL
             ? start_helper(d, &d->killer->left, d->pid, &err)
             : 1;
    if (rc != 0)
        finish(d, rc < 0 ? &err : NULL);
}

static void on_patience(struct sb_timer *timer)
{
    struct sb_doomed *d = SB_OF(timer, struct sb_doomed, patience);
    if (d->fetch != NULL)
        sb_fetch_give_up(d->fetch); /* which tells */
}

static void run(struct sb_release *release, void *data)
{
    struct sb_doomed *d = data;
    struct sb_error err = {0};
    d->running = release;
    d->patience.fire = on_patience;
    int rc = d->token == NULL ? start_helper(d, &d->killer->all, d->pid, &err)
                              : ask(d, d->killer->list, &d->killer->listing,
                                    (struct sb_slice){"", 0}, on_listed, &err);
    if (rc < 0)
        finish(d, &err);
}

static void let_go(void *data)
{
    struct sb_doomed *d = data;
    sb_object_unref(d->killer);
    free(d->token);
    free(d);
}

struct sb_release *sb_killer_release(struct sb_killer *killer, const char *token, uint32_t pid,
                                     struct sb_doomed **doomed)
{
    static const struct sb_release_type process = {"process", run, let_go};
    struct sb_doomed *d = calloc(1, sizeof *d);
    char name[256];
    if (d == NULL)
        return NULL;
    d->killer = sb_object_ref(killer);
    d->pid = pid;
    if (token != NULL && asprintf(&d->token, "#%s", token) < 0) {
        d->token = NULL;
        let_go(d);
        return NULL;
    }
    if (pid != 0)
        snprintf(name, sizeof name, "%s/%u", killer->id, pid);
    else
        snprintf(name, sizeof name, "%s/%s", killer->id, token);
    struct sb_release *release = sb_release_new(&process, d, name);
    if (release == NULL)
        let_go(d);
    else if (doomed != NULL)
        *doomed = d;
    return release;
}

void sb_doomed_tell(struct sb_doomed *doomed, uint32_t pid)
{
    doomed->pid = pid;
}
