# sandbar: one Makefile. `make help` names the targets.
#
# What goes where (V is empty, or the name of a sanitizer: asan, tsan):
#   build/guest/pid1             the pid 1 of every sandbox: freestanding, static
#   build/unpack/unpack          what unpacks archives in a sandbox
#   build/supervisor/supervisor  the local engine's supervisor: static
#   build/tlsrelay/tlsrelay      the second process of a sandbox's relay, carried by the supervisor: with OpenSSL
#   build/[V/]obj/               what knows no Lua, built once for all Lua versions
#   build/[V/]<lua>/sandbar/     core.so, http.so and server.so for one Lua; put build/<lua>/?.so on package.cpath

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VERSION := 0.1.0
RELEASE := $(shell echo $(VERSION) | sed 's/[-+].*//' | awk -F. '{ print $$1 * 1000000 + $$2 * 1000 + $$3 }')
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
	-Wvla -Wformat=2 -Wundef -Wimplicit-fallthrough
# GCC 12 and 13 take the address of an inlined function's local, given to memcpy, for one that is kept.
WARN += $(if $(shell $(CC) -Wdangling-pointer -E -x c /dev/null 2>&1 | grep -m1 -i 'unrecognized\|unknown'),,-Wno-dangling-pointer)
OPT ?= -O2
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARN) -Isrc -DSB_VERSION='"$(VERSION)"' -DSB_RELEASE=$(RELEASE) -g
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
WSLAY_LIBS ?= -lwslay # Debian's packages have no pkg-config files
PARSER_LIBS ?= -lhttp_parser
PROTOBUF_CFLAGS ?= $(shell $(PKG_CONFIG) --cflags libprotobuf-c 2>/dev/null)
PROTOBUF_LIBS ?= $(shell $(PKG_CONFIG) --libs libprotobuf-c 2>/dev/null || echo -lprotobuf-c)
PROTOC_C ?= protoc-c
SSL_LIBS ?= $(shell $(PKG_CONFIG) --libs libssl libcrypto 2>/dev/null || echo -lssl -lcrypto)
SECCOMP_CFLAGS ?= $(shell $(PKG_CONFIG) --cflags libseccomp 2>/dev/null)
SECCOMP_LIBS ?= $(shell $(PKG_CONFIG) --libs libseccomp 2>/dev/null || echo -lseccomp)

# make VERBOSE=1 shows commands instead of what they are for.
show = $(if $(VERBOSE),,@printf '  %-7s %s\n' $(1) $(or $(2),$@);)

# --- what is built from what: every part is found by its directory ----------------------------------

B := build$(addprefix /,$(V))
O := $(B)/obj
L := $(B)/$(LUA)

