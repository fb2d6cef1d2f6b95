/* What the benchmark needs from C: clocks, peers that are plain system calls, and readers to compare with.
 * A Lua module of its own, never installed. */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int l_now(lua_State *L)
{
    lua_pushnumber(L, now());
    return 1;
}

/* spawn{ "prog", "arg", ... } -> seconds from posix_spawn to reaped, wait status. Output is discarded. */
static int l_spawn(lua_State *L)
{
    char *argv[64];
    int n = 0, status = -1, failed;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    double start;

    luaL_checktype(L, 1, LUA_TTABLE);
    for (; n < 63; n++) {
        lua_rawgeti(L, 1, n + 1);
        if (lua_isnil(L, -1))
            break;
        argv[n] = (char *)luaL_checkstring(L, -1);
    }
    argv[n] = NULL;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    start = now();
    failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (failed == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    lua_pushnumber(L, now() - start);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0)
        return luaL_error(L, "cannot start %s: %s", argv[0], strerror(failed));
    lua_pushinteger(L, status);
    return 2;
}

/* produce(argv-table, pipe bytes) -> seconds, bytes: what a C reader takes from a child's pipe. */
static int l_drain(lua_State *L)
{
    static char buf[262144];
    const char *line = luaL_checkstring(L, 1);
    char *argv[] = {"sh", "-c", (char *)line, NULL};
    int fds[2], status;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    double start, bytes = 0;
    ssize_t n;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return luaL_error(L, "pipe: %s", strerror(errno));
    (void)fcntl(fds[0], F_SETPIPE_SZ, 262144);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    start = now();
    if (posix_spawnp(&pid, "sh", &actions, NULL, argv, environ) != 0)
        return luaL_error(L, "cannot start sh");
    close(fds[1]);
    while ((n = read(fds[0], buf, sizeof buf)) > 0)
        bytes += (double)n;
    lua_pushnumber(L, now() - start);
    lua_pushnumber(L, bytes);
    close(fds[0]);
    waitpid(pid, &status, 0);
    posix_spawn_file_actions_destroy(&actions);
    return 2;
}

/* Puts this process into a mount namespace of its own without the given mount (crun refuses hybrid
 * cgroup hosts unless the v2 mount is out of sight). */
static int l_hide_mount(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        umount2(path, MNT_DETACH) != 0) {
        lua_pushnil(L);
        lua_pushstring(L, strerror(errno));
        return 2;
    }
    lua_pushboolean(L, 1);
    return 1;
}

static int l_mount_overlay(lua_State *L)
{
    const char *at = luaL_checkstring(L, 1), *options = luaL_checkstring(L, 2);
    if (mount("overlay", at, "overlay", 0, options) != 0)
        return luaL_error(L, "overlay: %s", strerror(errno));
    return 0;
}

static int l_umount(lua_State *L)
{
    if (umount2(luaL_checkstring(L, 1), MNT_DETACH) != 0)
        return luaL_error(L, "umount: %s", strerror(errno));
    return 0;
}

static size_t swallow(char *data, size_t size, size_t count, void *total)
{
    (void)data;
    *(double *)total += (double)(size * count);
    return size * count;
}

/* As a program that reads 256 KiB at a time has to. */
static size_t keep(char *data, size_t size, size_t count, void *total)
{
    static char buf[262144];
    static size_t used;
    size_t len = size * count;
    for (size_t at = 0; at < len;) {
        size_t n = sizeof buf - used < len - at ? sizeof buf - used : len - at;
        memcpy(buf + used, data + at, n);
        used = (used + n) % sizeof buf;
        at += n;
    }
    *(double *)total += (double)len;
    return len;
}

