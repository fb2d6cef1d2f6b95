/* Checking and copying a request. */
#include "http/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/core.h"

/* What the caller's own header lines said. */
struct seen {
    int host, accept, expect, length, chunked;
};

static int is_token(const char *s, size_t len)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              (c != '\0' && strchr(others, c) != NULL)))
            return 0;
    }
    return len > 0;
}

static int is(const struct sb_slice *line, size_t name, const char *what)
{
    return name == strlen(what) && strncasecmp(line->data, what, name) == 0;
}

static int append(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer == NULL)
        return -1;
    *list = longer;
    return 0;
}

static int add_line(struct sb_prepared *out, const char *line)
{
    return append(&out->own, line);
}

/* First of all lines wherever the caller put his: libcurl writes it right below the request line. */
static int append_host(struct curl_slist **list, uint16_t port)
{
    char host[32];
    snprintf(host, sizeof host, "Host: localhost:%u", (unsigned)port);
    return append(list, host);
}

struct curl_slist *sb_usual_lines(uint16_t port)
{
    struct curl_slist *list = NULL;
    if ((port == 0 || append_host(&list, port) == 0) && append(&list, "Accept:") == 0)
        return list;
    curl_slist_free_all(list);
    return NULL;
}

static int no_memory(struct sb_error *err)
{
    return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
}

/* One of the caller's lines: kept, or understood and left to libcurl. */
static int take_line(struct sb_prepared *out, const struct sb_slice *line, struct seen *seen,
                     struct sb_error *err)
{
    const char *colon = memchr(line->data, ':', line->len);
    size_t name = colon != NULL ? (size_t)(colon - line->data) : 0;
    if (!is_token(line->data, name))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                       "a header's name is empty or has characters "
                       "that names may not have");
    for (size_t i = name; i < line->len; i++)
        if (line->data[i] == '\r' || line->data[i] == '\n' || line->data[i] == '\0')
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "the value of header %.*s has a line break or a zero byte", (int)name,
                           line->data);
    const char *value = colon + 1, *end = line->data + line->len;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    size_t len = (size_t)(end - value);

    if (is(line, name, "upgrade"))
        return sb_fail(err, SB_ERR_UNSUPPORTED, "a fetch cannot change protocols");
    if (is(line, name, "transfer-encoding")) {
        if (len != 7 || strncasecmp(value, "chunked", 7) != 0)
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "Transfer-Encoding can only be chunked");
        seen->chunked = 1;
        return 0; /* libcurl adds it where it belongs */
    }
    if (is(line, name, "content-length")) {
        curl_off_t n = 0;
        for (const char *at = value; at < end; at++) {
            if (*at < '0' || *at > '9' || n > 100000000000000000)
                return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "Content-Length is not a number");
            n = n * 10 + (*at - '0');
        }
        if (len == 0 || (seen->length && n != out->upload_len))
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "Content-Length is empty or given twice");
        seen->length = 1;
        out->upload_len = n;
        return 0;
    }
    seen->host |= is(line, name, "host");
    seen->accept |= is(line, name, "accept");
    seen->expect |= is(line, name, "expect");

    char *copy = malloc(line->len + 2);
    if (copy == NULL)
        return no_memory(err);
    memcpy(copy, line->data, line->len);
    copy[line->len] = '\0';
    if (len == 0) { /* libcurl's way to say: this header, empty */
        copy[name] = ';';
        copy[name + 1] = '\0';
    }
    int rc = add_line(out, copy);
    explicit_bzero(copy, line->len);
    free(copy);
    return rc < 0 ? no_memory(err) : 0;
}

static int take_target(struct sb_prepared *out, const struct sb_slice *target, struct sb_error *err)
{
    if (target->len == 0 ||
        (target->data[0] != '/' &&
         !(target->len == 1 && target->data[0] == '*' && strcmp(out->method, "OPTIONS") == 0)))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "a path starts with /");
    for (size_t i = 0; i < target->len; i++) {
        unsigned char c = (unsigned char)target->data[i];
        if (c <= ' ' || c == 0x7f || c == '#')
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "a path needs its blanks, control characters and # escaped");
    }
    out->target = strndup(target->data, target->len);
    return out->target != NULL ? 0 : no_memory(err);
}

