/* Asks a web server on a unix socket: CLIENTS connections GET /exec until COUNT answers are there, while one
 * more, in a thread of its own, GETs /ping every millisecond. A ping that the answer before it held up is counted
 * from the moment it was due, so that a server that stands still is not spared the questions it kept waiting.
 * usage: requests SOCKET COUNT CLIENTS SECONDS; with COUNT 0 there are only pings, for SECONDS, which else
 * bounds the run. Prints p50, p99 and worst of the pings in milliseconds, and the seconds it took. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PINGS_MAX 100000
#define CLIENTS_MAX 256
#define EVERY 1000000L /* ns */

struct client {
    int fd;
    size_t got;
    char answer[4096];
};

static struct sockaddr_un at = {.sun_family = AF_UNIX};
static _Atomic int over;
static double took[PINGS_MAX];
static int pings;

static void fail(const char *what)
{
    fprintf(stderr, "requests: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void ask(struct client *client, const char *path)
{
    char text[256];
    int len = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    client->got = 0;
    if (send(client->fd, text, (size_t)len, MSG_NOSIGNAL) != len)
        fail("send");
}

static void enter(struct client *client)
{
    client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client->fd < 0 || connect(client->fd, (struct sockaddr *)&at, sizeof at) != 0)
        fail("connect");
}

/* Takes what has arrived; 1 when the answer is whole. Any but 200 ends the program. */
static int take(struct client *client)
{
    char *body, *length;
    ssize_t n =
        recv(client->fd, client->answer + client->got, sizeof client->answer - 1 - client->got, 0);
    if (n <= 0)
        fail("no answer");
    client->got += (size_t)n;
    client->answer[client->got] = '\0';
    body = strstr(client->answer, "\r\n\r\n");
    if (body == NULL)
        return 0;
    length = strcasestr(client->answer, "content-length:");
    if (strncmp(client->answer, "HTTP/1.1 200", 12) != 0 || length == NULL) {
        fprintf(stderr, "requests: %s\n", client->answer);
        exit(1);
    }
    return client->got - (size_t)(body + 4 - client->answer) >= strtoul(length + 15, NULL, 10);
}

static double seconds_of(const struct timespec *t)
{
    return (double)t->tv_sec + (double)t->tv_nsec / 1e9;
}

/* Where it may, it does not wait for a processor as the commands do: the server is measured, not this. */
static void *ping(void *arg)
{
    static const struct sched_param first = {.sched_priority = 1};
    struct client client;
    struct timespec due;
    (void)arg;
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
    enter(&client);
    clock_gettime(CLOCK_MONOTONIC, &due);
    while (!over && pings < PINGS_MAX) {
        double from = now();
        due.tv_nsec += EVERY;
        if (due.tv_nsec >= 1000000000L) {
            due.tv_nsec -= 1000000000L;
            due.tv_sec++;
        }
        if (from < seconds_of(&due)) {
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
            from = now();
        } else {
            from = seconds_of(&due);
        }
        ask(&client, "/ping");
        while (!take(&client))
            ;
        took[pings++] = now() - from;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void load(int count, int clients)
{
    static struct client all[CLIENTS_MAX];
    struct pollfd fds[CLIENTS_MAX];
    int asked = 0, answered = 0;
    for (int i = 0; i < clients; i++) {
        enter(&all[i]);
        fds[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
        if (asked < count) {
            asked++;
            ask(&all[i], "/exec");
        }
    }
    while (answered < count) {
        if (poll(fds, (nfds_t)clients, -1) < 0)
            fail("poll");
        for (int i = 0; i < clients; i++)
            if (fds[i].revents != 0 && take(&all[i])) {
                answered++;
                if (asked < count) {
                    asked++;
                    ask(&all[i], "/exec");
                }
            }
    }
}

int main(int argc, char **argv)
{
    int count, clients;
    unsigned seconds;
    double began = now();
    pthread_t pinger;
    if (argc != 5 || strlen(argv[1]) >= sizeof at.sun_path)
        return 2;
    memcpy(at.sun_path, argv[1], strlen(argv[1]) + 1);
    count = (int)strtol(argv[2], NULL, 10);
    clients = (int)strtol(argv[3], NULL, 10);
    seconds = (unsigned)strtoul(argv[4], NULL, 10);
    if (clients > CLIENTS_MAX || pthread_create(&pinger, NULL, ping, NULL) != 0)
        return 2;
    if (count > 0) {
        alarm(seconds);
        load(count, clients);
    } else {
        sleep(seconds);
    }
    over = 1;
    pthread_join(pinger, NULL);
    if (pings == 0)
        return 1;
    qsort(took, (size_t)pings, sizeof *took, compare);
    printf("%.3f %.3f %.3f %.3f %d\n", took[pings / 2] * 1e3, took[pings * 99 / 100] * 1e3,
           took[pings - 1] * 1e3, now() - began, pings);
    return 0;
}
