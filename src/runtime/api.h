/* How a second C module (sandbar.http) reaches the runtime inside core.so: by one versioned struct
 * of function pointers, since Lua loads C modules with local symbols.
 *
 * core publishes it in each Lua state's registry as a light userdata under SB_API_KEY. The other
 * module checks version and size, keeps the pointer in its own `sb_api`, and defines SB_API_CLIENT
 * before including this header (once, after lua_core.h): from there on the ordinary names of the
 * headers below call through the struct. Both modules are built from one tree; a mismatch refuses
 * to load. */
#ifndef SB_API_H
#define SB_API_H

#include "../engine/filework.h"
#include "../engine/sockets.h"
#include "error.h"
#include "loop.h"
#include "mailbox.h"
#include "op.h"
#include "release.h"
#include "secret.h"
#include "stream.h"

#define SB_API_KEY "sandbar.core.api"
#define SB_API_VERSION 5

/* clang-format off */
#define SB_API_FUNCTIONS(X)                                                                        \
    X(sb_err_name) X(sb_err_from_name) X(sb_err_from_errno) X(sb_fail) X(sb_fail_errno)            \
    X(sb_generation) X(sb_now) X(sb_loop_post) X(sb_loop_is_io_thread)                             \
    X(sb_source_add) X(sb_source_change) X(sb_source_rest) X(sb_source_remove)                     \
    X(sb_timer_set) X(sb_timer_clear)                                                              \
    X(sb_pool_run) X(sb_loop_rearm_exit)                                                           \
    X(sb_object_init) X(sb_object_ref) X(sb_object_unref)                                          \
    X(sb_op_new) X(sb_op_set_cancel) X(sb_op_asked) X(sb_op_ref) X(sb_op_unref) X(sb_op_id)        \
    X(sb_op_done) X(sb_op_result) X(sb_op_complete) X(sb_op_fail) X(sb_op_cancel)                  \
    X(sb_op_deadline)                                                                              \
    X(sb_mailbox_ref) X(sb_mailbox_unref)                                                          \
    X(sb_stream_new) X(sb_stream_read) X(sb_stream_try_read) X(sb_stream_write)                    \
    X(sb_stream_close_write) X(sb_stream_close) X(sb_stream_at_end)                                \
    X(sb_stream_try_write) X(sb_stream_take) X(sb_stream_tap)                                      \
    X(sb_release_new) X(sb_release_ref) X(sb_release_unref) X(sb_release_fire)                     \
    X(sb_release_cancel) X(sb_release_fired) X(sb_release_finish)                                  \
    X(sb_redact)                                                                                   \
    X(sb_file_read_piece) X(sb_file_write_piece)                                                   \
    X(sb_client_sockets) X(sb_client_engine_type) /* a port's sockets */
/* clang-format on */

struct sb_lua_api; /* src/lua/lua_core.h */

struct sb_core_api {
    unsigned version;    /* SB_API_VERSION */
    size_t size;         /* of this struct */
    const char *release; /* SB_VERSION of core.so */
    const struct sb_object_type *stream_type, *file_type;
    const struct sb_lua_api *lua;
#define SB_API_MEMBER(f) __typeof__(f) *f;
    SB_API_FUNCTIONS(SB_API_MEMBER)
#undef SB_API_MEMBER
};

extern const struct sb_core_api sb_core_api; /* in core.so */

