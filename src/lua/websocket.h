/* The websockets' part of sandbar.http's C half. */
#ifndef SB_LUA_WEBSOCKET_H
#define SB_LUA_WEBSOCKET_H

#include "lua_core.h"

/* Registers the class and adds message and is_text to the table on top of the stack. */
void sb_lua_open_websocket(lua_State *L);

#endif
