/* A snapshot is a record in <root>/v1/n/<name> that names layers in <root>/v1/l. Here are those that there are; how one
 * comes to be is in snaptake.c. */
#include "snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conn.h"
#include "named.h"
#include "snapone.h"
#include "trash.h"

struct sb_snapone *sb_snapones;

struct sb_snapone *sb_snapone_find(const char *name)
{
    struct sb_snapone *s = sb_snapones;
    while (s != NULL && strcmp(s->rec.id, name) != 0)
        s = s->next;
    return s;
}

const struct sb_record *sb_snapshot_find(const char *name)
{
    const struct sb_snapone *s = sb_snapone_find(name);
    return s != NULL && s->whole ? &s->rec : NULL;
}

char *sb_snapshot_note(const char *name, size_t *n)
{
    char path[SB_ID_MAX + 8];
    snprintf(path, sizeof path, "%s/note", name);
    return sb_read_at(sup.snapshots, path, SB_SHOWN_MAX, n);
}

int sb_snapshot_env(const char *name, struct sb_list *env)
{
    char path[SB_ID_MAX + 8];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/env", name);
    env->data = sb_read_at(sup.snapshots, path, SB_ENV_MAX, &n);
    env->len = env->data != NULL ? n : 0;
    return env->data == NULL && errno != ENOENT ? -1 : 0;
}

void sb_snapone_drop(struct sb_snapone *s)
{
    struct sb_snapone **at = &sb_snapones;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    if (s->rec.id[0] != '\0')
        sb_trash_put(sup.snapshots, s->rec.id);
    if (s->half[0] != '\0')
        sb_trash_put(sup.layers, s->half);
    sb_loop_drop(&s->job);
    sb_loop_drop(&s->maker);
    free(s->env.data);
    free(s->note.data);
    sb_record_free(&s->rec);
    sb_loop_bury(s);
    sb_snapshot_prune();
}

int sb_snapone_describe(struct sb_snapone *s, const struct sb_box *b, struct sb_failure *f)
{
    const struct sb_record *from = &b->rec;
    struct sb_record *r = &s->rec;
    const struct {
        const char *from;
        char **to;
    } text[] = {{from->template, &r->template}, {from->base, &r->base},
                {from->rootfs, &r->rootfs},     {from->user, &r->user},
                {from->cwd, &r->cwd},           {from->hostname, &r->hostname}};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (text[i].from != NULL && (*text[i].to = strdup(text[i].from)) == NULL)
            return sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
    if (sb_list_copy(&r->layers, &from->layers) < 0)
        return sb_failed(f, NULL, ENOMEM, "snapshot", "memory");
    r->state = SB_BOX_PAUSED;
    r->created_ms = sb_wall_ms();
    r->allow_setuid = from->allow_setuid;
    r->limit_processes = from->limit_processes;
    r->limit_files = from->limit_files;
    r->limit_commands = from->limit_commands;
    r->limit_output = from->limit_output;
    r->limit_env = from->limit_env;
    r->limit_disk = from->limit_disk;
    r->limit_memory = from->limit_memory;
    r->limit_cpu = from->limit_cpu;
    r->limit_started = from->limit_started;
    r->limit_wall_ms = from->limit_wall_ms;
    r->range = -1;
    r->mode = from->mode;
    r->sub_uid = from->sub_uid;
    r->sub_gid = from->sub_gid;
    r->sub_count = from->sub_count;
    size_t n = 0;
    sb_autofd int dir = sb_box_dir(b);
    s->env.data = dir < 0 ? NULL : sb_read_at(dir, "env", SB_ENV_MAX, &n);
    s->env.len = s->env.data != NULL ? n : 0;
    if (dir < 0 || (s->env.data == NULL && errno != ENOENT))
        return sb_failed_errno(f, "env", "cannot read");
    return 0;
}

void sb_snapone_give_up(struct sb_snapone *s)
{
    s->unwanted = true;
    if (sb_trash_put(sup.snapshots, s->rec.id) == 0)
        s->rec.id[0] = '\0';
    if (s->job.fd >= 0 && s->sync == NULL)
        pidfd_send_signal(s->job.fd, SIGKILL, NULL, 0);
}

/* ---- layers that nobody names ---- */

struct wanted {
    const char *name;
    bool found;
};

static void look(struct sb_box *b, void *arg)
{
    struct wanted *w = arg;
    w->found = w->found || b->rec.unread || sb_list_has(&b->rec.layers, w->name, strlen(w->name));
}

static bool named(const char *layer)
{
    struct wanted w = {layer, false};
    for (const struct sb_snapone *s = sb_snapones; s != NULL && !w.found; s = s->next)
        w.found = sb_list_has(&s->rec.layers, layer, strlen(layer)) || strcmp(s->half, layer) == 0;
    w.found = w.found || sb_named_layer(layer);
    if (!w.found)
        sb_box_each(look, &w);
    return w.found;
}

/* Some record could not be read: nobody knows what it names. */
static bool unsure;

static void prune(const char *layer)
{
    if (!named(layer))
        sb_trash_put(sup.layers, layer);
}

void sb_snapshot_prune(void)
{
    if (!unsure)
        sb_each_name(sup.layers, prune);
}

/* ---- listing, deleting, the end of makers, a start ---- */

/* Of a snapshot, or of a step of a build. */
static bool name_valid(const char *name, size_t n)
{
    bool step = n > 0 && name[0] == '=';
    return n <= SB_ID_MAX && sb_id_valid(name + step, n - step);
}

