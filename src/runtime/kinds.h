/* What an errno means by itself, for every part of the program: X(errno, enum name, the contract's
 * name). What is not here is Platform. Freestanding: who includes it has the errno constants already.
 *
 * EAGAIN is "not now" of something that was asked without waiting. Where a limit answers with it (a
 * clone), the caller says LimitExceeded itself. */
#ifndef SB_KINDS_H
#define SB_KINDS_H

#define SB_ERRNO_KINDS(X)                              \
    X(ENOENT, NOT_FOUND, NotFound)                     \
    X(ESRCH, NOT_FOUND, NotFound)                      \
    X(EEXIST, ALREADY_EXISTS, AlreadyExists)           \
    X(ENOSPC, NO_SPACE, NoSpace)                       \
    X(EDQUOT, NO_SPACE, NoSpace)                       \
    X(EACCES, PERMISSION_DENIED, PermissionDenied)     \
    X(EPERM, PERMISSION_DENIED, PermissionDenied)      \
    X(EROFS, PERMISSION_DENIED, PermissionDenied)      \
    X(EAGAIN, BUSY, Busy)                              \
    X(EBUSY, BUSY, Busy)                               \
    X(ETXTBSY, BUSY, Busy)                             \
    X(EADDRINUSE, BUSY, Busy)                          \
    X(E2BIG, LIMIT_EXCEEDED, LimitExceeded)            \
    X(EFBIG, LIMIT_EXCEEDED, LimitExceeded)            \
    X(EMFILE, LIMIT_EXCEEDED, LimitExceeded)           \
    X(ENFILE, LIMIT_EXCEEDED, LimitExceeded)           \
    X(ENOMEM, LIMIT_EXCEEDED, LimitExceeded)           \
    X(EUSERS, LIMIT_EXCEEDED, LimitExceeded)           \
    X(ENOSYS, UNSUPPORTED, Unsupported)                \
    X(EOPNOTSUPP, UNSUPPORTED, Unsupported)            \
    X(ENAMETOOLONG, INVALID_ARGUMENT, InvalidArgument) \
    X(EBADF, CLOSED, Closed)                           \
    X(EPIPE, CLOSED, Closed)                           \
    X(ECONNRESET, UNAVAILABLE, Unavailable)            \
    X(ECONNREFUSED, UNAVAILABLE, Unavailable)          \
    X(ECONNABORTED, UNAVAILABLE, Unavailable)          \
    X(ENOTCONN, UNAVAILABLE, Unavailable)              \
    X(ENETUNREACH, UNAVAILABLE, Unavailable)           \
    X(EHOSTUNREACH, UNAVAILABLE, Unavailable)          \
    X(ETIMEDOUT, TIMEOUT, Timeout)                     \
    X(ECANCELED, CANCELLED, Cancelled)

#endif
