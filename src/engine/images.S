/* The programs run by the engine, as bytes: pid 1 of a sandbox, the supervisor, and what unpacks archives. The
   assembler looks for them from the directory it is started in, or along -I. */
#ifndef SUPERVISOR /* the specs have others */
#define SUPERVISOR build/supervisor/supervisor
#endif
    .macro image name, path
    .globl \name
    .hidden \name
    .type \name, @object
    .balign 16
\name:
    .incbin "\path"
\name\()_end:
    .globl \name\()_end
    .hidden \name\()_end
    .size \name, \name\()_end - \name
    .endm

    .section .rodata.sandbar_images, "a", @progbits
    image sb_bytes_pid1, build/guest/pid1
    image sb_bytes_supervisor, SUPERVISOR
    image sb_bytes_unpack, build/unpack/unpack

    .section .note.GNU-stack, "", @progbits
