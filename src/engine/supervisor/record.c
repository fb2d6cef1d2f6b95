/* Records: wire fields behind a 16-byte header, replaced by rename. Fields that no caller sees have
 * tags from 1000 on. */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../relay/upstream.h"
#include "birth.h"

enum { RECORD_VERSION = 1, RECORD_MAX = 1 << 20, ROUND = 1024, PIECE = 4096 };

enum private_tag {
    T_STATE = 1000,
    T_BASE,
    T_ROOTFS,
    T_ALLOW_SETUID,
    T_HOSTNAME,
    T_HOST_BOOT,
    T_GROUP,
    T_DEADLINE,
    T_RANGE,
    T_SUB_UID,
    T_SUB_GID,
    T_SUB_COUNT,
    T_MODE,
    T_PID1,
    T_OWNER,
    T_KEPT,
    T_FILLER,
    T_TOKEN,
    T_SEAL,
    T_RAN,
    T_RUN_AT,
};

static const char *const expiries[] = {
    [SB_EXPIRY_PAUSE_DISK] = "pause_disk",
    [SB_EXPIRY_DESTROY] = "destroy",
    [SB_EXPIRY_PAUSE] = "pause",
};

int sb_expiry_of(const void *name, size_t n)
{
    for (int i = 0; i < (int)(sizeof expiries / sizeof *expiries); i++)
        if (strlen(expiries[i]) == n && memcmp(expiries[i], name, n) == 0)
            return i;
    return -1;
}

const char *sb_kept_name(enum sb_kept k)
{
    return k == SB_KEPT_MEMORY ? "memory" : k == SB_KEPT_DISK ? "disk" : NULL;
}

struct header {
    char magic[8];
    uint32_t version, crc;
};

int sb_list_add(struct sb_list *l, const void *s, size_t n)
{
    if (l->len + n + 1 > SB_ENV_MAX)
        return -1;
    char *more = realloc(l->data, l->len + n + 1);
    if (more == NULL)
        return -1;
    memcpy(more + l->len, s, n);
    more[l->len + n] = '\0';
    l->data = more;
    l->len += n + 1;
    return 0;
}

const char *sb_list_next(const struct sb_list *l, const char *at)
{
    const char *next = at == NULL ? l->data : at + strlen(at) + 1;
    return next == NULL || next >= l->data + l->len ? NULL : next;
}

int sb_list_copy(struct sb_list *to, const struct sb_list *from)
{
    for (const char *e = NULL; (e = sb_list_next(from, e)) != NULL;)
        if (sb_list_add(to, e, strlen(e)) < 0)
            return -1;
    return 0;
}

void sb_list_wipe(struct sb_list *l)
{
    if (l->data != NULL)
        explicit_bzero(l->data, l->len);
    free(l->data);
    *l = (struct sb_list){NULL, 0};
}

int sb_list_secret(struct sb_list *to, const struct sb_reader *fields, uint16_t tag)
{
    struct sb_reader walk = *fields;
    struct sb_field_view f;
    size_t len = 0;
    while (sb_read_field(&walk, &f) == 1)
        len += f.tag == tag ? f.len + 1 : 0;
    if (len == 0)
        return 0;
    to->data = malloc(len);
    if (to->data == NULL)
        return -1;
    walk = *fields;
    while (sb_read_field(&walk, &f) == 1) {
        if (f.tag != tag)
            continue;
        memcpy(to->data + to->len, f.data, f.len);
        to->data[to->len + f.len] = '\0';
        to->len += f.len + 1;
    }
    return 0;
}

bool sb_list_has(const struct sb_list *l, const void *s, size_t n)
{
    for (const char *e = NULL; (e = sb_list_next(l, e)) != NULL;)
        if (strlen(e) == n && memcmp(e, s, n) == 0)
            return true;
    return false;
}

void sb_list_remove(struct sb_list *l, const char *entry)
{
    size_t n = strlen(entry) + 1;
    for (const char *e = NULL; (e = sb_list_next(l, e)) != NULL;)
        if (strcmp(e, entry) == 0) {
            size_t at = (size_t)(e - l->data);
            memmove(l->data + at, l->data + at + n, l->len - at - n);
            l->len -= n;
            return;
        }
}

