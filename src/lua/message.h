/* Messages of E2B's protocol to Lua tables and back. */
#ifndef SB_LUA_MESSAGE_H
#define SB_LUA_MESSAGE_H

#include "../e2b/message.h"
#include "lua_core.h"

/* Packs the table at `i` to the end of *out, which the caller frees in every case. 0; -1 and in why what is wrong
 * with the table (or "": out of memory). Raises only what Lua itself does: call it in a protected call while *out
 * holds memory. */
#define SB_WHY_MOST 200
int sb_lua_pack_message(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                        struct sb_packed *out, char why[SB_WHY_MOST]);

/* The same in a protected call: on failure *out holds nothing. 0; -1 and the reason on top of the stack, where an error
 * of Lua's own may be instead of a text. Raises nothing. */
int sb_lua_try_pack_message(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                            struct sb_packed *out);

/* Pushes the table of a message that sb_message_check has passed; 0, or -1: a number that this Lua cannot hold, and
 * nothing is pushed. */
int sb_lua_push_message(lua_State *L, const ProtobufCMessageDescriptor *type, struct sb_wire wire);

/* Adds encode, decode, describe to the table on top of the stack. */
void sb_lua_open_message(lua_State *L);

#endif
