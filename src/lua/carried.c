/* The library's modules in Lua, carried in core.so as they were compiled when it was built: reading
 * and compiling the sources was half of what a script of one command took.
 *
 * One rule: what is carried stands for a file that has the very bytes it was compiled from, or that
 * cannot be opened (a program without a free descriptor). So an edited file is seen at once, with
 * nothing to set and nothing to build. All of it only where this Lua compiles a sample to the bytes
 * that it was compiled to at the build: another Lua of the same ABI (PUC 5.1 and LuaJIT) takes the
 * sources. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "open.h"

#define PAGE ((uintptr_t)4096)

extern const unsigned char sb_carried[], sb_carried_end[]; /* carried/pack.lua says what is in it */

struct item {
    const char *at;
    size_t len;
};

static size_t number(const unsigned char **at)
{
    const unsigned char *p = *at;
    *at += 4;
    return p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

static struct item item(const unsigned char **at)
{
    size_t len = number(at);
    struct item item = {(const char *)*at, len};
    *at += len;
    return item;
}

/* ---- does this Lua speak it? ---- */

static int compare(lua_State *L, const void *bytes, size_t len, void *arg)
{
    struct item *rest = arg;
    (void)L;
    if (len > rest->len || memcmp(rest->at, bytes, len) != 0)
        return 1;
    rest->at += len;
    rest->len -= len;
    return 0;
}

static int speaks(lua_State *L, struct item sample, struct item code)
{
    int same = luaL_loadbuffer(L, sample.at, sample.len, "=sample") == LUA_OK &&
               sb_lua_dump(L, compare, &code) == 0 && code.len == 0;
    lua_pop(L, 1);
    return same;
}

/* ---- loading ---- */

/* Other bytes in the file, or more or fewer of them. */
static int differs(const char *path, struct item text)
{
    char buf[32768];
    int fd = open(path, O_RDONLY | O_CLOEXEC), same = 1;
    if (fd < 0)
        return 0;
    while (same) {
        /* one more than it should have, to see its end */
        size_t most = text.len < sizeof buf ? text.len + 1 : sizeof buf;
        ssize_t n = read(fd, buf, most);
        if (n < 0 && errno == EINTR)
            continue;
        same = n >= 0 && (size_t)n <= text.len && memcmp(text.at, buf, (size_t)n) == 0;
        if (same && (size_t)n < most) {
            same = (size_t)n == text.len;
            break;
        }
        text.at += n;
        text.len -= (size_t)n;
    }
    close(fd);
    return !same;
}

static int load_module(lua_State *L);

/* Is a module being loaded that has asked for the one of this call? */
static int is_asked_for(lua_State *L)
{
    enum { NEAR = 16 }; /* calls between the two, at most: the stack may be a deep one */
    lua_Debug ar;
    int is = 0;
    for (int level = 1; !is && level <= NEAR && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "f", &ar);
        is = lua_tocfunction(L, -1) == load_module;
        lua_pop(L, 1);
    }
    return is;
}

/* A module is read once: the pages go from this process, to which they would be a tenth of a script's memory, and stay
 * in the kernel's cache of files. All of them, since a fault may map much more than what was read; and after the last
 * of those that ask for each other, since each fault costs time. */
static void forget(void)
{
    uintptr_t from = ((uintptr_t)sb_carried + PAGE - 1) & ~(PAGE - 1);
    uintptr_t to = (uintptr_t)sb_carried_end & ~(PAGE - 1);
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* package.preload's function for one module; upvalues: its path in sb_carried, the directory of the
 * files or nil. Runs the module with its name and path, as require would. */
static int load_module(lua_State *L)
{
    const unsigned char *at = lua_touserdata(L, lua_upvalueindex(1));
    struct item path = item(&at);
    at = sb_carried + number(&at);
    struct item text = item(&at), code = item(&at);
    int status;
    lua_settop(L, 1);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_pushlstring(L, path.at, path.len);
    if (!lua_isnil(L, 2))
        lua_concat(L, 2);
    if (!lua_isnil(L, 2) && differs(lua_tostring(L, 2), text))
        status = luaL_loadfile(L, lua_tostring(L, 2));
    else
        status = luaL_loadbuffer(L, code.at, code.len, lua_tostring(L, -1));
    if (status != LUA_OK)
        return lua_error(L);
    lua_insert(L, 1);
    lua_settop(L, 3);
    lua_call(L, 2, 1);
    if (!is_asked_for(L))
        forget();
    return 1;
}

/* carry(preload): fills in what is not there yet. Called by sandbar/init.lua, beside which are the
 * files. */
static int carry(lua_State *L)
{
    static const char here[] = "sandbar/init.lua";
    const unsigned char *at = sb_carried;
    lua_Debug ar;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    if (at == sb_carried_end)
        return 0;
    struct item sample = item(&at), code = item(&at);
    if (!speaks(L, sample, code))
        return 0;
    lua_pushnil(L);
    if (lua_getstack(L, 1, &ar) && lua_getinfo(L, "S", &ar) && ar.source[0] == '@') {
        size_t len = strlen(ar.source + 1), tail = sizeof here - 1;
        if (len >= tail && strcmp(ar.source + 1 + len - tail, here) == 0) {
            lua_pushlstring(L, ar.source + 1, len - tail);
            lua_replace(L, 2);
        }
    }
    for (size_t n = number(&at); n > 0; n--) {
        struct item name = item(&at);
        lua_pushlstring(L, name.at, name.len);
        lua_pushvalue(L, -1);
        lua_rawget(L, 1);
        if (lua_isnil(L, -1)) {
            lua_pop(L, 1);
            lua_pushlightuserdata(L, (void *)at);
            lua_pushvalue(L, 2);
            lua_pushcclosure(L, load_module, 2);
            lua_rawset(L, 1);
        }
        lua_settop(L, 2);
        item(&at);   /* its path */
        number(&at); /* where it is */
    }
    return 0;
}

void sb_lua_open_carried(lua_State *L)
{
    lua_pushcfunction(L, carry);
    lua_setfield(L, -2, "carry");
}
