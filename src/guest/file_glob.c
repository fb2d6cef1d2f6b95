/* Paths that match patterns. The rest of a pattern that is still to be matched below a directory is a state; all that
 * are possible are followed at once, so that the tree is walked once, whatever the pattern, and no path comes twice. */
#include "file.h"
#include "mem.h"
#include "str.h"

enum {
    DT_UNKNOWN = 0,
    DT_DIR = 4,
    DT_LNK = 10,
    MAX_PARTS = 63,     /* behind the names that stand for themselves */
    PART_BYTES = 32768, /* of paths, before they are sent */
};

struct part {
    char *text; /* of a LITERAL without its backslashes */
    enum { LITERAL, WILD, ANY /* "**" */ } kind;
};

/* A directory of the walk: with all its names, or with those the states name. */
struct place {
    struct level names; /* its descriptor is closed already */
    uint64_t states;    /* bit i: part i and what follows it */
    size_t path_len;
    int listed;
    unsigned next; /* not listed: the next state */
};

static struct {
    struct part parts[MAX_PARTS];
    unsigned n;
    int directories; /* a slash at the end: these only */
    char path[PATH_MAX];
    struct place *stack;
    size_t depth, room;
    struct sb_packer out;
} glob;

/* ---- one name ---- */

/* The next character; a byte that is part of none counts as one of its own. */
static uint32_t char_next(const char **s)
{
    const unsigned char *b = (const unsigned char *)*s;
    unsigned more = b[0] >= 0xf0 && b[0] < 0xf8 ? 3 : b[0] >= 0xe0 ? 2 : b[0] >= 0xc0 ? 1 : 0;
    uint32_t c = more > 0 ? b[0] & (0x3fu >> more) : b[0];
    if (b[0] >= 0xf8)
        more = 0;
    for (unsigned i = 1; i <= more; i++) {
        if ((b[i] & 0xc0) != 0x80) {
            more = 0;
            break;
        }
        c = c << 6 | (b[i] & 0x3f);
    }
    if (more == 0 && b[0] >= 0x80)
        c = 0x110000u + b[0];
    *s += 1 + more;
    return c;
}

static uint32_t class_char(const char **p)
{
    if (**p == '\\' && (*p)[1] != '\0')
        (*p)++;
    return char_next(p);
}

/* [...] at *p: 1 or 0 and *p behind it; -1 when it has no end and stands for itself. */
static int class_matches(const char **p, uint32_t c)
{
    const char *at = *p + 1;
    int negated = *at == '!' || *at == '^', hit = 0;
    at += negated;
    for (int first = 1; first || *at != ']'; first = 0) {
        uint32_t low, high;
        if (*at == '\0')
            return -1;
        low = high = class_char(&at);
        if (*at == '-' && at[1] != ']' && at[1] != '\0') {
            at++;
            high = class_char(&at);
        }
        hit |= low <= c && c <= high;
    }
    *p = at + 1;
    return hit != negated;
}

static int char_matches(const char **p, uint32_t c)
{
    int in = **p == '[' ? class_matches(p, c) : -1;
    if (in >= 0)
        return in;
    if (**p == '?') {
        (*p)++;
        return 1;
    }
    return class_char(p) == c;
}

static int name_matches(const char *p, const char *name)
{
    const char *star = NULL, *from = name;
    if (name[0] == '.' && p[0] != '.' && !(p[0] == '\\' && p[1] == '.'))
        return 0;
    while (*name != '\0') {
        const char *after = name;
        uint32_t c = char_next(&after);
        if (*p == '*') {
            star = ++p;
            from = name;
        } else if (*p != '\0' && char_matches(&p, c)) {
            name = after;
        } else if (star != NULL) {
            p = star;
            char_next(&from);
            name = from;
        } else {
            return 0;
        }
    }
    while (*p == '*')
        p++;
    return *p == '\0';
}

/* ---- the pattern ---- */