int sb_snapone_name(const struct sb_wire_in *in, char name[SB_ID_MAX + 1], struct sb_failure *f)
{
    struct sb_field_view v;
    if (!sb_read_find(&in->fields, SB_F_SNAPSHOT, &v))
        sb_uuid(name);
    else if (!name_valid((const char *)v.data, v.len))
        return sb_failed(f, "InvalidArgument", 0, "snapshot",
                         "a name is 1 to 128 letters, digits, dots, dashes, underscores");
    else {
        memcpy(name, v.data, v.len);
        name[v.len] = '\0';
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct sb_snapone *const *)a)->rec.id,
                  (*(struct sb_snapone *const *)b)->rec.id);
}

int sb_snapshot_list(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    struct sb_packer p;
    size_t n = 0, room = 1;
    for (const struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        room++;
    struct sb_snapone **list = calloc(room, sizeof *list);
    if (list == NULL)
        return sb_failed(f, NULL, ENOMEM, "list", "memory");
    for (struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        if (s->whole && !s->rec.owned && s->rec.id[0] != '=')
            list[n++] = s;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n && c->src.fd >= 0; i++) {
        sb_conn_begin(&p, SB_PART, in->head.req);
        sb_pack_str(&p, SB_F_SNAPSHOT, list[i]->rec.id);
        if (list[i]->rec.template != NULL)
            sb_pack_str(&p, SB_F_TEMPLATE, list[i]->rec.template);
        sb_pack_u64(&p, SB_F_CREATED_MS, (uint64_t)list[i]->rec.created_ms);
        sb_conn_send(c, &p, NULL, 0);
    }
    free(list);
    sb_conn_done(c, in->head.req);
    return 0;
}

static void look_for_copy(struct sb_box *b, void *arg)
{
    struct wanted *w = arg;
    w->found = w->found || (b->rec.snapshot != NULL && strcmp(b->rec.snapshot, w->name) == 0 &&
                            b->goal != SB_GOAL_DESTROY);
}

int sb_snapshot_delete(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    char name[SB_ID_MAX + 1];
    if (sb_snapone_name(in, name, f) < 0)
        return -1;
    struct sb_snapone *s = sb_snapone_find(name);
    if (s == NULL)
        return sb_failed(f, "NotFound", ENOENT, "snapshot", "there is no snapshot %s", name);
    struct wanted w = {name, !s->whole};
    if (!s->rec.owned)
        sb_box_each(look_for_copy, &w);
    if (w.found && !s->rec.owned)
        return sb_failed(f, "Busy", EBUSY, "snapshot", "snapshot %s is in use", name);
    if (w.found) /* of a fork that was given up */
        sb_snapone_give_up(s);
    else
        sb_snapone_drop(s);
    sb_conn_done(c, in->head.req);
    return 0;
}

static void maker_ended(struct sb_source *src, uint32_t events)
{
    struct sb_snapone *s = SB_OWNER(src, struct sb_snapone, maker);
    (void)events;
    sb_loop_drop(src);
    if (s->whole)
        sb_snapone_drop(s);
    else
        sb_snapone_give_up(s);
}

int sb_snapone_watch(struct sb_snapone *s, int pidfd)
{
    return pidfd < 0 ? -1 : sb_loop_add(&s->maker, pidfd, EPOLLIN, maker_ended);
}

bool sb_snapshot_busy(void)
{
    bool busy = false;
    for (const struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        busy = busy || !s->whole;
    return busy;
}

static void load(const char *name)
{
    sb_autofd int dir =
        openat(sup.snapshots, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct sb_record rec;
    if (!name_valid(name, strlen(name)))
        return;
    struct stat st;
    int rc = dir >= 0 ? fstatat(dir, "record", &st, AT_SYMLINK_NOFOLLOW) : -1;
    if (dir >= 0 && (rc == 0 ? st.st_size == 0 : errno == ENOENT)) {
        sb_trash_put(sup.snapshots, name); /* was never whole */
        return;
    }
    struct sb_snapone *s = dir < 0 ? NULL : calloc(1, sizeof *s);
    if (s == NULL) {
        unsure = unsure || dir >= 0 || errno != ENOTDIR;
        return;
    }
    /* A damaged one stays on the disk, and nobody finds it: its layers would be missing. */
    rc = sb_record_read(&rec, dir, name);
    s->rec = rec;
    s->job.fd = s->maker.fd = -1;
    int owner = rc == 0 && rec.owned ? sb_ident_open(&rec.owner) : -1;
    if (rc < 0 || (rec.owned && sb_snapone_watch(s, owner) < 0)) {
        unsure = unsure || rc < 0;
        if (rc == 0)
            sb_trash_put(sup.snapshots, name);
        sb_record_free(&s->rec);
        free(s);
        return;
    }
    s->whole = true;
    s->next = sb_snapones;
    sb_snapones = s;
}

bool sb_snapshot_base(const char *base)
{
    if (unsure)
        return true;
    for (const struct sb_snapone *s = sb_snapones; s != NULL; s = s->next)
        if (s->rec.base != NULL && strcmp(s->rec.base, base) == 0)
            return true;
    return false;
}

void sb_snapshot_prune_steps(bool (*needed)(const char *step, int64_t created_ms))
{
    struct sb_snapone *next;
    for (struct sb_snapone *s = sb_snapones; s != NULL; s = next) {
        struct wanted w = {s->rec.id, !s->whole || s->rec.id[0] != '='};
        next = s->next;
        if (w.found || needed(s->rec.id, s->rec.created_ms))
            continue;
        sb_box_each(look_for_copy, &w);
        if (!w.found)
            sb_snapone_drop(s);
    }
}

void sb_snapshot_start(void)
{
    unsure = sb_each_name(sup.snapshots, load) != 0 || unsure;
    sb_snapshot_prune();
}
