/* The C half of the HTTP server: listeners and requests as userdata. What is checked here are types;
 * lua/sandbar/server/http.lua makes the documented tables of it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../server/ending.h"
#include "../server/server.h"
#include "lines.h"

const struct sb_core_api *sb_api;

/* ---- listeners ---- */

static uint64_t ns_field(lua_State *L, const char *name)
{
    lua_getfield(L, 1, name);
    lua_Number seconds = luaL_checknumber(L, -1);
    luaL_argcheck(L, seconds >= 0, 1, name);
    lua_pop(L, 1);
    return seconds < 1e9 ? (uint64_t)(seconds * 1e9) : SB_NEVER;
}

static unsigned number_field(lua_State *L, const char *name, unsigned least, unsigned most)
{
    lua_getfield(L, 1, name);
    lua_Number n = luaL_checknumber(L, -1);
    luaL_argcheck(L, n >= least && n <= most, 1, name);
    lua_pop(L, 1);
    return (unsigned)n;
}

/* What it gives is in the table. */
static const char *text_field(lua_State *L, const char *name)
{
    lua_getfield(L, 1, name);
    const char *text = lua_isnil(L, -1) ? NULL : luaL_checkstring(L, -1);
    lua_pop(L, 1);
    return text;
}

/* listen { address, port | path, tls_cert, tls_key, max_connections, header_limit, header_timeout, idle_timeout, body_timeout,
 * write_timeout, stream_timeout, tunnel_timeout } -> listener | nil, e */
static int server_listen(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    struct sb_error err = {SB_OK};
    struct sb_server_options options = {
        .address = text_field(L, "address"),
        .path = text_field(L, "path"),
        .tls_cert = text_field(L, "tls_cert"),
        .tls_key = text_field(L, "tls_key"),
        .max_connections = number_field(L, "max_connections", 1, 1000000),
        .header_limit = number_field(L, "header_limit", 1, SB_SERVER_HEAD),
        .header_timeout = ns_field(L, "header_timeout"),
        .idle_timeout = ns_field(L, "idle_timeout"),
        .body_timeout = ns_field(L, "body_timeout"),
        .write_timeout = ns_field(L, "write_timeout"),
        .stream_timeout = ns_field(L, "stream_timeout"),
        .tunnel_timeout = ns_field(L, "tunnel_timeout"),
    };
    luaL_argcheck(L, (options.path != NULL) != (options.address != NULL), 1, "address or path");
    luaL_argcheck(L, (options.tls_cert != NULL) == (options.tls_key != NULL), 1, "tls_key");
    if (options.path == NULL)
        options.port = (uint16_t)number_field(L, "port", 0, 65535);
    struct sb_listener *listener = sb_listener_new(&options, &err);
    if (listener == NULL) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    struct sb_object *object = (struct sb_object *)listener;
    sb_lua_push_object(L, &object);
    return 1;
}

static struct sb_listener *check_listener(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_listener_type);
}

static int listener_op(lua_State *L,
                       struct sb_op *(*make)(struct sb_listener *, struct sb_mailbox *))
{
    struct sb_listener *listener = check_listener(L);
    if (sb_lua_forked(L, listener))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = make(listener, mailbox);
    return sb_lua_op_made(L, op);
}

static int listener_accept(lua_State *L)
{
    return listener_op(L, sb_listener_accept);
}

static int listener_drain(lua_State *L)
{
    return listener_op(L, sb_listener_drain);
}

/* address() -> address, port; of a unix socket: path */
static int listener_address(lua_State *L)
{
    struct sb_listener *listener = check_listener(L);
    lua_pushstring(L, sb_listener_address(listener));
    if (sb_listener_port(listener) == 0)
        return 1;
    lua_pushinteger(L, sb_listener_port(listener));
    return 2;
}

static int listener_close(lua_State *L)
{
    sb_listener_close(check_listener(L));
    return 0;
}

static int listener_cut(lua_State *L)
{
    sb_listener_cut(check_listener(L));
    return 0;
}

static void listener_collected(void *listener)
{
    sb_listener_close(listener);
}

static const luaL_Reg listener_methods[] = {
    {"accept", listener_accept}, {"drain", listener_drain}, {"address", listener_address},
    {"close", listener_close},   {"cut", listener_cut},     {NULL, NULL},
};
static const char *const listener_plain[] = {"address", "close", "cut", NULL};
static const struct sb_lua_class listener_class = {
    &sb_listener_type, "sandbar.NativeListener", listener_methods, listener_plain, 4096,
    listener_collected};

