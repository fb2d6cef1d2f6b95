/* SB_S_SOCKET: the sockets that HTTP and relays into a sandbox's ports are made of. */
#include "sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client.h"

struct request {
    struct sb_client_call call; /* first */
    sb_sockets_fn *done;
    void *arg;
};

/* Takes the descriptors that are TCP sockets, each for its family; whatever else came stays and
 * is closed. */
static void take(const struct sb_answer *answer, int *v4, int *v6)
{
    for (unsigned i = 0; i < answer->nfds; i++) {
        int family = 0, type = 0, fd = answer->fds[i];
        socklen_t len = sizeof family;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) < 0)
            continue;
        len = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_STREAM)
            continue;
        int *slot = family == AF_INET ? v4 : family == AF_INET6 ? v6 : NULL;
        if (slot == NULL || *slot >= 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
            continue;
        *slot = fd;
        answer->fds[i] = -1;
    }
}

static void answered(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct request *request = (struct request *)call;
    struct sb_error err = {SB_OK};
    int v4 = -1, v6 = -1;
    if (answer->error != NULL) {
        err = *answer->error;
    } else {
        take(answer, &v4, &v6);
        if (v4 < 0 && v6 < 0)
            sb_fail(&err, SB_ERR_PROTOCOL, "the supervisor sent no sockets");
    }
    sb_sockets_fn *done = request->done;
    void *arg = request->arg;
    free(request);
    done(arg, v4, v6, err.kind != SB_OK ? &err : NULL);
}

void sb_client_sockets(const struct sb_object *engine, const char *id, sb_sockets_fn *done,
                       void *arg)
{
    size_t id_len = strlen(id), room = sizeof(struct sb_msg) + 8 + id_len;
    struct sb_client *client = sb_client_get((const struct sb_engine *)engine);
    struct request *request = calloc(1, sizeof *request);
    unsigned char *msg = malloc(room);
    if (client == NULL || request == NULL || msg == NULL) {
        struct sb_error err = {SB_OK};
        free(request);
        free(msg);
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        done(arg, -1, -1, &err);
        return;
    }
    struct sb_packer p;
    sb_pack_begin(&p, msg, room, SB_S_SOCKET, 0, 0);
    sb_pack_bytes(&p, SB_F_ID, id, id_len);
    request->call.answer = answered;
    request->call.msg = msg;
    request->call.len = p.len;
    request->call.again = 1;
    request->done = done;
    request->arg = arg;
    sb_client_call(client, &request->call);
}

const struct sb_object_type *sb_client_engine_type(void)
{
    return &sb_engine_type;
}
