/* What the file API says about one file. */
#include "file.h"
#include "mem.h"
#include "str.h"

/* Names of ids already looked up: trees have few owners. */
static struct {
    uint32_t id;
    int group, known;
    size_t len;
    char name[64];
} seen[16];
static unsigned seen_next;

static void pack_name(struct sb_packer *p, uint16_t tag, uint32_t id, int group)
{
    unsigned i = 0;
    while (i < 16 && !(seen[i].known && seen[i].id == id && seen[i].group == group))
        i++;
    if (i == 16) {
        i = seen_next++ % 16;
        seen[i].id = id;
        seen[i].group = group;
        seen[i].known = 1;
        seen[i].len = users_name_of(id, group, seen[i].name, sizeof seen[i].name, (char *)guest.in);
        if (seen[i].len == 0)
            seen[i].len = str_digits(seen[i].name, id);
    }
    sb_pack_bytes(p, tag, seen[i].name, seen[i].len);
}

static const char *type_name(unsigned mode)
{
    switch (mode & 0170000) {
    case 0100000:
        return "file";
    case 0040000:
        return "directory";
    case 0120000:
        return "link";
    case 0010000:
        return "fifo";
    case 0140000:
        return "socket";
    case 0060000:
        return "block";
    default:
        return "char";
    }
}

void entry_pack(struct sb_packer *p, const char *name, const char *path, const struct statx *st,
                int dir, const char *link)
{
    sb_pack_str(p, SB_F_NAME, name);
    sb_pack_str(p, SB_F_PATH, path);
    sb_pack_str(p, SB_F_FTYPE, type_name(st->stx_mode));
    sb_pack_u64(p, SB_F_SIZE, st->stx_size);
    sb_pack_u64(p, SB_F_MODE, st->stx_mode & 07777);
    sb_pack_u64(p, SB_F_UID, st->stx_uid);
    sb_pack_u64(p, SB_F_GID, st->stx_gid);
    pack_name(p, SB_F_OWNER, st->stx_uid, 0);
    pack_name(p, SB_F_OWNER_GROUP, st->stx_gid, 1);
    sb_pack_u64(p, SB_F_MTIME_NS,
                (uint64_t)st->stx_mtime.tv_sec * 1000000000u + st->stx_mtime.tv_nsec);
    if ((st->stx_mode & 0170000) == 0120000) {
        char target[PATH_MAX];
        long n = SYS4(__NR_readlinkat, dir, link, target, sizeof target);
        if (n >= 0)
            sb_pack_bytes(p, SB_F_TARGET, target, (size_t)n);
    }
}

_Noreturn void entry_reply(const char *path, int dir, const char *name, int fd)
{
    struct sb_packer p;
    struct statx st;
    int err = fd >= 0 ? sys_fstat(fd, &st) : sys_statx(dir, name, AT_SYMLINK_NOFOLLOW, &st);
    if (err < 0)
        file_fail(err, "stat", path);
    file_begin(&p, SB_REPLY);
    entry_pack(&p, name, path, &st, dir, name);
    file_finish(&p, fd);
}

void owner_find(const char *text, uint32_t *uid, uint32_t *gid)
{
    struct account a;
    int err = users_find(text, &a, (char *)guest.in);
    if (err != 0)
        file_refuse("InvalidArgument", "the sandbox has no such owner", job.path);
    *uid = a.uid;
    *gid = a.gid;
}
