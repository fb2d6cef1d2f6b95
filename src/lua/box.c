/* NativeBox: a running sandbox as userdata. Dropping the userdata closes the connection. */
#include "../engine/box.h"

#include "../engine/file.h"
#include "../engine/proc.h"
#include "engine.h"
#include "fields.h"

static const char *const names[] = {"ping",   "signal", "kill", "wait",   "release",
                                    "detach", "list",   "file", "resize", NULL};
static const uint16_t types[] = {SB_C_PING,   SB_C_SIGNAL, SB_C_KILL, SB_C_WAIT,  SB_C_RELEASE,
                                 SB_C_DETACH, SB_C_LIST,   SB_C_FILE, SB_C_RESIZE};

static struct sb_box *check(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_box_type);
}

/* What an operation begins with. `data` are packed fields, or a message around them. */
struct asked {
    struct sb_box *box;
    struct sb_mailbox *mailbox;
    unsigned char *data;
    size_t len;
    struct sb_op **slot;
};

/* Takes the fields at `at`, for a message of `type` or (0) as they are. 0: the box was made before this process
 * was forked, and that is pushed. */
static int ask(lua_State *L, int at, uint16_t type, struct asked *a)
{
    a->box = check(L);
    if (sb_lua_forked(L, a->box))
        return 0;
    a->mailbox = sb_lua_mailbox(L);
    a->data =
        type != 0 ? sb_lua_pack_message(L, at, type, &a->len) : sb_lua_pack_fields(L, at, &a->len);
    a->slot = sb_lua_new_op(L);
    return 1;
}

static int asked(lua_State *L, const struct asked *a, struct sb_op *op)
{
    *a->slot = op;
    explicit_bzero(a->data, a->len);
    return sb_lua_op_made(L, a->slot);
}

/* request(name, fields, leave_parts) */
static int request(lua_State *L)
{
    struct asked a;
    int leave_parts = lua_toboolean(L, 4);
    if (!ask(L, 3, types[luaL_checkoption(L, 2, NULL, names)], &a))
        return 1;
    asked(L, &a, sb_box_request(a.box, a.mailbox, a.data, a.len, NULL, 0));
    if (leave_parts)
        sb_lua_op_leave_parts(L, -1);
    return 1;
}

/* ---- exec, start, attach ---- */

static uint64_t ns_of(lua_Number seconds)
{
    if (!(seconds > 0))
        return 0;
    return seconds < 9e9 ? (uint64_t)(seconds * 1e9) : (uint64_t)9e18;
}

/* exec(fields, stdin or nil, timeout or nil, max_output, grace) */
static int exec(lua_State *L)
{
    struct sb_exec_options options = {.timeout_ns = SB_NEVER};
    struct asked a;
    luaL_checktype(L, 2, LUA_TTABLE);
    if (!lua_isnil(L, 3))
        options.input = sb_lua_check_bytes(L, 3, &options.input_len);
    if (!lua_isnil(L, 4))
        options.timeout_ns = ns_of(luaL_checknumber(L, 4));
    options.max_output = (size_t)luaL_checknumber(L, 5);
    options.grace_ns = ns_of(luaL_checknumber(L, 6));
    if (!ask(L, 2, SB_C_EXEC, &a))
        return 1;
    sb_lua_message_add(a.data, &a.len, SB_F_WHOLE, 1);
    return asked(L, &a, sb_exec(a.box, a.mailbox, a.data, a.len, &options));
}

static int start(lua_State *L)
{
    struct asked a;
    if (!ask(L, 2, SB_C_EXEC, &a))
        return 1;
    return asked(L, &a, sb_process_start(a.box, a.mailbox, a.data, a.len));
}

static int attach(lua_State *L)
{
    struct asked a;
    if (!ask(L, 2, SB_C_ATTACH, &a))
        return 1;
    return asked(L, &a, sb_process_attach(a.box, a.mailbox, a.data, a.len));
}

/* ---- files ---- */

static int open_file(lua_State *L, int file_op)
{
    struct asked a;
    if (!ask(L, 2, 0, &a))
        return 1;
    return asked(L, &a, sb_box_open_file(a.box, a.mailbox, file_op, a.data, a.len));
}

