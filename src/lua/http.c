/* sandbar.http's C half: ports, transfers, bodies, uploads, upstream sockets as userdata. What
 * is checked here are types; lua/sandbar/http.lua makes the documented tables of it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../http/http.h"
#include "../http/websocket.h"
#include "../runtime/large.h"
#include "base64.h"
#include "http.h"
#include "lines.h"
#include "message.h"
#include "websocket.h"

const struct sb_core_api *sb_api;

static uint64_t check_ns(lua_State *L, int arg)
{
    lua_Number seconds = luaL_checknumber(L, arg);
    luaL_argcheck(L, seconds >= 0, arg, "negative or not a number");
    return seconds < 1e9 ? (uint64_t)(seconds * 1e9) : SB_NEVER;
}

static int sha256(lua_State *L)
{
    struct sb_slice parts[8];
    int n = lua_gettop(L);
    unsigned char out[32];
    luaL_argcheck(L, n <= 8, 9, "too many parts");
    for (int i = 0; i < n; i++)
        parts[i].data = sb_lua_check_bytes(L, i + 1, &parts[i].len);
    if (n == 0)
        sb_lua_check_bytes(L, 1, &parts[0].len);
    if (sb_sha256(parts, (size_t)n, out) < 0)
        return luaL_error(L, "libcrypto has no SHA-256");
    lua_pushlstring(L, (const char *)out, sizeof out);
    return 1;
}

/* Certificate, key, hash. The key is in a string until the caller has made a secret of it. */
static int authority(lua_State *L)
{
    struct sb_authority a;
    if (sb_authority_make(&a) < 0)
        return luaL_error(L, "libcrypto makes no certificate");
    lua_pushstring(L, a.cert);
    lua_pushstring(L, a.key);
    lua_pushstring(L, a.hash);
    explicit_bzero(&a, sizeof a);
    return 3;
}

/* ---- heads of answers ---- */

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static void push_trimmed(lua_State *L, const char *from, const char *end)
{
    while (from < end && is_blank(*from))
        from++;
    while (end > from && is_blank(end[-1]))
        end--;
    lua_pushlstring(L, from, (size_t)(end - from));
}

/* The reason in "HTTP/1.1 200 reason". */
static void push_reason(lua_State *L, const char *at, const char *end)
{
    while (at < end && *at != ' ')
        at++;
    while (at < end && *at == ' ')
        at++;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    if (at < end && *at == ' ')
        at++;
    lua_pushlstring(L, at, (size_t)(end - at));
}

/* A header line, or the continuation of the one before: entry n of the list on top of the stack. */
static int take_line(lua_State *L, const char *line, const char *end, int n)
{
    const char *colon = memchr(line, ':', (size_t)(end - line));
    if (line < end && is_blank(*line) && n > 0) {
        lua_rawgeti(L, -1, n);
        lua_rawgeti(L, -1, 2);
        lua_pushliteral(L, " ");
        push_trimmed(L, line, end);
        lua_concat(L, 3);
        lua_rawseti(L, -2, 2);
        lua_pop(L, 1);
    } else if (colon != NULL) {
        lua_createtable(L, 2, 0);
        push_trimmed(L, line, colon);
        lua_rawseti(L, -2, 1);
        push_trimmed(L, colon + 1, end);
        lua_rawseti(L, -2, 2);
        lua_rawseti(L, -2, ++n);
    }
    return n;
}

/* Pushes the reason and { { name, value }, ... }. */
static void push_head(lua_State *L, const char *at, size_t len)
{
    const char *last = at + len, *newline;
    int n = 0, first = 1;
    for (; at < last && (newline = memchr(at, '\n', (size_t)(last - at))) != NULL;
         at = newline + 1) {
        const char *end = newline > at && newline[-1] == '\r' ? newline - 1 : newline;
        if (first) {
            push_reason(L, at, end);
            lua_newtable(L);
        } else {
            n = take_line(L, at, end, n);
        }
        first = 0;
    }
    if (first) {
        lua_pushliteral(L, "");
        lua_newtable(L);
    }
}

