/* Base64 for Lua: written in the standard alphabet with padding, read in both alphabets, padded or not. */
#include "base64.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* base64(bytes) -> text */
static int to_base64(lua_State *L)
{
    size_t len;
    const unsigned char *s = (const unsigned char *)luaL_checklstring(L, 1, &len);
    luaL_argcheck(L, len < SIZE_MAX / 2, 1, "too long");
    size_t n = 0;
    char *out = sb_lua_newuserdata(L, (len + 2) / 3 * 4 + 1, 0);
    for (size_t i = 0; i < len; i += 3) {
        unsigned left = len - i < 3 ? (unsigned)(len - i) : 3;
        unsigned bits = (unsigned)s[i] << 16 | (left > 1 ? (unsigned)s[i + 1] << 8 : 0) |
                        (left > 2 ? s[i + 2] : 0);
        out[n++] = alphabet[bits >> 18];
        out[n++] = alphabet[bits >> 12 & 63];
        out[n++] = left > 1 ? alphabet[bits >> 6 & 63] : '=';
        out[n++] = left > 2 ? alphabet[bits & 63] : '=';
    }
    lua_pushlstring(L, out, n);
    return 1;
}

static int value_of(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
}

/* unbase64(text) -> bytes | nil */
static int from_base64(lua_State *L)
{
    size_t len;
    const unsigned char *s = (const unsigned char *)luaL_checklstring(L, 1, &len);
    size_t n = 0, padded = len;
    while (len > 0 && padded - len < 2 && s[len - 1] == '=')
        len--;
    if (len % 4 == 1 || (padded != len && padded % 4 != 0))
        return 0;
    unsigned char *out = sb_lua_newuserdata(L, len / 4 * 3 + 3, 0);
    unsigned bits = 0;
    for (size_t i = 0; i < len; i++) {
        int value = value_of(s[i]);
        if (value < 0)
            return 0;
        bits = (bits << 6 | (unsigned)value) & 0xffffff;
        if (i % 4 != 0)
            out[n++] = (unsigned char)(bits >> (i % 4 == 1 ? 4 : i % 4 == 2 ? 2 : 0));
    }
    lua_pushlstring(L, (const char *)out, n);
    return 1;
}

void sb_lua_open_base64(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"base64", to_base64}, {"unbase64", from_base64}, {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
