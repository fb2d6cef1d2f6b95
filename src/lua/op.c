/* Operations as userdata, and what they came to as Lua values. */
#include <math.h>
#include <stdlib.h>

#include "open.h"

#define NAME "sandbar.Op"

struct lua_op {
    struct sb_op *op;
    int taken; /* the result was converted and is the user value */
    int spent; /* op:bytes() gave the bytes away */
    int whole; /* parts are left as they came, for core.part */
};

static const char key; /* of the metatable in the registry, by address: quicker than its name */

struct sb_op **sb_lua_new_op(lua_State *L)
{
    struct lua_op *o = sb_lua_newuserdata(L, sizeof *o, 1);
    *o = (struct lua_op){NULL, 0, 0, 0};
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    lua_setmetatable(L, -2);
    return &o->op;
}

int sb_lua_op_made(lua_State *L, struct sb_op **slot)
{
    if (*slot == NULL)
        luaL_error(L, "not enough memory");
    return 1;
}

static void fail_forked(struct sb_error *err)
{
    sb_fail(err, SB_ERR_FORKED, "made before this process was forked");
}

static void fail_collected(struct sb_error *err)
{
    sb_fail(err, SB_ERR_CLOSED, "it is closed: it was collected");
}

static int push_failed(lua_State *L, void (*fail)(struct sb_error *err))
{
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_op_new(mailbox, NULL, NULL);
    if (*slot != NULL) {
        struct sb_error err;
        fail(&err);
        sb_op_fail(*slot, &err);
    }
    return sb_lua_op_made(L, slot);
}

int sb_lua_forked(lua_State *L, const void *object)
{
    if (((const struct sb_object *)object)->generation == sb_generation())
        return 0;
    return push_failed(L, fail_forked);
}

int sb_lua_collected(lua_State *L)
{
    return push_failed(L, fail_collected);
}

/* The Op at `arg`, or NULL. */
static struct lua_op *test(lua_State *L, int arg)
{
    struct lua_op *o = lua_touserdata(L, arg);
    if (o == NULL || !lua_getmetatable(L, arg))
        return NULL;
    sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &key);
    int same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? o : NULL;
}

static struct lua_op *check_at(lua_State *L, int arg)
{
    struct lua_op *o = test(L, arg);
    if (o == NULL)
        sb_lua_typeerror(L, arg, NAME);
    return o;
}

static struct lua_op *check(lua_State *L)
{
    return check_at(L, 1);
}

/* One of another process generation will not be completed any more, and one that was collected has
 * been cancelled. */
static int is_lost(const struct lua_op *o)
{
    return o->op == NULL || (!sb_op_done(o->op) && sb_op_generation(o->op) != sb_generation());
}

static int is_done(const struct lua_op *o)
{
    return is_lost(o) || sb_op_done(o->op);
}

static int op_id(lua_State *L)
{
    struct lua_op *o = check(L);
    sb_lua_pushinteger(L, o->op != NULL ? sb_op_id(o->op) : 0);
    return 1;
}

static int op_done(lua_State *L)
{
    lua_pushboolean(L, is_done(check(L)));
    return 1;
}

/* Has it ended with an error? */
static int op_failed(lua_State *L)
{
    struct lua_op *o = check(L);
    lua_pushboolean(L,
                    is_lost(o) || (sb_op_done(o->op) && sb_op_result(o->op)->error.kind != SB_OK));
    return 1;
}

static int op_cancel(lua_State *L)
{
    struct lua_op *o = check(L);
    if (o->op != NULL)
        sb_op_cancel(o->op);
    return 0;
}

/* op:await(seconds, deadline) -> true: done; false: the deadline (core.now clock) has passed; nil: the
 * seconds have, or a signal came. For a program that waits for nothing else, see sb_mailbox_await. */
static int op_await(lua_State *L)
{
    struct lua_op *o = check(L);
    uint64_t piece = sb_lua_check_ns(L, 2);
    uint64_t deadline = lua_isnoneornil(L, 3) ? SB_NEVER : sb_lua_check_ns(L, 3);
    if (!is_done(o)) {
        struct sb_mailbox *mailbox = sb_lua_mailbox(L);
        uint64_t until = sb_now() + piece;
        sb_mailbox_await(mailbox, o->op, until < deadline ? until : deadline);
    }
    if (is_done(o))
        lua_pushboolean(L, 1);
    else if (deadline != SB_NEVER && sb_now() >= deadline)
        lua_pushboolean(L, 0);
    else
        lua_pushnil(L);
    return 1;
}

