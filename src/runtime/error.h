/* The one error idiom of the C layers: 0 or a negative enum sb_err is returned, details go to the
 * last parameter. Kinds are those of the Lua contract, so that the binding only names them. */
#ifndef SB_ERROR_H
#define SB_ERROR_H

#include <stddef.h>

/* clang-format off */
#define SB_ERROR_KINDS(X)                                                                          \
    X(INVALID_ARGUMENT, InvalidArgument) X(UNSUPPORTED, Unsupported) X(NOT_FOUND, NotFound)        \
    X(ALREADY_EXISTS, AlreadyExists) X(AMBIGUOUS, Ambiguous) X(WRONG_OWNER, WrongOwner)            \
    X(NOT_RUNNING, NotRunning) X(BUSY, Busy) X(START_FAILED, StartFailed)                          \
    X(EXEC_TIMED_OUT, ExecTimedOut) X(COMMAND_FAILED, CommandFailed) X(TIMEOUT, Timeout)           \
    X(OUTCOME_UNKNOWN, OutcomeUnknown) X(CLOSED, Closed) X(CANCELLED, Cancelled)                   \
    X(FORKED, Forked) X(CANNOT_WAIT, CannotWait) X(LIMIT_EXCEEDED, LimitExceeded)                  \
    X(NO_SPACE, NoSpace) X(PERMISSION_DENIED, PermissionDenied) X(PLATFORM, Platform)              \
    X(UNAUTHENTICATED, Unauthenticated) X(RATE_LIMITED, RateLimited) X(UNAVAILABLE, Unavailable)   \
    X(PROTOCOL, Protocol) X(AGGREGATE, Aggregate) X(INTERNAL, Internal)
/* clang-format on */

enum sb_err {
    SB_OK = 0,
#define SB_ERROR_ENUM(upper, name) SB_ERR_##upper,
    SB_ERROR_KINDS(SB_ERROR_ENUM)
#undef SB_ERROR_ENUM
        SB_ERR_COUNT
};

/* Plain data, copied freely. `message` is a whole readable line without a trailing dot or
 * newline. */
struct sb_error {
    enum sb_err kind; /* SB_OK: no error */
    int sys;          /* errno behind it, 0 if none */
    char step[32];    /* what was being done: "connect", "mount root", ... */
    char path[256];   /* the path it is about, "" if none; cut at the front when longer */
    char message[256];
};

/* The contract's name of a kind ("NotFound"), and back (SB_ERR_INTERNAL for an unknown name). */
const char *sb_err_name(enum sb_err kind);
enum sb_err sb_err_from_name(const char *name, size_t len);

/* The kind an errno means by itself (kinds.h). */
enum sb_err sb_err_from_errno(int sys);

/* Fills *err and returns -kind, so that a failing function ends in `return sb_fail(err, ...)`.
 * sb_fail_errno adds ": " and the text of `sys` to the message. err may be NULL. */
int sb_fail(struct sb_error *err, enum sb_err kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int sb_fail_errno(struct sb_error *err, int sys, const char *step, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