const char *sb_record_state(const struct sb_record *r)
{
    switch (r->state) {
    case SB_BOX_PAUSED:
        return "paused";
    case SB_BOX_FAILED:
        return "failed";
    case SB_BOX_GONE:
        return "gone";
    case SB_BOX_STOPPING:
        return r->settled ? "paused" : "running";
    default:
        return "running";
    }
}

void sb_record_free(struct sb_record *r)
{
    free(r->template);
    free(r->base);
    free(r->rootfs);
    free(r->user);
    free(r->cwd);
    free(r->hostname);
    free(r->cause);
    free(r->message);
    free(r->snapshot);
    free(r->layers.data);
    free(r->labels.data);
    free(r->exposed.data);
    free(r->net_allow.data);
    free(r->net_deny.data);
    sb_list_wipe(&r->net_inject);
    memset(r, 0, sizeof *r);
}

bool sb_record_plain(const struct sb_record *r)
{
    return r->rootfs == NULL && r->layers.len == 0 && r->limit_disk == 0;
}

bool sb_record_same_ids(const struct sb_record *r)
{
    return r->mode == sup.mode && r->sub_uid == sup.sub_uid && r->sub_gid == sup.sub_gid &&
           r->sub_count == sup.sub_count;
}

void sb_record_cause(struct sb_record *r, const char *word, const char *message)
{
    free(r->cause);
    free(r->message);
    r->cause = word != NULL ? strdup(word) : NULL; /* without memory: an end without a cause */
    r->message = message != NULL ? strdup(message) : NULL;
}

static void pack_text(struct sb_packer *p, uint16_t tag, const char *s)
{
    if (s != NULL && *s != '\0')
        sb_pack_str(p, tag, s);
}

static void pack_list(struct sb_packer *p, uint16_t tag, const struct sb_list *l)
{
    for (const char *e = NULL; (e = sb_list_next(l, e)) != NULL;)
        sb_pack_str(p, tag, e);
}

static void pack_int(struct sb_packer *p, uint16_t tag, int64_t v)
{
    sb_pack_u64(p, tag, (uint64_t)v);
}

/* What is injected, without the values, and a proxy without who logs in. */
static void pack_names(struct sb_packer *p, const struct sb_list *inject)
{
    char proxy[1 + SB_UPSTREAM_SHOWN] = "u";
    for (const char *e = NULL; (e = sb_list_next(inject, e)) != NULL;)
        if (*e == 'u') {
            sb_upstream_shown(proxy + 1, e + 1);
            sb_pack_str(p, SB_F_NET_INJECT, proxy);
        } else {
            sb_pack_bytes(p, SB_F_NET_INJECT, e,
                          *e == 's'   ? strcspn(e, ":") + 1
                          : *e == 'k' ? 1
                                      : strlen(e));
        }
}

void sb_record_network(const struct sb_record *r, struct sb_packer *p, bool secrets)
{
    sb_pack_str(p, SB_F_NETWORK, r->network != NULL ? r->network : "deny");
    pack_list(p, SB_F_NET_ALLOW, &r->net_allow);
    pack_list(p, SB_F_NET_DENY, &r->net_deny);
    if (secrets)
        pack_list(p, SB_F_NET_INJECT, &r->net_inject);
    else
        pack_names(p, &r->net_inject);
}

const char *sb_network_word(const struct sb_reader *fields)
{
    static const char *const word[] = {"allow", "rules"};
    struct sb_field_view f;
    for (size_t i = 0; i < 2; i++)
        if (sb_read_find(fields, SB_F_NETWORK, &f) && f.len == 5 && memcmp(f.data, word[i], 5) == 0)
            return word[i];
    return NULL;
}

static void pack_limit(struct sb_packer *p, uint16_t tag, uint64_t v)
{
    if (v != 0)
        sb_pack_u64(p, tag, v);
}