static int op_deadline(lua_State *L)
{
    struct lua_op *o = check(L);
    uint64_t at = sb_lua_check_ns(L, 2);
    if (o->op != NULL)
        sb_op_deadline(o->op, at);
    return 0;
}

/* ---- results: each part is taken out of the native result once Lua has it ---- */

static void move_bytes(lua_State *L, const char *name, unsigned char **bytes, size_t len)
{
    if (*bytes == NULL)
        return;
    sb_lua_push_large(L, *bytes, len);
    free(*bytes);
    *bytes = NULL;
    lua_setfield(L, -2, name);
}

/* The parts of a result: which is next, where (*at) and how long. */
enum next { NO_MORE, PART, ANSWER /* that they end with */ };

static enum next next_part(const unsigned char *parts, size_t all, size_t *at, size_t *len)
{
    uint32_t head;
    if (all - *at < sizeof head)
        return NO_MORE;
    memcpy(&head, parts + *at, sizeof head);
    *at += sizeof head;
    *len = head & ~SB_PARTS_LAST;
    if (*len > all - *at)
        return NO_MORE;
    return (head & SB_PARTS_LAST) != 0 ? ANSWER : PART;
}

static void push_parts(lua_State *L, const struct sb_result *r)
{
    size_t at = 0, len;
    enum next next;
    lua_newtable(L);
    for (int n = 1; (next = next_part(r->fields, r->fields_len, &at, &len)) != NO_MORE; n++) {
        sb_lua_push_fields(L, r->fields + at, len);
        if (next == ANSWER)
            lua_setfield(L, -3, "fields");
        else
            lua_rawseti(L, -2, n);
        at += len;
    }
}

/* part(parts, at) -> the fields of the part that begins there (the first at 0), where the next one does. Nothing: there
 * are no more. Of an operation whose parts were left as they came. */
static int part(lua_State *L)
{
    size_t all, len;
    const unsigned char *parts = (const unsigned char *)luaL_checklstring(L, 1, &all);
    lua_Number from = luaL_checknumber(L, 2);
    size_t at = from >= 0 && from <= (lua_Number)all ? (size_t)from : all;
    if (next_part(parts, all, &at, &len) != PART)
        return 0;
    sb_lua_push_fields(L, parts + at, len);
    sb_lua_pushinteger(L, (lua_Number)(at + len));
    return 2;
}

void sb_lua_op_leave_parts(lua_State *L, int arg)
{
    check_at(L, arg)->whole = 1;
}

static void move_fields(lua_State *L, struct sb_result *r, int whole)
{
    if (r->fields == NULL)
        return;
    if (!r->parts) {
        sb_lua_push_fields(L, r->fields, r->fields_len);
        lua_setfield(L, -2, "fields");
    } else {
        if (whole)
            lua_pushlstring(L, (const char *)r->fields, r->fields_len);
        else
            push_parts(L, r);
        lua_setfield(L, -2, "parts");
    }
    free(r->fields);
    r->fields = NULL;
}

static void push_result(lua_State *L, struct sb_result *r, int whole)
{
    lua_createtable(L, 0,
                    (r->fields != NULL) + (r->bytes != NULL) + (r->bytes2 != NULL) + r->has_number +
                        (r->object != NULL) + (r->release != NULL) + (r->fd >= 0));
    move_fields(L, r, whole);
    move_bytes(L, "bytes", &r->bytes, r->bytes_len);
    move_bytes(L, "bytes2", &r->bytes2, r->bytes2_len);
    if (r->has_number) {
        if (floor(r->number) == r->number && fabs(r->number) < 9007199254740992.0)
            sb_lua_pushinteger(L, r->number);
        else
            lua_pushnumber(L, r->number);
        lua_setfield(L, -2, "number");
    }
    if (r->object != NULL) {
        sb_lua_push_object(L, &r->object);
        lua_setfield(L, -2, "object");
    }
    if (r->release != NULL) {
        sb_lua_push_release(L, &r->release);
        lua_setfield(L, -2, "release");
    }
    if (r->fd >= 0) {
        sb_lua_pushinteger(L, r->fd);
        lua_setfield(L, -2, "fd");
        r->fd = -1;
    }
}

