/* Heads of answers. */
#include "server/answer.h"

#include <errno.h>
#include <http_parser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "http/core.h"

#define ROOM 256 /* for the lines that are ours */

const char *sb_reason(int status)
{
    switch (status) {
#define REASON(number, name, text) \
    case number:                   \
        return #text;
        HTTP_STATUS_MAP(REASON)
#undef REASON
    default:
        return "Status";
    }
}

int sb_put(struct sb_buffer *out, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    unsigned char *room = sb_buffer_room(out, len);
    if (room == NULL)
        return -1;
    memcpy(room, data, len);
    out->len += len;
    return 0;
}

static int take_length(struct sb_answer *answer, const struct sb_slice *line, size_t at,
                       struct sb_error *err)
{
    uint64_t n = 0;
    while (at < line->len && line->data[at] == ' ')
        at++;
    if (answer->has_length || at == line->len || line->len - at > 18)
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "Content-Length is not one number");
    for (; at < line->len; at++) {
        if (line->data[at] < '0' || line->data[at] > '9')
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "Content-Length is not one number");
        n = n * 10 + (uint64_t)(line->data[at] - '0');
    }
    answer->has_length = 1;
    answer->length = n;
    return 0;
}

/* 1: the line is sent as it is; 0: it is ours to send. */
static int take_line(struct sb_answer *answer, const struct sb_slice *line, struct sb_error *err)
{
    const char *colon = memchr(line->data, ':', line->len);
    struct sb_slice name = {line->data, colon != NULL ? (size_t)(colon - line->data) : 0};
    if (!sb_is_token(name.data, name.len))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                       "a header's name is empty or has characters that names may not have");
    for (size_t i = name.len; i < line->len; i++) {
        unsigned char c = (unsigned char)line->data[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "the value of header %.*s has a control character", (int)name.len,
                           name.data);
    }
    if (sb_slice_is(&name, "content-length"))
        return take_length(answer, line, name.len + 1, err);
    if (sb_slice_is(&name, "connection")) {
        struct sb_slice value = {line->data + name.len + 1, line->len - name.len - 1};
        while (value.len > 0 && *value.data == ' ') {
            value.data++;
            value.len--;
        }
        if (!sb_slice_is(&value, "close"))
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "header Connection of an answer can only be \"close\"");
        answer->close = 1;
        return 0;
    }
    if (sb_slice_is(&name, "transfer-encoding") || sb_slice_is(&name, "upgrade") ||
        sb_slice_is(&name, "keep-alive") || sb_slice_is(&name, "trailer"))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "header %.*s of an answer is the server's",
                       (int)name.len, name.data);
    return 1;
}

int sb_answer_make(struct sb_answer *answer, const struct sb_reply *reply, struct sb_error *err)
{
    *answer = (struct sb_answer){.status = reply->status};
    if (reply->status < 200 || reply->status > 599)
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "%d is no status of an answer", reply->status);
    const char *reason = sb_reason(reply->status);
    size_t size = 32 + strlen(reason);
    for (size_t i = 0; i < reply->count; i++)
        size += reply->lines[i].len + 2;
    answer->text = malloc(size);
    if (answer->text == NULL)
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    answer->len = (size_t)snprintf(answer->text, size, "HTTP/1.1 %d %s\r\n", reply->status, reason);
    for (size_t i = 0; i < reply->count; i++) {
        int rc = take_line(answer, &reply->lines[i], err);
        if (rc < 0) {
            sb_answer_free(answer);
            return rc;
        }
        if (rc == 0)
            continue;
        memcpy(answer->text + answer->len, reply->lines[i].data, reply->lines[i].len);
        answer->len += reply->lines[i].len;
        memcpy(answer->text + answer->len, "\r\n", 2);
        answer->len += 2;
    }
    if (!reply->stream && answer->has_length && answer->length != reply->body.len) {
        sb_answer_free(answer);
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                       "Content-Length is not the length of the body");
    }
    return 0;
}

void sb_answer_free(struct sb_answer *answer)
{
    free(answer->text);
    answer->text = NULL;
}

/* "Date: ...": made once a second. [io] */
static const char *date_line(void)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    static char line[64];
    static time_t made;
    time_t now = time(NULL);
    if (now != made || line[0] == '\0') {
        struct tm t;
        gmtime_r(&now, &t);
        snprintf(line, sizeof line, "Date: %.3s, %02d %.3s %d %02d:%02d:%02d GMT\r\n",
                 days + (size_t)t.tm_wday * 3, t.tm_mday, months + (size_t)t.tm_mon * 3,
                 t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
        made = now;
    }
    return line;
}

int sb_answer_put(const struct sb_answer *answer, const struct sb_answer_framing *framing,
                  struct sb_buffer *out)
{
    char *at = (char *)sb_buffer_room(out, answer->len + ROOM), *begin = at;
    if (at == NULL)
        return -1;
    memcpy(at, answer->text, answer->len);
    at += answer->len;
    at = stpncpy(at, date_line(), ROOM / 4);
    if (framing->chunked)
        at += snprintf(at, ROOM / 4, "Transfer-Encoding: chunked\r\n");
    else if (framing->has_length)
        at +=
            snprintf(at, ROOM / 4, "Content-Length: %llu\r\n", (unsigned long long)framing->length);
    if (framing->last)
        at += snprintf(at, ROOM / 4, "Connection: close\r\n");
    else if (framing->minor == 0)
        at += snprintf(at, ROOM / 4, "Connection: keep-alive\r\n");
    at += snprintf(at, ROOM / 4, "\r\n");
    out->len += (size_t)(at - begin);
    return 0;
}
