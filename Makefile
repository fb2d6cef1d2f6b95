# sandbar: one Makefile. `make help` names the targets.
#
# What goes where (V is empty, or the name of a sanitizer: asan, tsan):
#   build/guest/pid1             the pid 1 of every sandbox: freestanding, static
#   build/supervisor/supervisor  the local engine's supervisor: static
#   build/[V/]obj/               what knows no Lua, built once for all Lua versions
#   build/[V/]<lua>/sandbar/     core.so and http.so for one Lua; put build/<lua>/?.so on package.cpath

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VERSION := 0.1.0
LUAS := 5.4 luajit 5.1 5.2 5.3
LUA ?= 5.4
V ?=

CC ?= cc
ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config
CLANG ?= clang

# --- Lua ------------------------------------------------------------------------------------------

# A package manager names the headers (LUA_INCDIR) and leaves the version to be read from them.
ifneq ($(LUA_INCDIR),)
LUA_CFLAGS := -I$(LUA_INCDIR)
ifneq ($(wildcard $(LUA_INCDIR)/luajit.h),)
override LUA := luajit
else
override LUA := $(shell sed -n 's/^\#define LUA_VERSION_NUM[[:space:]]*50\([0-9]\).*/5.\1/p' $(LUA_INCDIR)/lua.h)
endif
else ifeq ($(LUA),luajit)
LUA_CFLAGS := $(shell $(PKG_CONFIG) --cflags luajit 2>/dev/null)
else
LUA_CFLAGS := $(shell $(PKG_CONFIG) --cflags lua$(LUA) 2>/dev/null)
endif
ifeq ($(filter $(LUA),$(LUAS)),)
$(error LUA=$(LUA) is none of: $(LUAS))
endif
LUA_ABI := $(if $(filter luajit,$(LUA)),5.1,$(LUA))
LUA_BIN ?= $(if $(filter luajit,$(LUA)),luajit,lua$(LUA))

# --- flags ----------------------------------------------------------------------------------------

WERROR ?= -Werror
WARN := -Wall -Wextra $(WERROR) -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wwrite-strings -Wvla -Wformat=2 -Wundef -Wimplicit-fallthrough -Wcast-qual
OPT ?= -O2
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARN) -Isrc -DSB_VERSION='"$(VERSION)"' -g
HARDEN := -fstack-protector-strong

SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SANITIZE_tsan := -fsanitize=thread -fno-omit-frame-pointer
SANITIZE := $(SANITIZE_$(V))
ifneq ($(filter-out asan tsan,$(V)),)
$(error V=$(V) is neither asan nor tsan)
endif

LIB_CFLAGS = $(BASE_CFLAGS) $(OPT) -fPIC -fvisibility=hidden -pthread $(HARDEN) $(SANITIZE) $(CFLAGS)
LIB_LDFLAGS = -shared -pthread -Wl,--as-needed -Wl,-z,relro -Wl,-z,now $(SANITIZE) $(LDFLAGS)
CURL_CFLAGS ?= $(shell $(PKG_CONFIG) --cflags libcurl libcrypto 2>/dev/null)
CURL_LIBS ?= $(shell $(PKG_CONFIG) --libs libcurl libcrypto 2>/dev/null || echo -lcurl -lcrypto)
SECCOMP_CFLAGS ?= $(shell $(PKG_CONFIG) --cflags libseccomp 2>/dev/null)
SECCOMP_LIBS ?= $(shell $(PKG_CONFIG) --libs libseccomp 2>/dev/null || echo -lseccomp)

# --- what is built from what: every part is found by its directory ----------------------------------

B := build$(addprefix /,$(V))
O := $(B)/obj
L := $(B)/$(LUA)

