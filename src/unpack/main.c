/* Unpacks one tar archive into a directory: `unpack [-w] [-b BYTES] [-n ENTRIES] ARCHIVE DIRECTORY`.
 *
 * It runs in a sandbox that exists only for that, as what it reads may be written by an enemy of libarchive. The
 * library is loaded here, when there is something to unpack: neither the build nor any other program needs it.
 *
 * Links in the archive lead as if the directory were the root. Owners that have no place here become root, without the
 * set-id bits of their programs; devices and sockets are left out. With -w the archive is a layer of an image: what it
 * says is gone is removed first, from what the layers below have left. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Exit statuses; lua/sandbar/local/unpack.lua knows them. */
enum {
    NO_LIBRARY = 10,
    NO_ARCHIVE = 11,
    TOO_LARGE = 12,
    DAMAGED = 13,
    LEADS_OUT = 14,
    NOT_WRITTEN = 15,
    NO_SPACE = 16
};

/* Of libarchive 3 (libarchive.so.13), whose interface is stable. */
enum { ARCHIVE_EOF = 1, ARCHIVE_OK = 0, ARCHIVE_WARN = -20 };
enum {
    OWNER = 0x1,
    PERM = 0x2,
    TIME = 0x4,
    UNLINK = 0x10,
    SECURE_SYMLINKS = 0x100,
    SECURE_NODOTDOT = 0x200
};

static struct {
    void *(*archive_read_new)(void);
    int (*archive_read_support_format_tar)(void *);
    int (*archive_read_support_filter_gzip)(void *);
    int (*archive_read_support_filter_bzip2)(void *);
    int (*archive_read_support_filter_xz)(void *);
    int (*archive_read_support_filter_zstd)(void *);
    int (*archive_read_open_fd)(void *, int, size_t);
    int (*archive_read_next_header)(void *, void **);
    int (*archive_read_data_block)(void *, const void **, size_t *, int64_t *);
    int (*archive_read_free)(void *);
    int64_t (*archive_filter_bytes)(void *, int);
    void *(*archive_write_disk_new)(void);
    int (*archive_write_disk_set_options)(void *, int);
    int (*archive_write_header)(void *, void *);
    ssize_t (*archive_write_data_block)(void *, const void *, size_t, int64_t);
    int (*archive_write_finish_entry)(void *);
    int (*archive_write_free)(void *);
    const char *(*archive_error_string)(void *);
    int (*archive_errno)(void *);
    const char *(*archive_entry_pathname)(void *);
    void (*archive_entry_set_pathname)(void *, const char *);
    const char *(*archive_entry_hardlink)(void *);
    void (*archive_entry_set_hardlink)(void *, const char *);
    unsigned (*archive_entry_filetype)(void *);
    int64_t (*archive_entry_size)(void *);
    int64_t (*archive_entry_uid)(void *);
    int64_t (*archive_entry_gid)(void *);
    void (*archive_entry_set_uid)(void *, int64_t);
    void (*archive_entry_set_gid)(void *, int64_t);
    unsigned (*archive_entry_perm)(void *);
    void (*archive_entry_set_perm)(void *, unsigned);
} lib;

static const char *const names[] = {
    "archive_read_new",
    "archive_read_support_format_tar",
    "archive_read_support_filter_gzip",
    "archive_read_support_filter_bzip2",
    "archive_read_support_filter_xz",
    "archive_read_support_filter_zstd",
    "archive_read_open_fd",
    "archive_read_next_header",
    "archive_read_data_block",
    "archive_read_free",
    "archive_filter_bytes",
    "archive_write_disk_new",
    "archive_write_disk_set_options",
    "archive_write_header",
    "archive_write_data_block",
    "archive_write_finish_entry",
    "archive_write_free",
    "archive_error_string",
    "archive_errno",
    "archive_entry_pathname",
    "archive_entry_set_pathname",
    "archive_entry_hardlink",
    "archive_entry_set_hardlink",
    "archive_entry_filetype",
    "archive_entry_size",
    "archive_entry_uid",
    "archive_entry_gid",
    "archive_entry_set_uid",
    "archive_entry_set_gid",
    "archive_entry_perm",
    "archive_entry_set_perm",
};
_Static_assert(sizeof names / sizeof *names == sizeof lib / sizeof(void (*)(void)), "a name each");

static struct {
    bool layer, root;
    int64_t bytes_max, entries_max;
    int64_t bytes, entries, dropped;
} run = {.bytes_max = INT64_MAX, .entries_max = INT64_MAX};

__attribute__((format(printf, 2, 3), noreturn)) static void quit(int status, const char *format,
                                                                 ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(status);
}

