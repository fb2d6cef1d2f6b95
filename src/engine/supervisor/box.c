/* The table of sandboxes, and those who wait for one of them. */
#include "box.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conn.h"
#include "dissolve.h"
#include "metrics.h"
#include "slot.h"
#include "named.h"
#include "snaptake.h"

enum { BUCKETS = 1024 };

static struct {
    struct sb_box *bucket[BUCKETS];
    int count;
    struct sb_box *stirred;
    int keeping;
} table;

static struct sb_box **bucket_of(const char *id)
{
    return &table.bucket[sb_hash(id, strlen(id), 0) % BUCKETS];
}

bool sb_id_valid(const char *id, size_t n)
{
    if (n == 0 || n > SB_ID_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = id[i];
        bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!word && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return true;
}

struct sb_box *sb_box_find(const char *id)
{
    struct sb_box *b = *bucket_of(id);
    while (b != NULL && strcmp(b->rec.id, id) != 0)
        b = b->next;
    if (b != NULL)
        sb_box_stir(b);
    return b;
}

bool sb_box_runs(const struct sb_box *b)
{
    return (b->rec.state == SB_BOX_RUNNING || (b->rec.state == SB_BOX_FREEZING && b->copied)) &&
           b->proc.fd >= 0 && !b->dying;
}

void sb_box_stir(struct sb_box *b)
{
    if (b->stirred_at != NULL)
        return;
    table.keeping -= b->keeps_us;
    b->keeps_us = false;
    b->stirred_next = table.stirred;
    b->stirred_at = &table.stirred;
    if (table.stirred != NULL)
        table.stirred->stirred_at = &b->stirred_next;
    table.stirred = b;
}

void sb_box_rest(struct sb_box *b, bool keeps_us)
{
    if (b->stirred_at == NULL)
        return;
    *b->stirred_at = b->stirred_next;
    if (b->stirred_next != NULL)
        b->stirred_next->stirred_at = b->stirred_at;
    b->stirred_next = NULL;
    b->stirred_at = NULL;
    b->keeps_us = keeps_us;
    table.keeping += keeps_us;
}

int sb_box_keeping(void)
{
    return table.keeping;
}

void sb_box_each_stirred(void (*fn)(struct sb_box *, void *), void *arg)
{
    for (struct sb_box *b = table.stirred, *next; b != NULL; b = next) {
        next = b->stirred_next;
        fn(b, arg);
    }
}

struct sb_box *sb_box_new(const char *id)
{
    struct sb_box *b = calloc(1, sizeof *b);
    if (b == NULL)
        return NULL;
    memcpy(b->rec.id, id, strlen(id) + 1);
    b->rec.range = -1;
    b->guest.fd = b->proc.fd = b->owner.fd = b->freezing.fd = -1;
    b->group.dir = b->record = b->mounts = b->user = b->image = b->disk = -1;
    b->limits.dir[SB_BOUND_MEMORY] = b->limits.dir[SB_BOUND_CPU] = -1;
    b->net.control.fd = b->net.proc.fd = -1;
    struct sb_box **at = bucket_of(id);
    b->next = *at;
    *at = b;
    table.count++;
    sb_box_stir(b);
    return b;
}

void sb_box_forget(struct sb_box *b)
{
    sb_snapshot_box_gone(b);
    struct sb_box **at = bucket_of(b->rec.id);
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    table.count--;
    sb_box_stir(b);
    sb_box_rest(b, false);
    sb_loop_drop(&b->guest);
    sb_loop_drop(&b->proc);
    sb_loop_drop(&b->owner);
    sb_loop_drop(&b->freezing);
    sb_metrics_forget(b);
    sb_network_end(b);
    sb_cgroup_remove(&b->group);
    sb_limits_drop(&b->limits);
    sb_close(&b->record);
    sb_close(&b->user);
    sb_close(&b->image);
    sb_close(&b->disk);
    sb_dissolve(b->mounts, b->rec.limit_disk != 0);
    sb_birth_give(b->birth);
    sb_slot_reserve(b->rec.range, false);
    while (b->waiters != NULL) {
        struct sb_waiter *w = b->waiters;
        b->waiters = w->next;
        free(w);
    }
    free(b->env.data);
    free(b->start.data);
    sb_record_free(&b->rec);
    sb_loop_bury(b);
}

int sb_box_count(void)
{
    return table.count;
}

void sb_box_each(void (*fn)(struct sb_box *, void *), void *arg)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct sb_box *b = table.bucket[i], *next; b != NULL; b = next) {
            next = b->next;
            fn(b, arg);
        }
}

int sb_box_dir(const struct sb_box *b)
{
    return openat(sup.boxes, b->rec.id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool sb_box_dir_exists(const struct sb_box *b)
{
    return faccessat(sup.boxes, b->rec.id, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* While one boots, the disk says what a successor shall make of it: of a create nothing, of a resume
 * what was there before. */
int sb_box_save(struct sb_box *b)
{
    enum sb_state state = b->rec.state;
    int rc = b->record >= 0 ? sb_record_put(&b->rec, b->record) : 1;
    if (rc <= 0)
        return rc;
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0)
        return -1;
    if (state == SB_BOX_CREATING && !b->fresh)
        b->rec.state = SB_BOX_PAUSED;
    rc = sb_record_write(&b->rec, dir);
    b->rec.state = state;
    return rc;
}

int sb_box_save_quickly(struct sb_box *b)
{
    sb_autofd int dir = sb_box_dir(b);
    return dir < 0 ? -1 : sb_record_refresh(&b->rec, dir);
}

int sb_box_wait(struct sb_box *b, struct sb_conn *c, uint32_t req, uint16_t type)
{
    struct sb_waiter *w = malloc(sizeof *w);
    if (w == NULL)
        return -1;
    *w = (struct sb_waiter){b->waiters, c, req, type};
    b->waiters = w;
    return 0;
}

/* One at a time: an answer may end a connection, which is then looked for among those that are left. */
static void settle(struct sb_box *b, uint16_t type, bool of_type, const struct sb_failure *f)
{
    for (;;) {
        struct sb_waiter **at = &b->waiters;
        while (*at != NULL && ((*at)->type == type) != of_type)
            at = &(*at)->next;
        struct sb_waiter *w = *at;
        if (w == NULL)
            return;
        *at = w->next;
        if (w->conn != NULL && f != NULL)
            sb_conn_fail(w->conn, w->req, f);
        else if (w->conn != NULL)
            sb_request_done(b, w);
        free(w);
    }
}

void sb_box_settle(struct sb_box *b, const struct sb_failure *f)
{
    settle(b, 0, false, f);
}

void sb_box_settle_type(struct sb_box *b, uint16_t type, const struct sb_failure *f)
{
    settle(b, type, true, f);
}

void sb_box_settle_others(struct sb_box *b, uint16_t type, const struct sb_failure *f)
{
    settle(b, type, false, f);
}

static void forget_conn(struct sb_box *b, void *arg)
{
    for (struct sb_waiter *w = b->waiters; w != NULL; w = w->next)
        if (w->conn == arg)
            w->conn = NULL;
    sb_metrics_conn_gone(b, arg);
}

void sb_box_conn_gone(struct sb_conn *c)
{
    sb_box_each(forget_conn, c);
    sb_snapshot_conn_gone(c);
    sb_named_conn_gone(c);
}
