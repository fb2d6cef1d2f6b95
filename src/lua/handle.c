/* core.class and core.handle: the userdata behind every public handle. Methods are Lua; what C adds
 * is what Lua cannot do everywhere: a finalizer that needs no closure, and a release that fires in
 * it.
 *
 * A handle's user value is its state, a table. Its class is its metatable, marked by an entry under
 * an address. */
#include "open.h"

static const char class_key;     /* in a class: true */
static const char abandon_key;   /* in a class: true when states are to be kept */
static const char abandoned_key; /* in the registry: the list of kept states */

struct handle {
    struct sb_release *release; /* one reference, or NULL */
    uint64_t generation;
    int keep; /* the state, when collected */
    int collected;
};

/* The handle at `i`, of whatever class, or NULL. */
static struct handle *to_handle(lua_State *L, int i)
{
    struct handle *h = lua_touserdata(L, i);
    if (h == NULL || lua_islightuserdata(L, i) || !lua_getmetatable(L, i))
        return NULL;
    sb_lua_rawgetp(L, -1, &class_key);
    int is_class = lua_toboolean(L, -1);
    lua_pop(L, 2);
    return is_class ? h : NULL;
}

/* `class` is one. */
static int is_instance(lua_State *L, int i, int class)
{
    if (lua_type(L, i) != LUA_TUSERDATA || !lua_getmetatable(L, i))
        return 0;
    int same = lua_rawequal(L, -1, class);
    lua_pop(L, 1);
    return same;
}

static void check_class(lua_State *L, int arg)
{
    int is_class = 0;
    if (lua_istable(L, arg)) {
        sb_lua_rawgetp(L, arg, &class_key);
        is_class = lua_toboolean(L, -1);
        lua_pop(L, 1);
    }
    luaL_argcheck(L, is_class, arg, "class expected");
}

/* ---- metamethods ---- */

/* Upvalues: methods, getters or nil. */
static int handle_index(lua_State *L)
{
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1) || lua_type(L, 2) != LUA_TSTRING || to_handle(L, 1) == NULL)
        return 1;
    if (lua_istable(L, lua_upvalueindex(2))) {
        lua_pushvalue(L, 2);
        lua_rawget(L, lua_upvalueindex(2));
        if (!lua_isnil(L, -1)) {
            sb_lua_getuservalue(L, 1);
            lua_call(L, 1, 1);
            return 1;
        }
    }
    if (lua_tostring(L, 2)[0] == '_')
        return 0;
    sb_lua_getuservalue(L, 1);
    lua_pushvalue(L, 2);
    lua_rawget(L, -2);
    return 1;
}

/* Upvalue: the class's name. */
static int handle_newindex(lua_State *L)
{
    if (lua_type(L, 2) == LUA_TSTRING)
        return luaL_error(L, "cannot set field '%s' of a %s", lua_tostring(L, 2),
                          lua_tostring(L, lua_upvalueindex(1)));
    return luaL_error(L, "cannot set a field of a %s", lua_tostring(L, lua_upvalueindex(1)));
}

/* Upvalues: the class's name, its function or nil. */
static int handle_tostring(lua_State *L)
{
    if (lua_isnil(L, lua_upvalueindex(2)) || to_handle(L, 1) == NULL) {
        lua_pushvalue(L, lua_upvalueindex(1));
        return 1;
    }
    lua_pushvalue(L, lua_upvalueindex(2));
    sb_lua_getuservalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

/* Has the handle's state something to do when its release is fired by the collector? */
static int wants_to_know(lua_State *L)
{
    sb_lua_getuservalue(L, 1);
    if (lua_istable(L, -1)) {
        lua_pushliteral(L, "_abandoned");
        lua_rawget(L, -2);
    }
    return lua_isfunction(L, -1);
}

/* Upvalue: the class. Never waits, never raises but for want of memory, looks at no other handle. */
static int handle_gc(lua_State *L)
{
    struct handle *h = lua_touserdata(L, 1);
    if (!is_instance(L, 1, lua_upvalueindex(1)))
        return 0;
    h->collected = 1;
    int keep = h->keep && h->generation == sb_generation();
    if (h->release != NULL) {
        int fired = sb_release_fire(h->release, NULL);
        sb_release_unref(h->release);
        h->release = NULL;
        keep = keep || (fired && wants_to_know(L));
    }
    h->keep = 0;
    if (!keep)
        return 0;
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &abandoned_key);
    if (lua_istable(L, -1)) {
        sb_lua_getuservalue(L, 1);
        lua_rawseti(L, -2, (int)lua_rawlen(L, -2) + 1);
    }
    return 0;
}

/* ---- functions ---- */

static void opt_field(lua_State *L, int table, const char *name)
{
    if (lua_istable(L, table))
        lua_getfield(L, table, name);
    else
        lua_pushnil(L);
}

