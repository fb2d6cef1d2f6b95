/* Websockets as userdata. */
#include "websocket.h"

#include <stdlib.h>

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../http/websocket.h"

/* message(op) -> data, binary | nil, code, reason (closed in order); nothing when it has failed */
static int message(lua_State *L)
{
    struct sb_result *r = sb_lua_op_result(L, 1);
    if (r == NULL)
        return 0;
    lua_settop(L, 1);
    if (r->bytes == NULL) {
        lua_pushnil(L);
        lua_pushinteger(L, (lua_Integer)r->number);
        lua_pushlstring(L, r->bytes2 != NULL ? (const char *)r->bytes2 : "", r->bytes2_len);
        return 3;
    }
    lua_pushlstring(L, (const char *)r->bytes, r->bytes_len);
    free(r->bytes);
    r->bytes = NULL;
    lua_pushboolean(L, r->number == 2);
    return 2;
}

static int is_text(lua_State *L)
{
    size_t len;
    const char *data = sb_lua_check_bytes(L, 1, &len);
    lua_pushboolean(L, sb_utf8_valid(data, len));
    return 1;
}

static int websocket_receive(lua_State *L)
{
    struct sb_websocket *ws = sb_lua_check_object(L, 1, &sb_websocket_type);
    if (sb_lua_forked(L, ws))
        return 1;
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_websocket_receive(ws, mailbox);
    return sb_lua_op_made(L, op);
}

/* websocket:send(data, binary) -> op */
static int websocket_send(lua_State *L)
{
    struct sb_websocket *ws = sb_lua_check_object(L, 1, &sb_websocket_type);
    if (sb_lua_forked(L, ws))
        return 1;
    size_t len;
    const char *data = sb_lua_check_bytes(L, 2, &len);
    int binary = lua_toboolean(L, 3);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_websocket_send(ws, mailbox, binary, data, len);
    return sb_lua_op_made(L, op);
}

/* websocket:close(code, reason, seconds) -> op */
static int websocket_close(lua_State *L)
{
    struct sb_websocket *ws = sb_lua_check_object(L, 1, &sb_websocket_type);
    if (sb_lua_forked(L, ws))
        return 1;
    lua_Integer code = luaL_checkinteger(L, 2);
    size_t len;
    const char *reason = luaL_checklstring(L, 3, &len);
    lua_Number seconds = luaL_checknumber(L, 4);
    luaL_argcheck(L, code >= 1000 && code < 5000, 2, "no code");
    luaL_argcheck(L, len <= SB_WEBSOCKET_REASON, 3, "too long");
    luaL_argcheck(L, seconds >= 0 && seconds < 1e9, 4, "no time");
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **op = sb_lua_new_op(L);
    *op = sb_websocket_close(ws, mailbox, (uint16_t)code, reason, len, (uint64_t)(seconds * 1e9));
    return sb_lua_op_made(L, op);
}

static int websocket_drop(lua_State *L)
{
    sb_websocket_drop(sb_lua_check_object(L, 1, &sb_websocket_type));
    return 0;
}

static void collected(void *ws)
{
    sb_websocket_drop(ws);
}

static const luaL_Reg methods[] = {
    {"receive", websocket_receive},
    {"send", websocket_send},
    {"close", websocket_close},
    {"drop", websocket_drop},
    {NULL, NULL},
};
static const char *const plain[] = {"drop", NULL};
static const struct sb_lua_class class = {
    &sb_websocket_type, "sandbar.NativeWebSocket", methods, plain, 16384, collected};

void sb_lua_open_websocket(lua_State *L)
{
    sb_lua_register(L, &class);
    lua_pushcfunction(L, message);
    lua_setfield(L, -2, "message");
    lua_pushcfunction(L, is_text);
    lua_setfield(L, -2, "is_text");
}