static int open_(lua_State *L)
{
    return open_file(L, SB_FILE_OPEN);
}

static int begin(lua_State *L)
{
    return open_file(L, SB_FILE_BEGIN);
}

static int commit(lua_State *L)
{
    struct sb_file *file = sb_lua_check_object(L, 2, &sb_file_type);
    struct asked a;
    if (sb_lua_forked(L, file) || !ask(L, 3, 0, &a))
        return 1;
    return asked(L, &a, sb_box_commit(a.box, a.mailbox, file, a.data, a.len));
}

static int read_all(lua_State *L)
{
    lua_Number max = luaL_checknumber(L, 3);
    struct asked a;
    luaL_argcheck(L, max >= 0, 3, "size expected");
    if (!ask(L, 2, 0, &a))
        return 1;
    return asked(
        L, &a,
        sb_box_read_all(a.box, a.mailbox, a.data, a.len, max < 9e15 ? (size_t)max : (size_t)9e15));
}

static int write_all(lua_State *L)
{
    size_t len;
    const char *data = sb_lua_check_bytes(L, 3, &len);
    struct asked a;
    if (!ask(L, 2, 0, &a))
        return 1;
    return asked(L, &a, sb_box_write_all(a.box, a.mailbox, a.data, a.len, data, len));
}

static int open_pipe(lua_State *L, uint16_t type)
{
    struct asked a;
    if (!ask(L, 2, type, &a))
        return 1;
    return asked(L, &a, sb_box_pipe(a.box, a.mailbox, a.data, a.len));
}

static int watch(lua_State *L)
{
    return open_pipe(L, SB_C_FILE);
}

static int spool(lua_State *L)
{
    return open_pipe(L, SB_C_SPOOL);
}

/* ---- ports, facts ---- */

static int dial(lua_State *L)
{
    struct sb_box *box = check(L);
    int64_t port;
    if (!sb_lua_tointeger(L, 2, &port) || port < 1 || port > 65535)
        return luaL_argerror(L, 2, "port expected");
    if (sb_lua_forked(L, box))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_box_dial(box, mailbox, (unsigned)port);
    return sb_lua_op_made(L, slot);
}

static int boot(lua_State *L)
{
    lua_pushstring(L, check(L)->boot);
    return 1;
}

static int frozen(lua_State *L)
{
    struct sb_box *box = check(L);
    lua_pushboolean(L, sb_box_is_open(box) && sb_conn_frozen(&box->conn));
    return 1;
}

/* The supervisor has said that the sandbox runs in this epoch. */
static int thaw(lua_State *L)
{
    struct sb_box *box = check(L);
    int64_t epoch;
    if (!sb_lua_tointeger(L, 2, &epoch) || epoch < 0 || epoch > UINT32_MAX)
        return luaL_argerror(L, 2, "epoch expected");
    if (!sb_lua_forked(L, box))
        sb_conn_thaw(&box->conn, (uint32_t)epoch);
    return 0;
}

static int is_open(lua_State *L)
{
    lua_pushboolean(L, sb_box_is_open(check(L)));
    return 1;
}

static int close(lua_State *L)
{
    sb_box_close(check(L));
    return 0;
}

static const luaL_Reg methods[] = {
    {"request", request},     {"exec", exec},     {"start", start},   {"attach", attach},
    {"open", open_},          {"begin", begin},   {"commit", commit}, {"read_all", read_all},
    {"write_all", write_all}, {"watch", watch},   {"spool", spool},   {"dial", dial},
    {"boot", boot},           {"open_", is_open}, {"close", close},   {"frozen", frozen},
    {"thaw", thaw},           {NULL, NULL},
};
static const char *const plain[] = {"boot", "open_", "frozen", "close", NULL};
static const struct sb_lua_class class = {
    .type = &sb_box_type, .name = "sandbar.NativeBox", .methods = methods, .plain = plain};

void sb_lua_open_box(lua_State *L)
{
    sb_lua_register(L, &class);
}
