/* What the files of the binding share: pushing native objects, operations and errors, reading
 * secrets.
 *
 * Rules for all of them. A Lua error may leave any function that takes a lua_State, so nothing that
 * must be freed is held across one: userdata is pushed empty first and filled when nothing can
 * raise any more. The lua_State given to luaopen is never kept. The binding takes no lock and makes
 * no system call that may block, but for what says so: the waits of mailboxes and operations, and
 * read_here of files. */
#ifndef SB_LUA_CORE_H
#define SB_LUA_CORE_H

#include "../runtime/loop.h"
#include "../runtime/mailbox.h"
#include "../runtime/op.h"
#include "../runtime/release.h"
#include "compat.h"

/* ---- opening; the table of core's functions is on top of the stack and stays there ---- */
void sb_lua_open_runtime(lua_State *L);
void sb_lua_open_engine(lua_State *L); /* registers its classes, adds engine, host_open, pump */

/* ---- errors ---- */

/* Pushes { kind=, message=, errno=, code=, step=, path= }; absent ones nil. Returns 1. */
int sb_lua_push_error(lua_State *L, const struct sb_error *err);

/* ---- operations ----
 *     struct sb_op **slot = sb_lua_new_op(L);          pushes an empty Op
 *     *slot = sb_stream_read(stream, sb_lua_mailbox(L), mode, n);
 *     return sb_lua_op_made(L, slot);                  raises when it is NULL, else returns 1
 * The slot takes over the asker's reference. Call sb_lua_mailbox before anything is held: it may
 * raise. */
struct sb_op **sb_lua_new_op(lua_State *L);
int sb_lua_op_made(lua_State *L, struct sb_op **slot);

/* What the operation at `arg` came to, for one who makes his own of it: taken out and set to NULL or freed
 * with the operation. NULL: it has failed, or not ended, or its result was taken before. */
struct sb_result *sb_lua_op_result(lua_State *L, int arg);

/* The parts of its result are not made into tables all at once, which takes a while where there are many: Lua gets them
 * as they came, for core.part. */
void sb_lua_op_leave_parts(lua_State *L, int arg);

/* Nobody will look at the operation at `arg` again, which has ended and whose result was taken: it goes now,
 * not with the next cycle of the collector, which has nothing to finalize then. What is left is userdata
 * without a class. */
void sb_lua_op_over(lua_State *L, int arg);

/* lua_pushlstring for what may be megabytes. */
void sb_lua_push_large(lua_State *L, const void *data, size_t len);

/* The state's one mailbox, renewed when the process has forked. Not a new reference. */
struct sb_mailbox *sb_lua_mailbox(lua_State *L);

/* When the object was made by another process generation: pushes an operation that fails with
 * Forked and returns 1, so that a method starts with `if (sb_lua_forked(L, box)) return 1;`. Else
 * pushes nothing. */
int sb_lua_forked(lua_State *L, const void *object);

/* Pushes an operation that fails with Closed: of something that was collected. Returns 1. */
int sb_lua_collected(lua_State *L);

/* ---- native objects (struct sb_object first) as userdata ---- */
struct sb_lua_class {
    const struct sb_object_type *type;
    const char *name;        /* "sandbar.NativeStream": the metatable's name */
    const luaL_Reg *methods; /* the whole __index; `close`, when there is one, is also __close */
    /* Methods that give no operation, NULL at the end. A finalizer may call what was collected in
     * the same cycle: these do nothing there, all others give an operation that fails with Closed. */
    const char *const *plain;
    size_t weight; /* bytes of native memory behind a typical one; steps the collector above 4096 */
    void (*collected)(
        void *object); /* may be NULL: the userdata is garbage (same generation), before its
                                        reference is dropped. Never blocks, never touches Lua */
};
/* `class` must live as long as the library. Once per state and type. */
void sb_lua_register(lua_State *L, const struct sb_lua_class *class);

/* Pushes userdata for *object and takes over its reference: *object is NULL afterwards. If it
 * raises, *object is still the caller's (so let it be in something that is owned: an operation's
 * result). A NULL *object pushes nil. sb_lua_push_ref makes its own reference. */
void sb_lua_push_object(lua_State *L, struct sb_object **object);
void sb_lua_push_ref(lua_State *L, void *object);

/* The object at `arg`, or raises bad argument. Its generation may be another one: see
 * sb_lua_forked. */
void *sb_lua_check_object(lua_State *L, int arg, const struct sb_object_type *type);
void *sb_lua_test_object(lua_State *L, int arg, const struct sb_object_type *type); /* or NULL */

/* ---- releases as userdata; *release is taken over like *object above ---- */
void sb_lua_push_release(lua_State *L, struct sb_release **release);
struct sb_release *sb_lua_check_release(lua_State *L, int arg);

/* ---- bytes that may be secret ---- A string's or a secret's bytes, valid while the value is on
 * the stack; NULL: it is neither. Copies of a secret's bytes are wiped with explicit_bzero.
 * sb_lua_check_bytes raises bad argument instead. */
const char *sb_lua_tobytes(lua_State *L, int i, size_t *len);
const char *sb_lua_check_bytes(lua_State *L, int arg, size_t *len);

/* ---- memory that a Lua error may not leak ---- Pushes userdata that owns a malloc'ed pointer,
 * NULL at first; freed when it is collected. Free it early and set it to NULL when done. */
void **sb_lua_new_scratch(lua_State *L);

/* ---- fields of proto.h (fields.c) ---- Pushes a table of a run of fields (a reply without its
 * head): names of the third column, U numbers, L arrays. Damaged ones end the table early. Returns
 * 1. */
int sb_lua_push_fields(lua_State *L, const unsigned char *fields, size_t len);
/* The other way: packs the table at `i` (elements of lists and B fields: strings, secrets, or
 * arrays of both) into new userdata, pushed on the stack; returns its memory and *len. Raises bad
 * argument for an unknown name or a wrong type. The caller wipes it after use when it may hold
 * secrets. */
unsigned char *sb_lua_pack_fields(lua_State *L, int i, size_t *len);

/* ---- for a second C module: what of the above it may use, see runtime/api.h ---- */
/* clang-format off */
#define SB_LUA_API_FUNCTIONS(X)                                                                    \
    X(sb_lua_push_error) X(sb_lua_new_op) X(sb_lua_op_made) X(sb_lua_op_result)                    \
    X(sb_lua_op_over) X(sb_lua_mailbox) X(sb_lua_forked)                                           \
    X(sb_lua_register) X(sb_lua_push_object) X(sb_lua_push_ref) X(sb_lua_check_object)             \
    X(sb_lua_test_object) X(sb_lua_push_release) X(sb_lua_check_release) X(sb_lua_tobytes)         \
    X(sb_lua_check_bytes) X(sb_lua_new_scratch) X(sb_lua_push_fields)
/* clang-format on */

struct sb_lua_api {
#define SB_LUA_API_MEMBER(f) __typeof__(f) *f;
    SB_LUA_API_FUNCTIONS(SB_LUA_API_MEMBER)
#undef SB_LUA_API_MEMBER
};

#endif
