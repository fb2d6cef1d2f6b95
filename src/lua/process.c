/* NativeProcess: a process inside a sandbox as userdata. */
#include "../engine/proc.h"
#include "engine.h"

static struct sb_process *check(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_process_type);
}

static int pid(lua_State *L)
{
    sb_lua_pushinteger(L, check(L)->pid);
    return 1;
}

static int serial(lua_State *L)
{
    sb_lua_pushinteger(L, check(L)->serial);
    return 1;
}

static int start_ns(lua_State *L)
{
    sb_lua_pushinteger(L, check(L)->start_ns);
    return 1;
}

static int stream(lua_State *L, int i)
{
    sb_lua_push_ref(L, check(L)->streams[i]);
    return 1;
}

static int stdin_(lua_State *L)
{
    return stream(L, 0);
}

static int stdout_(lua_State *L)
{
    return stream(L, 1);
}

static int stderr_(lua_State *L)
{
    return stream(L, 2);
}

static int exited(lua_State *L)
{
    struct sb_exit *end = check(L)->exited;
    if (end == NULL)
        return 0;
    return sb_lua_push_fields(L, end->fields, end->len);
}

static int wait(lua_State *L)
{
    struct sb_process *process = check(L);
    if (sb_lua_forked(L, process))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_process_wait(process, mailbox);
    return sb_lua_op_made(L, slot);
}

static int lease_release(lua_State *L)
{
    struct sb_process *process = check(L);
    if (process->object.generation == sb_generation())
        sb_process_lease_release(process);
    return 0;
}

static int release(lua_State *L)
{
    struct sb_release *kill = sb_process_release(check(L));
    if (kill == NULL)
        return luaL_error(L, "not enough memory");
    sb_lua_push_release(L, &kill);
    return 1;
}

static const luaL_Reg methods[] = {
    {"pid", pid},         {"serial", serial},  {"start_ns", start_ns},
    {"stdin", stdin_},    {"stdout", stdout_}, {"stderr", stderr_},
    {"exited", exited},   {"wait", wait},      {"lease_release", lease_release},
    {"release", release}, {NULL, NULL},
};
static const char *const plain[] = {"pid",    "serial", "start_ns",      "stdin",   "stdout",
                                    "stderr", "exited", "lease_release", "release", NULL};
static const struct sb_lua_class class = {
    .type = &sb_process_type, .name = "sandbar.NativeProcess", .methods = methods, .plain = plain};

void sb_lua_open_process(lua_State *L)
{
    sb_lua_register(L, &class);
}