void sb_record_limits(const struct sb_record *r, struct sb_packer *p)
{
    pack_limit(p, SB_F_LIMIT_PROCESSES, r->limit_processes);
    pack_limit(p, SB_F_LIMIT_FILES, r->limit_files);
    pack_limit(p, SB_F_LIMIT_COMMANDS, r->limit_commands);
    pack_limit(p, SB_F_LIMIT_DISK, r->limit_disk);
    pack_limit(p, SB_F_LIMIT_MEMORY, r->limit_memory);
    pack_limit(p, SB_F_LIMIT_CPU, r->limit_cpu);
    pack_limit(p, SB_F_LIMIT_STARTED, r->limit_started);
    pack_limit(p, SB_F_LIMIT_WALL_MS, (uint64_t)r->limit_wall_ms);
}

/* `secrets`: it is for nobody but us. */
static void pack_common(const struct sb_record *r, struct sb_packer *p, bool secrets)
{
    sb_pack_str(p, SB_F_ID, r->id);
    pack_text(p, SB_F_TEMPLATE, r->template);
    pack_text(p, SB_F_SNAPSHOT, r->snapshot);
    pack_list(p, SB_F_LABEL, &r->labels);
    pack_list(p, SB_F_EXPOSED, &r->exposed);
    pack_int(p, SB_F_CREATED_MS, r->created_ms);
    pack_int(p, SB_F_STARTED_MS, r->started_ms);
    if (r->ends_ms != 0)
        pack_int(p, SB_F_ENDS_MS, r->ends_ms);
    pack_int(p, SB_F_LIFETIME_MS, r->lifetime_ms);
    sb_pack_str(p, SB_F_ON_EXPIRY, expiries[r->on_expiry]);
    if (r->auto_resume)
        sb_pack_u64(p, SB_F_AUTO_RESUME, 1);
    sb_pack_u64(p, SB_F_OWNED, r->owned);
    pack_text(p, SB_F_BOOT, r->boot);
    sb_pack_u64(p, SB_F_EPOCH, r->epoch);
    pack_text(p, SB_F_USER, r->user);
    pack_text(p, SB_F_CWD, r->cwd);
    pack_text(p, SB_F_CAUSE, r->cause);
    pack_text(p, SB_F_MESSAGE, r->message);
    sb_record_network(r, p, secrets);
    pack_limit(p, SB_F_LIMIT_OUTPUT, r->limit_output);
    pack_limit(p, SB_F_LIMIT_ENV, r->limit_env);
}

static void show(const struct sb_record *r, struct sb_packer *p)
{
    pack_common(r, p, false);
    sb_pack_str(p, SB_F_STATE, sb_record_state(r));
    pack_text(p, SB_F_KEPT, sb_kept_name(r->kept));
}

void sb_record_show(const struct sb_record *r, struct sb_packer *p)
{
    struct sb_packer before = *p;
    struct sb_record bare = *r;
    show(r, p);
    if (!p->overflow || before.overflow)
        return;
    bare.labels = bare.exposed = (struct sb_list){NULL, 0};
    *p = before;
    show(&bare, p);
}

size_t sb_record_shown(const struct sb_record *r)
{
    static unsigned char room[SB_MSG_MAX];
    struct sb_packer p = {room, sizeof room, sizeof(struct sb_msg), 0};
    show(r, &p);
    return p.overflow ? 0 : p.len;
}

static void pack_ident(struct sb_packer *p, uint16_t tag, const struct sb_ident *id)
{
    uint64_t v[3] = {(uint64_t)id->pid, id->inode, id->start};
    sb_pack_bytes(p, tag, v, sizeof v);
}

static unsigned char buf[RECORD_MAX];

