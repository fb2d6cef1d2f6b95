/* Runs a program that inherits descriptors as a careless host has them: a listening socket, a file, both ends
 * of a pipe and any number of copies, none of them close-on-exec.
 * usage: hoard PORT COUNT FILE PROGRAM [ARGUMENT...]
 * PORT 0 takes a free one. $HOARD_PORT tells the program which it is. The port is not shared: when somebody
 * else still listens on it, hoard ends with status 3. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    struct rlimit files;
    char text[16];
    int fd, ends[2];
    if (argc < 5) {
        fputs("usage: hoard PORT COUNT FILE PROGRAM [ARGUMENT...]\n", stderr);
        return 2;
    }
    to.sin_port = htons((unsigned short)atoi(argv[1]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to) < 0 || listen(fd, 16) < 0 ||
        getsockname(fd, (struct sockaddr *)&to, &len) < 0) {
        perror("hoard");
        return 3;
    }
    snprintf(text, sizeof text, "%d", ntohs(to.sin_port));
    setenv("HOARD_PORT", text, 1);
    if (open(argv[3], O_RDWR | O_CREAT, 0600) < 0 || pipe(ends) < 0) {
        perror("hoard");
        return 1;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int n = atoi(argv[2]); n > 0; n--) {
        if (dup(fd) < 0) {
            perror("hoard");
            return 1;
        }
    }
    execvp(argv[4], argv + 4);
    perror(argv[4]);
    return 127;
}
