/* NativeStream: streams as userdata. */
#include <stdint.h>
#include <stdlib.h>

#include "../runtime/stream.h"
#include "open.h"

#define SOME_DEFAULT 262144

static const char
    scratch_key; /* in the registry: where try_read's bytes are safe from a Lua error */

static struct sb_stream *check(lua_State *L)
{
    return sb_lua_check_object(L, 1, &sb_stream_type);
}

/* Arguments 2 and 3: the mode and, for "exact", a size; for others an optional limit. */
static enum sb_read_mode check_mode(lua_State *L, size_t *n)
{
    static const char *const names[] = {"some", "exact", "line", "all", NULL};
    static const enum sb_read_mode modes[] = {SB_READ_SOME, SB_READ_EXACT, SB_READ_LINE,
                                              SB_READ_ALL};
    enum sb_read_mode mode = modes[luaL_checkoption(L, 2, "some", names)];
    int64_t size = 0;
    *n = mode == SB_READ_SOME ? SOME_DEFAULT : SIZE_MAX;
    if (lua_isnoneornil(L, 3) && mode != SB_READ_EXACT)
        return mode;
    if (!sb_lua_tointeger(L, 3, &size) || size < 0)
        luaL_argerror(L, 3, "size expected");
    *n = (size_t)size;
    return mode;
}

static int stream_read(lua_State *L)
{
    size_t n;
    struct sb_stream *stream = check(L);
    enum sb_read_mode mode = check_mode(L, &n);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_stream_read(stream, mailbox, mode, n);
    return sb_lua_op_made(L, slot);
}

/* Pushes the scratch. */
static void **own_scratch(lua_State *L)
{
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &scratch_key);
    void **scratch = lua_touserdata(L, -1);
    free(*scratch); /* left by a call that raised */
    *scratch = NULL;
    return scratch;
}

static int stream_try_read(lua_State *L)
{
    size_t n;
    struct sb_stream *stream = check(L);
    enum sb_read_mode mode = check_mode(L, &n);
    void **scratch = own_scratch(L);
    struct sb_result result = {.error.kind = SB_OK};
    int done = sb_stream_try_read(stream, mode, n, &result);
    *scratch = result.bytes;
    lua_pushboolean(L, done);
    if (!done)
        return 1;
    if (result.error.kind != SB_OK) {
        lua_pushnil(L);
        return 2 + sb_lua_push_error(L, &result.error);
    }
    if (result.bytes == NULL) {
        lua_pushnil(L);
        return 2;
    }
    lua_pushlstring(L, (const char *)result.bytes, result.bytes_len);
    free(result.bytes);
    *scratch = NULL;
    return 2;
}

static int stream_write(lua_State *L)
{
    size_t len;
    struct sb_stream *stream = check(L);
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_stream_write(stream, mailbox, data, len);
    return sb_lua_op_made(L, slot);
}

/* try_write(data) -> how much, or nil, e */
static int stream_try_write(lua_State *L)
{
    size_t len, taken;
    struct sb_stream *stream = check(L);
    const char *data = sb_lua_check_bytes(L, 2, &len);
    struct sb_error err = {SB_OK};
    if (sb_stream_try_write(stream, data, len, &taken, &err) < 0) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushinteger(L, (lua_Integer)taken);
    return 1;
}

static int stream_end_reading(lua_State *L)
{
    sb_stream_end_reading(check(L));
    return 0;
}

static int stream_close_write(lua_State *L)
{
    sb_stream_close_write(check(L));
    return 0;
}

static int stream_close(lua_State *L)
{
    sb_stream_close(check(L));
    return 0;
}

static int stream_at_end(lua_State *L)
{
    lua_pushboolean(L, sb_stream_at_end(check(L)));
    return 1;
}

void sb_lua_open_stream(lua_State *L)
{
    static const luaL_Reg methods[] = {
        {"read", stream_read},
        {"try_read", stream_try_read},
        {"write", stream_write},
        {"try_write", stream_try_write},
        {"close", stream_close},
        {"at_end", stream_at_end},
        {"close_write", stream_close_write},
        {"end_reading", stream_end_reading},
        {NULL, NULL},
    };
    static const char *const plain[] = {"try_read",    "try_write",   "close", "at_end",
                                        "close_write", "end_reading", NULL};
    static const struct sb_lua_class class = {
        .type = &sb_stream_type,
        .name = "sandbar.NativeStream",
        .methods = methods,
        .plain = plain,
        .weight = 32768, /* a guess between an empty buffer and a full one */
    };
    sb_lua_register(L, &class);
    sb_lua_new_scratch(L);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &scratch_key);
}