/* answer(op, metatable of headers) -> { status, reason, headers, body } [, object: the body]; nothing when it
 * has failed. Of the operation nothing is left. */
static int answer(lua_State *L)
{
    luaL_checktype(L, 2, LUA_TTABLE);
    struct sb_result *r = sb_lua_op_result(L, 1);
    if (r == NULL)
        return 0;
    lua_settop(L, 2);
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, (lua_Integer)r->number);
    lua_setfield(L, 3, "status");
    push_head(L, (const char *)r->bytes2, r->bytes2 != NULL ? r->bytes2_len : 0);
    lua_pushvalue(L, 2);
    lua_setmetatable(L, -2);
    lua_setfield(L, 3, "headers");
    lua_setfield(L, 3, "reason");
    if (r->object != NULL) { /* a body: its pieces become strings one by one */
        sb_large_keep_heap();
        sb_lua_push_object(L, &r->object);
    } else {
        lua_pushlstring(L, (const char *)r->bytes, r->bytes != NULL ? r->bytes_len : 0);
        lua_setfield(L, 3, "body");
        lua_pushnil(L);
    }
    sb_lua_op_over(L, 1);
    return 2;
}

/* Pushes the object, or nil and the error. */
static int push_made(lua_State *L, void *made, const struct sb_error *err)
{
    struct sb_object *object = made;
    if (object == NULL) {
        lua_pushnil(L);
        sb_lua_push_error(L, err);
        return 2;
    }
    sb_lua_push_object(L, &object);
    return 1;
}

/* ---- ports ---- */

/* port(number, engine, id): a port of a sandbox. port(number): one of the host's own loopback. */
static int new_port(lua_State *L)
{
    int64_t number;
    if (!sb_lua_tointeger(L, 1, &number) || number < 1 || number > 65535)
        return luaL_argerror(L, 1, "not a port number");
    struct sb_error err = {SB_OK};
    struct sb_place *place;
    if (lua_isnoneornil(L, 2)) {
        place = sb_place_host();
    } else {
        struct sb_object *engine = sb_lua_check_object(L, 2, sb_client_engine_type());
        place = sb_place_engine(engine, luaL_checkstring(L, 3));
    }
    if (place == NULL)
        return luaL_error(L, "out of memory");
    struct sb_port *port = sb_port_new(place, (uint16_t)number, &err);
    return push_made(L, port, &err);
}

/* The string or secret at `arg`, if there is one. */
static struct sb_slice opt_slice(lua_State *L, int arg)
{
    struct sb_slice slice = {NULL, 0};
    if (lua_isnoneornil(L, arg))
        return slice;
    slice.data = sb_lua_check_bytes(L, arg, &slice.len);
    luaL_argcheck(L, memchr(slice.data, '\0', slice.len) == NULL, arg, "zero byte");
    return slice;
}

/* origin(url, proxy | nil, ca_file | nil, connect_timeout, http2) */
static int new_origin(lua_State *L)
{
    struct sb_error err = {SB_OK};
    struct sb_origin_options options = {
        .url = luaL_checkstring(L, 1),
        .proxy = opt_slice(L, 2),
        .ca_file = luaL_optstring(L, 3, NULL),
        .connect_timeout = check_ns(L, 4),
        .http2 = lua_toboolean(L, 5),
    };
    return push_made(L, sb_origin_new(&options, &err), &err);
}

static struct sb_slice check_slice(lua_State *L, int arg)
{
    struct sb_slice slice;
    slice.data = luaL_checklstring(L, arg, &slice.len);
    return slice;
}

/* What a plain request may hold. */
enum { ASK_METHOD, ASK_PATH, ASK_STREAM, ASK_MAX_BODY, ASK_FIELDS };

