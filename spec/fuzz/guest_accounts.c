/* Text of the sandbox's own that pid 1 reads: lines of /etc/passwd and /etc/group, users as callers name
 * them, /proc/<pid>/stat, and paths. The guest's sources are part of this file. */
#include "fuzz/guest.h"

#include "guest/tree.c"
#include "guest/users.c"

void control_need_leaves(void)
{
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char buf[USERS_BUF];
    struct lines l;
    struct entry e = {0};
    const char *line;
    size_t n, spec_len = size > 0 ? data[0] % 70 : 0;
    struct account a;
    char *spec;
    uint32_t gid;
    int fd;
    if (size < 1 + spec_len)
        return 0;
    spec = calloc(1, spec_len + 1);
    memcpy(spec, data + 1, spec_len);
    if (users_find(spec, &a, buf) == 0 && (a.uid == ~0u || a.gid == ~0u || a.home[0] != '/'))
        abort();
    data += 1 + spec_len;
    size -= 1 + spec_len;
    stat_parse((const char *)data, size, &e);
    fd = (int)SYS2(__NR_memfd_create, "lines", 1);
    sys_write(fd, data, size);
    SYS3(__NR_lseek, fd, 0, 0);
    memset(&l, 0, sizeof l);
    l.fd = fd;
    l.buf = buf;
    while ((line = lines_next(&l, &n)) != NULL) {
        char *copy = calloc(1, n + 1);
        memcpy(copy, line, n);
        memset(&a, 0, sizeof a);
        users_parse_passwd(copy, n, spec, strlen(spec), spec_len & 1, 1000, &a);
        defaults_of(&a);
        users_parse_group(copy, n, spec, strlen(spec), &gid, NULL);
        users_parse_group(copy, n, NULL, 0, &gid, spec);
        free(copy);
    }
    sys_close(fd);
    free(spec);
    return 0;
}
