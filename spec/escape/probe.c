/* usage: probe [plain|root|host] NAME[=ARGUMENT]...  Each runs in a process of its own; what it saw goes between the
 * lines "# NAME" and "# NAME: STATUS". Status 0: as it must be; 1: not; 2: it could not be tried; else it died.
 * `probe become NAME...` runs the rest with the ids that a set-user-ID copy of this program has got. `probe listen` is
 * what an attack on the host's sockets is aimed at. */
#include "probe.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int room = INSIDE;
static int hits, misses; /* attacks that worked; that should have, in this room, and did not */

void attack(int rooms, const char *what, long result)
{
    const char *why = strerror(errno);
    if (result >= 0) {
        printf("worked: %s\n", what);
        hits++;
    } else {
        printf("%s: %s: %s\n", (room & rooms) != 0 ? "FAILED HERE" : "refused", what, why);
        misses += (room & rooms) != 0;
    }
}

void worked(const char *fmt, ...)
{
    va_list ap;
    hits++;
    fputs("worked: ", stdout);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void cannot(const char *why)
{
    printf("cannot be tried: %s: %s\n", why, strerror(errno));
    exit(2);
}

static int finish(void)
{
    return room == INSIDE ? hits > 0 : hits == 0 || misses > 0;
}

static const struct probe *find(const char *name, size_t len)
{
    const struct probe *const tables[] = {file_probes, process_probes, call_probes, network_probes,
                                          budget_probes};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct probe *p = tables[i]; p->name != NULL; p++)
            if (strlen(p->name) == len && memcmp(p->name, name, len) == 0)
                return p;
    return NULL;
}

static void run(const char *word)
{
    const char *equals = strchr(word, '=');
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct probe *p = find(word, len);
    int status = 0;
    pid_t pid;
    if (p == NULL || (room != INSIDE && (p->rooms & room) == 0)) {
        printf("# %.*s: 2\n", (int)len, word);
        return;
    }
    printf("# %s\n", p->name);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        alarm(30);
        p->run(equals != NULL ? equals + 1 : NULL);
        fflush(stdout);
        _exit(finish());
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    printf("# %s: %d\n", p->name,
           pid < 0             ? 2
           : WIFEXITED(status) ? WEXITSTATUS(status)
                               : 256 + WTERMSIG(status));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *word;
        int which;
    } words[] = {{"plain", PLAIN}, {"root", ROOT}, {"host", HOST}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; argc > 1 && i < sizeof words / sizeof *words; i++)
        if (strcmp(argv[1], words[i].word) == 0) {
            argc--;
            argv++;
            enter_room(words[i].which);
            break;
        }
    if (argc > 1 && strcmp(argv[1], "listen") == 0)
        listen_on_host();
    if (argc > 1 && strcmp(argv[1], "become") == 0) {
        argc--;
        argv++;
        if (setresgid(getegid(), getegid(), getegid()) != 0 ||
            setresuid(geteuid(), geteuid(), geteuid()) != 0)
            cannot("ids");
        printf("user %d\n", (int)getuid());
    }
    for (int i = 1; i < argc; i++)
        run(argv[i]);
    return 0;
}