/* ---- requests ---- */

static void set_span(lua_State *L, const char *name, const struct sb_slice *span)
{
    lua_pushlstring(L, span->data, span->len);
    lua_setfield(L, -2, name);
}

/* request(op, metatable of headers) -> { method, target, version, headers, client, secure, host, length }, object;
 * nothing when it has failed. Of the operation nothing is left. */
static int server_request(lua_State *L)
{
    luaL_checktype(L, 2, LUA_TTABLE);
    struct sb_result *r = sb_lua_op_result(L, 1);
    if (r == NULL)
        return 0;
    lua_settop(L, 2);
    const struct sb_exchange *exchange = (const struct sb_exchange *)(const void *)r->object;
    const struct sb_head *head = sb_exchange_head(exchange);
    lua_createtable(L, 0, 10);
    set_span(L, "method", &head->method);
    set_span(L, "target", &head->target);
    if (head->host.data != NULL)
        set_span(L, "host", &head->host);
    lua_pushstring(L, head->minor == 1 ? "1.1" : "1.0");
    lua_setfield(L, -2, "version");
    lua_pushstring(L, sb_exchange_client(exchange));
    lua_setfield(L, -2, "peer");
    lua_pushboolean(L, sb_exchange_is_secure(exchange));
    lua_setfield(L, -2, "secure");
    if (head->framing != SB_FRAMED_CHUNKED) {
        lua_pushnumber(L, (lua_Number)head->length);
        lua_setfield(L, -2, "length");
    }
    lua_createtable(L, (int)head->count, 0);
    for (size_t i = 0; i < head->count; i++) {
        lua_createtable(L, 2, 0);
        lua_pushlstring(L, head->fields[i].name.data, head->fields[i].name.len);
        lua_rawseti(L, -2, 1);
        lua_pushlstring(L, head->fields[i].value.data, head->fields[i].value.len);
        lua_rawseti(L, -2, 2);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_pushvalue(L, 2);
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "headers");
    sb_lua_push_object(L, &r->object);
    sb_lua_op_over(L, 1);
    return 2;
}

static struct sb_exchange *check_exchange(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_exchange_type);
}

/* request:read("some" | "all", n) -> op */
static int request_read(lua_State *L)
{
    static const char *const names[] = {"some", "all", NULL};
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    int all = luaL_checkoption(L, 2, NULL, names);
    lua_Number n = luaL_checknumber(L, 3);
    luaL_argcheck(L, n >= 0, 3, "negative or not a number");
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_read(exchange, mailbox, all ? SB_READ_ALL : SB_READ_SOME,
                           n < 9e15 ? (size_t)n : SIZE_MAX - 1);
    return sb_lua_op_made(L, op);
}

/* request:answer(status, lines, body | nil: it is streamed, and begins with `first`) -> op */
static int request_answer(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_reply reply = {.status = (int)luaL_checkinteger(L, 2), .body = {"", 0}};
    reply.stream = lua_isnoneornil(L, 4);
    lua_settop(L, 5);
    if (!reply.stream || !lua_isnil(L, 5))
        reply.body.data = sb_lua_check_bytes(L, reply.stream ? 5 : 4, &reply.body.len);
    reply.lines = sb_lua_check_lines(L, 3, &reply.count);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_answer(exchange, mailbox, &reply);
    return sb_lua_op_made(L, op);
}

static int request_write(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    size_t len;
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_write(exchange, mailbox, data, len);
    return sb_lua_op_made(L, op);
}

