/* Large strings: their memory is Lua's own, from whatever allocator the state has, and page faults of it cost more than
 * the copy that fills it. */
#include "../runtime/large.h"

#include "lua_core.h"

struct source {
    const void *data;
    size_t len;
};

struct allocator {
    lua_Alloc fn;
    void *ud;
};

/* The state's own, and a wish to the kernel for what is long. */
static void *wishing(void *arg, void *block, size_t old, size_t len)
{
    const struct allocator *own = arg;
    void *p = own->fn(own->ud, block, old, len);
    if (block == NULL)
        sb_large_wish(p, len);
    return p;
}

static int push(lua_State *L)
{
    const struct source *source = lua_touserdata(L, 1);
    lua_pushlstring(L, source->data, source->len);
    return 1;
}

void sb_lua_push_large(lua_State *L, const void *data, size_t len)
{
    struct source source = {data, len};
    struct allocator own;
    if (len < 2 * SB_LARGE_PAGE) {
        lua_pushlstring(L, data, len);
        return;
    }
    lua_pushcfunction(L, push);
    lua_pushlightuserdata(L, &source);
    own.fn = lua_getallocf(L, &own.ud);
    lua_setallocf(L, wishing, &own);
    int rc = lua_pcall(L, 1, 1, 0); /* must not be left with that allocator */
    lua_setallocf(L, own.fn, own.ud);
    if (rc != 0)
        lua_error(L);
}