/* The whole file in `buf`: its length, or 0 if it is too large. */
static size_t pack_file(const struct sb_record *r)
{
    struct sb_packer p = {buf, sizeof buf, sizeof(struct header), 0};
    pack_common(r, &p, true);
    sb_pack_u64(&p, T_STATE,
                r->state == SB_BOX_STOPPING   ? SB_BOX_PAUSED
                : r->state == SB_BOX_FREEZING ? SB_BOX_RUNNING
                                              : r->state);
    pack_text(&p, T_BASE, r->base);
    pack_list(&p, SB_F_LAYER, &r->layers);
    pack_text(&p, T_SEAL, r->seal);
    pack_text(&p, T_ROOTFS, r->rootfs);
    sb_pack_u64(&p, T_ALLOW_SETUID, r->allow_setuid);
    pack_text(&p, T_HOSTNAME, r->hostname);
    pack_text(&p, T_HOST_BOOT, r->host_boot);
    pack_text(&p, T_GROUP, r->group);
    pack_int(&p, T_DEADLINE, r->deadline_ms);
    pack_int(&p, T_RANGE, r->range);
    sb_pack_u64(&p, T_SUB_UID, r->sub_uid);
    sb_pack_u64(&p, T_SUB_GID, r->sub_gid);
    sb_pack_u64(&p, T_SUB_COUNT, r->sub_count);
    sb_pack_u64(&p, T_MODE, r->mode);
    sb_pack_u64(&p, T_KEPT, r->state == SB_BOX_STOPPING ? SB_KEPT_DISK : r->kept);
    pack_ident(&p, T_PID1, &r->pid1);
    pack_ident(&p, T_OWNER, &r->owner);
    sb_pack_bytes(&p, T_TOKEN, r->token, r->token_len);
    sb_record_limits(r, &p);
    pack_limit(&p, SB_F_STARTED, r->started);
    pack_limit(&p, T_RAN, (uint64_t)r->ran_ms);
    pack_limit(&p, T_RUN_AT, (uint64_t)r->run_at_ms);
    /* Rounded up, so that one put in place covers the one before. */
    static const unsigned char zeros[ROUND];
    sb_pack_bytes(&p, T_FILLER, zeros, ROUND - (p.len + 8) % ROUND);
    if (p.overflow) {
        errno = EFBIG;
        return 0;
    }
    struct header h = {"SBREC1\0", RECORD_VERSION, 0};
    h.crc = (uint32_t)sb_hash(buf + sizeof h, p.len - sizeof h, 0);
    memcpy(buf, &h, sizeof h);
    return p.len;
}

/* What is injected stays only where it is needed. */
static void wipe_file(const struct sb_record *r, size_t n)
{
    if (r->net_inject.len > 0)
        explicit_bzero(buf, n);
}

int sb_record_write(const struct sb_record *r, int dir)
{
    size_t n = pack_file(r);
    int rc = n != 0 ? sb_write_at(dir, "record.new", buf, n, 0600) : -1;
    wipe_file(r, n);
    if (rc < 0)
        return -1;
    return renameat(dir, "record.new", dir, "record");
}

int sb_record_put(const struct sb_record *r, int fd)
{
    size_t n = pack_file(r);
    if (n == 0)
        return -1;
    if (n > PIECE)
        return 1;
    ssize_t done = pwrite(fd, buf, n, 0);
    wipe_file(r, n);
    if (done >= 0 && (size_t)done != n)
        errno = ENOSPC;
    return done == (ssize_t)n ? ftruncate(fd, done) : -1;
}

