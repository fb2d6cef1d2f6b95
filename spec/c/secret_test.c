/* The redactor finds a secret in each form it is likely to show in. */
#include <string.h>

#include "check.h"
#include "runtime/secret.h"

static void expect(const char *text, const char *want)
{
    char *out = NULL;
    size_t len;
    int found = sb_redact(text, strlen(text), &out, &len);
    if (want == NULL)
        CHECK(found == 0);
    else if (found != 1 || strcmp(out, want) != 0)
        fprintf(stderr, "%s -> %s\n", text, found == 1 ? out : "(unchanged)"), abort();
    free(found == 1 ? out : NULL);
}

static size_t base64(const unsigned char *data, size_t len, const char *last2, int padded,
                     char *out)
{
    char alphabet[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = 0;
    alphabet[62] = last2[0];
    alphabet[63] = last2[1];
    for (size_t bit = 0; bit < len * 8; bit += 6) {
        unsigned v = 0;
        for (size_t b = bit; b < bit + 6; b++)
            v = v << 1 | (b < len * 8 ? data[b / 8] >> (7 - b % 8) & 1u : 0u);
        out[n++] = alphabet[v];
    }
    while (padded && n % 4 != 0)
        out[n++] = '=';
    out[n] = '\0';
    return n;
}

/* Whatever surrounds the secret, no piece of its encoding of four characters or more survives. */
static void base64_at_every_position(const char *secret)
{
    static const char *const before[] = {"", "a", "ab", "Bearer ", "user:"};
    static const char *const after[] = {"", "x", "xy", "xyz"};
    char text[300], encoded[500], *out;
    size_t len;
    for (size_t b = 0; b < 5; b++)
        for (size_t a = 0; a < 4; a++)
            for (int url = 0; url < 2; url++) {
                snprintf(text, sizeof text, "%s%s%s", before[b], secret, after[a]);
                base64((unsigned char *)text, strlen(text), url ? "-_" : "+/", !url, encoded);
                CHECK(sb_redact(encoded, strlen(encoded), &out, &len) == 1);
                CHECK(strstr(out, "[redacted]") != NULL);
                CHECK(len <= strlen("[redacted]") + (strlen(before[b]) + 2) / 3 * 4 +
                                 (strlen(after[a]) + 2) / 3 * 4 + 2);
                free(out);
            }
}

int main(void)
{
    const char *plain = "k\"e/y+\\\n\xc3\xa9 =%&?~";
    expect("nothing to hide", NULL);
    struct sb_secret *a = sb_secret_new(plain, strlen(plain));
    expect("nothing to hide", NULL);
    expect("<k\"e/y+\\\n\xc3\xa9 =%&?~>", "<[redacted]>");
    expect("{\"k\":\"k\\\"e\\/y+\\\\\\n\xc3\xa9 =%&?~\"}", "{\"k\":\"[redacted]\"}");
    expect("{\"k\":\"\\u006b\\u0022e/y+\\\\\\u000A\xc3\xa9 =%&?~\"}", "{\"k\":\"[redacted]\"}");
    expect("?a=k%22e%2Fy%2B%5C%0A%C3%A9%20%3D%25%26%3F~&b", "?a=[redacted]&b");
    expect("?a=k%22e%2fy%2b%5c%0a%c3%a9+%3d%25%26%3f%7e&b", "?a=[redacted]&b");
    expect("6b22652f792b5c0ac3a9203d25263f7e.", "[redacted].");
    expect("6B22652F792B5C0AC3A9203D25263F7E.", "[redacted].");
    passed("plain, JSON, percent and hex");

    base64_at_every_position(plain);
    struct sb_secret *b = sb_secret_new("sk-0123456789abcdef", 19);
    base64_at_every_position("sk-0123456789abcdef");
    passed("base64 and base64url at every position in a longer text");

    struct sb_secret *c = sb_secret_join("Bearer ", 7, "sk-0123456789abcdef", 19);
    expect("authorization: Bearer sk-0123456789abcdef;", "authorization: [redacted];");
    expect("sk-0123456789abcdefsk-0123456789abcdef", "[redacted]");
    struct sb_secret *d = sb_secret_new("cdef-more", 9);
    expect("sk-0123456789abcdef-more", "[redacted]");
    passed("overlapping secrets leave nothing of either");

    struct sb_secret *e = sb_secret_new("", 0);
    expect("an empty secret hides nothing", NULL);
    sb_secret_free(a);
    sb_secret_free(b);
    sb_secret_free(c);
    sb_secret_free(d);
    sb_secret_free(e);
    expect("Bearer sk-0123456789abcdef", NULL);
    passed("a freed secret is forgotten");
    return 0;
}
