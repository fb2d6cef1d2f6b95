/* Failures: their kinds and texts. */
#include "fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../runtime/kinds.h"
#include "lacks.h"

static void append(struct sb_failure *f, const char *text)
{
    size_t n = strlen(f->message);
    snprintf(f->message + n, sizeof f->message - n, ": %s", text);
}

static const char *kind_of(int err)
{
    if (err == EAGAIN) /* of a clone: whoever else answers it is handled where it happens */
        return "LimitExceeded";
    switch (err) {
#define SB_KIND_NAME(number, upper, name) \
    case number:                          \
        return #name;
        SB_ERRNO_KINDS(SB_KIND_NAME)
#undef SB_KIND_NAME
    default:
        return "Platform";
    }
}

int sb_failed(struct sb_failure *f, const char *kind, int err, const char *step, const char *fmt,
              ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->kind = kind != NULL ? kind : kind_of(err);
    f->err = err;
    f->step = step;
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    if (kind == NULL)
        append(f, strerror(err));
    const char *lack = sb_lacks(step, err, &f->kind);
    if (lack != NULL)
        append(f, lack);
    return -1;
}

int sb_failed_errno(struct sb_failure *f, const char *step, const char *what)
{
    return sb_failed(f, NULL, errno, step, "%s", what);
}
