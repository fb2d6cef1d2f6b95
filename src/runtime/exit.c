/* Keeping this shared object mapped, and what happens when the process ends.
 *
 * lua_close unloads C libraries while the I/O thread still runs their code, so the object pins
 * itself. exit runs handlers newest first: ours must come after those of libraries whose code the
 * thread may be in, so it is registered again once they are initialised. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "audit.h"
#include "internal.h"

char sb_tmpdir[64] = "/tmp";

static pthread_once_t pinned = PTHREAD_ONCE_INIT;

/* Runs as often as it was registered; the second time finds nothing to do. Neither does a forked
 * child that never used the runtime: no releases of its own, no threads. */
static void at_exit(void)
{
    sb_release_drain();
    sb_pool_stop();
    sb_audit_drain();
    sb_loop_stop();
}

static void pin(void)
{
    Dl_info info;
    const char *tmp =
        getenv("TMPDIR"); /* once, at load: other threads of the host may change it later */
    if (tmp != NULL && tmp[0] == '/' && strlen(tmp) < sizeof sb_tmpdir)
        snprintf(sb_tmpdir, sizeof sb_tmpdir, "%s", tmp);
    if (dladdr((void *)&sb_loop_pin, &info) != 0 && info.dli_fname != NULL)
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    atexit(at_exit);
}

void sb_loop_pin(void)
{
    pthread_once(&pinned, pin);
}

void sb_loop_rearm_exit(void)
{
    atexit(at_exit);
}
