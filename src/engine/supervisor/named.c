/* A template is a directory <root>/v1/m/<name>: a record, which names layers as a snapshot's does, and the request it
 * was made with. A new one is written under a name that nobody looks for and exchanged with the old one, so that there
 * is one or the other at any moment; sandboxes of the old one name its layers themselves.
 *
 * The steps it was built of are snapshots whose names begin with "=" (snapshot.c). A step that no template names stays
 * for a day, so that a build that failed goes on where it was; "=once-": until its template is replaced. */
#include "named.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conn.h"
#include "create.h"
#include "job.h"
#include "snapshot.h"
#include "template.h"
#include "trash.h"

enum { ABOUT_MAX = 57344, START_MAX = 4096, STEP_KEPT_MS = 86400000 };

/* One that is there, or is being written (`job`). Owned by the list. */
struct named {
    struct named *next;
    struct sb_record rec; /* id: its name */
    char *about;          /* fields of the request that made it */
    size_t about_len;
    struct sb_source job;  /* the process that syncs */
    struct sb_conn *asker; /* NULL: gone */
    uint32_t req;
    char half[24]; /* its directory while it is being written */
    bool whole;
};

static struct named *all;

static struct named *find(const char *name)
{
    struct named *t = all;
    while (t != NULL && (!t->whole || strcmp(t->rec.id, name) != 0))
        t = t->next;
    return t;
}

static struct sb_reader about(const struct named *t)
{
    const unsigned char *at = (const unsigned char *)t->about;
    return (struct sb_reader){at, at + t->about_len};
}

static void forget(struct named *t)
{
    struct named **at = &all;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (t->half[0] != '\0')
        sb_trash_put(sup.named, t->half);
    sb_loop_drop(&t->job);
    sb_record_free(&t->rec);
    free(t->about);
    sb_loop_bury(t);
}

/* ---- what others ask ---- */

const struct sb_record *sb_named_find(const char *name)
{
    const struct named *t = find(name);
    return t != NULL ? &t->rec : NULL;
}

int sb_named_give(const char *name, struct sb_list *env, struct sb_list *start)
{
    const struct named *t = find(name);
    if (t == NULL)
        return 0;
    struct sb_reader walk = about(t);
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1) {
        char text[START_MAX + 1];
        int rc = 0;
        if (v.tag == SB_F_ENV) {
            rc = sb_list_add(env, v.data, v.len);
        } else if (v.tag == SB_F_START || v.tag == SB_F_READY) {
            text[0] = v.tag == SB_F_START ? 's' : 'r';
            memcpy(text + 1, v.data, v.len);
            rc = sb_list_add(start, text, v.len + 1);
        }
        if (rc < 0)
            return -1;
    }
    return 0;
}

void sb_named_tell(const struct sb_list *start, struct sb_packer *p)
{
    for (const char *e = NULL; (e = sb_list_next(start, e)) != NULL;)
        sb_pack_str(p, e[0] == 's' ? SB_F_START : SB_F_READY, e + 1);
}

/* One on the disk could not be read: nobody knows what it needs. */
static bool unsure;

bool sb_named_layer(const char *layer)
{
    if (unsure)
        return true;
    for (const struct named *t = all; t != NULL; t = t->next)
        if (sb_list_has(&t->rec.layers, layer, strlen(layer)))
            return true;
    return false;
}

bool sb_named_base(const char *base)
{
    if (unsure)
        return true;
    for (const struct named *t = all; t != NULL; t = t->next)
        if (t->rec.base != NULL && strcmp(t->rec.base, base) == 0)
            return true;
    return false;
}

/* ---- steps that nobody needs ---- */

static bool has_step(const struct named *t, const char *key)
{
    struct sb_reader walk = about(t);
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1)
        if (v.tag == SB_F_STEP_KEY && v.len == strlen(key) && memcmp(v.data, key, v.len) == 0)
            return true;
    return false;
}

/* The template that is being deleted or `replaced`. NULL: none. */
static const struct named *leaving;
static bool replaced;

/* No other build will ever ask for it. */
static bool is_once(const char *key)
{
    return strncmp(key, "=once-", 6) == 0;
}

