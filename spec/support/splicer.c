/* Writes COUNT bytes of FILE to its output, each spliced by itself: each takes the place of a page in a pipe.
 * usage: splicer FILE COUNT */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int fd = argc == 3 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        fputs("usage: splicer FILE COUNT\n", stderr);
        return 2;
    }
    for (int i = 0; i < atoi(argv[2]); i++) {
        loff_t at = 0;
        if (splice(fd, &at, 1, NULL, 1, 0) != 1) {
            perror("splicer");
            return 1;
        }
    }
    return 0;
}
