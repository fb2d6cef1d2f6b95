/* Header lines, see lines.h. */
#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "lines.h"

#define MAX_LINES 10000

const struct sb_slice *sb_lua_check_lines(lua_State *L, int arg, size_t *count)
{
    luaL_checktype(L, arg, LUA_TTABLE);
    size_t n = lua_rawlen(L, arg);
    luaL_argcheck(L, n <= MAX_LINES, arg, "too many header lines");
    *count = n;
    if (n == 0)
        return NULL;
    struct sb_slice *lines = sb_lua_newuserdata(L, n * sizeof *lines, 0);
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, arg, (int)i + 1);
        lines[i].data =
            lua_type(L, -1) == LUA_TNUMBER ? NULL : sb_lua_tobytes(L, -1, &lines[i].len);
        luaL_argcheck(L, lines[i].data != NULL, arg, "a header line is neither string nor secret");
        lua_pop(L, 1);
    }
    return lines;
}