GUEST_SRC := $(wildcard src/guest/*.c src/guest/*.S)
SUPERVISOR_SRC := $(wildcard src/engine/supervisor/*.c)
FILTER_SRC := $(wildcard src/engine/filter/*.c)
RUNTIME_SRC := $(wildcard src/runtime/*.c)
ENGINE_SRC := $(wildcard src/engine/*.c)
ENGINE_ASM := $(wildcard src/engine/*.S)
HTTP_SRC := $(wildcard src/http/*.c)
BIND_SRC := $(filter-out src/lua/http.c,$(wildcard src/lua/*.c))
HTTP_BIND_SRC := $(wildcard src/lua/http.c)
LUA_SRC := $(shell find lua -name '*.lua' 2>/dev/null | LC_ALL=C sort)

RUNTIME_OBJ := $(RUNTIME_SRC:%.c=$(O)/%.o)
ENGINE_OBJ := $(ENGINE_SRC:%.c=$(O)/%.o)
IMAGE_OBJ := $(ENGINE_ASM:%.S=$(O)/%.o)
HTTP_OBJ := $(HTTP_SRC:%.c=$(O)/%.o)
BIND_OBJ := $(BIND_SRC:%.c=$(L)/obj/%.o)
HTTP_BIND_OBJ := $(HTTP_BIND_SRC:%.c=$(L)/obj/%.o)
GUEST_OBJ := $(addprefix build/guest/obj/,$(addsuffix .o,$(GUEST_SRC)))
SUPERVISOR_OBJ := $(SUPERVISOR_SRC:%.c=build/supervisor/obj/%.o)

missing = $(if $(strip $(2)),,@echo 'make: $(1) has no sources' >&2; exit 1)

.PHONY: all core http guest supervisor
all: core http
core: $(L)/sandbar/core.so
http: $(L)/sandbar/http.so
guest: build/guest/pid1
supervisor: build/supervisor/supervisor

$(L)/sandbar/core.so: $(RUNTIME_OBJ) $(ENGINE_OBJ) $(IMAGE_OBJ) $(BIND_OBJ)
	$(call missing,src/lua,$(BIND_SRC))
	$(call missing,src/runtime,$(RUNTIME_SRC))
	@mkdir -p $(@D)
	$(CC) -o $@ $^ $(LIB_LDFLAGS) -ldl

$(L)/sandbar/http.so: $(HTTP_OBJ) $(HTTP_BIND_OBJ)
	$(call missing,src/http,$(HTTP_SRC))
	$(call missing,src/lua/http.c,$(HTTP_BIND_SRC))
	@mkdir -p $(@D)
	$(CC) -o $@ $^ $(LIB_LDFLAGS) $(CURL_LIBS)

# Everything without Lua, for the unit tests in C: the linker takes what a test needs.
$(O)/libcore.a: $(RUNTIME_OBJ) $(ENGINE_OBJ) $(IMAGE_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(O)/src/http/%.o: src/http/%.c
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) $(CURL_CFLAGS) -MMD -MP -c -o $@ $<
$(O)/src/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) -MMD -MP -c -o $@ $<
$(O)/src/engine/%.o: src/engine/%.S build/guest/pid1 build/supervisor/supervisor
	@mkdir -p $(@D)
	$(CC) -I. -MMD -MP -c -o $@ $<
$(L)/obj/src/lua/%.o: src/lua/%.c
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) $(LUA_CFLAGS) -MMD -MP -c -o $@ $<

# Pid 1 of a sandbox: its own flags (PID1_CFLAGS, PID1_LDFLAGS), no C library.
-include src/guest/flags.mk
build/guest/pid1: $(GUEST_OBJ)
	$(call missing,src/guest,$(GUEST_SRC))
	$(CC) -o $@.elf $^ $(PID1_LDFLAGS)
	objcopy --strip-all $@.elf $@
build/guest/obj/%.o: %
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) -Isrc $(PID1_CFLAGS) -MMD -MP -c -o $@ $<

# The supervisor, with the system call filter that is compiled at build time.
build/supervisor/supervisor: $(SUPERVISOR_OBJ)
	$(call missing,src/engine/supervisor,$(SUPERVISOR_SRC))
	$(CC) -static -o $@.elf $^ -Wl,-z,relro -Wl,-z,now $(LDFLAGS)
	objcopy --strip-all $@.elf $@
build/supervisor/obj/%.o: %.c build/filter/filter.h
	@mkdir -p $(@D)
	$(CC) $(BASE_CFLAGS) $(OPT) $(HARDEN) -Ibuild/filter -MMD -MP -c -o $@ $<

build/filter/generate: $(FILTER_SRC)
	$(call missing,src/engine/filter,$(FILTER_SRC))
	@mkdir -p $(@D)
	$(CC) $(BASE_CFLAGS) $(SECCOMP_CFLAGS) -MMD -MP -MF $@.d -o $@ $(FILTER_SRC) $(SECCOMP_LIBS)
build/filter/filter.h: build/filter/generate
	build/filter/generate > $@.new
	mv $@.new $@

DEPFILES := $(shell find build -name '*.d' 2>/dev/null)
-include $(DEPFILES)

.PHONY: clean
clean:
	rm -rf build