/* Ends the part at its slash; what follows it. */
static char *part_read(struct part *part, char *text)
{
    char *end = text, *to = text;
    int wild = 0;
    for (; *end != '\0' && *end != '/'; end++)
        if (*end == '\\' && end[1] != '\0' && end[1] != '/')
            end++;
        else
            wild |= *end == '*' || *end == '?' || *end == '[';
    part->text = text;
    part->kind = !wild ? LITERAL : str_same(text, (size_t)(end - text), "**") ? ANY : WILD;
    if (*end == '/')
        *end++ = '\0';
    for (const char *from = text; !wild && *from != '\0'; *to++ = *from++)
        if (*from == '\\' && from[1] != '\0')
            from++;
    if (!wild)
        *to = '\0';
    return end;
}

static void base_add(const char *name)
{
    size_t at = strlen(glob.path), len = strlen(name);
    if (at + len + 2 > sizeof glob.path)
        file_fail(ENAMETOOLONG, "glob", NULL);
    glob.path[at] = '/';
    memcpy(glob.path + at + 1, name, len + 1);
}

/* The names at the start that stand for themselves go into the path: the home's, whatever is in them, too. */
static void pattern_read(const struct sb_field_view *f)
{
    char *text = path_make(f);
    size_t home = f->data[0] == '/' ? 0 : strlen(job.who.home);
    glob.n = 0;
    glob.path[0] = '\0';
    glob.directories = f->data[f->len - 1] == '/';
    while (home > 0 && job.who.home[home - 1] == '/')
        home--;
    if (home > 0 && strlen(text) >= home && memcmp(text, job.who.home, home) == 0 &&
        (text[home] == '/' || text[home] == '\0')) {
        if (home >= sizeof glob.path)
            file_fail(ENAMETOOLONG, "glob", NULL);
        memcpy(glob.path, text, home);
        glob.path[home] = '\0';
        text += home;
    }
    while (*text != '\0') {
        struct part part;
        text = part_read(&part, text + (*text == '/'));
        if (part.text[0] == '\0')
            continue;
        if (glob.n == 0 && part.kind == LITERAL)
            base_add(part.text);
        else if (part.kind == ANY && glob.n > 0 && glob.parts[glob.n - 1].kind == ANY)
            continue;
        else if (glob.n == MAX_PARTS)
            file_refuse("InvalidArgument", "the pattern has more than 63 parts", NULL);
        else
            glob.parts[glob.n++] = part;
    }
}

/* "**" may also be nothing. */
static uint64_t state(unsigned i)
{
    uint64_t bits = UINT64_C(1) << i;
    if (i + 1 < glob.n && glob.parts[i].kind == ANY)
        bits |= UINT64_C(2) << i;
    return bits;
}

/* ---- the walk ---- */

static void found(int dir_known)
{
    struct statx st;
    const char *path = glob.path[0] == '\0' ? "/" : glob.path;
    if (glob.directories && !dir_known &&
        (sys_statx(AT_FDCWD, path, 0, &st) < 0 || (st.stx_mode & 0170000) != 0040000))
        return;
    sb_pack_str(&glob.out, SB_F_MATCH, path);
    if (glob.out.len > PART_BYTES) {
        file_send(&glob.out, -1);
        file_begin(&glob.out, SB_PART);
    }
}

/* What is not there, may not be looked at or is no directory has no matches. */
static int ordinary(int err)
{
    return err == -ENOENT || err == -EACCES || err == -ENOTDIR || err == -ELOOP ||
           err == -ENAMETOOLONG || err == -EPERM || err == -ESTALE;
}

