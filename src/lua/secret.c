/* core.secret: userdata with no way back to the bytes from Lua, and core.redact. */
#include <stdio.h>
#include <stdlib.h>

#include "../runtime/secret.h"
#include "open.h"

#define NAME "sandbar.Secret"
#define SHOWN "secret([redacted])"

struct lua_secret {
    struct sb_secret *secret;
};

static struct sb_secret *to_secret(lua_State *L, int i)
{
    struct lua_secret *s = luaL_testudata(L, i, NAME);
    return s != NULL ? s->secret : NULL;
}

static struct lua_secret *new_slot(lua_State *L)
{
    struct lua_secret *s = sb_lua_newuserdata(L, sizeof *s, 0);
    s->secret = NULL;
    luaL_setmetatable(L, NAME);
    return s;
}

const char *sb_lua_tobytes(lua_State *L, int i, size_t *len)
{
    struct sb_secret *secret;
    if (lua_type(L, i) == LUA_TSTRING)
        return lua_tolstring(L, i, len);
    secret = to_secret(L, i);
    return secret != NULL ? sb_secret_data(secret, len) : NULL;
}

const char *sb_lua_check_bytes(lua_State *L, int arg, size_t *len)
{
    const char *bytes = sb_lua_tobytes(L, arg, len);
    if (bytes == NULL)
        sb_lua_typeerror(L, arg, "string or secret");
    return bytes;
}

static int secret_new(lua_State *L)
{
    size_t len;
    if (lua_type(L, 1) != LUA_TSTRING)
        return sb_lua_typeerror(L, 1, "string");
    const char *data = lua_tolstring(L, 1, &len);
    struct lua_secret *s = new_slot(L);
    s->secret = sb_secret_new(data, len);
    return s->secret != NULL ? 1 : luaL_error(L, "not enough memory");
}

static int secret_prefixed(lua_State *L)
{
    size_t len, prefix_len = 0;
    struct sb_secret *secret = to_secret(L, 1);
    if (secret == NULL && luaL_testudata(L, 1, NAME) != NULL) {
        new_slot(L); /* collected as well: whoever uses it is told that */
        return 1;
    }
    if (secret == NULL)
        return sb_lua_typeerror(L, 1, "secret");
    const char *prefix = sb_lua_check_bytes(L, 2, &prefix_len);
    const char *data = sb_secret_data(secret, &len);
    struct lua_secret *s = new_slot(L);
    s->secret = sb_secret_join(prefix, prefix_len, data, len);
    return s->secret != NULL ? 1 : luaL_error(L, "not enough memory");
}

/* How long a byte is inside a string of JSON. */
static size_t json_len(unsigned char c)
{
    return c == '"' || c == '\\' ? 2 : c < 0x20 ? 6 : 1;
}

/* The secret as a string of JSON, quotes included. */
static int secret_json(lua_State *L)
{
    size_t len, n = 2;
    struct sb_secret *secret = to_secret(L, 1);
    if (secret == NULL)
        return sb_lua_typeerror(L, 1, "secret");
    const char *data = sb_secret_data(secret, &len);
    for (size_t i = 0; i < len; i++)
        n += json_len((unsigned char)data[i]);
    struct lua_secret *s = new_slot(L);
    char *text = malloc(n + 1), *at = text;
    if (text == NULL)
        return luaL_error(L, "not enough memory");
    *at++ = '"';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (json_len(c) == 6) {
            at += snprintf(at, 7, "\\u%04x", c);
            continue;
        }
        if (json_len(c) == 2)
            *at++ = '\\';
        *at++ = (char)c;
    }
    *at = '"';
    s->secret = sb_secret_new(text, n);
    explicit_bzero(text, n);
    free(text);
    return s->secret != NULL ? 1 : luaL_error(L, "not enough memory");
}

static int secret_tostring(lua_State *L)
{
    lua_pushliteral(L, SHOWN);
    return 1;
}

/* Text with a secret in it is for people to read: it says that there was one. */
static int secret_concat(lua_State *L)
{
    for (int i = 1; i <= 2; i++)
        if (to_secret(L, i) != NULL) {
            lua_pushliteral(L, SHOWN);
            lua_replace(L, i);
        } else if (!lua_isstring(L, i)) {
            return luaL_error(L, "attempt to concatenate a %s value", luaL_typename(L, i));
        }
    lua_settop(L, 2);
    lua_concat(L, 2);
    return 1;
}

static int secret_len(lua_State *L)
{
    return luaL_error(L, "a secret does not tell its length");
}

static int secret_gc(lua_State *L)
{
    struct lua_secret *s = luaL_testudata(L, 1, NAME);
    if (s == NULL)
        return 0;
    sb_secret_free(s->secret);
    s->secret = NULL;
    return 0;
}

/* Can it be used? Is it one at all, perhaps collected before the finalizer that uses it ran? */
static int is_secret(lua_State *L)
{
    lua_pushboolean(L, to_secret(L, 1) != NULL);
    lua_pushboolean(L, luaL_testudata(L, 1, NAME) != NULL);
    return 2;
}

static int redact(lua_State *L)
{
    size_t len, clean_len;
    const char *text = luaL_checklstring(L, 1, &len);
    void **scratch = sb_lua_new_scratch(L);
    char *clean = NULL;
    int found = sb_redact(text, len, &clean, &clean_len);
    *scratch = clean;
    if (found < 0) {
        lua_pushliteral(L, "[redacted]"); /* no memory to look for secrets in it */
    } else if (found == 0) {
        lua_pushvalue(L, 1);
    } else {
        lua_pushlstring(L, clean, clean_len);
        free(clean);
        *scratch = NULL;
    }
    return 1;
}

void sb_lua_open_secret(lua_State *L)
{
    static const luaL_Reg meta[] = {
        {"__gc", secret_gc},
        {"__tostring", secret_tostring},
        {"__concat", secret_concat},
        {"__len", secret_len},
        {NULL, NULL},
    };
    static const luaL_Reg methods[] = {
        {"prefixed", secret_prefixed}, {"json", secret_json}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"secret", secret_new}, {"is_secret", is_secret}, {"redact", redact}, {NULL, NULL}};
    sb_lua_new_metatable(L, NAME, meta, methods);
    luaL_setfuncs(L, functions, 0);
}
