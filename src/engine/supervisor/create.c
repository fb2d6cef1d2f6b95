/* The request for a new sandbox: every field checked. What this machine cannot enforce is refused,
 * never ignored. */
#include "create.h"

#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "disk.h"
#include "import.h"
#include "named.h"
#include "snapshot.h"
#include "template.h"

enum { LIFETIME_DEFAULT_MS = 3600000, PROCESSES_DEFAULT = 1024, PROCESSES_MAX = 1 << 22 };
enum { FILES_MIN = 16 };       /* what a shell needs to run a program */
enum { MEMORY_MIN = 4 << 20 }; /* likewise */
#define DISK_MIN (16ULL << 20) /* a file system has its own needs, too */
#define DISK_MAX (8ULL << 40)
enum {
    CPU_MIN = 10,
    CPU_MAX = 8192000
}; /* the kernel gives no less than a millisecond of a period */

static int invalid(struct sb_failure *f, const char *what, const char *why)
{
    return sb_failed(f, "InvalidArgument", 0, what, "%s: %s", what, why);
}

static int take_id(const struct sb_wire_in *in, char id[SB_ID_MAX + 1], struct sb_failure *f)
{
    struct sb_field_view v;
    if (!sb_read_find(&in->fields, SB_F_ID, &v)) {
        sb_uuid(id);
    } else {
        if (!sb_id_valid((const char *)v.data, v.len))
            return invalid(f, "id", "1 to 128 letters, digits, dots, dashes, underscores");
        memcpy(id, v.data, v.len);
        id[v.len] = '\0';
    }
    return sb_box_find(id) == NULL
               ? 0
               : sb_failed(f, "AlreadyExists", EEXIST, "id", "sandbox %s exists already", id);
}

static int take_token(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view v;
    if (!sb_read_find(&in->fields, SB_F_TOKEN, &v))
        return 0;
    if (v.len > sizeof r->token)
        return invalid(f, "token", "too long");
    memcpy(r->token, v.data, v.len);
    r->token_len = v.len;
    return 0;
}

static int copy_text(const char *from, char **to)
{
    if (from == NULL || *to != NULL)
        return 0;
    *to = strdup(from);
    return *to == NULL ? -1 : 0;
}

/* What a sandbox begins with: a snapshot's record or a named template's, NULL for others. */
static const struct sb_record *origin(const struct sb_record *r)
{
    if (r->snapshot != NULL)
        return sb_snapshot_find(r->snapshot);
    return r->template != NULL && r->rootfs == NULL ? sb_named_find(r->template) : NULL;
}

static int take_origin(struct sb_record *r, const struct sb_record *from, const char *what,
                       const char *name, struct sb_failure *f)
{
    if (!sb_record_same_ids(from))
        return sb_failed(f, "Unsupported", 0, "ids",
                         "%s %s was written with other user ids than there are now", what, name);
    /* Without layers it is the base template, as that is now. */
    bool bare = from->rootfs == NULL && from->layers.len == 0;
    if (copy_text(from->template, &r->template) < 0 ||
        copy_text(bare ? sb_base.name : from->base, &r->base) < 0 ||
        copy_text(from->rootfs, &r->rootfs) < 0 || sb_list_copy(&r->layers, &from->layers) < 0)
        return sb_failed(f, NULL, ENOMEM, "create", "memory");
    return 0;
}

/* What the request does not say is as in the sandbox that the snapshot was taken of. */
static int take_snapshot(struct sb_box *b, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_record *r = &b->rec;
    struct sb_field_view v;
    const struct sb_record *from = sb_snapshot_find(r->snapshot);
    if (from == NULL)
        return sb_failed(f, "NotFound", ENOENT, "snapshot", "there is no snapshot %s", r->snapshot);
    if (sb_read_find(&in->fields, SB_F_TEMPLATE, &v) || sb_read_find(&in->fields, SB_F_ROOTFS, &v))
        return invalid(f, "snapshot", "it has its template");
    return take_origin(r, from, "snapshot", r->snapshot, f);
}

