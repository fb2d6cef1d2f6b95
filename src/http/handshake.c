/* The opening of a websocket. */
#include "http/handshake.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/core.h"

#define KEY 16
#define ROOM 160 /* for each of the two pieces of the request that are always there */
#define BLANKS " \t\r\n"

static int no_memory(struct sb_error *err)
{
    return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
}

/* base64 of SHA-1 of the key and the protocol's own number. */
static int prove(const char *key, char out[32])
{
    static const char number[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[64 + sizeof number];
    unsigned int len = 0;
    int n = snprintf(text, sizeof text, "%s%s", key, number);
    if (EVP_Digest(text, (size_t)n, digest, &len, EVP_sha1(), NULL) != 1 || len != 20)
        return -1;
    EVP_EncodeBlock((unsigned char *)out, digest, 20);
    return 0;
}

/* ---- the request ---- */

static int is_token(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (s[i] <= ' ' || s[i] >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", s[i]) != NULL)
            return 0;
    return len > 0;
}

/* Those the handshake itself consists of. */
static int is_ours(const char *name, size_t len)
{
    static const char *const ours[] = {
        "Upgrade",        "Connection",        "Sec-WebSocket-Key",        "Sec-WebSocket-Version",
        "Content-Length", "Transfer-Encoding", "Sec-WebSocket-Extensions",
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strlen(ours[i]) == len && strncasecmp(name, ours[i], len) == 0)
            return 1;
    return 0;
}

static int check_line(const struct sb_slice *line, struct sb_error *err)
{
    const char *colon = memchr(line->data, ':', line->len);
    size_t name = colon != NULL ? (size_t)(colon - line->data) : 0;
    if (!is_token(line->data, name))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                       "a header's name is empty or has characters that names may not have");
    for (size_t i = name; i < line->len; i++)
        if (line->data[i] == '\r' || line->data[i] == '\n' || line->data[i] == '\0')
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "the value of header %.*s has a line break or a zero byte", (int)name,
                           line->data);
    if (is_ours(line->data, name))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "header %.*s belongs to the handshake",
                       (int)name, line->data);
    return 0;
}

static int check_target(const struct sb_slice *target, struct sb_error *err)
{
    if (target->len == 0 || target->data[0] != '/')
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "a path starts with /");
    for (size_t i = 0; i < target->len; i++) {
        unsigned char c = (unsigned char)target->data[i];
        if (c <= ' ' || c == 0x7f || c == '#')
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                           "a path needs its blanks, control characters and # escaped");
    }
    return 0;
}

static int is_host(const struct sb_slice *line)
{
    return line->len >= 5 && strncasecmp(line->data, "host:", 5) == 0;
}

static char *put(char *at, const void *data, size_t len)
{
    memcpy(at, data, len);
    return at + len;
}

static char *put_line(char *at, const struct sb_slice *line)
{
    return put(put(at, line->data, line->len), "\r\n", 2);
}

int sb_handshake_make(struct sb_handshake *out, const struct sb_websocket_request *request,
                      uint16_t port, struct sb_error *err)
{
    *out = (struct sb_handshake){0};
    const struct sb_slice *host = NULL;
    size_t size = request->target.len + 2 * ROOM + 32;
    int rc = check_target(&request->target, err);
    for (size_t i = 0; rc == 0 && i < request->header_count; i++) {
        rc = check_line(&request->headers[i], err);
        size += request->headers[i].len + 2;
        if (is_host(&request->headers[i]))
            host = &request->headers[i];
    }
    if (rc < 0)
        return rc;

    unsigned char random[KEY];
    char key[KEY * 2];
    if (RAND_bytes(random, sizeof random) != 1)
        return sb_fail(err, SB_ERR_INTERNAL, "libcrypto has no random bytes");
    EVP_EncodeBlock((unsigned char *)key, random, sizeof random);
    if (prove(key, out->accept) < 0)
        return sb_fail(err, SB_ERR_INTERNAL, "libcrypto has no SHA-1");

    char *at = out->request = malloc(size);
    if (at == NULL)
        return no_memory(err);
    at = put(put(put(at, "GET ", 4), request->target.data, request->target.len), " HTTP/1.1\r\n",
             11);
    if (host != NULL)
        at = put_line(at, host);
    else if (port != 0)
        at += snprintf(at, ROOM, "Host: localhost:%u\r\n", (unsigned)port);
    at += snprintf(at, ROOM,
                   "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                   "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n",
                   key);
    for (size_t i = 0; i < request->header_count; i++)
        if (!is_host(&request->headers[i]))
            at = put_line(at, &request->headers[i]);
    at = put(at, "\r\n", 2);
    out->len = (size_t)(at - out->request);
    return 0;
}

