/* core.mailbox(): the state's one mailbox, made when the module is opened and kept in the
 * registry. */
#include <stdlib.h>

#include "open.h"

#define NAME "sandbar.Mailbox"
#define DRAIN_AT_ONCE 64

struct lua_mailbox {
    struct sb_mailbox *mailbox; /* one reference; NULL once finalized */
};

static const char key; /* of the userdata in the registry, by address */

struct sb_mailbox *sb_lua_mailbox(lua_State *L)
{
    struct sb_error err;
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    struct lua_mailbox *m = lua_touserdata(L, -1);
    struct sb_mailbox *mailbox = m != NULL ? m->mailbox : NULL;
    lua_pop(L, 1);
    if (mailbox == NULL)
        luaL_error(L, "this Lua state is closing");
    else if (sb_mailbox_renew(mailbox, &err) != 0)
        luaL_error(L, "%s", err.message);
    return mailbox;
}

static int mailbox_get(lua_State *L)
{
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    return 1;
}

static struct sb_mailbox *check(lua_State *L)
{
    luaL_checkudata(L, 1, NAME);
    return sb_lua_mailbox(L);
}

static int mailbox_fd(lua_State *L)
{
    sb_lua_pushinteger(L, sb_mailbox_fd(check(L)));
    return 1;
}

static int mailbox_pending(lua_State *L)
{
    sb_lua_pushinteger(L, sb_mailbox_pending(check(L)));
    return 1;
}

/* Appends the ids to the caller's table, so that they are somewhere even when a hook raises right after this
 * call. Ids leave the operations, references are dropped, and only then Lua may raise. */
static int mailbox_drain(lua_State *L)
{
    struct sb_mailbox *mailbox = check(L);
    struct sb_op *ops[DRAIN_AT_ONCE];
    uint64_t ids[DRAIN_AT_ONCE];
    size_t got;
    luaL_checktype(L, 2, LUA_TTABLE);
    int n = (int)lua_rawlen(L, 2);
    lua_settop(L, 2);
    do {
        got = sb_mailbox_drain(mailbox, ops, DRAIN_AT_ONCE);
        for (size_t i = 0; i < got; i++) {
            ids[i] = sb_op_id(ops[i]);
            sb_op_unref(ops[i]);
        }
        for (size_t i = 0; i < got; i++) {
            sb_lua_pushinteger(L, ids[i]);
            lua_rawseti(L, 2, ++n);
        }
    } while (got == DRAIN_AT_ONCE);
    return 0;
}

static int mailbox_poll(lua_State *L)
{
    struct sb_mailbox *mailbox = check(L);
    uint64_t deadline = lua_isnoneornil(L, 2) ? SB_NEVER : sb_lua_check_ns(L, 2);
    int ready = sb_mailbox_poll(mailbox, deadline);
    if (ready < 0) {
        lua_pushnil(L);
        lua_pushliteral(L, "interrupted");
        return 2;
    }
    lua_pushboolean(L, ready);
    return 1;
}

static int mailbox_listen(lua_State *L)
{
    struct sb_mailbox *mailbox = check(L);
    struct sb_error err;
    void **path = sb_lua_new_scratch(L);
    *path = sb_mailbox_listen(mailbox, &err);
    if (*path == NULL) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushstring(L, *path);
    free(*path);
    *path = NULL;
    return 1;
}

static int mailbox_nudge(lua_State *L)
{
    struct sb_mailbox *mailbox = check(L);
    static const char *const words[] = {"l", "i", NULL};
    sb_mailbox_nudge(mailbox, words[luaL_checkoption(L, 2, NULL, words)][0]);
    return 0;
}

/* Does nothing global: the host may go on with other states. */
static int mailbox_gc(lua_State *L)
{
    struct lua_mailbox *m = luaL_testudata(L, 1, NAME);
    if (m == NULL)
        return 0;
    sb_mailbox_unref(m->mailbox);
    m->mailbox = NULL;
    return 0;
}

void sb_lua_open_mailbox(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__gc", mailbox_gc}, {NULL, NULL}};
    static const luaL_Reg methods[] = {
        {"fd", mailbox_fd},     {"pending", mailbox_pending}, {"drain", mailbox_drain},
        {"poll", mailbox_poll}, {"listen", mailbox_listen},   {"nudge", mailbox_nudge},
        {NULL, NULL},
    };
    struct sb_error err;
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    int have = lua_touserdata(L, -1) != NULL;
    lua_pop(L, 1);
    sb_lua_new_metatable(L, NAME, meta, methods);
    if (!have) {
        struct lua_mailbox *m = sb_lua_newuserdata(L, sizeof *m, 0);
        m->mailbox = NULL;
        luaL_setmetatable(L, NAME);
        sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &key);
        m->mailbox = sb_mailbox_new(&err);
        if (m->mailbox == NULL)
            luaL_error(L, "%s", err.message);
    }
    lua_pushcfunction(L, mailbox_get);
    lua_setfield(L, -2, "mailbox");
}