/* A field that only has to be copied: 1. Everything else is Lua's to check. */
static int take_field(lua_State *L, struct sb_request *request)
{
    static const char *const names[ASK_FIELDS] = {"method", "path", "stream", "max_body"};
    static const int types[ASK_FIELDS] = {LUA_TSTRING, LUA_TSTRING, LUA_TBOOLEAN, LUA_TNUMBER};
    int at = 0;
    size_t len;
    if (lua_type(L, -2) != LUA_TSTRING)
        return 0;
    const char *name = lua_tolstring(L, -2, &len);
    while (at < ASK_FIELDS && (strlen(names[at]) != len || memcmp(name, names[at], len) != 0))
        at++;
    if (at == ASK_FIELDS || lua_type(L, -1) != types[at])
        return 0;
    struct sb_slice *slice = at == ASK_METHOD ? &request->method : &request->target;
    switch (at) {
    case ASK_STREAM:
        request->stream = lua_toboolean(L, -1);
        return 1;
    case ASK_MAX_BODY: {
        lua_Number most = lua_tonumber(L, -1);
        request->max_body = most >= 0 && most < 9e15 ? (size_t)most : 0;
        return most >= 0 && most < 9e15;
    }
    default:
        slice->data = lua_tolstring(L, -1, &slice->len);
        return 1;
    }
}

/* The path is one of the port's own, as port.lua has it. */
static int is_relative(const struct sb_slice *path)
{
    if (path->len == 0 || path->data[0] != '/')
        return 0;
    for (size_t i = 0; i < path->len; i++)
        if (path->data[i] == '\0' || path->data[i] == '\r' || path->data[i] == '\n' ||
            path->data[i] == ' ')
            return 0;
    return 1;
}

/* port:ask(request | nil, max_body) -> op, or nothing: the request is not plain. A plain one has no header lines,
 * no body and no times; whatever is not as it has to be is for those who can say so. */
static int port_ask(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_request request = {.method = {"GET", 3}, .target = {"/", 1}};
    request.max_body = (size_t)luaL_checknumber(L, 3);
    lua_settop(L, 3);
    if (!lua_isnil(L, 2)) {
        if (!lua_istable(L, 2) || lua_getmetatable(L, 2))
            return 0;
        for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) /* the table holds the strings */
            if (!take_field(L, &request))
                return 0;
    }
    if (!is_relative(&request.target))
        return 0;
    if (sb_lua_forked(L, port))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_fetch(port, mailbox, &request);
    return sb_lua_op_made(L, op);
}

/* port:fetch(method, target, lines, body | upload | nil, stream, max_body, wait, repeatable) -> op */
static int port_fetch(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    if (sb_lua_forked(L, port))
        return 1;
    struct sb_request request = {.method = check_slice(L, 2), .target = check_slice(L, 3)};
    request.upload = sb_lua_test_object(L, 5, &sb_upload_type);
    if (request.upload == NULL && !lua_isnoneornil(L, 5)) {
        request.body.data = sb_lua_check_bytes(L, 5, &request.body.len);
        request.has_body = 1;
    }
    request.stream = lua_toboolean(L, 6);
    lua_Number most = luaL_checknumber(L, 7);
    luaL_argcheck(L, most >= 0, 7, "negative or not a number");
    request.max_body = most < 9e15 ? (size_t)most : SIZE_MAX;
    request.wait = check_ns(L, 8);
    request.repeatable = lua_toboolean(L, 9);
    lua_settop(L, 9);
    request.headers = sb_lua_check_lines(L, 4, &request.header_count);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_fetch(port, mailbox, &request);
    return sb_lua_op_made(L, op);
}

static int port_wait(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    if (sb_lua_forked(L, port))
        return 1;
    uint64_t wait = check_ns(L, 2);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_port_wait(port, mailbox, wait);
    return sb_lua_op_made(L, op);
}

/* port:websocket(target, lines, max_message, wait) -> op */
static int port_websocket(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    if (sb_lua_forked(L, port))
        return 1;
    struct sb_websocket_request request = {.target = check_slice(L, 2)};
    lua_Number most = luaL_checknumber(L, 4);
    luaL_argcheck(L, most >= 1, 4, "not positive or not a number");
    request.max_message = most < 9e15 ? (size_t)most : SIZE_MAX;
    request.wait = check_ns(L, 5);
    lua_settop(L, 5);
    request.headers = sb_lua_check_lines(L, 3, &request.header_count);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_websocket_open(port, mailbox, &request);
    return sb_lua_op_made(L, op);
}