#ifdef SB_API_CLIENT
extern const struct sb_core_api *sb_api; /* the client's own, set when it is opened */
#define sb_err_name sb_api->sb_err_name
#define sb_err_from_name sb_api->sb_err_from_name
#define sb_err_from_errno sb_api->sb_err_from_errno
#define sb_fail sb_api->sb_fail
#define sb_fail_errno sb_api->sb_fail_errno
#define sb_generation sb_api->sb_generation
#define sb_now sb_api->sb_now
#define sb_loop_post sb_api->sb_loop_post
#define sb_loop_is_io_thread sb_api->sb_loop_is_io_thread
#define sb_source_add sb_api->sb_source_add
#define sb_source_change sb_api->sb_source_change
#define sb_source_rest sb_api->sb_source_rest
#define sb_source_remove sb_api->sb_source_remove
#define sb_timer_set sb_api->sb_timer_set
#define sb_timer_clear sb_api->sb_timer_clear
#define sb_pool_run sb_api->sb_pool_run
#define sb_loop_rearm_exit sb_api->sb_loop_rearm_exit
#define sb_object_init sb_api->sb_object_init
#define sb_object_ref sb_api->sb_object_ref
#define sb_object_unref sb_api->sb_object_unref
#define sb_op_new sb_api->sb_op_new
#define sb_op_set_cancel sb_api->sb_op_set_cancel
#define sb_op_asked sb_api->sb_op_asked
#define sb_op_ref sb_api->sb_op_ref
#define sb_op_unref sb_api->sb_op_unref
#define sb_op_id sb_api->sb_op_id
#define sb_op_done sb_api->sb_op_done
#define sb_op_result sb_api->sb_op_result
#define sb_op_complete sb_api->sb_op_complete
#define sb_op_fail sb_api->sb_op_fail
#define sb_op_cancel sb_api->sb_op_cancel
#define sb_op_deadline sb_api->sb_op_deadline
#define sb_mailbox_ref sb_api->sb_mailbox_ref
#define sb_mailbox_unref sb_api->sb_mailbox_unref
#define sb_stream_new sb_api->sb_stream_new
#define sb_stream_read sb_api->sb_stream_read
#define sb_stream_try_read sb_api->sb_stream_try_read
#define sb_stream_write sb_api->sb_stream_write
#define sb_stream_close_write sb_api->sb_stream_close_write
#define sb_stream_close sb_api->sb_stream_close
#define sb_stream_at_end sb_api->sb_stream_at_end
#define sb_stream_try_write sb_api->sb_stream_try_write
#define sb_stream_take sb_api->sb_stream_take
#define sb_stream_tap sb_api->sb_stream_tap
#define sb_file_read_piece sb_api->sb_file_read_piece
#define sb_file_write_piece sb_api->sb_file_write_piece
#define sb_release_new sb_api->sb_release_new
#define sb_release_ref sb_api->sb_release_ref
#define sb_release_unref sb_api->sb_release_unref
#define sb_release_fire sb_api->sb_release_fire
#define sb_release_cancel sb_api->sb_release_cancel
#define sb_release_fired sb_api->sb_release_fired
#define sb_release_finish sb_api->sb_release_finish
#define sb_redact sb_api->sb_redact
#define sb_client_sockets sb_api->sb_client_sockets
#define sb_client_engine_type sb_api->sb_client_engine_type
#define sb_lua_push_error sb_api->lua->sb_lua_push_error
#define sb_lua_new_op sb_api->lua->sb_lua_new_op
#define sb_lua_op_made sb_api->lua->sb_lua_op_made
#define sb_lua_op_result sb_api->lua->sb_lua_op_result
#define sb_lua_op_over sb_api->lua->sb_lua_op_over
#define sb_lua_mailbox sb_api->lua->sb_lua_mailbox
#define sb_lua_forked sb_api->lua->sb_lua_forked
#define sb_lua_register sb_api->lua->sb_lua_register
#define sb_lua_push_object sb_api->lua->sb_lua_push_object
#define sb_lua_push_ref sb_api->lua->sb_lua_push_ref
#define sb_lua_check_object sb_api->lua->sb_lua_check_object
#define sb_lua_test_object sb_api->lua->sb_lua_test_object
#define sb_lua_push_release sb_api->lua->sb_lua_push_release
#define sb_lua_check_release sb_api->lua->sb_lua_check_release
#define sb_lua_tobytes sb_api->lua->sb_lua_tobytes
#define sb_lua_check_bytes sb_api->lua->sb_lua_check_bytes
#define sb_lua_new_scratch sb_api->lua->sb_lua_new_scratch
#define sb_lua_push_fields sb_api->lua->sb_lua_push_fields
#endif

#endif
