/* The kernel answers with an errno, whichever of its settings is behind it. Here is which they are, by experience: a
 * step whose name and errno are listed fails for that reason only. spec/lacking_spec.lua makes most of them happen. */
#include "lacks.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define NO_MOUNT_CALLS \
    "the mount calls of Linux 5.12 are missing: an older kernel, or the filter of a container"
#define NO_NAMESPACES \
    "kernel.unprivileged_userns_clone, AppArmor or a container's filter forbids it"
#define NO_RIGHT_TO_MOUNT \
    "a container without CAP_SYS_ADMIN, or AppArmor's restriction of user namespaces"
#define TOO_FEW_IDS \
    "root of a container lacks the ids that sandboxes get; be an ordinary user in there"
#define NO_MORE "user.max_user_namespaces (or net) is 0 or used up"

static const struct {
    const char *step;
    int err;
    const char *kind, *text; /* kind NULL: the errno's */
} known[] = {
    {"user-namespace", ENOSPC, NULL, NO_MORE},
    {"user-namespace", EPERM, NULL, NO_NAMESPACES},
    {"user-namespace", EACCES, NULL, NO_NAMESPACES},
    {"user-namespace", EINVAL, NULL, "the kernel was built without user namespaces"},
    {"id-map", EPERM, NULL, NO_NAMESPACES},
    {"slot", ENOSPC, "LimitExceeded", NO_MORE},
    {"root groups", EPERM, "Unsupported", TOO_FEW_IDS},
    {"slot maps", EPERM, "Unsupported", TOO_FEW_IDS},
    {"mounts", EPERM, "Unsupported", NO_RIGHT_TO_MOUNT},
    {"mounts", EACCES, "Unsupported", NO_RIGHT_TO_MOUNT},
    {"devices", ENOSYS, "Unsupported", NO_MOUNT_CALLS},
    {"devices", EPERM, "Unsupported", NO_RIGHT_TO_MOUNT},
    {"overlay", ENODEV, "Unsupported", "the kernel has no overlay file system"},
    {"overlay", EPERM, "Unsupported", "ordinary users need Linux 5.11 for overlays"},
    {"connect", ETOOMANYREFS, "LimitExceeded",
     "as many descriptors are in flight between sockets as this user may have"},
    {"proc", EPERM, "Unsupported",
     "/proc is partly covered here, as in containers, and has to be whole for a new one"},
};

const char *sb_lacks(const char *step, int err, const char **kind)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].err == err && strcmp(known[i].step, step) == 0) {
            if (known[i].kind != NULL)
                *kind = known[i].kind;
            return known[i].text;
        }
    return NULL;
}