/* origin:dial() -> op, whose object is a stream */
static int port_dial(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    if (sb_lua_forked(L, port))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_tunnel_open(port, mailbox);
    return sb_lua_op_made(L, op);
}

static int port_upstream(lua_State *L)
{
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_error err = {SB_OK};
    return push_made(L, sb_upstream_new(port, &err), &err);
}

static int port_close(lua_State *L)
{
    sb_port_close(sb_lua_check_object(L, 1, &sb_port_type));
    return 0;
}

static const luaL_Reg port_methods[] = {
    {"fetch", port_fetch},         {"ask", port_ask},
    {"websocket", port_websocket}, {"wait", port_wait},
    {"upstream", port_upstream},   {"dial", port_dial},
    {"close", port_close},         {NULL, NULL},
};
static const char *const port_plain[] = {"upstream", "close", NULL};
static const struct sb_lua_class port_class = {
    &sb_port_type, "sandbar.NativePort", port_methods, port_plain, 4096, NULL};

/* ---- upstream sockets ---- */

static int upstream_path(lua_State *L)
{
    lua_pushstring(L, sb_upstream_path(sb_lua_check_object(L, 1, &sb_upstream_type)));
    return 1;
}

static int upstream_close(lua_State *L)
{
    sb_upstream_close(sb_lua_check_object(L, 1, &sb_upstream_type));
    return 0;
}

static const luaL_Reg upstream_methods[] = {
    {"path", upstream_path},
    {"close", upstream_close},
    {NULL, NULL},
};
static const char *const upstream_plain[] = {"path", "close", NULL};
static const struct sb_lua_class upstream_class = {
    &sb_upstream_type, "sandbar.NativeUpstream", upstream_methods, upstream_plain, 1024, NULL};

/* ---- bodies: the reading half of a NativeStream ---- */

static enum sb_read_mode check_mode(lua_State *L, int arg)
{
    static const char *const names[] = {"some", "exact", "line", "all", NULL};
    static const enum sb_read_mode modes[] = {SB_READ_SOME, SB_READ_EXACT, SB_READ_LINE,
                                              SB_READ_ALL};
    return modes[luaL_checkoption(L, arg, NULL, names)];
}

static size_t check_count(lua_State *L, int arg)
{
    lua_Number n = luaL_optnumber(L, arg, 9e15);
    luaL_argcheck(L, n >= 0, arg, "negative or not a number");
    return n < 9e15 ? (size_t)n : SIZE_MAX;
}

static int body_read(lua_State *L)
{
    struct sb_body *body = sb_lua_check_object(L, 1, &sb_body_type);
    if (sb_lua_forked(L, body))
        return 1;
    enum sb_read_mode mode = check_mode(L, 2);
    size_t n = check_count(L, 3);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_body_read(body, mailbox, mode, n);
    return sb_lua_op_made(L, op);
}

/* true, data | true, nil (the end) | true, nil, e | false (would wait). Lua copies what it can right out of
 * the queue; what has been lent already was so to a call that a finalizer interrupts, or that ran out
 * of memory. */
static int body_try_read(lua_State *L)
{
    struct sb_body *body = sb_lua_check_object(L, 1, &sb_body_type);
    enum sb_read_mode mode = check_mode(L, 2);
    size_t n = check_count(L, 3);
    void **held = sb_body_has_lent(body) ? sb_lua_new_scratch(L) : NULL;
    const void *lent = NULL;
    struct sb_result result = {.fd = -1};
    int done = sb_body_try_read(body, mode, n, &result, held == NULL ? &lent : NULL);
    if (held != NULL)
        *held = result.bytes;
    lua_pushboolean(L, done);
    if (!done)
        return 1;
    if (result.error.kind != SB_OK) {
        lua_pushnil(L);
        sb_lua_push_error(L, &result.error);
        return 3;
    }
    if (lent != NULL) {
        lua_pushlstring(L, lent, result.bytes_len);
        sb_body_give_back(body);
    } else if (held != NULL && *held != NULL) {
        lua_pushlstring(L, *held, result.bytes_len);
        free(*held);
        *held = NULL;
    } else {
        lua_pushnil(L);
    }
    return 2;
}

