/* Paths: bytes, never text. Relative ones and `~` start at the acting user's home; "." and ".." are
 * taken out by name, before anything is looked up. */
#include "file.h"
#include "mem.h"
#include "str.h"

char *path_make(const struct sb_field_view *f)
{
    const char *in = (const char *)f->data, *end = in + f->len;
    size_t home_len = strlen(job.who.home), n = 0;
    char *out = mem_alloc(home_len + f->len + 3);
    if (out == NULL)
        file_fail(ENOMEM, NULL, NULL);
    if (f->len == 0)
        file_refuse("InvalidArgument", "the path is empty", NULL);
    if (str_find(in, f->len, '\0') != NULL)
        file_refuse("InvalidArgument", "the path contains a zero byte", NULL);
    if (*in == '~') {
        if (f->len > 1 && in[1] != '/')
            file_refuse("InvalidArgument", "only one's own home can be named by ~", NULL);
        in++;
    }
    if (in == end || *in != '/' || in != (const char *)f->data) {
        memcpy(out, job.who.home, home_len);
        n = home_len;
        while (n > 0 && out[n - 1] == '/')
            n--;
    }
    while (in < end) {
        size_t len = 0;
        while (in < end && *in == '/')
            in++;
        while (in + len < end && in[len] != '/')
            len++;
        if (len == 2 && in[0] == '.' && in[1] == '.') {
            while (n > 0 && out[--n] != '/')
                ;
        } else if (len > 0 && !(len == 1 && in[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, in, len);
            n += len;
        }
        in += len;
    }
    if (n == 0)
        out[n++] = '/';
    out[n] = '\0';
    return out;
}

char *field_text(uint16_t tag)
{
    struct sb_field_view f;
    char *copy;
    if (!sb_read_find(&job.r->fields, tag, &f) || f.len == 0)
        return NULL;
    if (str_find(f.data, f.len, '\0') != NULL)
        file_refuse("InvalidArgument", "a name contains a zero byte", NULL);
    copy = mem_alloc(f.len + 1);
    if (copy == NULL)
        file_fail(ENOMEM, NULL, NULL);
    memcpy(copy, f.data, f.len);
    return copy;
}

void path_make_parents(char *path)
{
    for (char *s = path + 1; *s != '\0'; s++) {
        long err;
        if (*s != '/')
            continue;
        *s = '\0';
        err = SYS3(__NR_mkdirat, AT_FDCWD, path, 0755);
        if (err < 0 && err != -EEXIST)
            file_fail((int)err, "mkdir", path);
        *s = '/';
    }
}

int path_parent(char *path, int parents, const char **name)
{
    char *slash = path;
    int fd;
    for (char *s = path; *s != '\0'; s++)
        if (*s == '/')
            slash = s;
    *name = slash + 1;
    if (slash[1] == '\0')
        file_fail(EISDIR, "open", path);
    if (slash == path)
        return sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0);
    *slash = '\0';
    fd = sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0);
    *slash = '/';
    if (fd == -ENOENT && parents) {
        path_make_parents(path);
        *slash = '\0';
        fd = sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0);
        *slash = '/';
    }
    if (fd < 0)
        file_fail(fd, "open", path);
    return fd;
}

void path_temp_name(char out[32])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char random[10] = {0};
    if (SYS3(__NR_getrandom, random, sizeof random, 0) != sizeof random)
        file_fail(EIO, "getrandom", NULL);
    memcpy(out, ".sb-", 4);
    for (size_t i = 0; i < sizeof random; i++) {
        out[4 + 2 * i] = hex[random[i] >> 4];
        out[5 + 2 * i] = hex[random[i] & 15];
    }
    out[24] = '\0';
}