int sb_record_refresh(const struct sb_record *r, int dir)
{
    struct stat st;
    sb_autofd int fd = openat(dir, "record", O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    size_t n = pack_file(r);
    if (fd < 0 || n == 0 || n > PIECE || fstat(fd, &st) < 0 || st.st_size != (off_t)n)
        return sb_record_write(r, dir);
    ssize_t done = pwrite(fd, buf, n, 0);
    wipe_file(r, n);
    return done == (ssize_t)n ? 0 : sb_record_write(r, dir);
}

static int take_text(const struct sb_reader *r, uint16_t tag, char **out)
{
    struct sb_field_view f;
    if (!sb_read_find(r, tag, &f))
        return 0;
    *out = strndup((const char *)f.data, f.len);
    return *out == NULL ? -1 : 0;
}

static void take_fixed(const struct sb_reader *r, uint16_t tag, char *out, size_t size)
{
    struct sb_field_view f;
    if (sb_read_find(r, tag, &f) && f.len < size) {
        memcpy(out, f.data, f.len);
        out[f.len] = '\0';
    }
}

static void take_ident(const struct sb_reader *r, uint16_t tag, struct sb_ident *id)
{
    struct sb_field_view f;
    uint64_t v[3];
    if (!sb_read_find(r, tag, &f) || f.len != sizeof v)
        return;
    memcpy(v, f.data, sizeof v);
    *id = (struct sb_ident){(int64_t)v[0], v[1], v[2]};
}

static int take_fields(struct sb_record *r, const struct sb_reader *in)
{
    struct sb_reader walk = *in;
    struct sb_field_view f;
    int rc;
    while ((rc = sb_read_field(&walk, &f)) == 1) {
        struct sb_list *l = f.tag == SB_F_LABEL       ? &r->labels
                            : f.tag == SB_F_EXPOSED   ? &r->exposed
                            : f.tag == SB_F_LAYER     ? &r->layers
                            : f.tag == SB_F_NET_ALLOW ? &r->net_allow
                            : f.tag == SB_F_NET_DENY  ? &r->net_deny
                                                      : NULL;
        if (l != NULL && sb_list_add(l, f.data, f.len) < 0)
            return -1;
    }
    if (rc < 0 || sb_list_secret(&r->net_inject, in, SB_F_NET_INJECT) < 0)
        return -1;
    char *expiry = NULL;
    if (take_text(in, SB_F_TEMPLATE, &r->template) < 0 || take_text(in, T_BASE, &r->base) < 0 ||
        take_text(in, T_ROOTFS, &r->rootfs) < 0 || take_text(in, SB_F_USER, &r->user) < 0 ||
        take_text(in, SB_F_CWD, &r->cwd) < 0 || take_text(in, T_HOSTNAME, &r->hostname) < 0 ||
        take_text(in, SB_F_CAUSE, &r->cause) < 0 || take_text(in, SB_F_MESSAGE, &r->message) < 0 ||
        take_text(in, SB_F_SNAPSHOT, &r->snapshot) < 0 ||
        take_text(in, SB_F_ON_EXPIRY, &expiry) < 0)
        return -1;
    int what = expiry != NULL ? sb_expiry_of(expiry, strlen(expiry)) : -1;
    r->on_expiry = what < 0 ? SB_EXPIRY_PAUSE_DISK : (enum sb_expiry)what;
    free(expiry);
    r->network = sb_network_word(in);
    take_fixed(in, SB_F_BOOT, r->boot, sizeof r->boot);
    take_fixed(in, T_HOST_BOOT, r->host_boot, sizeof r->host_boot);
    take_fixed(in, T_SEAL, r->seal, sizeof r->seal);
    take_fixed(in, T_GROUP, r->group, sizeof r->group);
    uint64_t state = sb_read_u64(in, T_STATE, SB_BOX_FAILED);
    r->state = state > SB_BOX_FAILED ? SB_BOX_FAILED : (enum sb_state)state;
    r->created_ms = (int64_t)sb_read_u64(in, SB_F_CREATED_MS, 0);
    r->started_ms = (int64_t)sb_read_u64(in, SB_F_STARTED_MS, 0);
    r->ends_ms = (int64_t)sb_read_u64(in, SB_F_ENDS_MS, 0);
    r->lifetime_ms = (int64_t)sb_read_u64(in, SB_F_LIFETIME_MS, 0);
    r->deadline_ms = (int64_t)sb_read_u64(in, T_DEADLINE, 0);
    r->epoch = (uint32_t)sb_read_u64(in, SB_F_EPOCH, 0);
    r->owned = sb_read_u64(in, SB_F_OWNED, 0) != 0;
    r->allow_setuid = sb_read_u64(in, T_ALLOW_SETUID, 0) != 0;
    uint64_t kept = sb_read_u64(in, T_KEPT, 0);
    r->kept = kept > SB_KEPT_MEMORY ? SB_KEPT_DISK : (enum sb_kept)kept;
    r->auto_resume = sb_read_u64(in, SB_F_AUTO_RESUME, 0) != 0;
    r->limit_processes = sb_read_u64(in, SB_F_LIMIT_PROCESSES, 0);
    r->limit_files = sb_read_u64(in, SB_F_LIMIT_FILES, 0);
    r->limit_commands = sb_read_u64(in, SB_F_LIMIT_COMMANDS, 0);
    r->limit_output = sb_read_u64(in, SB_F_LIMIT_OUTPUT, 0);
    r->limit_env = sb_read_u64(in, SB_F_LIMIT_ENV, 0);
    r->limit_disk = sb_read_u64(in, SB_F_LIMIT_DISK, 0);
    r->limit_memory = sb_read_u64(in, SB_F_LIMIT_MEMORY, 0);
    r->limit_cpu = sb_read_u64(in, SB_F_LIMIT_CPU, 0);
    r->limit_started = sb_read_u64(in, SB_F_LIMIT_STARTED, 0);
    r->started = sb_read_u64(in, SB_F_STARTED, 0);
    r->limit_wall_ms = (int64_t)sb_read_u64(in, SB_F_LIMIT_WALL_MS, 0);
    r->ran_ms = (int64_t)sb_read_u64(in, T_RAN, 0);
    r->run_at_ms = (int64_t)sb_read_u64(in, T_RUN_AT, 0);
    r->range = (int)sb_read_u64(in, T_RANGE, (uint64_t)-1);
    r->sub_uid = (uint32_t)sb_read_u64(in, T_SUB_UID, 0);
    r->sub_gid = (uint32_t)sb_read_u64(in, T_SUB_GID, 0);
    r->sub_count = (uint32_t)sb_read_u64(in, T_SUB_COUNT, 0);
    r->mode = (enum sb_mode)sb_read_u64(in, T_MODE, SB_MODE_ROOT);
    take_ident(in, T_PID1, &r->pid1);
    take_ident(in, T_OWNER, &r->owner);
    if (sb_read_find(in, T_TOKEN, &f) && f.len <= sizeof r->token) {
        memcpy(r->token, f.data, f.len);
        r->token_len = f.len;
    }
    return 0;
}

int sb_note_open(int dir, int64_t *pid)
{
    struct sb_note note;
    size_t n = 0;
    sb_autofree char *text = sb_read_at(dir, "birth", sizeof note, &n);
    if (text == NULL || n != sizeof note)
        return -1;
    memcpy(&note, text, n);
    if (memcmp(note.magic, "SBBIRTH1", sizeof note.magic) != 0 ||
        strncmp(note.host_boot, sup.host_boot, sizeof note.host_boot) != 0)
        return -1;
    /* Where the inode does not say enough (before Linux 6.9) the note is of no use. */
    *pid = note.pid;
    struct sb_ident id = {note.pid, note.inode, 0};
    return sb_ident_open(&id);
}

static void wipe_read(const struct sb_record *r, char *text, size_t n)
{
    if (r->net_inject.len > 0)
        explicit_bzero(text, n);
}

int sb_record_read(struct sb_record *r, int dir, const char *id)
{
    size_t n = 0;
    struct header h;
    memset(r, 0, sizeof *r);
    sb_autofree char *text = sb_read_at(dir, "record", RECORD_MAX, &n);
    struct sb_reader in = {NULL, NULL};
    int rc = -1;
    bool newer = false;
    if (text != NULL && n >= sizeof h) {
        memcpy(&h, text, sizeof h);
        in.at = (unsigned char *)text + sizeof h;
        in.end = (unsigned char *)text + n;
        bool intact = memcmp(h.magic, "SBREC1\0", sizeof h.magic) == 0 &&
                      h.crc == (uint32_t)sb_hash(in.at, n - sizeof h, 0);
        newer = intact && h.version > RECORD_VERSION;
        if (intact && !newer)
            rc = take_fields(r, &in);
        wipe_read(r, text, n);
    }
    if (rc < 0) {
        sb_record_free(r);
        r->state = SB_BOX_FAILED;
        r->range = -1;
        r->newer = newer;
        r->unread = true;
        sb_record_cause(r, "record",
                        newer          ? "its record was written by a newer version of sandbar"
                        : text == NULL ? "its record cannot be read"
                                       : "its record is damaged");
    }
    snprintf(r->id, sizeof r->id, "%s", id);
    return rc;
}