static int class(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    if (!lua_isnoneornil(L, 3))
        luaL_checktype(L, 3, LUA_TTABLE);
    lua_settop(L, 3);
    lua_pushfstring(L, "sandbar.%s", name); /* at 4 */
    lua_newtable(L);                        /* at 5 */

    lua_pushvalue(L, 2);
    opt_field(L, 3, "getters");
    lua_pushcclosure(L, handle_index, 2);
    lua_setfield(L, 5, "__index");

    lua_pushvalue(L, 4);
    lua_pushcclosure(L, handle_newindex, 1);
    lua_setfield(L, 5, "__newindex");

    lua_pushvalue(L, 4);
    opt_field(L, 3, "tostring");
    lua_pushcclosure(L, handle_tostring, 2);
    lua_setfield(L, 5, "__tostring");

    lua_pushvalue(L, 5);
    lua_pushcclosure(L, handle_gc, 1);
    lua_setfield(L, 5, "__gc");
    opt_field(L, 3, "on_close"); /* for a close() with arguments: __close gets the error */
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_getfield(L, 2, "close");
    }
    lua_setfield(L, 5, "__close");
    opt_field(L, 3, "call");
    lua_setfield(L, 5, "__call");
    lua_pushvalue(L, 4);
    lua_setfield(L, 5, "__name");
    lua_pushboolean(L, 0);
    lua_setfield(L, 5, "__metatable");

    opt_field(L, 3, "abandon");
    sb_lua_rawsetp(L, 5, &abandon_key);
    lua_pushboolean(L, 1);
    sb_lua_rawsetp(L, 5, &class_key);
    return 1;
}

static int handle(lua_State *L)
{
    check_class(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    struct sb_release *release = lua_isnoneornil(L, 3) ? NULL : sb_lua_check_release(L, 3);
    sb_lua_rawgetp(L, 1, &abandon_key);
    int keep = lua_toboolean(L, -1);
    struct handle *h = sb_lua_newuserdata(L, sizeof *h, 1);
    *h = (struct handle){NULL, sb_generation(), 0, 0};
    lua_pushvalue(L, 2);
    sb_lua_setuservalue(L, -2);
    lua_pushvalue(L, 1);
    lua_setmetatable(L, -2);
    h->keep = keep;
    if (release != NULL)
        h->release = sb_release_ref(release);
    return 1;
}

/* The level of the function that was misused: the outermost of those from the directory of the file that
 * asked for the state, so that no helper is named instead. */
static int misused_level(lua_State *L)
{
    lua_Debug ar;
    const char *file = NULL, *slash;
    size_t dir = 0;
    int level = 1;
    while (lua_getstack(L, level, &ar) && lua_getinfo(L, "S", &ar)) {
        if (file == NULL) {
            file = ar.source;
            slash = strrchr(file, '/');
            dir = slash != NULL ? (size_t)(slash - file) + 1 : strlen(file) + 1;
        } else if (strncmp(file, ar.source, dir) != 0 || strchr(ar.source + dir, '/') != NULL) {
            break;
        }
        level++;
    }
    return level > 1 ? level - 1 : 1;
}

/* Raises in its name, where it was called. */
static int bad_handle(lua_State *L)
{
    lua_Debug ar;
    const char *expected = "handle", *function = NULL, *got;
    int method = 0, level = misused_level(L);
    if (lua_istable(L, 2)) {
        lua_getfield(L, 2, "__name");
        expected = lua_tostring(L, -1);
    }
    got = lua_isnone(L, 1) ? "no value" : sb_lua_typename(L, 1);
    if (lua_getstack(L, level, &ar) && lua_getinfo(L, "n", &ar) && ar.name != NULL) {
        function = ar.name;
        method = strcmp(ar.namewhat, "method") == 0;
    }
    luaL_where(L, level + 1);
    if (function == NULL)
        lua_pushfstring(L, "calling a method on bad self (%s expected, got %s)", expected, got);
    else if (method)
        lua_pushfstring(L, "calling '%s' on bad self (%s expected, got %s)", function, expected,
                        got);
    else
        lua_pushfstring(L, "bad argument #1 to '%s' (%s expected, got %s)", function, expected,
                        got);
    lua_concat(L, 2);
    return lua_error(L);
}

static int state(lua_State *L)
{
    int any = lua_isnoneornil(L, 2);
    if (!any)
        check_class(L, 2);
    if (any ? to_handle(L, 1) == NULL : !is_instance(L, 1, 2))
        return bad_handle(L);
    sb_lua_getuservalue(L, 1);
    return 1;
}

static int is(lua_State *L)
{
    check_class(L, 2);
    lua_pushboolean(L, is_instance(L, 1, 2));
    return 1;
}

/* collected(x): a handle or a native object that the collector has finalized. */
static int collected(lua_State *L)
{
    const struct handle *h = to_handle(L, 1);
    lua_pushboolean(L, h != NULL ? h->collected : sb_lua_is_collected(L, 1));
    return 1;
}

static int abandoned(lua_State *L)
{
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &abandoned_key);
    if (lua_rawlen(L, -1) == 0)
        return 0;
    lua_newtable(L);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &abandoned_key);
    return 1;
}

void sb_lua_open_handle(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"class", class},         {"handle", handle},       {"state", state}, {"is", is},
        {"abandoned", abandoned}, {"collected", collected}, {NULL, NULL},
    };
    lua_newtable(L);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &abandoned_key);
    luaL_setfuncs(L, functions, 0);
}