/* A kept libcurl handle per state: fetch(url [, keep]) -> seconds, bytes. */
static int l_fetch(lua_State *L)
{
    CURL **slot = lua_touserdata(L, lua_upvalueindex(1));
    const char *url = luaL_checkstring(L, 1);
    double start, total = 0;
    CURLcode code;

    if (*slot == NULL)
        *slot = curl_easy_init();
    curl_easy_setopt(*slot, CURLOPT_URL, url);
    curl_easy_setopt(*slot, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(*slot, CURLOPT_WRITEFUNCTION, lua_toboolean(L, 2) ? keep : swallow);
    curl_easy_setopt(*slot, CURLOPT_WRITEDATA, &total);
    start = now();
    code = curl_easy_perform(*slot);
    if (code != CURLE_OK)
        return luaL_error(L, "%s: %s", url, curl_easy_strerror(code));
    lua_pushnumber(L, now() - start);
    lua_pushnumber(L, total);
    return 2;
}

/* pin(pid, processor): that process (0: this thread) runs there and nowhere else. */
static int l_pin(lua_State *L)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)luaL_checkinteger(L, 2), &set);
    if (sched_setaffinity((pid_t)luaL_checkinteger(L, 1), sizeof set, &set) != 0)
        return luaL_error(L, "sched_setaffinity: %s", strerror(errno));
    return 0;
}

static int l_pid(lua_State *L)
{
    lua_pushinteger(L, getpid());
    return 1;
}

/* unpin([pid]): that process, or this thread, runs anywhere again. */
static int l_unpin(lua_State *L)
{
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    if (sched_setaffinity((pid_t)luaL_optinteger(L, 1, 0), sizeof set, &set) != 0)
        return luaL_error(L, "sched_setaffinity: %s", strerror(errno));
    return 0;
}

/* start{...} -> pid, for peers that run beside us; stop(pid[, signal]). With session = true in a session of its own,
 * as whatever runs in a sandbox: where the kernel groups by sessions, its scheduler prefers the caller's. */
static int l_start(lua_State *L)
{
    char *argv[16];
    int n = 0, failed;
    pid_t pid;
    posix_spawnattr_t attr;
    luaL_checktype(L, 1, LUA_TTABLE);
    for (; n < 15; n++) {
        lua_rawgeti(L, 1, n + 1);
        if (lua_isnil(L, -1))
            break;
        argv[n] = (char *)luaL_checkstring(L, -1);
    }
    argv[n] = NULL;
    posix_spawnattr_init(&attr);
    lua_getfield(L, 1, "session");
    posix_spawnattr_setflags(&attr, (short)(lua_toboolean(L, -1) ? POSIX_SPAWN_SETSID : 0));
    failed = posix_spawnp(&pid, argv[0], NULL, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    if (failed != 0)
        return luaL_error(L, "cannot start %s", argv[0]);
    lua_pushinteger(L, pid);
    return 1;
}

/* sync(path) -> seconds: everything of its file system to the disk. */
static int l_sync(lua_State *L)
{
    int fd = open(luaL_checkstring(L, 1), O_RDONLY | O_CLOEXEC);
    double start = now();
    if (fd < 0 || syncfs(fd) < 0)
        return luaL_error(L, "sync: %s", strerror(errno));
    lua_pushnumber(L, now() - start);
    close(fd);
    return 1;
}

static int l_stop(lua_State *L)
{
    pid_t pid = (pid_t)luaL_checkinteger(L, 1);
    int status;
    kill(pid, (int)luaL_optinteger(L, 2, SIGKILL));
    waitpid(pid, &status, 0);
    return 0;
}

static const luaL_Reg functions[] = {
    {"now", l_now},
    {"spawn", l_spawn},
    {"drain", l_drain},
    {"hide_mount", l_hide_mount},
    {"mount_overlay", l_mount_overlay},
    {"umount", l_umount},
    {"sync", l_sync},
    {"start", l_start},
    {"pid", l_pid},
    {"pin", l_pin},
    {"unpin", l_unpin},
    {"stop", l_stop},
    {NULL, NULL},
};

int luaopen_benchlib(lua_State *L)
{
    CURL **slot;
    luaL_newlib(L, functions);
    slot = lua_newuserdata(L, sizeof *slot);
    *slot = NULL;
    lua_pushcclosure(L, l_fetch, 1);
    lua_setfield(L, -2, "fetch");
    return 1;
}
