/* NativeRun: a command over a stream, as userdata. */
#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../e2b/run.h"
#include "http.h"
#include "message.h"

/* run(origin, target, lines, type, message, silence, max_output | nil) -> op; with max_output captured. A message that
 * is none of its type: nil, why. */
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
    lua_settop(L, 7);
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

static void collected(void *run)
{
    sb_run_close(run);
}

static const luaL_Reg methods[] = {
    {"pid", run_pid},   {"stdout", run_stdout}, {"stderr", run_stderr}, {"exited", run_exited},
    {"wait", run_wait}, {"close", run_close},   {NULL, NULL},
};
static const char *const plain[] = {"pid", "stdout", "stderr", "exited", "close", NULL};
static const struct sb_lua_class class = {&sb_run_type, "sandbar.NativeRun", methods, plain, 4096,
                                          collected};

void sb_lua_open_run(lua_State *L)
{
    sb_lua_register(L, &class);
    lua_pushcfunction(L, new_run);
    lua_setfield(L, -2, "run");
}
