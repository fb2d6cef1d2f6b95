/* The program that opens TLS, as bytes. The assembler looks for it from the directory it is started in, or along -I. */
    .section .rodata.sandbar_images, "a", @progbits
    .globl sb_bytes_tlsrelay
    .type sb_bytes_tlsrelay, @object
    .balign 16
sb_bytes_tlsrelay:
    .incbin "build/tlsrelay/tlsrelay"
    .globl sb_bytes_tlsrelay_end
sb_bytes_tlsrelay_end:
    .size sb_bytes_tlsrelay, sb_bytes_tlsrelay_end - sb_bytes_tlsrelay

    .section .note.GNU-stack, "", @progbits
