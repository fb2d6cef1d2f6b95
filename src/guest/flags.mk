# Flags of pid 1 of a sandbox: freestanding, static, few pages. Included by the Makefile.
PID1_CFLAGS = -std=c11 -Os -ffreestanding -fno-builtin -fno-pie -fno-pic -fno-stack-protector \
	-fno-asynchronous-unwind-tables -fno-unwind-tables -fomit-frame-pointer -fno-strict-aliasing \
	-fno-tree-loop-distribute-patterns -fcf-protection=none -ffunction-sections -fdata-sections \
	-fvisibility=hidden -Wall -Wextra -Werror -Wno-override-init
PID1_LDFLAGS = -static -nostdlib -nostartfiles -no-pie -s -Wl,--gc-sections -Wl,--build-id=none \
	-Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-z,noexecstack -Wl,-z,max-page-size=4096 -Wl,--sort-section=alignment