static bool step_wanted(const char *key, int64_t created_ms)
{
    if (unsure)
        return true;
    for (const struct named *t = all; t != NULL; t = t->next)
        if (t != leaving && has_step(t, key))
            return true;
    if (leaving != NULL && has_step(leaving, key) && (!replaced || is_once(key)))
        return false;
    return sb_wall_ms() - created_ms < STEP_KEPT_MS;
}

/* Forgets the template that leaves; steps that are nobody's then go, and layers with them. */
static void prune_steps(struct named *t)
{
    leaving = t;
    sb_snapshot_prune_steps(step_wanted);
    leaving = NULL;
    if (t != NULL)
        forget(t);
    sb_snapshot_prune();
}

/* ---- making one ---- */

static void answer(struct named *t, const struct sb_failure *f)
{
    if (t->asker == NULL)
        return;
    if (f != NULL)
        sb_conn_fail(t->asker, t->req, f);
    else
        sb_conn_done(t->asker, t->req);
    t->asker = NULL;
}

/* It is on the disk: from here on it is the one of its name. */
static void synced(struct sb_source *src, uint32_t events)
{
    struct named *t = SB_OWNER(src, struct named, job);
    struct named *old = find(t->rec.id);
    struct sb_failure f;
    (void)events;
    int err = sb_job_end(src, NULL);
    bool exchanged = false;
    if (err == 0) {
        exchanged = renameat2(sup.named, t->half, sup.named, t->rec.id, RENAME_EXCHANGE) == 0;
        if (!exchanged && renameat2(sup.named, t->half, sup.named, t->rec.id, RENAME_NOREPLACE) < 0)
            err = errno;
    }
    if (err != 0) {
        sb_failed(&f, NULL, err, "template", "cannot write the template");
        answer(t, &f);
        forget(t);
        sb_snapshot_prune();
        return;
    }
    if (exchanged)
        sb_trash_put(sup.named, t->half);
    t->half[0] = '\0';
    t->whole = true;
    replaced = true;
    prune_steps(old);
    replaced = false;
    answer(t, NULL);
}

static int start_sync(struct named *t, int dir, struct sb_failure *f)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(dir, 3) != 3 || close_range(4, ~0U, 0) < 0 || syncfs(3) < 0)
            _exit(errno);
        _exit(0);
    }
    if (sb_job_watch(&t->job, pid, synced) == 0)
        return 0;
    return sb_failed_errno(f, "template", "cannot start the sync");
}

static int write_half(struct named *t, struct sb_failure *f)
{
    uint64_t r;
    sb_random(&r, sizeof r);
    snprintf(t->half, sizeof t->half, ".%016llx", (unsigned long long)r);
    if (mkdirat(sup.named, t->half, 0700) < 0)
        return sb_failed_errno(f, "template", "mkdir");
    sb_autofd int dir = openat(sup.named, t->half, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || sb_write_at(dir, "about", t->about, t->about_len, 0600) < 0 ||
        sb_record_write(&t->rec, dir) < 0)
        return sb_failed_errno(f, "template", "cannot write the template");
    return start_sync(t, dir, f);
}

static int copy_text(const char *from, char **to)
{
    return from == NULL || (*to = strdup(from)) != NULL ? 0 : -1;
}

/* Its files are those of the step, or of the base template. */
static int take_step(struct sb_record *r, const struct sb_wire_in *in, struct sb_failure *f)
{
    sb_autofree char *step = NULL;
    if (sb_wire_string(&in->fields, SB_F_SNAPSHOT, SB_ID_MAX, &step) < 0)
        return sb_failed(f, "InvalidArgument", 0, "template", "the step is not a name");
    const struct sb_record *from = step != NULL ? sb_snapshot_find(step) : NULL;
    if (step != NULL && from == NULL)
        return sb_failed(f, "NotFound", ENOENT, "template", "there is no step %s", step);
    r->state = SB_BOX_PAUSED;
    r->created_ms = sb_wall_ms();
    r->range = -1;
    r->mode = sup.mode;
    r->sub_uid = sup.sub_uid;
    r->sub_gid = sup.sub_gid;
    r->sub_count = sup.sub_count;
    sb_create_defaults(r);
    if (copy_text(from != NULL ? from->base : sb_base.name, &r->base) < 0 ||
        (from != NULL &&
         (copy_text(from->rootfs, &r->rootfs) < 0 || sb_list_copy(&r->layers, &from->layers) < 0)))
        return sb_failed(f, NULL, ENOMEM, "template", "memory");
    return 0;
}