static int push_lost(lua_State *L, const struct lua_op *o)
{
    struct sb_error err;
    if (o->op == NULL)
        fail_collected(&err);
    else
        fail_forked(&err);
    return sb_lua_push_error(L, &err);
}

static int op_result(lua_State *L)
{
    struct lua_op *o = check(L);
    if (is_lost(o)) {
        lua_pushboolean(L, 0);
        return 1 + push_lost(L, o);
    }
    if (!sb_op_done(o->op))
        return luaL_error(L, "the operation has not ended");
    if (o->spent)
        return luaL_error(L, "the operation's bytes were taken already");
    struct sb_result *r = sb_op_result(o->op);
    if (!o->taken) {
        push_result(L, r, o->whole);
        lua_pushvalue(L, -1);
        sb_lua_setuservalue(L, 1);
        o->taken = 1;
    } else {
        sb_lua_getuservalue(L, 1);
    }
    lua_pushboolean(L, r->error.kind == SB_OK);
    if (r->error.kind == SB_OK) {
        lua_insert(L, -2);
        return 2;
    }
    sb_lua_push_error(L, &r->error);
    lua_pushvalue(L, -3);
    return 3;
}

struct sb_result *sb_lua_op_result(lua_State *L, int arg)
{
    struct lua_op *o = check_at(L, arg);
    if (o->op == NULL || !sb_op_done(o->op) || o->taken || o->spent ||
        sb_op_result(o->op)->error.kind != SB_OK)
        return NULL;
    o->spent = 1;
    return sb_op_result(o->op);
}

void sb_lua_op_over(lua_State *L, int arg)
{
    struct lua_op *o = check_at(L, arg);
    sb_op_unref(o->op);
    o->op = NULL;
    lua_pushnil(L);
    lua_setmetatable(L, arg);
}

static int op_bytes(lua_State *L)
{
    struct lua_op *o = check(L);
    if (is_lost(o)) {
        lua_pushnil(L);
        return 1 + push_lost(L, o);
    }
    if (!sb_op_done(o->op))
        return luaL_error(L, "the operation has not ended");
    if (o->spent || o->taken)
        return luaL_error(L, "the operation's bytes were taken already");
    struct sb_result *r = sb_op_result(o->op);
    if (r->error.kind != SB_OK) {
        lua_pushnil(L);
        return 1 + sb_lua_push_error(L, &r->error);
    }
    if (r->bytes == NULL) {
        lua_pushnil(L);
        return 1;
    }
    sb_lua_push_large(L, r->bytes, r->bytes_len);
    free(r->bytes);
    r->bytes = NULL;
    o->spent = 1;
    return 1;
}

/* An operation nobody can wait for any more is cancelled: its task ended without a word. */
static int op_gc(lua_State *L)
{
    struct lua_op *o = test(L, 1);
    if (o == NULL || o->op == NULL)
        return 0;
    sb_op_abandon(o->op);
    o->op = NULL;
    return 0;
}

static int op_tostring(lua_State *L)
{
    struct lua_op *o = check(L);
    lua_pushfstring(L, "op(%f, %s)", (lua_Number)(o->op != NULL ? sb_op_id(o->op) : 0),
                    is_done(o) ? "done" : "open");
    return 1;
}

static int timer(lua_State *L)
{
    uint64_t ns = sb_lua_check_ns(L, 1);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_op_timer(mailbox, ns);
    return sb_lua_op_made(L, slot);
}

void sb_lua_open_op(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__gc", op_gc}, {"__tostring", op_tostring}, {NULL, NULL}};
    static const luaL_Reg methods[] = {
        {"id", op_id},         {"done", op_done},
        {"cancel", op_cancel}, {"deadline", op_deadline},
        {"result", op_result}, {"bytes", op_bytes},
        {"await", op_await},   {"failed", op_failed},
        {NULL, NULL},
    };
    sb_lua_new_metatable(L, NAME, meta, methods);
    luaL_getmetatable(L, NAME);
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &key);
    lua_pushcfunction(L, timer);
    lua_setfield(L, -2, "timer");
    lua_pushcfunction(L, part);
    lua_setfield(L, -2, "part");
}
