/* The runtime as this module sees it, and the few helpers all its files share. */
#ifndef SB_HTTP_CORE_H
#define SB_HTTP_CORE_H

#include <stddef.h>

#ifndef SB_API_CLIENT
#define SB_API_CLIENT
#endif
#include "runtime/api.h"

/* The struct a member lies in. */
#define SB_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* [io] Completes an operation whose end has been asked for. */
static inline void sb_http_cancelled(struct sb_op *op)
{
    struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
    sb_op_fail(op, &err);
}

/* Fails an operation that nobody else has seen yet; returns it. */
static inline struct sb_op *sb_http_refuse(struct sb_op *op, const struct sb_error *err)
{
    sb_op_fail(op, err);
    return op;
}

#endif
