/* core.audit(fd | false): where the audit trail goes. core.audit_write(record): a flat table of texts,
 * numbers and booleans as a line of it; `event` first. */
#include <stdlib.h>

#include "../runtime/audit.h"
#include "open.h"

static int audit(lua_State *L)
{
    struct sb_error err;
    int64_t fd = -1;
    if (lua_toboolean(L, 1) && (!sb_lua_tointeger(L, 1, &fd) || fd < 0 || fd > INT32_MAX))
        return luaL_argerror(L, 1, "descriptor expected");
    if (sb_audit_open((int)fd, &err) != 0) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushboolean(L, 1);
    return 1;
}

/* Nothing between here and sb_audit_end raises: keys and texts are strings already, numbers are not
 * converted in place. */
static int audit_write(lua_State *L)
{
    struct sb_audit_line line = {0};
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_pushliteral(L, "event");
    lua_rawget(L, 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, 1, "event expected");
    sb_audit_begin(&line, lua_tostring(L, -1));
    lua_pushnil(L);
    while (lua_next(L, 1) != 0) {
        if (lua_type(L, -2) == LUA_TSTRING) {
            const char *key = lua_tostring(L, -2);
            size_t len;
            const char *text;
            if (strcmp(key, "event") == 0 || strcmp(key, "time") == 0)
                ; /* at the front */
            else if (lua_type(L, -1) == LUA_TNUMBER)
                sb_audit_number(&line, key, lua_tonumber(L, -1));
            else if (lua_type(L, -1) == LUA_TBOOLEAN)
                sb_audit_bool(&line, key, lua_toboolean(L, -1));
            else if ((text = lua_tolstring(L, -1, &len)) != NULL)
                sb_audit_text(&line, key, text, len);
        }
        lua_pop(L, 1);
    }
    sb_audit_end(&line);
    return 0;
}

void sb_lua_open_audit(lua_State *L)
{
    lua_pushcfunction(L, audit);
    lua_setfield(L, -2, "audit");
    lua_pushcfunction(L, audit_write);
    lua_setfield(L, -2, "audit_write");
}
