/* Base64 for Lua: bytes in JSON messages. */
#ifndef SB_LUA_BASE64_H
#define SB_LUA_BASE64_H

#include "lua_core.h"

/* Adds base64, unbase64 to the table on top of the stack. */
void sb_lua_open_base64(lua_State *L);

#endif