void sb_handshake_free(struct sb_handshake *handshake)
{
    if (handshake->request != NULL)
        explicit_bzero(handshake->request, handshake->len);
    free(handshake->request);
    *handshake = (struct sb_handshake){0};
}

/* ---- the answer ---- */

size_t sb_handshake_head(const char *data, size_t len)
{
    const char *end = memmem(data, len, "\r\n\r\n", 4);
    const char *bare = memmem(data, len, "\n\n", 2); /* some servers leave the returns away */
    if (bare != NULL && (end == NULL || bare < end))
        return (size_t)(bare - data) + 2;
    return end != NULL ? (size_t)(end - data) + 4 : 0;
}

/* Whether one of the comma-separated words is `word`. */
static int has_word(const char *at, const char *end, const char *word)
{
    size_t len = strlen(word);
    while (at < end) {
        while (at < end && (*at == ',' || strchr(BLANKS, *at) != NULL))
            at++;
        const char *from = at;
        while (at < end && *at != ',' && strchr(BLANKS, *at) == NULL)
            at++;
        if ((size_t)(at - from) == len && strncasecmp(from, word, len) == 0)
            return 1;
    }
    return 0;
}

static int is_named(const char *line, const char *colon, const char *name)
{
    return (size_t)(colon - line) == strlen(name) && strncasecmp(line, name, strlen(name)) == 0;
}

static int is_proof(const char *at, const char *end, const char *accept)
{
    while (at < end && strchr(BLANKS, *at) != NULL)
        at++;
    while (end > at && strchr(BLANKS, end[-1]) != NULL)
        end--;
    return (size_t)(end - at) == strlen(accept) && memcmp(at, accept, strlen(accept)) == 0;
}

static int mean_it(const struct sb_handshake *handshake, const char *at, const char *last)
{
    int upgrade = 0, connection = 0, proof = 0, extension = 0;
    const char *end;
    for (; (end = memchr(at, '\n', (size_t)(last - at))) != NULL; at = end + 1) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        if (colon == NULL)
            continue;
        upgrade |= is_named(at, colon, "Upgrade") && has_word(colon + 1, end, "websocket");
        connection |= is_named(at, colon, "Connection") && has_word(colon + 1, end, "upgrade");
        proof |= is_named(at, colon, "Sec-WebSocket-Accept") &&
                 is_proof(colon + 1, end, handshake->accept);
        extension |= is_named(at, colon, "Sec-WebSocket-Extensions");
    }
    return upgrade && connection && proof && !extension;
}

int sb_handshake_judge(const struct sb_handshake *handshake, const char *head, size_t len,
                       struct sb_error *err)
{
    int status = 0;
    if (len < 12 || strncmp(head, "HTTP/1.", 7) != 0 || head[8] != ' ')
        return sb_fail(err, SB_ERR_PROTOCOL, "the answer is not HTTP");
    for (int i = 9; i < 12; i++) {
        if (head[i] < '0' || head[i] > '9')
            return sb_fail(err, SB_ERR_PROTOCOL, "the answer has no status");
        status = status * 10 + (head[i] - '0');
    }
    if (status == 101 && !mean_it(handshake, head, head + len))
        return sb_fail(err, SB_ERR_PROTOCOL,
                       "the answer changes to something else than a websocket");
    return status;
}

static int ends_with(const char *data, size_t len, const char *what)
{
    size_t n = strlen(what);
    return len >= n && memcmp(data + len - n, what, n) == 0;
}

/* 0 for nonsense, and no more than a GiB. */
static size_t number_in(const char *at, const char *end)
{
    size_t n = 0;
    while (at < end && strchr(BLANKS, *at) != NULL)
        at++;
    for (; at < end && *at >= '0' && *at <= '9' && n < (1u << 30); at++)
        n = n * 10 + (size_t)(*at - '0');
    return n;
}

int sb_handshake_lacks(const char *head, size_t head_len, const char *body, size_t body_len)
{
    const char *last = head + head_len, *end;
    for (const char *at = head; (end = memchr(at, '\n', (size_t)(last - at))) != NULL;
         at = end + 1) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        if (colon == NULL)
            continue;
        if (is_named(at, colon, "Transfer-Encoding")) /* the last chunk, without trailers */
            return !ends_with(body, body_len, "\r\n0\r\n\r\n") &&
                   !(body_len == 5 && ends_with(body, body_len, "0\r\n\r\n"));
        if (is_named(at, colon, "Content-Length"))
            return body_len < number_in(colon + 1, end);
    }
    return 1;
}
