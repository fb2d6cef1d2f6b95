/* Error kinds, their names, and the two ways to fill a struct sb_error. */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kinds.h"

static const char *const kind_names[SB_ERR_COUNT] = {[SB_OK] = "OK",
#define SB_ERROR_NAME(upper, name) [SB_ERR_##upper] = #name,
                                                     SB_ERROR_KINDS(SB_ERROR_NAME)
#undef SB_ERROR_NAME
};

const char *sb_err_name(enum sb_err kind)
{
    return (unsigned)kind < SB_ERR_COUNT ? kind_names[kind] : "Internal";
}

enum sb_err sb_err_from_name(const char *name, size_t len)
{
    for (int kind = SB_OK + 1; kind < SB_ERR_COUNT; kind++)
        if (strlen(kind_names[kind]) == len && memcmp(kind_names[kind], name, len) == 0)
            return (enum sb_err)kind;
    return SB_ERR_INTERNAL;
}

enum sb_err sb_err_from_errno(int sys)
{
    switch (sys) {
    case 0:
        return SB_OK;
#define SB_KIND_CASE(number, upper, name) \
    case number:                          \
        return SB_ERR_##upper;
        SB_ERRNO_KINDS(SB_KIND_CASE)
#undef SB_KIND_CASE
    default:
        return SB_ERR_PLATFORM;
    }
}

/* One readable line whatever the arguments held: no control characters, no half of a UTF-8
 * sequence. */
static void make_line(char *s, int truncated)
{
    size_t len = strlen(s);
    if (truncated) {
        while (len > 0 && ((unsigned char)s[len - 1] & 0xc0) == 0x80)
            len--;
        if (len > 0 && (unsigned char)s[len - 1] >= 0xc0)
            len--;
        s[len] = '\0';
    }
    for (; *s != '\0'; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f)
            *s = ' ';
}

static void set_message(struct sb_error *err, const char *fmt, va_list args)
{
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    if (n < 0)
        err->message[0] = '\0';
    make_line(err->message, n >= (int)sizeof err->message);
}

int sb_fail(struct sb_error *err, enum sb_err kind, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        err->kind = kind;
        err->sys = 0;
        err->step[0] = err->path[0] = '\0';
        va_start(args, fmt);
        set_message(err, fmt, args);
        va_end(args);
    }
    return -(int)kind;
}

int sb_fail_errno(struct sb_error *err, int sys, const char *step, const char *fmt, ...)
{
    enum sb_err kind = sb_err_from_errno(sys);
    if (kind == SB_OK)
        kind = SB_ERR_PLATFORM;
    if (err != NULL) {
        char buf[128];
        va_list args;
        err->kind = kind;
        err->sys = sys;
        err->path[0] = '\0';
        snprintf(err->step, sizeof err->step, "%s", step != NULL ? step : "");
        va_start(args, fmt);
        set_message(err, fmt, args);
        va_end(args);
#ifdef __GLIBC__
        const char *text = strerror_r(sys, buf, sizeof buf);
#else
        const char *text = buf;
        strerror_r(sys, buf, sizeof buf);
#endif
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, "%s%s", used > 0 ? ": " : "",
                 text);
    }
    return -(int)kind;
}