/* What follows from the method. */
static void judge(struct sb_prepared *out, const struct sb_request *request)
{
    static const char *const idempotent[] = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"};
    static const char *const bodied[] = {"POST", "PUT", "PATCH"};
    out->sends = request->has_body || request->upload != NULL;
    for (size_t i = 0; i < sizeof bodied / sizeof *bodied; i++)
        out->sends |=
            strcmp(out->method, bodied[i]) == 0; /* an empty one: many servers want a length */
    for (size_t i = 0; i < sizeof idempotent / sizeof *idempotent; i++)
        out->idempotent |= strcmp(out->method, idempotent[i]) == 0;
    out->idempotent |= request->repeatable;
    out->head = strcmp(out->method, "HEAD") == 0;
}

static int prepare(struct sb_prepared *out, const struct sb_request *request, uint16_t port,
                   struct curl_slist *usual, struct sb_error *err)
{
    struct seen seen = {0};
    int rc;
    if (!is_token(request->method.data, request->method.len) || request->method.len > 64)
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "not a request method");
    out->method = strndup(request->method.data, request->method.len);
    if (out->method == NULL)
        return no_memory(err);
    if (strcmp(out->method, "CONNECT") == 0)
        return sb_fail(err, SB_ERR_UNSUPPORTED, "a fetch cannot open a tunnel");
    rc = take_target(out, &request->target, err);
    if (rc < 0)
        return rc;
    judge(out, request);
    out->upload_len = -1;
    if (request->header_count == 0 && !out->sends) {
        out->headers = usual;
        return 0;
    }
    if (port != 0) {
        int own = 0;
        for (size_t i = 0; i < request->header_count; i++)
            own |= request->headers[i].len >= 5 &&
                   strncasecmp(request->headers[i].data, "host:", 5) == 0;
        if (!own && append_host(&out->own, port) < 0)
            return no_memory(err);
    }
    for (size_t i = 0; i < request->header_count; i++) {
        rc = take_line(out, &request->headers[i], &seen, err);
        if (rc < 0)
            return rc;
    }

    if (out->head && (request->upload != NULL || request->body.len > 0))
        return sb_fail(err, SB_ERR_UNSUPPORTED, "a HEAD request has no body");
    if (request->upload == NULL) {
        if (seen.length && (curl_off_t)request->body.len != out->upload_len)
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "Content-Length differs from the body's length");
        out->upload_len = (curl_off_t)request->body.len;
        if (request->body.len > 0) {
            out->body = malloc(request->body.len);
            if (out->body == NULL)
                return no_memory(err);
            memcpy(out->body, request->body.data, request->body.len);
            out->body_len = request->body.len;
        }
    } else if (!seen.length && add_line(out, "Transfer-Encoding: chunked") < 0) {
        return no_memory(err);
    }
    /* Lines libcurl would add by itself, the second to long bodies. */
    if ((!seen.accept && add_line(out, "Accept:") < 0) ||
        (!seen.expect && out->sends && add_line(out, "Expect:") < 0))
        return no_memory(err);
    out->headers = out->own;
    return 0;
}

int sb_prepare(struct sb_prepared *out, const struct sb_request *request, uint16_t port,
               struct curl_slist *usual, struct sb_error *err)
{
    *out = (struct sb_prepared){0};
    int rc = prepare(out, request, port, usual, err);
    if (rc < 0)
        sb_prepared_free(out);
    return rc;
}

void sb_prepared_free(struct sb_prepared *prepared)
{
    for (struct curl_slist *line = prepared->own; line != NULL; line = line->next)
        explicit_bzero(line->data, strlen(line->data));
    curl_slist_free_all(prepared->own);
    free(prepared->method);
    free(prepared->target);
    free(prepared->body);
    *prepared = (struct sb_prepared){0};
}
