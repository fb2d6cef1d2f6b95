/* Fields of proto.h as Lua tables, for the files of the engine's binding. */
#ifndef SB_FIELDS_H
#define SB_FIELDS_H

#include "../engine/proto.h"
#include "lua_core.h"

/* A whole message in userdata pushed on the stack: a head of `type`, then the fields of the
 * table at `i` (nil: none). Returns its memory; *len is all of it. Wipe it with explicit_bzero
 * when it has been sent. Besides the fields' names there is `stages`, a list of argument
 * vectors: a pipeline's stage and arg fields in order. */
unsigned char *sb_lua_pack_message(lua_State *L, int i, uint16_t type, size_t *len);

/* Adds one number to the message on top of the stack, for which there is always room. */
void sb_lua_message_add(unsigned char *msg, size_t *len, uint16_t tag, uint64_t value);

/* How many fields sb_lua_message_add may add. */
#define SB_LUA_MESSAGE_SPARE 8

/* Fills the registry; once per state. */
void sb_lua_open_fields(lua_State *L);

#endif