static void load(void)
{
    void *handle = dlopen("libarchive.so.13", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        quit(NO_LIBRARY, "libarchive is not installed: %s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *at = dlsym(handle, names[i]);
        if (at == NULL)
            quit(NO_LIBRARY, "libarchive has no %s", names[i]);
        memcpy((char *)&lib + i * sizeof at, &at, sizeof at);
    }
}

/* ---- ids ---- */

enum { LINES_MAX = 340 }; /* the kernel's own bound */

struct idmap {
    int n;
    struct {
        int64_t first, count;
    } line[LINES_MAX];
};
static struct idmap users, groups;

static void read_map(struct idmap *map, const char *path)
{
    FILE *file = fopen(path, "re");
    char text[128];
    while (file != NULL && map->n < LINES_MAX && fgets(text, sizeof text, file) != NULL) {
        char *at = text;
        int64_t first = strtoll(at, &at, 10);
        strtoll(at, &at, 10);
        map->line[map->n].first = first;
        map->line[map->n++].count = strtoll(at, NULL, 10);
    }
    if (file != NULL)
        fclose(file);
}

static int64_t inside(const struct idmap *map, int64_t id)
{
    for (int i = 0; i < map->n; i++)
        if (id >= map->line[i].first && id - map->line[i].first < map->line[i].count)
            return id;
    return 0;
}

/* ---- paths ---- */

/* The path below the root: NULL if it leads out. "." for the root itself. */
static const char *below(const char *path)
{
    while (*path == '/' || (path[0] == '.' && (path[1] == '/' || path[1] == '\0')))
        path++;
    for (const char *at = path; at != NULL && *at != '\0'; at = strchr(at, '/')) {
        at += *at == '/';
        if (at[0] == '.' && at[1] == '.' && (at[2] == '/' || at[2] == '\0'))
            return NULL;
    }
    return *path == '\0' ? "." : path;
}

static const char *checked(const char *path)
{
    const char *at = path != NULL ? below(path) : NULL;
    if (path == NULL)
        quit(DAMAGED, "a name that is no text");
    if (at == NULL)
        quit(LEADS_OUT, "the name %s leads out of the archive", path);
    return at;
}

enum { LINKS_MAX = 40 };

/* Takes the last part off `out`; the root has none. */
static void up(char *out)
{
    char *slash = strrchr(out, '/');
    *(slash != NULL ? slash : out) = '\0';
}

/* Where the entry `path` really is: links on the way to it lead as they would with the directory as the root, so that
 * "lib/x" comes into usr/lib if that is what lib is, and nothing comes outside. The last part is not followed. `missing`: how many directories on the way
 * are not there yet. */
static char *resolved(const char *path, int64_t *missing)
{
    static char out[PATH_MAX], rest[2 * PATH_MAX], target[PATH_MAX];
    int links = 0;
    out[0] = '\0';
    if (snprintf(rest, sizeof rest, "%s", path) >= PATH_MAX)
        quit(DAMAGED, "a name is too long");
    for (char *at = rest; *at != '\0';) {
        size_t n = strcspn(at, "/"), len = strlen(out);
        char *next = at + n + strspn(at + n, "/");
        if (n == 0 || (n == 1 && at[0] == '.')) {
            at = next;
            continue;
        }
        if (n == 2 && at[0] == '.' && at[1] == '.') {
            up(out);
            at = next;
            continue;
        }
        if (len + n + 2 > sizeof out)
            quit(DAMAGED, "a name is too long");
        snprintf(out + len, sizeof out - len, "%s%.*s", len > 0 ? "/" : "", (int)n, at);
        ssize_t got = *next != '\0' ? readlink(out, target, sizeof target - 1) : 0;
        if (got < 0 && errno == ENOENT)
            ++*missing;
        if (got > 0) {
            target[got] = '\0';
            if (++links > LINKS_MAX || (size_t)got + strlen(next) + 2 > PATH_MAX)
                quit(DAMAGED, "%s: too many links on the way", path);
            memmove(rest + got + 1, next, strlen(next) + 1);
            memcpy(rest, target, (size_t)got);
            rest[got] = '/';
            up(out);
            if (target[0] == '/')
                out[0] = '\0';
            next = rest;
        }
        at = next;
    }
    char *copy = strdup(out[0] != '\0' ? out : ".");
    if (copy == NULL)
        quit(NOT_WRITTEN, "no memory");
    return copy;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_tree(const char *path)
{
    if (nftw(path, remove_one, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0 && errno != ENOENT &&
        errno != ENOTDIR)
        quit(NOT_WRITTEN, "%s cannot be removed: %s", path, strerror(errno));
}

static void empty(const char *path)
{
    DIR *d = opendir(path);
    char name[PATH_MAX];
    if (d == NULL)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            snprintf(name, sizeof name, "%s/%s", path, e->d_name) < (int)sizeof name)
            remove_tree(name);
    closedir(d);
}

/* ---- reading ---- */

static void *start(int fd)
{
    void *a = lib.archive_read_new();
    if (a == NULL)
        quit(NOT_WRITTEN, "no memory");
    if (lseek(fd, 0, SEEK_SET) < 0)
        quit(DAMAGED, "the archive cannot be read: %s", strerror(errno));
    lib.archive_read_support_format_tar(a);
    int (*const filter[])(void *) = {
        lib.archive_read_support_filter_gzip, lib.archive_read_support_filter_bzip2,
        lib.archive_read_support_filter_xz, lib.archive_read_support_filter_zstd};
    for (size_t i = 0; i < sizeof filter / sizeof *filter; i++)
        filter[i](a);
    if (lib.archive_read_open_fd(a, fd, 65536) != ARCHIVE_OK)
        quit(NO_ARCHIVE, "not an archive: %s", lib.archive_error_string(a));
    return a;
}

static void count(int64_t entries)
{
    run.entries += entries;
    if (run.entries > run.entries_max)
        quit(TOO_LARGE, "more than %lld entries", (long long)run.entries_max);
}

/* Of an archive of so many entries: what is beside their bytes. */
enum { BESIDE_MAX = 16384 };

static void check_bytes(int64_t bytes)
{
    if (bytes > run.bytes_max)
        quit(TOO_LARGE, "more than %lld bytes", (long long)run.bytes_max);
}

/* The next entry: 1, or 0 at the end. What of the one before was not asked for has been unpacked, too: that is bounded
 * as what is written is. */
static int next(void *a, void **entry)
{
    int rc = lib.archive_read_next_header(a, entry);
    if (rc == ARCHIVE_EOF)
        return 0;
    if (rc < ARCHIVE_WARN)
        quit(run.entries == 0 ? NO_ARCHIVE : DAMAGED, "the archive cannot be read: %s",
             lib.archive_error_string(a));
    count(1);
    check_bytes(lib.archive_filter_bytes(a, 0) - run.entries * BESIDE_MAX);
    if (lib.archive_entry_size(*entry) > run.bytes_max - run.bytes)
        quit(TOO_LARGE, "more than %lld bytes", (long long)run.bytes_max);
    return 1;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool is_whiteout(const char *path)
{
    return run.layer && strncmp(last_part(path), ".wh.", 4) == 0;
}

/* What the layer says is gone. */
static void take_away(int fd)
{
    void *a = start(fd), *entry;
    while (next(a, &entry)) {
        const char *path = checked(lib.archive_entry_pathname(entry));
        if (!is_whiteout(path))
            continue;
        const char *last = last_part(path);
        char at[PATH_MAX];
        const char *what = strcmp(last, ".wh..wh..opq") == 0 ? "." : last + 4;
        if (snprintf(at, sizeof at, "%.*s/%s", (int)(last - path), path, what) >= (int)sizeof at)
            quit(DAMAGED, "a name is too long");
        int64_t missing = 0;
        char *place = resolved(at, &missing);
        if (what[0] == '.' && what[1] == '\0')
            empty(place);
        else if (*what != '\0' && strcmp(what, "..") != 0)
            remove_tree(place);
        free(place);
    }
    lib.archive_read_free(a);
    run.entries = 0;
}

/* ---- writing ---- */

/* What no archive that fits together brings about is the archive's fault. */
__attribute__((noreturn)) static void not_written(void *disk, const char *path)
{
    switch (lib.archive_errno(disk)) {
    case EEXIST:
    case EFAULT: /* libarchive writes a piece behind the end of its file so */
    case EFBIG:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:
    case ENOTDIR:
        quit(DAMAGED, "%s: %s", path, lib.archive_error_string(disk));
    case EDQUOT:
    case ENOSPC:
        quit(NO_SPACE, "%s: %s", path, strerror(lib.archive_errno(disk)));
    default:
        quit(NOT_WRITTEN, "%s: %s", path, lib.archive_error_string(disk));
    }
}

/* An owner who has no place here was somebody, and root is not he: what was to run as he runs as its caller. */
static void give_owner(void *entry)
{
    int64_t uid = lib.archive_entry_uid(entry), gid = lib.archive_entry_gid(entry);
    unsigned perm = lib.archive_entry_perm(entry), taken = 0;
    if (inside(&users, uid) != uid)
        taken |= S_ISUID;
    if (inside(&groups, gid) != gid)
        taken |= S_ISGID;
    lib.archive_entry_set_uid(entry, inside(&users, uid));
    lib.archive_entry_set_gid(entry, inside(&groups, gid));
    if (!S_ISDIR(lib.archive_entry_filetype(entry)) && (perm & taken) != 0)
        lib.archive_entry_set_perm(entry, perm & ~taken);
}

static void write_data(void *a, void *disk, const char *path)
{
    const void *data;
    size_t n;
    int64_t offset;
    int rc;
    while ((rc = lib.archive_read_data_block(a, &data, &n, &offset)) == ARCHIVE_OK) {
        run.bytes += (int64_t)n;
        check_bytes(run.bytes);
        if (lib.archive_write_data_block(disk, data, n, offset) < 0)
            not_written(disk, path);
    }
    if (rc != ARCHIVE_EOF)
        quit(DAMAGED, "%s: %s", path, lib.archive_error_string(a));
}

static void write_entry(void *a, void *disk, void *entry)
{
    const char *path = checked(lib.archive_entry_pathname(entry));
    const char *other = lib.archive_entry_hardlink(entry);
    unsigned type = lib.archive_entry_filetype(entry);
    struct stat st;
    int64_t missing = 0, unused = 0;
    if (is_whiteout(path))
        return;
    if (other == NULL && (S_ISCHR(type) || S_ISBLK(type) || S_ISSOCK(type))) {
        run.dropped++;
        return;
    }
    char *place = resolved(path, &missing);
    count(missing);
    if (!S_ISDIR(type) && strcmp(place, ".") == 0)
        quit(DAMAGED, "the root is no directory");
    if (!S_ISDIR(type) && lstat(place, &st) == 0 && S_ISDIR(st.st_mode))
        remove_tree(place);
    if (other != NULL) {
        char *target = resolved(checked(other), &unused);
        if (lstat(target, &st) < 0 || S_ISDIR(st.st_mode))
            quit(DAMAGED, "%s: there is no file %s to link to", path, other);
        lib.archive_entry_set_hardlink(entry, target);
        free(target);
    }
    lib.archive_entry_set_pathname(entry, place);
    if (run.root)
        give_owner(entry);
    if (lib.archive_write_header(disk, entry) < ARCHIVE_WARN)
        not_written(disk, place);
    if (lib.archive_entry_size(entry) > 0)
        write_data(a, disk, place);
    if (lib.archive_write_finish_entry(disk) < ARCHIVE_WARN)
        not_written(disk, place);
    free(place);
}

static int64_t number(const char *text)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || n < 0)
        quit(2, "%s is no number", text);
    return n;
}

int main(int argc, char **argv)
{
    for (int c; (c = getopt(argc, argv, "wb:n:")) != -1;)
        if (c == 'w')
            run.layer = true;
        else if (c == 'b')
            run.bytes_max = number(optarg);
        else if (c == 'n')
            run.entries_max = number(optarg);
        else
            return 2;
    if (argc - optind != 2)
        return 2;
    locale_t utf8 = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0); /* as names in archives are */
    if (utf8 != (locale_t)0)
        uselocale(utf8);
    load();
    read_map(&users, "/proc/self/uid_map");
    read_map(&groups, "/proc/self/gid_map");
    run.root = geteuid() == 0;
    struct stat st;
    int fd = open(argv[optind], O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        quit(NO_ARCHIVE, "%s: %s", argv[optind], strerror(errno));
    if (!S_ISREG(st.st_mode)) /* a layer is what an archive says it is: a pipe, too */
        quit(NO_ARCHIVE, "%s is no file", argv[optind]);
    if (chdir(argv[optind + 1]) < 0)
        quit(NOT_WRITTEN, "%s: %s", argv[optind + 1], strerror(errno));
    umask(022); /* of directories that only names of other entries tell of */
    if (run.layer)
        take_away(fd);
    void *disk = lib.archive_write_disk_new();
    if (disk == NULL)
        quit(NOT_WRITTEN, "no memory");
    lib.archive_write_disk_set_options(disk, PERM | TIME | UNLINK | SECURE_NODOTDOT |
                                                 SECURE_SYMLINKS | (run.root ? OWNER : 0));
    void *a = start(fd), *entry;
    while (next(a, &entry))
        write_entry(a, disk, entry);
    lib.archive_read_free(a);
    if (lib.archive_write_free(disk) < ARCHIVE_WARN)
        quit(NOT_WRITTEN, "the last directories cannot be written");
    printf("%lld %lld %lld\n", (long long)run.entries, (long long)run.bytes,
           (long long)run.dropped);
    return 0;
}
