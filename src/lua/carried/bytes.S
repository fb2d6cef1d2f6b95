/* What pack.lua wrote. MODULES is its path: the assembler looks for it from the directory it is started in. */
    .section .rodata.sandbar_modules, "a", @progbits
    .globl sb_carried
    .hidden sb_carried
    .type sb_carried, @object
sb_carried:
    .incbin MODULES
sb_carried_end:
    .globl sb_carried_end
    .hidden sb_carried_end
    .size sb_carried, sb_carried_end - sb_carried

    .section .note.GNU-stack, "", @progbits
