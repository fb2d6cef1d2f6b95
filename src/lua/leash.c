/* core.leash() -> op, path | nil, e: the operation completes when the connection to `path` has ended. */
#include <stdlib.h>

#include "../runtime/leash.h"
#include "open.h"

static int leash(lua_State *L)
{
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_error err;
    struct sb_op **slot = sb_lua_new_op(L);
    void **path = sb_lua_new_scratch(L);
    char *made = NULL;
    *slot = sb_leash(mailbox, &made, &err);
    *path = made;
    if (*slot == NULL) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &err);
    }
    lua_pushvalue(L, -2);
    lua_pushstring(L, made);
    free(made);
    *path = NULL;
    return 2;
}

void sb_lua_open_leash(lua_State *L)
{
    lua_pushcfunction(L, leash);
    lua_setfield(L, -2, "leash");
}