/* Once the request's own have been taken. */
static int take_settings(struct sb_box *b, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_record *r = &b->rec;
    struct sb_field_view v;
    const struct sb_record *from = origin(r);
    if (from == NULL)
        return 0;
    if (copy_text(from->user, &r->user) < 0 || copy_text(from->cwd, &r->cwd) < 0 ||
        copy_text(from->hostname, &r->hostname) < 0)
        return sb_failed(f, NULL, ENOMEM, "create", "memory");
    if (!sb_read_find(&in->fields, SB_F_ALLOW_SETUID, &v))
        r->allow_setuid = from->allow_setuid;
    const struct {
        uint16_t tag;
        uint64_t *to, from;
    } limit[] = {{SB_F_LIMIT_PROCESSES, &r->limit_processes, from->limit_processes},
                 {SB_F_LIMIT_FILES, &r->limit_files, from->limit_files},
                 {SB_F_LIMIT_COMMANDS, &r->limit_commands, from->limit_commands},
                 {SB_F_LIMIT_OUTPUT, &r->limit_output, from->limit_output},
                 {SB_F_LIMIT_ENV, &r->limit_env, from->limit_env},
                 {SB_F_LIMIT_DISK, &r->limit_disk, from->limit_disk},
                 {SB_F_LIMIT_MEMORY, &r->limit_memory, from->limit_memory},
                 {SB_F_LIMIT_CPU, &r->limit_cpu, from->limit_cpu},
                 {SB_F_LIMIT_STARTED, &r->limit_started, from->limit_started}};
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++)
        if (!sb_read_find(&in->fields, limit[i].tag, &v))
            *limit[i].to = limit[i].from;
    if (!sb_read_find(&in->fields, SB_F_LIMIT_WALL_MS, &v))
        r->limit_wall_ms = from->limit_wall_ms;
    struct sb_list kept = {NULL, 0};
    if (r->snapshot == NULL ? sb_named_give(r->template, &kept, &b->start) < 0
                            : sb_snapshot_env(r->snapshot, &kept) < 0) {
        free(kept.data);
        return sb_failed_errno(f, "env", "cannot read what it begins with");
    }
    int rc = 0;
    for (const char *e = NULL; rc == 0 && (e = sb_list_next(&kept, e)) != NULL;) {
        bool given = false;
        size_t name = (size_t)(strchr(e, '=') - e) + 1;
        for (const char *own = NULL; !given && (own = sb_list_next(&b->env, own)) != NULL;)
            given = strncmp(own, e, name) == 0;
        if (!given && sb_list_add(&b->env, e, strlen(e)) < 0)
            rc = sb_failed(f, "LimitExceeded", 0, "env", "environment variables are too large");
    }
    free(kept.data);
    if (b->start.len != 0) /* until that has been started, and the asker says so: SB_S_KEEP */
        r->owned = true;
    if (from->owned) { /* soon gone: a name for nothing */
        free(r->snapshot);
        r->snapshot = NULL;
    }
    return rc;
}

static int take_template(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    if (sb_wire_string(&in->fields, SB_F_TEMPLATE, 256, &r->template) < 0)
        return invalid(f, "template", "not a name");
    if (sb_wire_string(&in->fields, SB_F_ROOTFS, 4095, &r->rootfs) < 0)
        return invalid(f, "rootfs", "not a path");
    if (r->rootfs != NULL && r->template != NULL && *r->template != '\0')
        return invalid(f, "rootfs", "either a rootfs or a template");
    if (r->rootfs != NULL && r->rootfs[0] != '/')
        return invalid(f, "rootfs", "not an absolute path");
    if (r->rootfs != NULL && sup.mode != SB_MODE_ROOT) {
        char name[40];
        if (sb_import_name(r->rootfs, name, sizeof name, f) < 0)
            return -1;
        r->base = strdup(name);
        return r->base != NULL ? 0 : sb_failed(f, NULL, ENOMEM, "create", "memory");
    }
    if (r->rootfs != NULL) {
        struct sb_template t;
        if (sb_template_open(&t, "", r->rootfs, f) < 0)
            return -1;
        sb_template_close(&t);
        return 0;
    }
    if (r->template == NULL && (r->template = strdup("base")) == NULL)
        return sb_failed(f, NULL, ENOMEM, "create", "memory");
    if (strcmp(r->template, "base") != 0) {
        const struct sb_record *from = sb_named_find(r->template);
        return from != NULL ? take_origin(r, from, "template", r->template, f)
                            : sb_failed(f, "NotFound", ENOENT, "template",
                                        "there is no template %s", r->template);
    }
    r->base = strdup(sb_base.name);
    return r->base != NULL ? 0 : sb_failed(f, NULL, ENOMEM, "create", "memory");
}