GUEST_SRC := $(wildcard src/guest/*.c src/guest/*.S)
SUPERVISOR_SRC := $(wildcard src/engine/supervisor/*.c src/engine/relay/*.c)
FILTER_SRC := $(wildcard src/engine/filter/*.c)
RUNTIME_SRC := $(wildcard src/runtime/*.c)
# Policies are checked by the caller, too.
ENGINE_SRC := $(wildcard src/engine/*.c) $(addprefix src/engine/relay/,policy.c upstream_url.c)
ENGINE_ASM := $(wildcard src/engine/*.S)
HTTP_SRC := $(wildcard src/http/*.c src/e2b/*.c)
HTTP_BIND_SRC := $(addprefix src/lua/,http.c recipe.c websocket.c message.c base64.c run.c lines.c)
# Messages that a generator writes the C of.
PROTO_SRC := $(wildcard src/e2b/*.proto)
PROTO_C := $(PROTO_SRC:src/e2b/%.proto=build/e2b/%.pb-c.c)
SERVER_SRC := $(wildcard src/server/*.c)
SERVER_BIND_SRC := $(addprefix src/lua/,server.c lines.c)
BIND_SRC := $(filter-out $(HTTP_BIND_SRC) $(SERVER_BIND_SRC),$(wildcard src/lua/*.c))
LUA_SRC := $(shell find lua -name '*.lua' 2>/dev/null | LC_ALL=C sort)
# What a module in Lua reads beside itself: the page of `sandbar serve`.
PAGE_SRC := $(wildcard lua/sandbar/server/page/*)

RUNTIME_OBJ := $(RUNTIME_SRC:%.c=$(O)/%.o)
ENGINE_OBJ := $(ENGINE_SRC:%.c=$(O)/%.o)
IMAGE_OBJ := $(ENGINE_ASM:%=$(O)/%.o)
HTTP_OBJ := $(HTTP_SRC:%.c=$(O)/%.o) $(PROTO_SRC:src/e2b/%.proto=$(O)/e2b/%.pb-c.o)
BIND_OBJ := $(BIND_SRC:%.c=$(L)/obj/%.o)
CARRIED_OBJ := $(L)/obj/src/lua/carried/bytes.o
HTTP_BIND_OBJ := $(HTTP_BIND_SRC:%.c=$(L)/obj/%.o)
# With what it shares with the runtime without being a part of it.
SERVER_OBJ := $(SERVER_SRC:%.c=$(O)/%.o) $(O)/src/runtime/buffer.o
SERVER_BIND_OBJ := $(SERVER_BIND_SRC:%.c=$(L)/obj/%.o)
GUEST_OBJ := $(addprefix build/guest/obj/,$(addsuffix .o,$(GUEST_SRC)))
SUPERVISOR_OBJ := $(SUPERVISOR_SRC:%.c=build/supervisor/obj/%.o) build/supervisor/obj/tlsimage.o
# The second process of a relay, with OpenSSL, and what it shares with the first.
TLSRELAY_OWN := $(wildcard src/engine/tlsrelay/*.c)
TLSRELAY_SRC := $(TLSRELAY_OWN) $(addprefix src/engine/relay/,http.c inject.c lockdown.c policy.c upstream_url.c watch.c)
TLSRELAY_OBJ := $(TLSRELAY_SRC:%.c=build/tlsrelay/obj/%.o)

missing = $(if $(strip $(2)),,@echo 'make: $(1) has no sources' >&2; exit 1)

# Objects are made anew when the flags are others than last time.
quoted = '$(subst ','\'',$(1))'
.PHONY: FORCE
FORCE:
$(O)/flags: FLAGS = $(CC) $(LIB_CFLAGS) $(CURL_CFLAGS)
$(L)/obj/flags: FLAGS = $(CC) $(LIB_CFLAGS) $(LUA_CFLAGS)
$(L)/obj/compiler: FLAGS = $(shell command -v "$(LUA_BIN)")
$(O)/flags $(L)/obj/flags $(L)/obj/compiler: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(call quoted,$(FLAGS)) | cmp -s - $@ || printf '%s\n' $(call quoted,$(FLAGS)) > $@

.PHONY: all core http server guest supervisor
all: core http server
core: $(L)/sandbar/core.so
http: $(L)/sandbar/http.so
server: $(L)/sandbar/server.so
guest: build/guest/pid1
supervisor: build/supervisor/supervisor

$(L)/sandbar/core.so: $(RUNTIME_OBJ) $(ENGINE_OBJ) $(IMAGE_OBJ) $(BIND_OBJ) $(CARRIED_OBJ)
	$(call missing,src/lua,$(BIND_SRC))
	$(call missing,src/runtime,$(RUNTIME_SRC))
	@mkdir -p $(@D)
	$(call show,link)$(CC) -o $@ $^ $(LIB_LDFLAGS) -ldl

$(L)/sandbar/http.so: $(HTTP_OBJ) $(HTTP_BIND_OBJ)
	$(call missing,src/http,$(HTTP_SRC))
	$(call missing,src/lua/http.c,$(HTTP_BIND_SRC))
	@mkdir -p $(@D)
	$(call show,link)$(CC) -o $@ $^ $(LIB_LDFLAGS) $(CURL_LIBS) $(WSLAY_LIBS) $(PROTOBUF_LIBS)

$(L)/sandbar/server.so: $(SERVER_OBJ) $(SERVER_BIND_OBJ)
	$(call missing,src/server,$(SERVER_SRC))
	$(call missing,src/lua/server.c,$(SERVER_BIND_SRC))
	@mkdir -p $(@D)
	$(call show,link)$(CC) -o $@ $^ $(LIB_LDFLAGS) $(PARSER_LIBS) $(SSL_LIBS)

# Everything without Lua, for the unit tests in C: the linker takes what a test needs.
$(O)/libcore.a: $(RUNTIME_OBJ) $(ENGINE_OBJ) $(IMAGE_OBJ)
	@rm -f $@
	$(call show,ar)$(AR) rcs $@ $^

$(O)/src/http/%.o: src/http/%.c $(O)/flags
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) $(CURL_CFLAGS) -MMD -MP -c -o $@ $<
$(O)/src/e2b/%.o: src/e2b/%.c $(O)/flags | $(PROTO_C)
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) $(CURL_CFLAGS) $(PROTOBUF_CFLAGS) -Ibuild/e2b -MMD -MP -c -o $@ $<
$(PROTO_C): build/e2b/%.pb-c.c: src/e2b/%.proto
	@mkdir -p $(@D)
	$(call show,protoc)$(PROTOC_C) --proto_path=$(<D) --c_out=$(@D) $<
# The generator's initializers of oneofs lack braces.
$(O)/e2b/%.o: build/e2b/%.c $(O)/flags
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) $(PROTOBUF_CFLAGS) -Wno-missing-braces -MMD -MP -c -o $@ $<
$(O)/src/%.o: src/%.c $(O)/flags
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) -MMD -MP -c -o $@ $<
$(O)/src/engine/%.S.o: src/engine/%.S build/guest/pid1 build/supervisor/supervisor build/unpack/unpack
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) -I. -MMD -MP -c -o $@ $<
$(L)/obj/src/lua/%.o: src/lua/%.c $(L)/obj/flags
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) $(LUA_CFLAGS) -MMD -MP -c -o $@ $<

# The modules in Lua as core.so carries them, compiled by the Lua that it is built for; nothing where that is not
# installed. init.lua is not among them: it has been read by the time it asks for them.
CARRIED := $(filter-out lua/sandbar/init.lua,$(LUA_SRC))
$(L)/modules: $(CARRIED) $(wildcard src/lua/carried/*.lua) $(L)/obj/compiler
	@mkdir -p $(@D)
	$(call show,modules)if command -v "$(LUA_BIN)" > /dev/null; then \
		"$(LUA_BIN)" src/lua/carried/pack.lua $@ src/lua/carried/sample.lua $(CARRIED); \
		else echo "no $(LUA_BIN): the sources will be compiled when they are loaded" >&2; : > $@; fi
$(CARRIED_OBJ): src/lua/carried/bytes.S $(L)/modules
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) -DMODULES='"$(L)/modules"' -c -o $@ $<

# Pid 1 of a sandbox: its own flags (PID1_CFLAGS, PID1_LDFLAGS), no C library.
-include src/guest/flags.mk
build/guest/pid1: $(GUEST_OBJ)
	$(call missing,src/guest,$(GUEST_SRC))
	$(call show,link)$(CC) -o $@.elf $^ $(PID1_LDFLAGS)
	@objcopy --strip-all $@.elf $@
build/guest/obj/%.o: %
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) -std=c11 $(WARN) -Isrc $(PID1_CFLAGS) -MMD -MP -c -o $@ $<

# The supervisor, with the system call filter that is compiled at build time.
build/supervisor/supervisor: $(SUPERVISOR_OBJ)
	$(call missing,src/engine/supervisor,$(SUPERVISOR_SRC))
	$(call show,link)$(CC) -static -o $@.elf $^ -Wl,-z,relro -Wl,-z,now $(LDFLAGS)
	@objcopy --strip-all $@.elf $@
build/supervisor/obj/tlsimage.o: src/engine/supervisor/tlsimage.S build/tlsrelay/tlsrelay
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) -I. -c -o $@ $<
build/tlsrelay/tlsrelay: $(TLSRELAY_OBJ)
	$(call missing,src/engine/tlsrelay,$(TLSRELAY_OWN))
	$(call show,link)$(CC) -pie -o $@.elf $^ -Wl,-z,relro -Wl,-z,now $(LDFLAGS) $(SSL_LIBS)
	@objcopy --strip-all $@.elf $@
build/tlsrelay/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(BASE_CFLAGS) $(OPT) $(HARDEN) -fPIE -DSB_TLSRELAY -MMD -MP -c -o $@ $<
build/supervisor/obj/%.o: %.c build/filter/filter.h
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(BASE_CFLAGS) $(OPT) $(HARDEN) -Ibuild/filter -MMD -MP -c -o $@ $<

# What unpacks archives, in a sandbox of its own; it loads libarchive when it is run.
build/unpack/unpack: src/unpack/main.c
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(OPT) $(HARDEN) -MMD -MP -MF $@.d -o $@.elf $< -Wl,-z,relro -Wl,-z,now $(LDFLAGS) -ldl
	@objcopy --strip-all $@.elf $@

build/filter/generate: $(FILTER_SRC)
	$(call missing,src/engine/filter,$(FILTER_SRC))
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(SECCOMP_CFLAGS) -MMD -MP -MF $@.d -o $@ $(FILTER_SRC) $(SECCOMP_LIBS)
build/filter/filter.h: build/filter/generate
	$(call show,filter)build/filter/generate > $@.new
	@mv $@.new $@


# --- tests ----------------------------------------------------------------------------------------

# spec/c/*_test.c are programs; they link against everything that knows no Lua. spec/c/*_drive.c drive one of
# the engine's programs by hand: check runs those it knows, all are for measuring and looking.
C_TESTS := $(wildcard spec/c/*_test.c spec/c/*_drive.c)
.SECONDARY: $(C_TESTS:spec/c/%.c=$(O)/spec/c/%.o)
C_TEST_BIN := $(C_TESTS:spec/c/%.c=$(B)/c/%)
.PHONY: c-tests check check-long tsan asan valgrind demo bench bench-server bench-e2b fuzz docs
c-tests: $(C_TEST_BIN) build/spec/bound

$(O)/spec/c/%.o: spec/c/%.c $(O)/flags
	@mkdir -p $(@D)
	$(call show,cc,$<)$(CC) $(LIB_CFLAGS) -Ispec/c -MMD -MP -c -o $@ $<
$(B)/c/%: $(O)/spec/c/%.o $(O)/libcore.a
	@mkdir -p $(@D)
	$(call show,link)$(CC) -o $@ $(filter %.o,$^) $(O)/libcore.a -pthread -ldl $(C_TEST_LIBS) $(SANITIZE) $(LDFLAGS)
$(B)/c/server_test: $(SERVER_SRC:%.c=$(O)/%.o)
$(B)/c/server_test: C_TEST_LIBS = $(PARSER_LIBS) $(SSL_LIBS)
# Programs the specs use: what bounds a suite, a web server, attacks tried from inside a sandbox.
SPEC_PROGRAMS := $(patsubst spec/support/%.c,build/spec/%,$(wildcard spec/support/*.c)) \
	build/spec/probe \
	$(patsubst spec/support/preload/%.c,build/spec/%.so,$(wildcard spec/support/preload/*.c))
.PHONY: spec-programs npm
npm:
	@.ci/npm
spec-programs: npm $(SPEC_PROGRAMS) $(if $(V),,build/spec/next/sandbar/core.so build/spec/later/sandbar/core.so)

# The library and its supervisor as later versions of the protocol and the release would be: of what there is only
# what speaks of versions is made anew.
LATER_next := -DSB_PROTO_VERSION=2 -USB_RELEASE -DSB_RELEASE=2000
LATER_later := -DSB_PROTO_VERSION=3 -USB_RELEASE -DSB_RELEASE=3000
LATER_SUPERVISOR := src/engine/supervisor/hello.c src/engine/supervisor/handover.c
LATER_CLIENT := src/engine/client.c src/engine/lifecycle.c
define later_rules
$$(LATER_SUPERVISOR:%.c=build/spec/$(1)/%.o): build/spec/$(1)/%.o: %.c $$(SUPERVISOR_OBJ)
	@mkdir -p $$(@D)
	$$(call show,cc,$$@)$$(CC) $$(BASE_CFLAGS) $$(LATER_$(1)) $$(OPT) $$(HARDEN) -Ibuild/filter -c -o $$@ $$<
$$(LATER_CLIENT:%.c=build/spec/$(1)/%.o): build/spec/$(1)/%.o: %.c $$(ENGINE_OBJ)
	@mkdir -p $$(@D)
	$$(call show,cc,$$@)$$(CC) $$(LIB_CFLAGS) $$(LATER_$(1)) -c -o $$@ $$<
build/spec/$(1)/supervisor: $$(LATER_SUPERVISOR:%.c=build/spec/$(1)/%.o) $$(SUPERVISOR_OBJ)
	@mkdir -p $$(@D)
	$$(call show,link)$$(CC) -static -o $$@ $$(LATER_SUPERVISOR:%.c=build/spec/$(1)/%.o) \
		$$(filter-out $$(LATER_SUPERVISOR:%.c=build/supervisor/obj/%.o),$$(SUPERVISOR_OBJ)) $$(LDFLAGS)
build/spec/$(1)/images.o: $$(ENGINE_ASM) build/guest/pid1 build/unpack/unpack build/spec/$(1)/supervisor
	$$(call show,cc,$$@)$$(CC) -DSUPERVISOR=build/spec/$(1)/supervisor -c -o $$@ $$(ENGINE_ASM)
build/spec/$(1)/sandbar/core.so: $$(LATER_CLIENT:%.c=build/spec/$(1)/%.o) build/spec/$(1)/images.o $(L)/sandbar/core.so
	@mkdir -p $$(@D)
	$$(call show,link)$$(CC) -o $$@ $$(LATER_CLIENT:%.c=build/spec/$(1)/%.o) build/spec/$(1)/images.o \
		$$(filter-out $$(LATER_CLIENT:%.c=$(O)/%.o),$$(ENGINE_OBJ)) $$(RUNTIME_OBJ) $$(BIND_OBJ) $$(CARRIED_OBJ) \
		$$(LIB_LDFLAGS) -ldl
endef
$(eval $(call later_rules,next))
$(eval $(call later_rules,later))
build/spec/%.so: spec/support/preload/%.c
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(OPT) -fPIC -shared -o $@ $< -ldl
build/spec/%: spec/support/%.c
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(OPT) -static -pthread -o $@ $<
build/spec/probe: $(wildcard spec/escape/*.c) spec/escape/probe.h
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(OPT) -static -pthread -o $@ $(filter %.c,$^)

MAKE_HERE = $(MAKE) --no-print-directory
JOBS = -j$(shell nproc 2>/dev/null || echo 2)

# What check needs built: every Lua, the sanitizer build, the tests in C. One Lua after the other: they share objects.
.PHONY: check-build
check-build:
	@for lua in $(LUAS); do $(MAKE_HERE) $(JOBS) LUA=$$lua V= all || exit 1; done
	@$(MAKE_HERE) $(JOBS) LUA=5.4 V= c-tests spec-programs
	@$(MAKE_HERE) $(JOBS) LUA=5.4 V=asan all c-tests fuzz-programs

check: deps
	@rm -rf build/check
	@$(MAKE_HERE) check-build
	@spec/run check

check-long: deps
	@.ci/npm adapters
	@rm -rf build/check
	@$(MAKE_HERE) check-build
	@spec/run long

asan:
	@$(MAKE_HERE) V=asan LUA=5.4 all c-tests spec-programs
	@spec/run --asan $$(grep -LE '^-- check: (long|only 5.4|no asan)' $$(find spec -name '*_spec.lua'))

tsan:
	@$(MAKE_HERE) V=tsan c-tests spec-programs
	@spec/run tsan

valgrind:
	@$(MAKE_HERE) V= c-tests spec-programs
	@spec/run valgrind

# --- demo, bench ----------------------------------------------------------------------------------

RUN_LUA = LUA_PATH="$(CURDIR)/lua/?.lua;$(CURDIR)/lua/?/init.lua;;" LUA_CPATH="$(CURDIR)/$(L)/?.so;;" $(LUA_BIN)

demo: demo-deps
	@$(MAKE_HERE) all
	@$(RUN_LUA) examples/quickstart.lua

# make bench CASES="exec files" SANDBAR_PAIRS=300. The programs it compares with are built beside it.
BENCH_TOOLS := $(patsubst bench/%.c,build/bench/%,$(filter-out bench/benchlib.c,$(wildcard bench/*.c)))
build/bench/benchlib.so: bench/benchlib.c
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(LIB_CFLAGS) $(LUA_CFLAGS) $(CURL_CFLAGS) -fvisibility=default -Wno-missing-prototypes -o $@ $< -shared -pthread $(CURL_LIBS)
build/bench/%: bench/%.c
	@mkdir -p $(@D)
	$(call show,link)$(CC) $(BASE_CFLAGS) $(OPT) -static -pthread -o $@ $<
bench-server: CASES = server
bench-server: bench
bench-e2b: CASES = e2b
bench-e2b: npm bench
bench: all $(BENCH_TOOLS) build/bench/benchlib.so
	@! $(PKG_CONFIG) --exists luajit || $(MAKE_HERE) LUA=luajit V= all # for nginx
	@LUA_PATH="$(CURDIR)/lua/?.lua;$(CURDIR)/lua/?/init.lua;$(CURDIR)/bench/?.lua;;" \
		LUA_CPATH="$(CURDIR)/$(L)/?.so;$(CURDIR)/build/bench/?.so;;" \
		SANDBAR_BENCH_TOOLS="$(CURDIR)/build/bench" $(LUA_BIN) bench/run.lua $(CASES)

# Each spec/fuzz/*.c is a libFuzzer target (LLVMFuzzerTestOneInput); FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
FUZZ_BIN := $(patsubst spec/fuzz/%.c,build/fuzz/%,$(wildcard spec/fuzz/*.c))
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_BIN)
build/fuzz/%: spec/fuzz/%.c
	@mkdir -p $(@D)
	$(call show,link)$(CLANG) -std=c11 -D_GNU_SOURCE -g -O1 -Isrc -Ispec -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=undefined -MMD -MP -MF $@.d -o $@ $< $(FUZZ_LIBS)
build/fuzz/relay_session: FUZZ_LIBS = $(SSL_LIBS)
build/fuzz/server_requests: FUZZ_LIBS = $(PARSER_LIBS)
build/fuzz/e2b_messages: FUZZ_LIBS = -Ibuild/e2b $(PROTOBUF_CFLAGS) $(PROTO_C) $(PROTOBUF_LIBS)
build/fuzz/e2b_messages: | $(PROTO_C)
fuzz: fuzz-programs all
	@for f in $(FUZZ_BIN); do mkdir -p $$f.corpus; echo "fuzz $$f for $(FUZZ_SECONDS) s"; \
		$$f -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$$f. -verbosity=0 -print_final_stats=1 \
			$$f.corpus || exit 1; done
	@echo "fuzz the server's parsers in Lua for $(FUZZ_SECONDS) s"; \
		SPEC_FUZZ_SECONDS=$(FUZZ_SECONDS) spec/run spec/server/mutations_spec.lua

# Checks what can be checked of the documentation: links between pages.
docs:
	@.ci/links README.md CONTRIBUTING.md CHANGELOG.md docs

# --- lint -----------------------------------------------------------------------------------------

C_FILES := $(shell find src spec bench -name '*.[ch]' 2>/dev/null | LC_ALL=C sort)
HOSTED_C := $(RUNTIME_SRC) $(ENGINE_SRC) $(BIND_SRC) $(HTTP_SRC) $(HTTP_BIND_SRC) $(SERVER_SRC) \
	$(SERVER_BIND_SRC) src/unpack/main.c \
	$(filter-out $(ENGINE_SRC),$(SUPERVISOR_SRC)) $(TLSRELAY_OWN)
LUA_FILES := $(shell find lua spec examples bench types rockspec src -name '*.lua' 2>/dev/null | LC_ALL=C sort)

.PHONY: lint lint-format lint-tidy lint-cppcheck lint-luacheck lint-banned format
lint: lint-format lint-tidy lint-cppcheck lint-luacheck lint-banned
lint-format:
	@clang-format --dry-run -Werror $(C_FILES)
# One stamp a file, made anew when the file or one of its headers (its object) is newer.
TIDY_SHARED := $(patsubst %.c,build/tidy/%.ok,$(RUNTIME_SRC) $(ENGINE_SRC) $(HTTP_SRC) $(SERVER_SRC))
TIDY_BIND := $(patsubst %.c,build/tidy/%.ok,$(sort $(BIND_SRC) $(HTTP_BIND_SRC) $(SERVER_BIND_SRC)))
TIDY_SUPERVISOR := $(patsubst %.c,build/tidy/%.ok,$(filter-out $(ENGINE_SRC),$(SUPERVISOR_SRC)))
TIDY_TLSRELAY := $(patsubst %.c,build/tidy/%.ok,$(TLSRELAY_OWN))
TIDY_GUEST := $(patsubst %.c,build/tidy/%.ok,$(filter %.c,$(GUEST_SRC)))
TIDY_UNPACK := build/tidy/src/unpack/main.ok
TIDY_BENCH := $(patsubst %.c,build/tidy/%.ok,$(filter-out bench/benchlib.c,$(wildcard bench/*.c)))
TIDY_FLAGS := -std=c11 -D_GNU_SOURCE -Isrc -Ibuild/e2b -DSB_VERSION='""'
tidy = @mkdir -p $(@D); clang-tidy --quiet $< -- $(1) 2>/dev/null && touch $@
$(TIDY_SHARED): build/tidy/%.ok: %.c build/obj/%.o .clang-tidy
	$(call tidy,$(TIDY_FLAGS))
$(TIDY_BIND): build/tidy/%.ok: %.c build/5.4/obj/%.o .clang-tidy
	$(call tidy,$(TIDY_FLAGS) $(LUA_CFLAGS))
$(TIDY_SUPERVISOR): build/tidy/%.ok: %.c build/supervisor/obj/%.o .clang-tidy
	$(call tidy,$(TIDY_FLAGS) -Ibuild/filter)
$(TIDY_TLSRELAY): build/tidy/%.ok: %.c build/tlsrelay/obj/%.o .clang-tidy
	$(call tidy,$(TIDY_FLAGS))
$(TIDY_UNPACK): build/tidy/%.ok: %.c build/unpack/unpack .clang-tidy
	$(call tidy,$(TIDY_FLAGS))
$(TIDY_BENCH): build/tidy/%.ok: %.c .clang-tidy
	$(call tidy,-std=c11 -D_GNU_SOURCE)
$(TIDY_GUEST): build/tidy/%.ok: %.c build/guest/obj/%.c.o .clang-tidy
	$(call tidy,-std=c11 -ffreestanding -fno-builtin -Isrc)
.PHONY: tidy-files
tidy-files: $(TIDY_SHARED) $(TIDY_BIND) $(TIDY_SUPERVISOR) $(TIDY_TLSRELAY) $(TIDY_UNPACK) $(TIDY_BENCH) $(TIDY_GUEST)
# check runs it with LINT_JOBS=1 beside the suites.
LINT_JOBS ?= 2
lint-tidy:
	@$(MAKE_HERE) -k -j$(LINT_JOBS) LUA=5.4 V= tidy-files
# Not src/guest: freestanding code has its own SIGKILL and the like, cppcheck knows only the C library's.
lint-cppcheck:
	@cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
		--suppressions-list=.ci/cppcheck.txt -D__linux__ -D__x86_64__ -D_GNU_SOURCE -DSB_VERSION='""' -Isrc \
		-j $(LINT_JOBS) $(HOSTED_C) $(FILTER_SRC)
lint-luacheck:
	@luacheck --quiet --no-color --no-cache $(LUA_FILES)
lint-banned:
	@.ci/banned
format:
	clang-format -i $(C_FILES)

# --- install --------------------------------------------------------------------------------------

PREFIX ?= /usr/local
INST_LUADIR ?= $(PREFIX)/share/lua/$(LUA_ABI)
INST_LIBDIR ?= $(PREFIX)/lib/lua/$(LUA_ABI)
INST_BINDIR ?= $(PREFIX)/bin
INSTALL ?= install
MAIN := src/main/sandbar.lua

# A ~ that the shell left as it is would be the name of a directory.
ifneq ($(filter ~%,$(PREFIX) $(DESTDIR)),)
$(error $(filter ~%,$(PREFIX) $(DESTDIR)): the shell has not replaced the ~; write "$$HOME/...")
endif

.PHONY: install uninstall rock
install: all
	@for f in $(LUA_SRC:lua/%=%) $(PAGE_SRC:lua/%=%); do \
		$(INSTALL) -D -m 644 lua/$$f "$(DESTDIR)$(INST_LUADIR)/$$f" || exit 1; done
	$(INSTALL) -D -m 755 $(L)/sandbar/core.so "$(DESTDIR)$(INST_LIBDIR)/sandbar/core.so"
	$(INSTALL) -D -m 755 $(L)/sandbar/http.so "$(DESTDIR)$(INST_LIBDIR)/sandbar/http.so"
	$(INSTALL) -D -m 755 $(L)/sandbar/server.so "$(DESTDIR)$(INST_LIBDIR)/sandbar/server.so"
	$(INSTALL) -d "$(DESTDIR)$(INST_BINDIR)"
	sed '1s|.*|#!/usr/bin/env $(LUA_BIN)|; s|^local prefix = .*|local prefix = { lua = "$(INST_LUADIR)", c = "$(INST_LIBDIR)" }|' \
		$(MAIN) > "$(DESTDIR)$(INST_BINDIR)/sandbar"
	chmod 755 "$(DESTDIR)$(INST_BINDIR)/sandbar"

# The program may have been replaced by another Lua version's.
uninstall:
	rm -rf "$(DESTDIR)$(INST_LUADIR)/sandbar" "$(DESTDIR)$(INST_LIBDIR)/sandbar"
	rm -f "$(DESTDIR)$(INST_LUADIR)/sandbar.lua"
	! grep -sqF '"$(INST_LUADIR)"' "$(DESTDIR)$(INST_BINDIR)/sandbar" || rm -f "$(DESTDIR)$(INST_BINDIR)/sandbar"

# A source rock and an installation into build/rock, to see that it works.
rock:
	rm -rf build/rock
	luarocks --lua-version $(LUA_ABI) lint rockspec/sandbar-scm-1.rockspec
	luarocks --lua-version $(LUA_ABI) make --deps-mode none --tree build/rock rockspec/sandbar-scm-1.rockspec

# --- packages -------------------------------------------------------------------------------------

# Debian 12. What building for Lua 5.4 and running takes, without its tests.
DEMO_DEPS := gcc make pkg-config binutils libc6-dev lua5.4 liblua5.4-dev \
	libcurl4-openssl-dev libssl-dev libseccomp-dev libwslay-dev libhttp-parser-dev \
	libprotobuf-c-dev protobuf-c-compiler libarchive13 ca-certificates python3 procps uidmap e2fsprogs
# luajit2 is the branch nginx's Lua module needs; it provides the `luajit` command and replaces the stock luajit.
# bubblewrap, crun, passt (pasta) and wrk are peers in the benchmarks.
DEPS := $(DEMO_DEPS) \
	lua5.1 lua5.2 lua5.3 luajit2 \
	liblua5.1-0-dev liblua5.2-dev liblua5.3-dev libluajit2-5.1-dev \
	lua-busted lua-check lua-cjson lua-filesystem lua-socket lua-system luarocks \
	curl iproute2 \
	clang clang-format clang-tidy cppcheck valgrind \
	nginx-light libnginx-mod-http-lua lua-resty-core lua-resty-lrucache \
	bubblewrap crun passt wrk
# What spec/server/page_spec.lua looks at the page with; it is skipped where there is none. 100 MB to fetch.
BROWSER := chromium-headless-shell
.PHONY: deps demo-deps browser
deps:
	@.ci/deps $(DEPS)
demo-deps:
	@.ci/deps $(DEMO_DEPS)
browser:
	@.ci/deps $(BROWSER)

# --- the rest -------------------------------------------------------------------------------------

-include $(shell find build -name '*.d' 2>/dev/null)

.PHONY: clean help
clean:
	rm -rf build

help:
	@echo 'make [all] [LUA=5.4|luajit|5.1|5.2|5.3]   build the C modules into build/<lua>/'
	@echo 'make demo        install packages if needed, build, run examples/quickstart.lua'
	@echo 'make check       install packages if needed, build, run every test and the linters (within 20 minutes)'
	@echo '                 as root it also runs the specs as the system user sandbar-test, which it makes,'
	@echo '                 with subordinate ids, if it is missing'
	@echo 'make check-long  long waits, many repetitions, whole scenarios (within 60 minutes)'
	@echo 'make deps        install the Debian packages of check that are missing (root), or say which; demo-deps: of demo'
	@echo 'make browser     install the browser that the specs of the page of `sandbar serve` use (root)'
	@echo 'make install     PREFIX=/usr/local DESTDIR= LUA=...;  make uninstall takes it away'
	@echo 'make rock        lint the rockspec and install the rock into build/rock'
	@echo 'make lint        clang-format, clang-tidy, cppcheck, luacheck, banned functions;  make format'
	@echo 'make bench       measure and print a table'
	@echo 'make bench-server  the same of sandbar serve: beside nginx, and as the SDK sees it'
	@echo 'make bench-e2b     the same of hosted sandboxes: beside the SDK and curl'
	@echo 'make asan        core specs and C tests under the address and undefined behaviour sanitizers'
	@echo 'make tsan        C tests under the thread sanitizer;  make valgrind: under valgrind'
	@echo 'make fuzz        FUZZ_SECONDS=60: the targets in spec/fuzz'
	@echo 'make docs        check the documentation;  make clean'
	@echo 'spec/run FILE... runs single spec files (spec/run --help), after make and make spec-programs'
