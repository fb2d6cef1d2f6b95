/* A request checked and copied, ready to be handed to libcurl. Any thread. */
#ifndef SB_HTTP_REQUEST_H
#define SB_HTTP_REQUEST_H

#include <curl/curl.h>

#include "http/http.h"

struct sb_prepared {
    char *method;
    char *target;
    struct curl_slist *headers; /* `own`, or the port's */
    struct curl_slist *own;
    unsigned char *body;
    size_t body_len;
    curl_off_t upload_len; /* of a streamed body; -1: chunked */
    int sends;             /* it has a body, be it an empty one */
    int head;              /* the answer has none */
    int idempotent;        /* by its method */
};

/* The header lines of a request without any of its own. `port`: for the Host line, 0 without. NULL: out
 * of memory. */
struct curl_slist *sb_usual_lines(uint16_t port);

/* InvalidArgument (or Unsupported: an upgrade), with nothing held. `usual`: what sb_usual_lines made for
 * this port; outlives `out`. */
int sb_prepare(struct sb_prepared *out, const struct sb_request *request, uint16_t port,
               struct curl_slist *usual, struct sb_error *err);
void sb_prepared_free(struct sb_prepared *prepared); /* wipes: header values may be secrets */

#endif