/* Goes into the directory of the path. */
static void enter(uint64_t states, int follow)
{
    struct place *p;
    int wild = 0;
    if (glob.depth == glob.room) {
        size_t room = glob.room == 0 ? 16 : glob.room * 2;
        p = mem_grow(glob.stack, glob.depth * sizeof *p, room * sizeof *p);
        if (p == NULL)
            file_fail(ENOMEM, "glob", glob.path);
        glob.stack = p;
        glob.room = room;
    }
    p = &glob.stack[glob.depth];
    memset(p, 0, sizeof *p);
    p->states = states;
    p->path_len = strlen(glob.path);
    for (unsigned i = 0; i < glob.n; i++)
        wild |= (states >> i & 1) && glob.parts[i].kind != LITERAL;
    if (wild) {
        int flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW);
        int err = sys_openat(AT_FDCWD, p->path_len == 0 ? "/" : glob.path, flags, 0);
        p->names.fd = err;
        if (err >= 0) {
            err = names_load(&p->names);
            sys_close(p->names.fd);
        }
        if (err < 0 && !ordinary(err))
            file_fail(err, "read", glob.path);
        if (err < 0)
            return;
        p->listed = 1;
    }
    glob.depth++;
}

/* A name below the directory on top that these states match, `into` those that go on below it. */
static void visit(const char *name, unsigned type, uint64_t into, uint64_t links, int match)
{
    size_t at = glob.stack[glob.depth - 1].path_len, len = strlen(name);
    struct statx st;
    if (at + len + 2 > sizeof glob.path)
        return;
    glob.path[at] = '/';
    memcpy(glob.path + at + 1, name, len + 1);
    if (type == DT_UNKNOWN) {
        int err = sys_statx(AT_FDCWD, glob.path, AT_SYMLINK_NOFOLLOW, &st);
        unsigned mode = st.stx_mode & 0170000;
        if (err < 0 && !ordinary(err))
            file_fail(err, "stat", glob.path);
        if (err < 0)
            return;
        type = mode == 0040000 ? DT_DIR : mode == 0120000 ? DT_LNK : 1;
    }
    if (match)
        found(type == DT_DIR);
    if (type == DT_LNK)
        into = links;
    if (into != 0 && (type == DT_DIR || type == DT_LNK))
        enter(into, type == DT_LNK);
}

/* Follows the states of the directory on top, those in `states`, for one of its names. */
static void step(const char *name, unsigned type, uint64_t states)
{
    uint64_t into = 0, links = 0;
    int match = 0;
    for (unsigned i = 0; i < glob.n; i++) {
        const struct part *part = &glob.parts[i];
        if (!(states >> i & 1))
            continue;
        if (part->kind == ANY) {
            if (name[0] == '.')
                continue;
            into |= state(i);
            match |= i + 1 == glob.n;
        } else if (part->kind == LITERAL ? str_same(name, strlen(name), part->text)
                                         : name_matches(part->text, name)) {
            if (i + 1 == glob.n)
                match = 1;
            else
                links |= state(i + 1);
        }
    }
    if ((into | links) != 0 || match)
        visit(name, type, into | links, links, match);
}

static void glob_one(const struct sb_field_view *f)
{
    struct statx st;
    pattern_read(f);
    if (glob.n > 0) {
        enter(state(0), 1);
    } else if (sys_statx(AT_FDCWD, glob.path[0] == '\0' ? "/" : glob.path, AT_SYMLINK_NOFOLLOW,
                         &st) == 0) {
        found((st.stx_mode & 0170000) == 0040000);
    }
    while (glob.depth > 0) {
        struct place *p = &glob.stack[glob.depth - 1];
        unsigned type = DT_UNKNOWN;
        const char *name = NULL;
        if (p->listed) {
            name = names_next(&p->names, &type);
        } else {
            while (p->next < glob.n && !(p->states >> p->next & 1))
                p->next++;
            if (p->next < glob.n)
                name = glob.parts[p->next++].text;
        }
        if (name == NULL) {
            mem_free(p->names.names);
            glob.depth--;
        } else {
            step(name, type, p->listed ? p->states : UINT64_C(1) << (p->next - 1));
        }
    }
}

void file_glob(void)
{
    struct sb_reader at = job.r->fields;
    struct sb_field_view f;
    file_begin(&glob.out, SB_PART);
    while (sb_read_field(&at, &f) == 1)
        if (f.tag == SB_F_PATTERN)
            glob_one(&f);
    file_send(&glob.out, -1);
    file_done();
}