static int check_lists(const struct sb_reader *fields, struct sb_failure *f)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    size_t start = 0;
    while (sb_read_field(&walk, &v) == 1) {
        if (v.tag == SB_F_ENV) {
            const char *sign = memchr(v.data, '=', v.len);
            if (memchr(v.data, 0, v.len) != NULL || sign == NULL || sign == (const char *)v.data)
                return sb_failed(f, "InvalidArgument", 0, "env", "not of the form name=value");
        } else if (v.tag == SB_F_START || v.tag == SB_F_READY) {
            start += v.len + 16;
            if (memchr(v.data, 0, v.len) != NULL)
                return sb_failed(f, "InvalidArgument", 0, "start", "a command with a zero byte");
        }
    }
    if (start > START_MAX)
        return sb_failed(f, "LimitExceeded", 0, "start",
                         "start and ready are longer than %d bytes together", START_MAX);
    if (fields->end - fields->at > ABOUT_MAX)
        return sb_failed(f, "LimitExceeded", 0, "template",
                         "what is kept of a template is longer than %d bytes", ABOUT_MAX);
    return 0;
}

static int name_of(const struct sb_wire_in *in, char name[SB_ID_MAX + 1], struct sb_failure *f)
{
    struct sb_field_view v;
    if (!sb_read_find(&in->fields, SB_F_TEMPLATE, &v) ||
        !sb_id_valid((const char *)v.data, v.len) || (v.len == 4 && memcmp(v.data, "base", 4) == 0))
        return sb_failed(f, "InvalidArgument", 0, "template",
                         "a name is 1 to 128 letters, digits, dots, dashes, underscores, and not "
                         "\"base\"");
    memcpy(name, v.data, v.len);
    name[v.len] = '\0';
    return 0;
}

int sb_named_publish(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    char name[SB_ID_MAX + 1];
    if (name_of(in, name, f) < 0 || check_lists(&in->fields, f) < 0)
        return -1;
    struct named *t = calloc(1, sizeof *t);
    size_t len = (size_t)(in->fields.end - in->fields.at);
    char *copy = t != NULL ? malloc(len + 1) : NULL;
    if (copy == NULL) {
        free(t);
        return sb_failed(f, NULL, ENOMEM, "template", "memory");
    }
    memcpy(copy, in->fields.at, len);
    memcpy(t->rec.id, name, sizeof name);
    t->about = copy;
    t->about_len = len;
    t->job.fd = -1;
    t->asker = c;
    t->req = in->head.req;
    t->next = all;
    all = t;
    if (sb_wire_string(&in->fields, SB_F_USER, 256, &t->rec.user) < 0 ||
        sb_wire_string(&in->fields, SB_F_CWD, 4095, &t->rec.cwd) < 0)
        sb_failed(f, "InvalidArgument", 0, "template", "user or cwd is not a text");
    else if (take_step(&t->rec, in, f) == 0 && write_half(t, f) == 0)
        return 0;
    forget(t);
    return -1;
}

