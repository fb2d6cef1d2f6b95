/* Every difference between Lua 5.1, LuaJIT, 5.2, 5.3 and 5.4 that the binding meets, in one place.
 *
 * The binding keeps to a small subset on purpose: userdata with at most one user value (always a
 * table; the environment table on 5.1), metatables by name, the registry by pointer, strings with
 * lengths. It never yields and never resumes. LuaJIT calls itself 501 and has some later functions
 * already; they are left alone (but one, if it is there when we are loaded), so that one build serves
 * Lua 5.1, LuaJIT and OpenResty, whichever headers it was made with. */
#ifndef SB_COMPAT_H
#define SB_COMPAT_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdint.h>
#include <string.h>

#ifndef LUA_OK
#define LUA_OK 0
#endif

/* ---- 5.1 without LuaJIT's additions ---- */
#if LUA_VERSION_NUM < 502
#undef luaL_setfuncs
#undef luaL_testudata
#undef luaL_setmetatable
#define luaL_setfuncs sb_lua_setfuncs
#define luaL_testudata sb_lua_testudata
#define luaL_setmetatable sb_lua_setmetatable

static inline void luaL_setfuncs(lua_State *L, const luaL_Reg *l, int nup)
{
    luaL_checkstack(L, nup + 1, "too many upvalues");
    for (; l->name != NULL; l++) {
        lua_pushstring(L, l->name);
        for (int i = 0; i < nup; i++)
            lua_pushvalue(L, -(nup + 1));
        lua_pushcclosure(L, l->func, nup);
        lua_settable(L, -(nup + 3));
    }
    lua_pop(L, nup);
}

static inline void *luaL_testudata(lua_State *L, int i, const char *name)
{
    void *p = lua_touserdata(L, i);
    if (p == NULL || !lua_getmetatable(L, i))
        return NULL;
    luaL_getmetatable(L, name);
    if (!lua_rawequal(L, -1, -2))
        p = NULL;
    lua_pop(L, 2);
    return p;
}

static inline void luaL_setmetatable(lua_State *L, const char *name)
{
    luaL_getmetatable(L, name);
    lua_setmetatable(L, -2);
}
#endif

#if LUA_VERSION_NUM < 502
#ifndef lua_rawlen
#define lua_rawlen lua_objlen
#endif

#ifndef lua_absindex
#define lua_absindex(L, i) ((i) > 0 || (i) <= LUA_REGISTRYINDEX ? (i) : lua_gettop(L) + (i) + 1)
#endif

static inline void sb_lua_rawgetp(lua_State *L, int i, const void *p)
{
    int at = lua_absindex(L, i);
    lua_pushlightuserdata(L, (void *)p);
    lua_rawget(L, at);
}

static inline void sb_lua_rawsetp(lua_State *L, int i, const void *p)
{
    int at = lua_absindex(L, i);
    lua_pushlightuserdata(L, (void *)p);
    lua_insert(L, -2);
    lua_rawset(L, at);
}
#else
#define sb_lua_rawgetp(L, i, p) ((void)lua_rawgetp(L, i, p))
#define sb_lua_rawsetp(L, i, p) lua_rawsetp(L, i, p)
#endif

/* A function as string.dump gives it, names and lines included. */
#if LUA_VERSION_NUM >= 503
#define sb_lua_dump(L, writer, data) lua_dump(L, writer, data, 0)
#else
#define sb_lua_dump(L, writer, data) lua_dump(L, writer, data)
#endif

/* ---- user values: a table, or nothing set yet ---- */
#if LUA_VERSION_NUM >= 504
#define sb_lua_newuserdata(L, size, uservalues) lua_newuserdatauv(L, size, uservalues)
#define sb_lua_setuservalue(L, i) ((void)lua_setiuservalue(L, i, 1))
#define sb_lua_getuservalue(L, i) ((void)lua_getiuservalue(L, i, 1))
#else
#define sb_lua_newuserdata(L, size, uservalues) ((void)(uservalues), lua_newuserdata(L, size))
#if LUA_VERSION_NUM >= 502
#define sb_lua_setuservalue(L, i) lua_setuservalue(L, i)
#define sb_lua_getuservalue(L, i) ((void)lua_getuservalue(L, i))
#else /* the environment table: a shared one until it is set, so set it before the first get */
#define sb_lua_setuservalue(L, i) ((void)lua_setfenv(L, i))
#define sb_lua_getuservalue(L, i) lua_getfenv(L, i)
#endif
#endif

/* ---- numbers ---- */

/* An integer of up to 53 bits, as an integer where Lua has them. */
#define sb_lua_pushinteger(L, n) sb_lua_pushint64(L, (int64_t)(n))
static inline void sb_lua_pushint64(lua_State *L, int64_t n)
{
#if LUA_VERSION_NUM >= 503
    lua_pushinteger(L, (lua_Integer)n);
#else
    lua_pushnumber(L, (lua_Number)n);
#endif
}

/* 1 and the value when the stack slot is a number (never a string) without a fraction that fits. */
static inline int sb_lua_tointeger(lua_State *L, int i, int64_t *n)
{
    if (lua_type(L, i) != LUA_TNUMBER)
        return 0;
#if LUA_VERSION_NUM >= 503
    int whole = 0;
    *n = (int64_t)lua_tointegerx(L, i, &whole);
    return whole;
#else
    lua_Number d = lua_tonumber(L, i);
    if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || (lua_Number)(int64_t)d != d)
        return 0;
    *n = (int64_t)d;
    return 1;
#endif
}

/* The name of the argument's type as error messages show it: __name of its metatable, else the
 * type. */
static inline const char *sb_lua_typename(lua_State *L, int i)
{
    if (luaL_getmetafield(L, i, "__name")) {
        if (lua_type(L, -1) == LUA_TSTRING)
            return lua_tostring(L, -1); /* stays on the stack: the caller is about to raise */
        lua_pop(L, 1);
    }
    return lua_type(L, i) == LUA_TLIGHTUSERDATA ? "light userdata" : luaL_typename(L, i);
}

static inline int sb_lua_typeerror(lua_State *L, int arg, const char *expected)
{
    const char *got = sb_lua_typename(L, arg);
    return luaL_argerror(L, arg, lua_pushfstring(L, "%s expected, got %s", expected, got));
}

/* May the running function suspend? 5.1 and 5.2 can only tell the main thread from others. */
#if LUA_VERSION_NUM == 501
extern int lua_isyieldable(lua_State *L) __attribute__((weak)); /* LuaJIT's */
#endif

static inline int sb_lua_isyieldable(lua_State *L)
{
#if LUA_VERSION_NUM >= 503
    return lua_isyieldable(L);
#else
#if LUA_VERSION_NUM == 501
    if (lua_isyieldable != NULL)
        return lua_isyieldable(L);
#endif
    int main_thread = lua_pushthread(L);
    lua_pop(L, 1);
    return !main_thread;
#endif
}

#endif