static int body_close(lua_State *L)
{
    sb_body_close(sb_lua_check_object(L, 1, &sb_body_type));
    return 0;
}

static int body_end_reading(lua_State *L)
{
    sb_body_end_reading(sb_lua_check_object(L, 1, &sb_body_type));
    return 0;
}

static int body_at_end(lua_State *L)
{
    lua_pushboolean(L, sb_body_at_end(sb_lua_check_object(L, 1, &sb_body_type)));
    return 1;
}

static const luaL_Reg body_methods[] = {
    {"read", body_read},     {"try_read", body_try_read},       {"close", body_close},
    {"at_end", body_at_end}, {"end_reading", body_end_reading}, {NULL, NULL},
};
static const char *const body_plain[] = {"try_read", "close", "at_end", "end_reading", NULL};
static const struct sb_lua_class body_class = {
    &sb_body_type, "sandbar.NativeBody", body_methods, body_plain, 16384, NULL};

/* ---- uploads ---- */

static int new_upload(lua_State *L)
{
    struct sb_error err = {SB_OK};
    return push_made(L, sb_upload_new(&err), &err);
}

static int upload_write(lua_State *L)
{
    struct sb_upload *upload = sb_lua_check_object(L, 1, &sb_upload_type);
    if (sb_lua_forked(L, upload))
        return 1;
    size_t len;
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_upload_write(upload, mailbox, data, len);
    return sb_lua_op_made(L, op);
}

static int upload_finish(lua_State *L)
{
    sb_upload_finish(sb_lua_check_object(L, 1, &sb_upload_type));
    return 0;
}

static int upload_close(lua_State *L)
{
    sb_upload_abort(sb_lua_check_object(L, 1, &sb_upload_type));
    return 0;
}

static void upload_collected(void *upload)
{
    sb_upload_abort(upload); /* unless it was finished */
}

static const luaL_Reg upload_methods[] = {
    {"write", upload_write},
    {"finish", upload_finish},
    {"close", upload_close},
    {NULL, NULL},
};
static const char *const upload_plain[] = {"finish", "close", NULL};
static const struct sb_lua_class upload_class = {
    &sb_upload_type, "sandbar.NativeUpload", upload_methods, upload_plain, 1024, upload_collected};

/* ---- opening ---- */

/* Keeps this object mapped: lua_close unloads C libraries while the I/O thread still runs their
 * code. */
static void pin(void)
{
    Dl_info info;
    if (dladdr((void *)&sb_api, &info) != 0 && info.dli_fname != NULL)
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static const luaL_Reg functions[] = {
    {"sha256", sha256},     {"authority", authority}, {"port", new_port}, {"origin", new_origin},
    {"upload", new_upload}, {"answer", answer},       {NULL, NULL},
};

__attribute__((visibility("default"))) int luaopen_sandbar_http(lua_State *L);
int luaopen_sandbar_http(lua_State *L)
{
    struct sb_error err = {SB_OK};
    lua_getfield(L, LUA_REGISTRYINDEX, SB_API_KEY);
    const struct sb_core_api *api = lua_touserdata(L, -1);
    if (api == NULL)
        return luaL_error(L, "sandbar.http needs sandbar.core in the same state");
    if (api->version != SB_API_VERSION || api->size != sizeof *api)
        return luaL_error(L, "sandbar.http and sandbar.core are of different builds");
    sb_api = api;
    pin();
    if (sb_http_init(&err) < 0)
        return luaL_error(L, "sandbar.http: %s", err.message);
    sb_lua_register(L, &port_class);
    sb_lua_register(L, &upstream_class);
    sb_lua_register(L, &body_class);
    sb_lua_register(L, &upload_class);
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    sb_lua_open_recipe(L);
    sb_lua_open_websocket(L);
    sb_lua_open_message(L);
    sb_lua_open_run(L);
    sb_lua_open_base64(L);
    return 1;
}
