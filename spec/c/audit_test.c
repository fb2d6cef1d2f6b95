/* The audit trail: many threads tell it something, readers that are slow, gone, or files. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/audit.h"
#include "runtime/release.h"

#define TELLERS 3
#define LINES 2000

static void tell(int n)
{
    struct sb_audit_line line = {0};
    sb_audit_begin(&line, "test");
    sb_audit_number(&line, "n", n);
    sb_audit_text(&line, "text", "x", 1);
    sb_audit_end(&line);
}

static void *tell_many(void *arg)
{
    for (int i = 0; i < LINES; i++)
        tell(*(int *)arg);
    return NULL;
}

static void everybody_may_tell(void)
{
    pthread_t threads[TELLERS];
    int ends[2], n[TELLERS], lines = 0;
    char buf[4096];
    FILE *in;
    CHECK(pipe(ends) == 0 && sb_audit_open(ends[1], NULL) == 0);
    close(ends[1]);
    for (int i = 0; i < TELLERS; i++) {
        n[i] = i;
        CHECK(pthread_create(&threads[i], NULL, tell_many, &n[i]) == 0);
    }
    in = fdopen(ends[0], "r");
    while (lines < TELLERS * LINES && fgets(buf, sizeof buf, in) != NULL) {
        CHECK(strncmp(buf, "{\"event\":\"test\",\"time\":", 23) == 0);
        CHECK(strcmp(buf + strlen(buf) - 3, "\"}\n") == 0);
        lines++;
    }
    CHECK(lines == TELLERS * LINES);
    for (int i = 0; i < TELLERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(sb_audit_open(-1, NULL) == 0 && !sb_audit_on());
    CHECK(fgets(buf, sizeof buf, in) == NULL); /* closed */
    fclose(in);
    passed("every thread may tell it something, whole lines come out");
}

static void a_reader_that_left_is_nobodys_trouble(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && sb_audit_open(ends[1], NULL) == 0);
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 5000 && sb_audit_on(); i++)
        tell(i), usleep(100);
    CHECK(!sb_audit_on());
    CHECK(sb_audit_open(-1, NULL) == 0);
    passed("a reader that left ends the trail, and nothing else");
}

/* With `last`, one more line comes after there was room again. */
static void a_slow_reader_is_told_what_it_missed(int last)
{
    int pair[2];
    char buf[65536], *whole = calloc(1, 8 << 20), *missed = NULL;
    size_t len = 0, lines = 0;
    CHECK(whole != NULL && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(sb_audit_open(pair[1], NULL) == 0);
    close(pair[1]);
    for (int i = 0; i < 60000; i++)
        tell(i);
    for (ssize_t n; len < 1 << 20 && (n = read(pair[0], buf, sizeof buf)) > 0; len += (size_t)n)
        memcpy(whole + len, buf, (size_t)n);
    if (last)
        tell(-7);
    CHECK(sb_audit_open(-1, NULL) == 0);
    for (ssize_t n; (n = read(pair[0], buf, sizeof buf)) > 0; len += (size_t)n)
        memcpy(whole + len, buf, (size_t)n);
    /* Missed once, or more often: there is room again whenever the I/O thread gets its turn. By lines: the sanitizer
     * walks the whole rest at each strstr(). */
    for (char *at = whole, *end; (end = memchr(at, '\n', (size_t)(whole + len - at))) != NULL;
         at = end + 1) {
        if (strncmp(at, "{\"event\":\"test\"", 15) == 0) {
            lines++;
        } else if (strncmp(at, "{\"event\":\"missed\",\"count\":", 26) == 0) {
            missed = at;
            lines += strtoul(at + 26, NULL, 10);
        }
    }
    CHECK(missed != NULL);
    CHECK(lines == 60000 + (size_t)last);
    CHECK((strstr(missed, "\"n\":-7") != NULL) == last);
    close(pair[0]);
    free(whole);
    passed(last ? "nobody waits for a slow reader, which is told how much it missed"
                : "what was missed is told at the end at the latest");
}

static void a_file_takes_all(void)
{
    FILE *file = tmpfile();
    char buf[4096], name[32];
    int lines = 0;
    CHECK(file != NULL);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fileno(file));
    FILE *own =
        fopen(name, "r"); /* with a position of its own, which is not where the trail goes on */
    CHECK(own != NULL);
    for (int round = 0; round < 20; round++) {
        CHECK(sb_audit_open(fileno(file), NULL) == 0);
        for (int i = 0; i < 100; i++)
            tell(i);
    }
    CHECK(sb_audit_open(-1, NULL) == 0);
    for (int i = 0; i < 2000 && lines < 2000; i++) {
        usleep(5000);
        rewind(own);
        for (lines = 0; fgets(buf, sizeof buf, own) != NULL;)
            lines++;
    }
    CHECK(lines == 2000);
    fclose(own);
    fclose(file);
    passed("what was told before the trail was closed still goes to its file");
}

static void release_at_once(struct sb_release *release, void *data)
{
    (void)data;
    sb_release_finish(release, NULL);
}

/* Its name is long, so that telling it takes its time. */
static void ends_with_a_release(int fd)
{
    static const struct sb_release_type type = {"thing", release_at_once, NULL};
    static char id[400001];
    memset(id, 'x', sizeof id - 1);
    if (sb_audit_open(fd, NULL) != 0)
        _exit(1);
    struct sb_release *release = sb_release_new(&type, NULL, id);
    sb_release_fire(release, NULL);
    sb_release_unref(release);
    exit(0);
}

/* Exit once went on as soon as nothing was outstanding, while the last release was still being told. */
static void exit_waits_until_the_last_release_is_told(void)
{
    static char text[500000];
    for (int i = 0; i < 10; i++) {
        int ends[2], status = -1;
        size_t len = 0;
        ssize_t n;
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            ends_with_a_release(ends[1]);
        close(ends[1]);
        while ((n = read(ends[0], text + len, sizeof text - len)) > 0)
            len += (size_t)n;
        close(ends[0]);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(len > 400000 && strncmp(text, "{\"event\":\"release\"", 18) == 0);
        CHECK(text[len - 1] == '\n');
    }
    passed("exit waits until the last release is told");
}

int main(void)
{
    struct sb_error err;
    signal(SIGPIPE, SIG_IGN); /* the test's own */
    sb_loop_pin();
    CHECK(sb_audit_open(12345, &err) != 0 && err.sys == EBADF);
    exit_waits_until_the_last_release_is_told(); /* first: its children have no threads to look for */
    everybody_may_tell();
    a_reader_that_left_is_nobodys_trouble();
    a_slow_reader_is_told_what_it_missed(1);
    a_slow_reader_is_told_what_it_missed(0);
    a_file_takes_all();
    return 0;
}
