/* Small functions of core: clocks, random bytes, the process, settings. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "open.h"

#define RANDOM_MOST 4096

static int now(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)sb_now() / 1e9);
    return 1;
}

static int wall(lua_State *L)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    lua_pushnumber(L, (lua_Number)ts.tv_sec + (lua_Number)ts.tv_nsec / 1e9);
    return 1;
}

static int advance(lua_State *L)
{
    sb_clock_advance(sb_lua_check_ns(L, 1));
    return 0;
}

static int generation(lua_State *L)
{
    sb_lua_pushinteger(L, sb_generation());
    return 1;
}

static void fill_random(lua_State *L, unsigned char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = getrandom(bytes, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            luaL_error(L, "no random bytes from the kernel");
        bytes += n;
        len -= (size_t)n;
    }
}

static int random_bytes(lua_State *L)
{
    unsigned char bytes[RANDOM_MOST];
    int64_t n = 0;
    if (!sb_lua_tointeger(L, 1, &n) || n < 0 || n > RANDOM_MOST)
        return luaL_argerror(L, 1, "a number of bytes up to 4096 expected");
    fill_random(L, bytes, (size_t)n);
    lua_pushlstring(L, (const char *)bytes, (size_t)n);
    explicit_bzero(bytes, (size_t)n);
    return 1;
}

static int uuid(lua_State *L)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char b[16];
    char text[36], *at = text;
    fill_random(L, b, sizeof b);
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = digits[b[i] >> 4];
        *at++ = digits[b[i] & 15];
    }
    lua_pushlstring(L, text, sizeof text);
    return 1;
}

static int outstanding(lua_State *L)
{
    sb_lua_pushinteger(L, sb_release_outstanding());
    return 1;
}

static int config(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_getfield(L, 1, "drain");
    if (lua_isnil(L, -1))
        return 0;
    lua_Number drain = lua_tonumber(L, -1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TNUMBER && drain >= 0, 1, "drain: seconds expected");
    sb_release_set_drain(drain);
    return 0;
}

static int isyieldable(lua_State *L)
{
    lua_pushboolean(L, sb_lua_isyieldable(L));
    return 1;
}

/* Upvalue: what push_environment kept when the module was opened. */
static int get_env(lua_State *L)
{
    luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_rawget(L, lua_upvalueindex(1));
    return 1;
}

static int pid(lua_State *L)
{
    sb_lua_pushinteger(L, getpid());
    return 1;
}

/* errno(number) -> the kind it means by itself, its name or nil */
static int of_errno(lua_State *L)
{
    lua_Number n = luaL_checknumber(L, 1);
    int sys = n > 0 && n < 4096 ? (int)n : -1;
    const char *name = NULL;
    struct sb_error err;
    sb_fail_errno(&err, sys, NULL, "%s", "");
    lua_pushstring(L, sb_err_name(err.kind));
#ifdef __GLIBC__
    name = strerrorname_np(sys);
#endif
    lua_pushstring(L, name);
    return 2;
}

/* The variables that the library asks for. Copying an environment of forty was a hundredth of a script of
 * one command. */
static void push_environment(lua_State *L)
{
    static const char *const names[] = {"HOME", "XDG_STATE_HOME"};
    lua_newtable(L);
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t len = strlen(names[i]);
            if (strncmp(*entry, names[i], len) != 0 || (*entry)[len] != '=')
                continue;
            lua_pushstring(L, *entry + len + 1);
            lua_setfield(L, -2, names[i]);
        }
}

/* terminal(file) -> columns, rows of the terminal behind one of Lua's files; nil: there is none. Every Lua keeps the FILE
 * at the beginning of such userdata. */
static int terminal(lua_State *L)
{
    FILE *const *file = luaL_checkudata(L, 1, LUA_FILEHANDLE);
    struct winsize size;
    if (*file == NULL || ioctl(fileno(*file), TIOCGWINSZ, &size) < 0)
        return 0;
    sb_lua_pushinteger(L, size.ws_col > 0 ? size.ws_col : 80);
    sb_lua_pushinteger(L, size.ws_row > 0 ? size.ws_row : 24);
    return 2;
}

void sb_lua_open_system(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"now", now},
        {"wall", wall},
        {"advance", advance},
        {"generation", generation},
        {"random", random_bytes},
        {"uuid", uuid},
        {"outstanding", outstanding},
        {"config", config},
        {"isyieldable", isyieldable},
        {"pid", pid},
        {"errno", of_errno},
        {"terminal", terminal},
        {NULL, NULL},
    };
    luaL_setfuncs(L, functions, 0);
    push_environment(L);
    lua_pushcclosure(L, get_env, 1);
    lua_setfield(L, -2, "getenv");
}