static int take_lists(struct sb_box *b, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_reader walk = in->fields;
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1) {
        if (v.tag != SB_F_LABEL && v.tag != SB_F_ENV)
            continue;
        bool label = v.tag == SB_F_LABEL;
        const char *sign = memchr(v.data, '=', v.len);
        if (memchr(v.data, 0, v.len) != NULL || sign == NULL || sign == (const char *)v.data)
            return invalid(f, label ? "labels" : "env", "not of the form name=value");
        struct sb_list *l = label ? &b->rec.labels : &b->env;
        if (sb_list_add(l, v.data, v.len) < 0)
            return sb_failed(f, "LimitExceeded", 0, label ? "labels" : "env", "%s are too large",
                             label ? "labels" : "environment variables");
    }
    return 0;
}

static bool names_root(const char *user)
{
    return strcmp(user, "root") == 0 || strcmp(user, "0") == 0 || strncmp(user, "0:", 2) == 0 ||
           strncmp(user, "root:", 5) == 0;
}

static int take_identity(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    if (sb_wire_string(&in->fields, SB_F_USER, 256, &r->user) < 0)
        return invalid(f, "user", "not a user name");
    if (sb_wire_string(&in->fields, SB_F_CWD, 4095, &r->cwd) < 0)
        return invalid(f, "cwd", "not a path");
    if (sb_wire_string(&in->fields, SB_F_HOSTNAME, 64, &r->hostname) < 0)
        return invalid(f, "hostname", "not a host name");
    for (const char *h = r->hostname; h != NULL && *h != '\0'; h++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", *h) == NULL)
            return invalid(f, "hostname", "letters, digits, dots and dashes only");
    r->allow_setuid = sb_read_u64(&in->fields, SB_F_ALLOW_SETUID, 0) != 0;
    if (sup.mode == SB_MODE_SINGLE && r->user != NULL && names_root(r->user))
        return sb_failed(f, "Unsupported", 0, "user",
                         "user root needs sub-ids (/etc/subuid, /etc/subgid, newuidmap)");
    if (sup.mode == SB_MODE_SINGLE && r->allow_setuid)
        return sb_failed(f, "Unsupported", 0, "allow_setuid", "allow_setuid needs sub-ids");
    return 0;
}

static int take_life(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_field_view v;
    uint64_t ms = sb_read_u64(&in->fields, SB_F_LIFETIME_MS, LIFETIME_DEFAULT_MS);
    if (ms > SB_LIFETIME_MAX_MS)
        return invalid(f, "lifetime", "too long");
    r->lifetime_ms = (int64_t)ms;
    r->owned = sb_read_u64(&in->fields, SB_F_OWNED, 0) != 0;
    r->on_expiry = r->owned ? SB_EXPIRY_DESTROY : SB_EXPIRY_PAUSE_DISK;
    r->auto_resume = sb_read_u64(&in->fields, SB_F_AUTO_RESUME, 0) != 0;
    if (sb_read_find(&in->fields, SB_F_ON_EXPIRY, &v) && v.len != 0) {
        int what = sb_expiry_of(v.data, v.len);
        if (what < 0)
            return invalid(f, "on_expiry", "\"pause_disk\", \"destroy\" or \"pause\"");
        r->on_expiry = (enum sb_expiry)what;
    }
    if (r->auto_resume && r->on_expiry != SB_EXPIRY_PAUSE)
        return invalid(f, "auto_resume", "it needs on_expiry = \"pause\"");
    return 0;
}

void sb_create_defaults(struct sb_record *r)
{
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    r->limit_processes = PROCESSES_DEFAULT;
    r->limit_files = now.rlim_max;
}

static int take_limits(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    sb_create_defaults(r);
    r->limit_processes = sb_read_u64(&in->fields, SB_F_LIMIT_PROCESSES, r->limit_processes);
    r->limit_files = sb_read_u64(&in->fields, SB_F_LIMIT_FILES, r->limit_files);
    r->limit_commands = sb_read_u64(&in->fields, SB_F_LIMIT_COMMANDS, 0);
    r->limit_output = sb_read_u64(&in->fields, SB_F_LIMIT_OUTPUT, 0);
    r->limit_env = sb_read_u64(&in->fields, SB_F_LIMIT_ENV, 0);
    r->limit_disk = sb_read_u64(&in->fields, SB_F_LIMIT_DISK, 0);
    r->limit_memory = sb_read_u64(&in->fields, SB_F_LIMIT_MEMORY, 0);
    r->limit_cpu = sb_read_u64(&in->fields, SB_F_LIMIT_CPU, 0);
    r->limit_started = sb_read_u64(&in->fields, SB_F_LIMIT_STARTED, 0);
    r->limit_wall_ms = (int64_t)sb_read_u64(&in->fields, SB_F_LIMIT_WALL_MS, 0);
    if (r->limit_memory != 0 && r->limit_memory < MEMORY_MIN)
        return invalid(f, "limits.memory", "at least 4 MiB");
    if (r->limit_disk != 0 && (r->limit_disk < DISK_MIN || r->limit_disk > DISK_MAX))
        return invalid(f, "limits.disk", "from 16 MiB to 8 TiB");
    if (r->limit_cpu != 0 && (r->limit_cpu < CPU_MIN || r->limit_cpu > CPU_MAX))
        return invalid(f, "limits.cpus", "from 0.01 to 8192");
    if (r->limit_wall_ms < 0 || r->limit_wall_ms > (int64_t)SB_LIFETIME_MAX_MS)
        return invalid(f, "limits.wall_time", "too long");
    if (r->limit_processes < 2)
        return invalid(f, "limits.processes", "at least 2 (pid 1 is one)");
    if (r->limit_processes > PROCESSES_MAX)
        return sb_failed(f, "Unsupported", 0, "limits.processes",
                         "a kernel has %d processes at most", PROCESSES_MAX);
    if (r->limit_files < FILES_MIN)
        return invalid(f, "limits.files", "at least 16");
    if (r->limit_files > now.rlim_max)
        return sb_failed(f, "Unsupported", 0, "limits.files",
                         "this machine allows %llu open files a process at most",
                         (unsigned long long)now.rlim_max);
    return 0;
}

/* Whoever asks for it gets it in one message, with some room for what comes later. */
static int check_size(const struct sb_record *r, struct sb_failure *f)
{
    size_t n = sb_record_shown(r);
    return n != 0 && n <= SB_SHOWN_MAX
               ? 0
               : sb_failed(f, "LimitExceeded", 0, "labels",
                           "labels are too large: with all else told of a sandbox, %d bytes",
                           SB_SHOWN_MAX);
}

struct sb_box *sb_create_parse(const struct sb_wire_in *in, struct sb_failure *f)
{
    char id[SB_ID_MAX + 1];
    if (take_id(in, id, f) < 0)
        return NULL;
    struct sb_box *b = sb_box_new(id);
    if (b == NULL) {
        sb_failed(f, NULL, ENOMEM, "create", "memory");
        return NULL;
    }
    b->rec.state = SB_BOX_CREATING;
    b->rec.created_ms = sb_wall_ms();
    b->fresh = true;
    if (take_token(&b->rec, in, f) < 0) {
        sb_box_forget(b);
        return NULL;
    }
    if (sb_wire_string(&in->fields, SB_F_SNAPSHOT, SB_ID_MAX, &b->rec.snapshot) < 0) {
        invalid(f, "snapshot", "not a name");
        sb_box_forget(b);
        return NULL;
    }
    if ((b->rec.snapshot != NULL ? take_snapshot(b, in, f) : take_template(&b->rec, in, f)) < 0 ||
        take_lists(b, in, f) < 0 || take_identity(&b->rec, in, f) < 0 ||
        take_life(&b->rec, in, f) < 0 || take_limits(&b->rec, in, f) < 0 ||
        take_settings(b, in, f) < 0 || sb_limits_check(&b->rec, f) < 0 ||
        sb_disk_check(&b->rec, f) < 0 || sb_network_take(&b->rec, &in->fields, f) < 0 ||
        check_size(&b->rec, f) < 0) {
        sb_box_forget(b);
        return NULL;
    }
    return b;
}
