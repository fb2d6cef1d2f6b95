/* NativeRun: a command over a stream, as userdata. */
#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../e2b/input.h"
#include "../e2b/killer.h"
#include "../e2b/run.h"
#include "http.h"
#include "lines.h"
#include "message.h"

/* run(origin, target, lines, type, message, silence, max_output | nil, killer | nil, token | nil, tails | nil) -> op;
 * with max_output captured. A message that is none of its type: nil, why. */
static int new_run(lua_State *L)
{
    struct sb_port *origin = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_run_options options = {0};
    options.target.data = luaL_checklstring(L, 2, &options.target.len);
    const ProtobufCMessageDescriptor *type = sb_message_type(luaL_checkstring(L, 4));
    luaL_argcheck(L, type != NULL, 4, "there is no message of that name");
    luaL_checktype(L, 5, LUA_TTABLE);
    lua_Number silence = luaL_checknumber(L, 6);
    luaL_argcheck(L, silence > 0 && silence < 1e9, 6, "not a positive time");
    lua_Number most = luaL_optnumber(L, 7, 0);
    luaL_argcheck(L, most >= 0 && most < 9e15, 7, "not a size");
    options.silence = (uint64_t)(silence * 1e9);
    options.capture = !lua_isnoneornil(L, 7);
    options.max_output = (size_t)most;
    if (!lua_isnoneornil(L, 8)) {
        options.killer = sb_lua_check_object(L, 8, &sb_killer_type);
        options.token = luaL_checkstring(L, 9);
    }
    options.tails = (unsigned)luaL_optinteger(L, 10, 0);
    lua_settop(L, 10);
    if (sb_lua_forked(L, origin))
        return 1;
    options.headers = sb_lua_check_lines(L, 3, &options.header_count);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    luaL_checkstack(L, 12, "a message");
    struct sb_op **slot = sb_lua_new_op(L);
    struct sb_packed packed = {0};
    if (sb_lua_try_pack_message(L, 5, type, &packed) < 0) {
        lua_pushnil(L);
        lua_insert(L, -2);
        return 2;
    }
    options.message.data = (const char *)packed.data;
    options.message.len = packed.len;
    *slot = sb_run_start(origin, mailbox, &options);
    sb_packed_free(&packed);
    return sb_lua_op_made(L, slot);
}

static struct sb_run *check(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_run_type);
}

static int run_pid(lua_State *L)
{
    sb_lua_pushinteger(L, sb_run_pid(check(L)));
    return 1;
}

static int run_stdout(lua_State *L)
{
    sb_lua_push_ref(L, sb_run_output(check(L), 1));
    return 1;
}

static int run_stderr(lua_State *L)
{
    sb_lua_push_ref(L, sb_run_output(check(L), 2));
    return 1;
}

/* The fields of its end, nil before and where it is not known. */
static int run_exited(lua_State *L)
{
    size_t len = 0;
    const unsigned char *fields = sb_run_exited(check(L), &len);
    return fields == NULL ? 0 : sb_lua_push_fields(L, fields, len);
}

/* tail(fd) -> the end of an output of which no more is kept, "" before the stream has ended */
static int run_tail(lua_State *L)
{
    struct sb_run *run = check(L);
    lua_Integer fd = luaL_checkinteger(L, 2);
    luaL_argcheck(L, fd == 1 || fd == 2, 2, "neither 1 nor 2");
    size_t len = 0;
    const unsigned char *data = sb_run_tail(run, (int)fd, &len);
    lua_pushlstring(L, data != NULL ? (const char *)data : "", len);
    return 1;
}

static int run_wait(lua_State *L)
{
    struct sb_run *run = check(L);
    if (sb_lua_forked(L, run))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_run_wait(run, mailbox);
    return sb_lua_op_made(L, slot);
}

static int run_close(lua_State *L)
{
    sb_run_close(check(L));
    return 0;
}

static int run_killed(lua_State *L)
{
    sb_run_killed(check(L));
    return 0;
}

static void collected(void *run)
{
    sb_run_close(run);
}

static const luaL_Reg methods[] = {
    {"pid", run_pid},       {"stdout", run_stdout}, {"stderr", run_stderr},
    {"exited", run_exited}, {"wait", run_wait},     {"tail", run_tail},
    {"close", run_close},   {"killed", run_killed}, {NULL, NULL},
};
static const char *const plain[] = {"pid",  "stdout", "stderr", "exited",
                                    "tail", "close",  "killed", NULL};
static const struct sb_lua_class class = {&sb_run_type, "sandbar.NativeRun", methods, plain, 4096,
                                          collected};

/* ---- what is written to it ---- */