/* request:finish(last piece | nil) -> op */
static int request_finish(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    size_t len = 0;
    const char *data = lua_isnoneornil(L, 2) ? NULL : sb_lua_check_bytes(L, 2, &len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_finish(exchange, mailbox, data, len);
    return sb_lua_op_made(L, op);
}

static int request_gone(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_gone(exchange, mailbox);
    return sb_lua_op_made(L, op);
}

static struct sb_stream *check_stream(lua_State *L, int arg)
{
    return sb_lua_check_object(L, arg, sb_api->stream_type);
}

/* request:pump_out(stream, "raw" | "connect+json" | "connect+proto", "stdout" | "stderr" | "pty") -> op */
static int request_pump_out(lua_State *L)
{
    static const char *const forms[] = {"raw", "connect+json", "connect+proto", NULL};
    static const char *const kinds[] = {"stdout", "stderr", "pty", NULL};
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_stream *stream = check_stream(L, 2);
    enum sb_pump_form form = (enum sb_pump_form)luaL_checkoption(L, 3, NULL, forms);
    enum sb_pump_kind kind = (enum sb_pump_kind)luaL_checkoption(L, 4, "stdout", kinds);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_pump_out(exchange, mailbox, stream, form, kind);
    return sb_lua_op_made(L, op);
}

static int request_pump_in(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_stream *stream = check_stream(L, 2);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_pump_in(exchange, mailbox, stream);
    return sb_lua_op_made(L, op);
}

static struct sb_file *check_file(lua_State *L, int arg)
{
    return sb_lua_check_object(L, arg, sb_api->file_type);
}

static uint64_t check_size(lua_State *L, int arg)
{
    lua_Number n = luaL_checknumber(L, arg);
    luaL_argcheck(L, n >= 0 && n <= 9e15, arg, "size expected");
    return (uint64_t)n;
}

/* request:send_file(file, offset, count | nil: the rest) -> op */
static int request_send_file(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_file *file = check_file(L, 2);
    uint64_t offset = check_size(L, 3);
    uint64_t count = lua_isnoneornil(L, 4) ? SB_FILE_REST : check_size(L, 4);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_send_file(exchange, mailbox, file, offset, count);
    return sb_lua_op_made(L, op);
}

/* request:take_file(file, offset [, delimiter, early]) -> op */
static int request_take_file(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_file *file = check_file(L, 2);
    uint64_t offset = check_size(L, 3);
    int in_parts = !lua_isnoneornil(L, 4);
    struct sb_part part = {{NULL, 0}, {NULL, 0}};
    if (in_parts) {
        part.delimiter.data = luaL_checklstring(L, 4, &part.delimiter.len);
        part.early.data = luaL_checklstring(L, 5, &part.early.len);
        luaL_argcheck(L, part.delimiter.len > 0 && part.delimiter.len <= 256, 4, "1 to 256 bytes");
    }
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_take_file(exchange, mailbox, file, offset, in_parts ? &part : NULL);
    return sb_lua_op_made(L, op);
}

/* request:tunnel(stream, head) -> op */
static int request_tunnel(lua_State *L)
{
    struct sb_exchange *exchange = check_exchange(L);
    if (sb_lua_forked(L, exchange))
        return 1;
    struct sb_stream *stream = check_stream(L, 2);
    struct sb_slice head;
    head.data = sb_lua_check_bytes(L, 3, &head.len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_exchange_tunnel(exchange, mailbox, stream, &head);
    return sb_lua_op_made(L, op);
}

static int request_close(lua_State *L)
{
    sb_exchange_abort(check_exchange(L));
    return 0;
}

static const luaL_Reg request_methods[] = {
    {"read", request_read},           {"answer", request_answer},       {"write", request_write},
    {"finish", request_finish},       {"gone", request_gone},           {"close", request_close},
    {"pump_out", request_pump_out},   {"pump_in", request_pump_in},     {"tunnel", request_tunnel},
    {"send_file", request_send_file}, {"take_file", request_take_file}, {NULL, NULL},
};
static const char *const request_plain[] = {"close", NULL};
static const struct sb_lua_class request_class = {
    &sb_exchange_type, "sandbar.NativeRequest", request_methods, request_plain, 4096, NULL};

/* ending() -> op */
static int server_ending(lua_State *L)
{
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_server_ending(mailbox);
    return sb_lua_op_made(L, op);
}

/* ---- opening ---- */

/* Keeps this object mapped: lua_close unloads C libraries while the I/O thread still runs their
 * code. */
static void pin(void)
{
    Dl_info info;
    if (dladdr((void *)&sb_api, &info) != 0 && info.dli_fname != NULL)
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

__attribute__((visibility("default"))) int luaopen_sandbar_server(lua_State *L);
int luaopen_sandbar_server(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"listen", server_listen},
        {"request", server_request},
        {"ending", server_ending},
        {NULL, NULL},
    };
    lua_getfield(L, LUA_REGISTRYINDEX, SB_API_KEY);
    const struct sb_core_api *api = lua_touserdata(L, -1);
    if (api == NULL)
        return luaL_error(L, "sandbar.server needs sandbar.core in the same state");
    if (api->version != SB_API_VERSION || api->size != sizeof *api)
        return luaL_error(L, "sandbar.server and sandbar.core are of different builds");
    sb_api = api;
    pin();
    sb_lua_register(L, &listener_class);
    sb_lua_register(L, &request_class);
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    return 1;
}
