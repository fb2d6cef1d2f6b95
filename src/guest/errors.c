/* What an errno is called: as a kind of the contract, and in words. */
#include "guest.h"

#include <asm/errno.h>

#include "../runtime/kinds.h"

const char *kind_of_errno(int err)
{
    switch (err) {
#define KIND_CASE(number, upper, name) \
    case number:                       \
        return #name;
        SB_ERRNO_KINDS(KIND_CASE)
#undef KIND_CASE
    default:
        return "Platform";
    }
}

const char *text_of_errno(int err)
{
    switch (err) {
    case ENOENT:
        return "no such file or directory";
    case EEXIST:
        return "it exists already";
    case EACCES:
    case EPERM:
        return "permission denied";
    case EROFS:
        return "read-only file system";
    case ENOSPC:
    case EDQUOT:
        return "no space left";
    case ENOEXEC:
        return "not in a format that can be executed";
    case E2BIG:
        return "the arguments or the environment are too long";
    case ETXTBSY:
        return "open for writing";
    case EAGAIN:
        return "too many processes";
    case EMFILE:
    case ENFILE:
        return "too many open files";
    case ENOMEM:
        return "not enough memory";
    case EISDIR:
        return "is a directory";
    case ENOTDIR:
        return "not a directory";
    case ENOTEMPTY:
        return "directory not empty";
    case ELOOP:
        return "too many symbolic links";
    case ENAMETOOLONG:
        return "name too long";
    case ENXIO:
        return "not a regular file";
    case EXDEV:
        return "on another file system";
    case EBUSY:
        return "in use";
    case ETIMEDOUT:
        return "it was held up, and ended";
    case ESTALE:
        return "the tree was moved meanwhile";
    case EINVAL:
        return "not possible for it";
    default:
        return "it failed";
    }
}
