/* Releases as userdata. Collecting one drops the reference and fires nothing: a handle's collection
 * does that. The finalizers of a scope that nobody closed run after its collection, with what was
 * collected in the same cycle: such a release is one that its handle has fired. */
#include "open.h"

#define NAME "sandbar.Release"

struct lua_release {
    struct sb_release *release; /* one reference */
};

void sb_lua_push_release(lua_State *L, struct sb_release **release)
{
    if (*release == NULL) {
        lua_pushnil(L);
        return;
    }
    struct lua_release *r = sb_lua_newuserdata(L, sizeof *r, 0);
    r->release = NULL;
    luaL_setmetatable(L, NAME);
    r->release = *release;
    *release = NULL;
}

struct sb_release *sb_lua_check_release(lua_State *L, int arg)
{
    return ((struct lua_release *)luaL_checkudata(L, arg, NAME))->release;
}

static int release_fire(lua_State *L)
{
    struct sb_release *release = sb_lua_check_release(L, 1);
    lua_pushboolean(L, release != NULL && sb_release_fire(release, NULL));
    return 1;
}

/* Nil for a collected one. */
static int release_op(lua_State *L)
{
    struct sb_release *release = sb_lua_check_release(L, 1);
    if (release == NULL)
        return 0;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_op_new(mailbox, NULL, NULL);
    if (*slot != NULL)
        sb_release_fire(release, *slot);
    return sb_lua_op_made(L, slot);
}

static int release_cancel(lua_State *L)
{
    struct sb_release *release = sb_lua_check_release(L, 1);
    lua_pushboolean(L, release != NULL && sb_release_cancel(release));
    return 1;
}

static int release_fired(lua_State *L)
{
    struct sb_release *release = sb_lua_check_release(L, 1);
    lua_pushboolean(L, release == NULL || sb_release_fired(release));
    return 1;
}

static int release_gc(lua_State *L)
{
    struct lua_release *r = luaL_testudata(L, 1, NAME);
    if (r == NULL)
        return 0;
    sb_release_unref(r->release);
    r->release = NULL;
    return 0;
}

void sb_lua_open_release(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__gc", release_gc}, {NULL, NULL}};
    static const luaL_Reg methods[] = {
        {"fire", release_fire},   {"op", release_op}, {"cancel", release_cancel},
        {"fired", release_fired}, {NULL, NULL},
    };
    sb_lua_new_metatable(L, NAME, meta, methods);
}
