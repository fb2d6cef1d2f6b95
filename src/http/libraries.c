/* Some thirty libraries come with libcurl. To bind them the dynamic linker reads their tables of symbols and
 * relocations, a fifth of what a small program has in memory, which hardly anybody reads again. Such pages, never
 * written, go from this process and stay in the kernel's cache of files; who reads one after all gets it back. */
#include "http/libraries.h"

#include <link.h>
#include <sys/mman.h>

#define PAGE ((uintptr_t)4096)

static int has(const struct dl_phdr_info *info, uintptr_t at)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && at - info->dlpi_addr - part->p_vaddr < part->p_memsz)
            return 1;
    }
    return 0;
}

/* Were pages that cannot be written any more written when it was relocated? */
static int was_written(const struct dl_phdr_info *info)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++)
            if (d->d_tag == DT_TEXTREL || (d->d_tag == DT_FLAGS && (d->d_un.d_val & DF_TEXTREL)))
                return 1;
    }
    return 0;
}

/* From this library on, in the order of loading: what was there before is the program's. */
static int settle(struct dl_phdr_info *info, size_t size, void *arg)
{
    int *ours = arg;
    (void)size;
    *ours |= has(info, (uintptr_t)settle);
    if (!*ours || was_written(info))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = (info->dlpi_addr + part->p_vaddr + PAGE - 1) & ~(PAGE - 1);
        uintptr_t to = (info->dlpi_addr + part->p_vaddr + part->p_memsz) & ~(PAGE - 1);
        /* neither code, where a debugger may have put something, nor what was relocated */
        if (part->p_type == PT_LOAD && part->p_flags == PF_R && from < to)
            madvise((void *)from, to - from, MADV_DONTNEED);
    }
    return 0;
}

void sb_libraries_settle(void)
{
    int ours = 0;
    dl_iterate_phdr(settle, &ours);
}
