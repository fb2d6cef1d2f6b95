/* What takes long of a snapshot is done by a process of its own, which has nothing but three directories. */
#include "snapjob.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apply.h"
#include "import.h"
#include "slot.h"

enum { BOX = 3, LAYER, LAYERS, END }; /* its descriptors */

/* The uppers below `dir` go on top of those of the new layer. */
static int add(int dir, int spare, bool link)
{
    static const char *const upper[] = {"u", "usr.u"};
    for (size_t i = 0; i < sizeof upper / sizeof *upper; i++) {
        struct stat st;
        if (fstatat(dir, upper[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (mkdirat(LAYER, upper[i], 0700) < 0 && errno != EEXIST)
            return errno;
        sb_autofd int from = openat(dir, upper[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        sb_autofd int to = openat(LAYER, upper[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int err = from < 0 || to < 0 ? errno : sb_apply(from, to, spare, link);
        if (err != 0)
            return err;
    }
    return 0;
}

static int import(void)
{
    sb_autofd int to = mkdirat(LAYER, "u", 0700) < 0
                           ? -1
                           : openat(LAYER, "u", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = to < 0 ? errno : sb_import_tree(BOX, to);
    return err == 0 && sb_layers_plain(to) < 0 ? errno : err;
}

static int copy(const struct sb_snapjob *j)
{
    int err = 0;
    sb_autofd int spare =
        mkdirat(LAYER, SB_SNAPJOB_SPARE, 0700) < 0
            ? -1
            : openat(LAYER, SB_SNAPJOB_SPARE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (spare < 0)
        return errno;
    for (const char *e = NULL; j->merge != NULL && (e = sb_list_next(j->merge, e)) != NULL;) {
        sb_autofd int dir = openat(LAYERS, e, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir < 0)
            return errno;
        if ((err = add(dir, spare, true)) != 0)
            return err;
    }
    if (j->copy && (err = add(BOX, spare, false)) != 0)
        return err;
    if (unlinkat(LAYER, SB_SNAPJOB_SPARE, AT_REMOVEDIR) < 0 && errno != ENOTEMPTY)
        return errno;
    return 0;
}

static int work(const struct sb_snapjob *j)
{
    int err = j->copy || j->merge != NULL ? copy(j) : 0;
    if (err != 0)
        return err;
    if (j->import && (err = import()) != 0)
        return err;
    return j->sync && syncfs(LAYERS) < 0 ? errno : 0;
}

pid_t sb_snapjob_start(const struct sb_snapjob *j)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    if (dup2(j->box, BOX) != BOX || dup2(j->layer >= 0 ? j->layer : sup.null, LAYER) != LAYER ||
        dup2(sup.layers, LAYERS) != LAYERS || close_range(END, ~0U, 0) < 0)
        _exit(errno);
    _exit(work(j));
}
