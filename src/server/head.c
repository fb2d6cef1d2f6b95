/* Heads of requests. */
#include "server/head.h"

#include <http_parser.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NO_MEMORY 503

/* ---- the grammar ---- */

int sb_is_token(const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (data[i] <= ' ' || data[i] >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", data[i]) != NULL)
            return 0;
    return len > 0;
}

long sb_head_find(const char *data, size_t len, size_t *scanned)
{
    for (size_t i = *scanned; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == '\n') {
            if (i == 0 || data[i - 1] != '\r')
                return -1;
            if (i >= 3 && data[i - 2] == '\n')
                return (long)i + 1;
        } else if ((i > 0 && data[i - 1] == '\r') || c == 0x7f ||
                   (c < ' ' && c != '\t' && c != '\r')) {
            return -1;
        }
    }
    *scanned = len;
    return 0;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

int sb_slice_is(const struct sb_slice *span, const char *name)
{
    return strlen(name) == span->len && strncasecmp(span->data, name, span->len) == 0;
}

/* "Name: value" without its line end. */
static int take_field(struct sb_head *head, const char *line, const char *end)
{
    const char *colon = memchr(line, ':', (size_t)(end - line));
    if (colon == NULL || !sb_is_token(line, (size_t)(colon - line)))
        return -1; /* a folded line among them: a blank is no token */
    const char *at = colon + 1;
    while (at < end && is_blank(*at))
        at++;
    while (end > at && is_blank(end[-1]))
        end--;
    head->fields[head->count++] =
        (struct sb_field){{line, (size_t)(colon - line)}, {at, (size_t)(end - at)}};
    return 0;
}

/* "METHOD target HTTP/1.x", one space between them. 0 or a status. */
static int take_request_line(struct sb_head *head, const char *line, const char *end,
                             const char **why)
{
    *why = "the request line is not one";
    const char *space = memchr(line, ' ', (size_t)(end - line));
    if (space == NULL || !sb_is_token(line, (size_t)(space - line)))
        return 400;
    const char *target = space + 1, *next = memchr(target, ' ', (size_t)(end - target));
    if (next == NULL || next == target || end - next != 9 || memcmp(next, " HTTP/", 6) != 0)
        return 400;
    for (const char *at = target; at < next; at++)
        if (*at <= ' ' || *at >= 0x7f || *at == '#') /* bytes of UTF-8 are to be escaped */
            return 400;
    if (next[6] < '0' || next[6] > '9' || next[7] != '.' || next[8] < '0' || next[8] > '9')
        return 400;
    *why = "this is an HTTP/1.1 server";
    if (next[6] != '1' || next[8] > '1')
        return 505;
    head->minor = next[8] - '0';
    head->method = (struct sb_slice){line, (size_t)(space - line)};
    head->target = (struct sb_slice){target, (size_t)(next - target)};
    return 0;
}

static int take_lines(struct sb_head *head, size_t len, const char **why)
{
    const char *at = head->text, *last = at + len - 2; /* without the empty line */
    const char *end = memmem(at, len, "\r\n", 2);
    int status = take_request_line(head, at, end, why);
    if (status != 0)
        return status;
    for (at = end + 2; at < last; at = end + 2) {
        end = memmem(at, (size_t)(last - at), "\r\n", 2);
        if (head->count == SB_HEAD_FIELDS) {
            *why = "too many headers";
            return 431;
        }
        if (take_field(head, at, end) < 0) {
            *why = "a header line is not one";
            return 400;
        }
    }
    return 0;
}

/* ---- what it says ---- */

static int take_length(struct sb_head *head, const struct sb_slice *value)
{
    uint64_t n = 0;
    if (value->len == 0 || value->len > 18)
        return -1;
    for (size_t i = 0; i < value->len; i++) {
        if (value->data[i] < '0' || value->data[i] > '9')
            return -1;
        n = n * 10 + (uint64_t)(value->data[i] - '0');
    }
    head->length = n;
    return 0;
}

static int refuse(const char **why, int status, const char *text)
{
    *why = text;
    return status;
}

static int take_meaning(struct sb_head *head, const char **why)
{
    int lengths = 0, codings = 0;
    for (size_t i = 0; i < head->count; i++) {
        const struct sb_slice *name = &head->fields[i].name, *value = &head->fields[i].value;
        if (sb_slice_is(name, "content-length")) {
            if (lengths++ > 0 || take_length(head, value) < 0)
                return refuse(why, 400, "the body's length is not one number");
        } else if (sb_slice_is(name, "transfer-encoding")) {
            if (codings++ > 0)
                return refuse(why, 400, "more than one Transfer-Encoding");
            if (!sb_slice_is(value, "chunked"))
                return refuse(why, 501, "no other transfer coding than chunked");
        } else if (sb_slice_is(name, "host")) {
            if (head->host.data != NULL)
                return refuse(why, 400, "more than one Host");
            head->host = *value;
        } else if (sb_slice_is(name, "expect")) {
            if (!sb_slice_is(value, "100-continue"))
                return refuse(why, 417, "no other expectation than 100-continue");
            head->expects = head->minor == 1;
        }
    }
    if (codings > 0 && (lengths > 0 || head->minor == 0))
        return refuse(why, 400, "two ways to tell the end of the body, or one of HTTP/1.1 in 1.0");
    if (head->minor == 1 && head->host.data == NULL)
        return refuse(why, 400, "no Host");
    if (codings > 0)
        head->framing = SB_FRAMED_CHUNKED;
    else if (head->length > 0)
        head->framing = SB_FRAMED_LENGTH;
    else
        head->expects = 0;
    return 0;
}

/* ---- what http-parser says of it ---- */

struct told {
    int complete, keep_alive, upgrade;
};

static int on_complete(http_parser *parser)
{
    struct told *told = parser->data;
    told->complete = 1;
    told->keep_alive = http_should_keep_alive(parser);
    told->upgrade = parser->upgrade != 0;
    return 1; /* the body is not its business */
}

/* It has to agree on the framing, too. */
static int take_told(struct sb_head *head, size_t len, const char **why)
{
    http_parser_settings settings;
    http_parser parser;
    struct told told = {0};
    http_parser_settings_init(&settings);
    settings.on_headers_complete = on_complete;
    http_parser_init(&parser, HTTP_REQUEST);
    parser.data = &told;
    http_parser_execute(&parser, &settings, head->text, len);
    if (HTTP_PARSER_ERRNO(&parser) == HPE_INVALID_METHOD || parser.method == HTTP_CONNECT)
        return refuse(why, 501, "no such method here");
    int chunked = (parser.flags & F_CHUNKED) != 0;
    int framed = (parser.flags & F_CONTENTLENGTH) != 0;
    if (HTTP_PARSER_ERRNO(&parser) != HPE_OK || !told.complete ||
        chunked != (head->framing == SB_FRAMED_CHUNKED) ||
        (head->framing == SB_FRAMED_LENGTH && !framed))
        return refuse(why, 400, "the head can be understood in more than one way");
    head->keep_alive = told.keep_alive;
    head->upgrade = told.upgrade;
    head->is_head = parser.method == HTTP_HEAD;
    return 0;
}

int sb_head_read(struct sb_head *head, const char *data, size_t len, const char **why)
{
    *head = (struct sb_head){0};
    size_t lines = 1;
    for (size_t i = 0; i < len; i++)
        lines += data[i] == '\n';
    if (lines > SB_HEAD_FIELDS)
        lines = SB_HEAD_FIELDS;
    head->text = malloc(len + 1);
    head->fields = calloc(lines, sizeof *head->fields);
    int status = NO_MEMORY;
    *why = "out of memory";
    if (head->text != NULL && head->fields != NULL) {
        memcpy(head->text, data, len);
        head->text[len] = '\0';
        status = take_lines(head, len, why);
        if (status == 0)
            status = take_meaning(head, why);
        if (status == 0)
            status = take_told(head, len, why);
    }
    if (status != 0)
        sb_head_free(head);
    return status;
}

void sb_head_free(struct sb_head *head)
{
    free(head->text);
    free(head->fields);
    *head = (struct sb_head){0};
}