/* ---- listing, deleting ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct named *const *)a)->rec.id, (*(struct named *const *)b)->rec.id);
}

static void send_one(struct sb_conn *c, uint32_t req, const struct named *t)
{
    struct sb_packer p;
    struct sb_reader walk = about(t);
    struct sb_field_view v;
    sb_conn_begin(&p, SB_PART, req);
    while (sb_read_field(&walk, &v) == 1)
        sb_pack_bytes(&p, v.tag, v.data, v.len);
    sb_pack_u64(&p, SB_F_CREATED_MS, (uint64_t)t->rec.created_ms);
    sb_conn_send(c, &p, NULL, 0);
}

int sb_named_list(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    sb_autofree char *only = NULL;
    size_t n = 0, room = 1;
    if (sb_wire_string(&in->fields, SB_F_TEMPLATE, SB_ID_MAX, &only) < 0)
        return sb_failed(f, "InvalidArgument", 0, "template", "not a name");
    for (const struct named *t = all; t != NULL; t = t->next)
        room++;
    struct named **list = calloc(room, sizeof *list);
    if (list == NULL)
        return sb_failed(f, NULL, ENOMEM, "list", "memory");
    for (struct named *t = all; t != NULL; t = t->next)
        if (t->whole && (only == NULL || strcmp(only, t->rec.id) == 0))
            list[n++] = t;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n && c->src.fd >= 0; i++)
        send_one(c, in->head.req, list[i]);
    free(list);
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    struct sb_reader walk = in->fields;
    struct sb_field_view v;
    while (sb_read_field(&walk, &v) == 1) {
        char step[SB_ID_MAX + 1];
        if (v.tag != SB_F_STEP_KEY || v.len >= sizeof step)
            continue;
        memcpy(step, v.data, v.len);
        step[v.len] = '\0';
        if (sb_snapshot_find(step) == NULL)
            continue;
        size_t len = 0;
        sb_autofree char *note = sb_snapshot_note(step, &len);
        sb_pack_bytes(&p, SB_F_STEP_KEY, v.data, v.len);
        if (note != NULL)
            sb_pack_bytes(&p, SB_F_DATA, note, len);
    }
    sb_conn_send(c, &p, NULL, 0);
    return 0;
}

struct wanted {
    const char *name;
    bool found;
};

static void look_for_user(struct sb_box *b, void *arg)
{
    struct wanted *w = arg;
    w->found = w->found || (b->rec.template != NULL && strcmp(b->rec.template, w->name) == 0 &&
                            b->goal != SB_GOAL_DESTROY);
}

int sb_named_delete(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    char name[SB_ID_MAX + 1];
    if (name_of(in, name, f) < 0)
        return -1;
    struct named *t = find(name);
    if (t == NULL)
        return sb_failed(f, "NotFound", ENOENT, "template", "there is no template %s", name);
    struct wanted w = {name, false};
    sb_box_each(look_for_user, &w);
    if (w.found)
        return sb_failed(f, "Busy", EBUSY, "template", "template %s is in use", name);
    if (sb_trash_put(sup.named, name) < 0)
        return sb_failed_errno(f, "template", "cannot remove the template");
    prune_steps(t);
    sb_conn_done(c, in->head.req);
    return 0;
}

void sb_named_conn_gone(const struct sb_conn *c)
{
    for (struct named *t = all; t != NULL; t = t->next)
        if (t->asker == c)
            t->asker = NULL;
}

/* ---- the disk ---- */

static int read_one(struct named *t, const char *name)
{
    sb_autofd int dir = openat(sup.named, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || sb_record_read(&t->rec, dir, name) < 0)
        return -1;
    t->about = sb_read_at(dir, "about", ABOUT_MAX + 1, &t->about_len);
    struct sb_reader fields = t->about != NULL ? about(t) : (struct sb_reader){NULL, NULL};
    struct sb_failure f;
    return t->about != NULL ? check_lists(&fields, &f) : -1;
}

/* A damaged one, or one of a newer version, stays on the disk; a build of that name replaces it. */
static void load(const char *name)
{
    if (!sb_id_valid(name, strlen(name))) {
        sb_trash_put(sup.named, name);
        return;
    }
    struct named *t = calloc(1, sizeof *t);
    if (t != NULL)
        t->job.fd = -1;
    if (t == NULL || read_one(t, name) < 0) {
        if (t != NULL) {
            sb_record_free(&t->rec);
            free(t->about);
        }
        free(t);
        unsure = true;
        return;
    }
    t->whole = true;
    t->next = all;
    all = t;
}

void sb_named_start(void)
{
    unsure = sb_each_name(sup.named, load) != 0 || unsure;
}

void sb_named_prune(void)
{
    sb_snapshot_prune_steps(step_wanted);
}
