/* core.host_tree and core.host_at: trees of the host for upload and download. */
#include <string.h>

#include "../engine/hosttree.h"
#include "open.h"

/* A path of the host, without zero bytes. */
static const char *check_path(lua_State *L, int arg)
{
    size_t len;
    const char *path = luaL_checklstring(L, arg, &len);
    luaL_argcheck(L, strlen(path) == len, arg, "path contains a zero byte");
    return path;
}

/* host_tree(path) -> op: what is there and below it, in `bytes` */
static int host_tree(lua_State *L)
{
    const char *path = check_path(L, 1);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_host_tree(mailbox, path);
    return sb_lua_op_made(L, op);
}

/* host_at(action, base, name, other, mode) -> op; read and create give a NativeFile */
static int host_at(lua_State *L)
{
    static const char *const names[] = {"mkdir", "symlink", "rename", "remove", "chmod", "read", "create", NULL};
    int action = luaL_checkoption(L, 1, NULL, names);
    const char *base = check_path(L, 2), *name = check_path(L, 3), *other = check_path(L, 4);
    lua_Number mode = luaL_checknumber(L, 5);
    luaL_argcheck(L, mode >= 0 && mode <= 07777, 5, "not permission bits");
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_host_at(mailbox, (enum sb_host_action)action, base, name, other, (unsigned)mode);
    return sb_lua_op_made(L, op);
}

void sb_lua_open_hosttree(lua_State *L)
{
    lua_pushcfunction(L, host_tree);
    lua_setfield(L, -2, "host_tree");
    lua_pushcfunction(L, host_at);
    lua_setfield(L, -2, "host_at");
}