/* input(origin, send target, close target, lines, pid, terminal) -> input */
static int new_input(lua_State *L)
{
    struct sb_port *origin = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_input_options options = {0};
    options.send.data = luaL_checklstring(L, 2, &options.send.len);
    options.close.data = luaL_checklstring(L, 3, &options.close.len);
    options.pid = (uint32_t)luaL_checknumber(L, 5);
    options.terminal = lua_toboolean(L, 6);
    options.run = lua_isnoneornil(L, 7) ? NULL : sb_lua_check_object(L, 7, &sb_run_type);
    lua_settop(L, 7);
    options.headers = sb_lua_check_lines(L, 4, &options.header_count);
    struct sb_error err = {SB_OK};
    struct sb_object *input = (struct sb_object *)sb_input_new(origin, &options, &err);
    if (input == NULL)
        return luaL_error(L, "%s", err.message);
    sb_lua_push_object(L, &input);
    return 1;
}

static struct sb_input *check_input(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_input_type);
}

static int input_write(lua_State *L)
{
    struct sb_input *input = check_input(L);
    size_t len;
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_input_write(input, mailbox, data, len);
    return sb_lua_op_made(L, slot);
}

/* try_write(data) -> how many bytes | nil, e */
static int input_try_write(lua_State *L)
{
    struct sb_input *input = check_input(L);
    size_t len, taken;
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_error err = {SB_OK};
    if (sb_input_try_write(input, data, len, &taken, &err) < 0) {
        lua_pushnil(L);
        sb_lua_push_error(L, &err);
        return 2;
    }
    sb_lua_pushinteger(L, taken);
    return 1;
}

static int input_close_write(lua_State *L)
{
    sb_input_finish(check_input(L));
    return 0;
}

static int input_close(lua_State *L)
{
    sb_input_abort(check_input(L));
    return 0;
}

static const luaL_Reg input_methods[] = {
    {"write", input_write},
    {"try_write", input_try_write},
    {"close_write", input_close_write},
    {"close", input_close},
    {NULL, NULL},
};
static const char *const input_plain[] = {"try_write", "close_write", "close", NULL};
static const struct sb_lua_class input_class = {
    &sb_input_type, "sandbar.NativeInput", input_methods, input_plain, 4096, NULL};

/* ---- what kills it ---- */

static struct sb_killer_helper helper_at(lua_State *L, int arg)
{
    struct sb_killer_helper helper = {{NULL, 0}, 0};
    if (lua_isnoneornil(L, arg))
        return helper;
    helper.body.data = luaL_checklstring(L, arg, &helper.body.len);
    helper.pid_at = (size_t)luaL_checknumber(L, arg + 1);
    luaL_argcheck(L, helper.pid_at + SB_KILLER_DIGITS <= helper.body.len, arg + 1,
                  "beyond the body");
    return helper;
}

/* killer(origin, id, list target, lines, start target, lines, body, pid_at, body | nil, pid_at) -> killer */
static int new_killer(lua_State *L)
{
    struct sb_port *origin = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_killer_options options = {
        .id = luaL_checkstring(L, 2),
        .list = luaL_checkstring(L, 3),
        .start = luaL_checkstring(L, 5),
    };
    luaL_checkstring(L, 7);
    options.all = helper_at(L, 7);
    options.left = helper_at(L, 9);
    lua_settop(L, 10);
    options.listing.at = sb_lua_check_lines(L, 4, &options.listing.count);
    options.starting.at = sb_lua_check_lines(L, 6, &options.starting.count);
    struct sb_error err = {SB_OK};
    struct sb_object *killer = (struct sb_object *)sb_killer_new(origin, &options, &err);
    if (killer == NULL)
        return luaL_error(L, "%s", err.message);
    sb_lua_push_object(L, &killer);
    return 1;
}

/* release(token | nil, pid | nil) -> release */
static int killer_release(lua_State *L)
{
    struct sb_killer *killer = sb_lua_check_object(L, 1, &sb_killer_type);
    const char *token = luaL_optstring(L, 2, NULL);
    uint32_t pid = (uint32_t)luaL_optnumber(L, 3, 0);
    luaL_argcheck(L, token != NULL || pid != 0, 2, "no process");
    struct sb_release *release = sb_killer_release(killer, token, pid, NULL);
    if (release == NULL)
        return luaL_error(L, "not enough memory");
    sb_lua_push_release(L, &release);
    return 1;
}

static const luaL_Reg killer_methods[] = {{"release", killer_release}, {NULL, NULL}};
static const char *const killer_plain[] = {"release", NULL};
static const struct sb_lua_class killer_class = {
    &sb_killer_type, "sandbar.NativeKiller", killer_methods, killer_plain, 2048, NULL};

void sb_lua_open_run(lua_State *L)
{
    sb_lua_register(L, &killer_class);
    lua_pushcfunction(L, new_killer);
    lua_setfield(L, -2, "killer");
    sb_lua_register(L, &input_class);
    lua_pushcfunction(L, new_input);
    lua_setfield(L, -2, "input");
    sb_lua_register(L, &class);
    lua_pushcfunction(L, new_run);
    lua_setfield(L, -2, "run");
}
