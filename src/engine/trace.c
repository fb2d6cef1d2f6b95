#include "trace.h"

#include <string.h>

#include "../runtime/audit.h"

static const struct {
    uint16_t type;
    const char *name;
} names[] = {
    {SB_REPLY, "reply"},
    {SB_ERROR, "error"},
    {SB_PART, "part"},
    {SB_EXITED, "exited"},
    {SB_FROZEN, "frozen"},
    {SB_THAWED, "thawed"},
    {SB_S_HELLO, "hello"},
    {SB_S_CREATE, "create"},
    {SB_S_CONNECT, "connect"},
    {SB_S_INFO, "info"},
    {SB_S_LIST, "list"},
    {SB_S_DESTROY, "destroy"},
    {SB_S_LIFETIME, "lifetime"},
    {SB_S_PAUSE, "pause"},
    {SB_S_RESUME, "resume"},
    {SB_S_SOCKET, "socket"},
    {SB_S_EXPOSE, "expose"},
    {SB_S_SNAPSHOT, "snapshot"},
    {SB_S_SNAPSHOTS, "list_snapshots"},
    {SB_S_UNSNAPSHOT, "delete_snapshot"},
    {SB_S_GIVE_UP, "give_up_snapshot"},
    {SB_S_ADVANCE, "advance"},
    {SB_S_STATS, "stats"},
    {SB_S_NETWORK, "network"},
    {SB_C_PING, "ping"},
    {SB_C_EXEC, "exec"},
    {SB_C_SIGNAL, "signal"},
    {SB_C_KILL, "kill"},
    {SB_C_WAIT, "wait"},
    {SB_C_ATTACH, "attach"},
    {SB_C_RELEASE, "release"},
    {SB_C_DETACH, "detach"},
    {SB_C_LIST, "list"},
    {SB_C_FILE, "file"},
    {SB_C_RESIZE, "resize"},
    {SB_C_SPOOL, "spool"},
};

static void text(struct sb_audit_line *line, const char *key, const char *value)
{
    sb_audit_text(line, key, value, strlen(value));
}

static void error(struct sb_audit_line *line, const struct sb_error *err)
{
    if (err == NULL || err->kind == SB_OK)
        return;
    text(line, "kind", sb_err_name(err->kind));
    text(line, "error", err->message);
}

void sb_trace_message(const char *event, const char *peer, const struct sb_msg *head, size_t len,
                      unsigned nfds, const struct sb_error *err)
{
    struct sb_audit_line line = {0};
    const char *name = NULL;
    if (!sb_trace_on())
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names && name == NULL; i++)
        if (names[i].type == head->type)
            name = names[i].name;
    sb_audit_begin(&line, event);
    text(&line, "peer", peer);
    if (name != NULL)
        text(&line, "message", name);
    else
        sb_audit_number(&line, "message", head->type);
    sb_audit_number(&line, "request", head->req);
    sb_audit_number(&line, "bytes", (double)len);
    if (nfds > 0)
        sb_audit_number(&line, "descriptors", nfds);
    error(&line, err);
    sb_trace_end(&line);
}

void sb_trace_turn(const char *event, const char *what, const struct sb_error *err)
{
    struct sb_audit_line line = {0};
    if (!sb_trace_on())
        return;
    sb_audit_begin(&line, event);
    text(&line, "what", what);
    error(&line, err);
    sb_trace_end(&line);
}
