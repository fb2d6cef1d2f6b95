/* Who a command or a file operation runs as. Everything read here is the sandbox's own and may be
 * anything: bounded, never followed, never waited for. */
#ifndef GUEST_USERS_H
#define GUEST_USERS_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_GROUPS = 64, USERS_BUF = 8192 };

struct account {
    uint32_t uid, gid;
    unsigned ngroups;
    uint32_t groups[MAX_GROUPS];
    char name[64], home[512], shell[128];
};

/* "name", "name:group", "1000", "1000:1000". 0, or a negative errno: ENOENT no such user or group,
 * EINVAL not a user at all. Reads files: for children and workers. buf is USERS_BUF bytes. */
int users_find(const char *spec, struct account *a, char *buf);

/* The two halves of it, which look at text only. */
int users_parse_passwd(const char *line, size_t len, const char *name, size_t name_len, int numeric,
                       uint32_t uid, struct account *a);
int users_parse_group(const char *line, size_t len, const char *name, size_t name_len,
                      uint32_t *gid, const char *member);

/* The name for an id, or "" (and its length). */
size_t users_name_of(uint32_t id, int group, char *out, size_t cap, char *buf);

/* Takes the account's ids on: 0 or a negative errno. EOPNOTSUPP: this sandbox has one id only. */
int users_become(const struct account *a);

#endif
