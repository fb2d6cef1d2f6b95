/* NativeFile: an open regular file as userdata; files of the host; copies between files. */
#include "../engine/file.h"

#include <errno.h>
#include <stdlib.h>

#include "../engine/hosttree.h"
#include "../runtime/large.h"
#include "engine.h"

#define PUMP_DEFAULT 262144
#define READ_MAX 9e15
#define HERE_MAX 262144 /* as much as stays in a processor's cache until Lua has its copy */

static const char
    buffer_key; /* in the registry: what read_here reads into, kept for the next one */

static struct sb_file *check(lua_State *L, int arg)
{
    return sb_lua_check_object(L, arg, &sb_file_type);
}

static uint64_t check_size(lua_State *L, int arg)
{
    lua_Number n = luaL_checknumber(L, arg);
    luaL_argcheck(L, n >= 0 && n <= READ_MAX, arg, "size expected");
    return (uint64_t)n;
}

static int read(lua_State *L)
{
    struct sb_file *file = check(L, 1);
    uint64_t offset = check_size(L, 2), n = check_size(L, 3);
    if (sb_lua_forked(L, file))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_file_read(file, mailbox, offset, n);
    return sb_lua_op_made(L, slot);
}

/* The state's buffer, made at the first read; NULL: no memory. */
static void *own_buffer(lua_State *L)
{
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &buffer_key);
    void **buffer = lua_touserdata(L, -1);
    if (*buffer == NULL) {
        sb_large_keep_heap();
        *buffer = malloc(HERE_MAX);
    }
    return *buffer;
}

/* read_here(offset, n): read without an operation, for a program that would block for it anyway: the
 * bytes, "" at the end, or nil and an error. */
static int read_here(lua_State *L)
{
    struct sb_file *file = check(L, 1);
    uint64_t offset = check_size(L, 2), n = check_size(L, 3);
    struct sb_error err = {SB_OK};
    ssize_t got = -1;
    luaL_argcheck(L, n <= HERE_MAX, 3, "at most 256 KiB expected");
    void *buffer = own_buffer(L);
    if (buffer == NULL)
        sb_fail_errno(&err, ENOMEM, "read", "no memory to read into");
    else if (file->object.generation != sb_generation())
        sb_fail(&err, SB_ERR_FORKED, "made before this process was forked");
    else
        got = sb_file_read_here(file, offset, buffer, n, &err);
    if (got < 0) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushlstring(L, buffer, (size_t)got);
    return 1;
}

static int write(lua_State *L)
{
    struct sb_file *file = check(L, 1);
    uint64_t offset = check_size(L, 2);
    size_t len;
    const char *data = sb_lua_check_bytes(L, 3, &len);
    if (sb_lua_forked(L, file))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_file_write(file, mailbox, offset, data, len);
    return sb_lua_op_made(L, slot);
}

static int truncate(lua_State *L)
{
    struct sb_file *file = check(L, 1);
    uint64_t size = check_size(L, 2);
    if (sb_lua_forked(L, file))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_file_truncate(file, mailbox, size);
    return sb_lua_op_made(L, slot);
}

static int simple(lua_State *L, struct sb_op *(*what)(struct sb_file *, struct sb_mailbox *))
{
    struct sb_file *file = check(L, 1);
    if (sb_lua_forked(L, file))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = what(file, mailbox);
    return sb_lua_op_made(L, slot);
}

static int sync(lua_State *L)
{
    return simple(L, sb_file_sync);
}

static int size(lua_State *L)
{
    return simple(L, sb_file_size);
}

/* lock(): whether it is ours now, or nil and an error. */
static int lock(lua_State *L)
{
    struct sb_error err = {SB_OK};
    int taken = sb_file_lock(check(L, 1), &err);
    if (taken < 0) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushboolean(L, taken);
    return 1;
}

static int close(lua_State *L)
{
    struct sb_file *file = check(L, 1);
    if (file->object.generation == sb_generation())
        sb_file_close(file);
    return 0;
}

/* ---- the host's files ---- */

static const char *check_path(lua_State *L, int arg)
{
    size_t len;
    const char *path = luaL_checklstring(L, arg, &len);
    luaL_argcheck(L, strlen(path) == len, arg, "a path without zero bytes expected");
    return path;
}

static unsigned check_mode(lua_State *L, int arg, unsigned fallback)
{
    return lua_isnoneornil(L, arg) ? fallback : (unsigned)(check_size(L, arg) & 07777);
}

/* host_open(path, how, mode) */
static int host_open(lua_State *L)
{
    const char *path = check_path(L, 1), *how = luaL_optstring(L, 2, "r");
    unsigned mode = check_mode(L, 3, 0666);
    luaL_argcheck(L, strspn(how, "rwxn") == strlen(how) && strlen(how) < 8, 2,
                  "a mode of r, w, wx and n expected");
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_file_host_open(mailbox, path, how, mode);
    return sb_lua_op_made(L, slot);
}

/* host_tree(path): what is there and below, as bytes: "<type> <mode> <size>\0<name>\0<target>\0"
 * each */
static int host_tree(lua_State *L)
{
    const char *path = check_path(L, 1);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_host_tree(mailbox, path);
    return sb_lua_op_made(L, slot);
}

/* host_at(action, base, name, other, mode) */
static int host_at(lua_State *L)
{
    static const char *const names[] = {"mkdir", "symlink", "rename", "remove", "chmod",
                                        "read",  "create",  "sync",   NULL};
    static const enum sb_host_action actions[] = {SB_HOST_MKDIR,  SB_HOST_SYMLINK, SB_HOST_RENAME,
                                                  SB_HOST_REMOVE, SB_HOST_CHMOD,   SB_HOST_READ,
                                                  SB_HOST_CREATE, SB_HOST_SYNC};
    enum sb_host_action action = actions[luaL_checkoption(L, 1, NULL, names)];
    const char *base = check_path(L, 2), *name = check_path(L, 3);
    const char *other = lua_isnoneornil(L, 4) ? "" : check_path(L, 4);
    unsigned mode = check_mode(L, 5, 0);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_host_at(mailbox, action, base, name, other, mode);
    return sb_lua_op_made(L, slot);
}

/* pump(from, to, chunk) */
static int pump(lua_State *L)
{
    struct sb_file *from = check(L, 1), *to = check(L, 2);
    uint64_t chunk = lua_isnoneornil(L, 3) ? PUMP_DEFAULT : check_size(L, 3);
    luaL_argcheck(L, chunk > 0 && chunk <= (64u << 20), 3,
                  "a size between 1 byte and 64 MiB expected");
    if (sb_lua_forked(L, from) || sb_lua_forked(L, to))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_file_pump(from, to, mailbox, chunk);
    return sb_lua_op_made(L, slot);
}

static const luaL_Reg methods[] = {
    {"read", read},         {"read_here", read_here}, {"write", write},
    {"truncate", truncate}, {"sync", sync},           {"size", size},
    {"lock", lock},         {"close", close},         {NULL, NULL},
};
static const char *const plain[] = {"read_here", "lock", "close", NULL};
static const struct sb_lua_class class = {
    .type = &sb_file_type, .name = "sandbar.NativeFile", .methods = methods, .plain = plain};

void sb_lua_open_file(lua_State *L)
{
    static const luaL_Reg functions[] = {{"host_open", host_open},
                                         {"host_tree", host_tree},
                                         {"host_at", host_at},
                                         {"pump", pump},
                                         {NULL, NULL}};
    sb_lua_register(L, &class);
    sb_lua_new_scratch(L);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &buffer_key);
    luaL_setfuncs(L, functions, 0);
}
