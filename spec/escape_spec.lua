-- check: only 5.4
-- check: crowds
-- check: limit 300
-- The escape suite: what a hostile program tries from inside, and what the host sees of it. The attacks themselves are
-- spec/escape; each is first shown to work in a place that lacks what the sandbox is defended by (probe.h), and then
-- tried in sandboxes by an ordinary user, by root, and by what a set-user-ID program gets where that is allowed.
-- Elsewhere: what is looked at from outside (escape_host_spec), attacks through the network (network_spec), the file
-- calls (faults_files_spec, upload_spec, rootfs_spec), terminals (terminal_spec), pids that are given out again (wrap_spec), a supervisor that is killed
-- anywhere (kills_spec), a pid 1 that lies (lying_init_spec, engine_exec_test.c, the fuzz targets).
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

local LONG = (os.getenv("SPEC_LONG") or "") ~= ""
local PROBE = (os.getenv("SPEC_BUILD") or "build") .. "/spec/probe"

--- What a program tries, the probe, its argument (a string, or a function).
local PROBES = {
  { "writes a kernel setting", "sysctls" },
  { "mounts with the old calls, remounts, unmounts a mask", "mounts_old" },
  { "mounts with the new calls", "mounts_new" },
  { "makes or opens a device node", "devices" },
  { "leaves a chroot through a kept directory", "chroot_out" },
  { "opens files by handle", "handles" },
  { "reads kernel secrets under /proc and /sys, or the host's files", "secrets" },
  { "finds the state directory", "upper", function() return helper.root() end },
  { "writes the notes of the overlay", "overlay_notes" },
  { "reads, writes or debugs pid 1", "init_memory" },
  { "kills or stops pid 1", "kill_init" },
  { "takes over a worker of pid 1, which holds a connection to a caller", "workers", function() return "1" end },
  { "sees or signals processes of others", "strangers" },
  { "finds an inherited descriptor", "descriptors", function() return helper.scratch() end },
  { "pushes input into a terminal, or loads a line discipline", "terminals" },
  { "makes or enters a namespace, or asks for what is above it", "namespaces" },
  { "holds a capability it should not", "capabilities" },
  { "uses the 32-bit and x32 system calls", "other_abis" },
  { "calls what the filter forbids", "forbidden_calls" },
  { "breaks anything by calling every system call with zeroes", "every_call", LONG and function() return "1000" end },
  { "switches off address randomisation", "personalities" },
  { "sees or makes keys", "keyrings" },
  { "opens sockets of other families and protocols", "families" },
  { "changes the network's configuration", "routes" },
  { "forks without bound", "fork_bomb", function() return "128" end },
  { "makes threads without bound", "thread_bomb", function() return "128" end },
  { "hoards inotify instances", "inotify_hoard", function() return "64" end },
  { "leaves or changes its control groups", "groups" },
  { "raises its limits, or has the host dump its core", "limits_up" },
}

local function argument(entry)
  return entry[3] and entry[2] .. "=" .. entry[3]() or entry[2]
end

--- { name = { status, text } } of what a run of the program said.
local function results(text)
  local all = {}
  for name, said, status in text:gmatch("# ([%w_]+)\n(.-)# %1: (%d+)\n") do
    all[name] = { status = tonumber(status), text = said }
  end
  for name in text:gmatch("# ([%w_]+): 2\n") do
    all[name] = all[name] or { status = 2, text = "" }
  end
  return all
end

describe("escape:", function()
  helper.guard { each = false, seconds = 60 } -- out here: its last look comes after our teardown, and the trash is deep
describe("", function()
  local sandboxes, box, has_root

  local function equip(spec)
    local made = sandbar.assert(sandboxes:create_scoped(spec))
    sandbar.assert(made.files:upload(PROBE, "/home/user/probe", { mode = "755" }))
    return made
  end

  setup(function()
    sandboxes = helper.open()
    box = equip { limits = { processes = 128 } }
    local as_root = box:exec({ "true" }, { user = "root" })
    has_root = as_root and as_root.ok
  end)

  teardown(function()
    if box then
      box:destroy()
    end
  end)

  local function need_root_inside()
    if not has_root then
      helper.skip("there is no root inside with a single id")
    end
  end

  -- ---- where the defence is missing, they work ----

  -- A listener on the host's loopback and an abstract socket of the host, for as long as fn runs.
  local function with_host_sockets(fn)
    local listener = assert(io.popen(PROBE .. " listen"))
    local ok, err = pcall(fn, listener:read("*l"):match("^(%d+) (%S+)$"))
    listener:close() -- which it sees, and ends
    assert(ok, err)
  end

  describe("without its defence", function()
    local shown = {}

    for place, why in pairs {
      plain = "in namespaces that anybody may make, with all capabilities and no filter",
      root = "as the host's root",
      host = "on the host itself",
    } do
      it("an attack works " .. why, function()
        if place == "root" then
          helper.need_root()
        end
        with_host_sockets(function(port, name)
          local words = { "outside=" .. port, "sockets_of_others=" .. name }
          for _, entry in ipairs(PROBES) do
            words[#words + 1] = argument(entry)
          end
          -- More open than 0 to 2, as a program that is started carelessly has it.
          local text = helper.shell(("%s %s %s 9</dev/null"):format(PROBE, place, table.concat(words, " ")))
          local tried = 0
          for probe, result in pairs(results(text)) do
            if result.status ~= 2 then
              assert.equal(0, result.status, probe .. " " .. why .. ":\n" .. result.text)
              shown[probe] = true
              tried = tried + 1
            end
          end
          assert.is_true(tried > 1, text)
        end)
      end)
    end

    it("nearly every attack worked somewhere", function()
      local never = { kill_init = true, workers = true, every_call = true } -- the reasons are in their tables
      if not helper.is_root() then
        for _, name in ipairs { "sysctls", "devices", "overlay_notes" } do
          never[name] = true -- of these the host defends itself against an ordinary user
        end
      end
      for _, entry in ipairs(PROBES) do
        assert.is_true(shown[entry[2]] or never[entry[2]] or false, entry[2])
      end
    end)
  end)

  -- ---- inside, they do not ----

  local function run(where, user, ...)
    local watch = sandbar.assert(where.files:watch("/tmp", { user = user })) -- a worker stays as long as it lives
    local argv = { "/home/user/probe", ... }
    for _, entry in ipairs(PROBES) do
      argv[#argv + 1] = argument(entry)
    end
    local r = sandbar.assert(where:exec(argv, { user = user, timeout = 60 }))
    watch:close()
    assert.equal(0, r.exit_code, r.stdout .. r.stderr)
    return results(r.stdout)
  end

  for _, user in ipairs { "user", "root" } do
    describe("as " .. user, function()
      local all

      setup(function()
        if user == "user" or has_root then
          all = run(box, user)
        end
      end)

      for _, entry in ipairs(PROBES) do
        it("nobody " .. entry[1], function()
          if not all then
            need_root_inside()
          end
          local result = assert(all[entry[2]], "it did not run")
          if result.status == 2 then
            helper.skip("it could not be tried here: " .. result.text)
          end
          assert.equal(0, result.status, result.text)
        end)
      end

      it("the sandbox is usable after all that", function()
        assert.is_true(sandbar.assert(box:exec({ "true" }, { timeout = 5 })).ok)
      end)
    end)
  end

  it("nobody gets further where everything inside has one id, that of the host's user", function()
    helper.need_root() -- to be one who has no subordinate ids
    helper.sh("chmod a+x %s", helper.scratch())
    local root = helper.dir("single")
    helper.sh("chown 23456:23456 %s && chmod 700 %s && cp %s %s/probe", root, root, PROBE, helper.scratch())
    local file = helper.write_file(helper.scratch() .. "/single.lua", [[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = table.remove(arg, 1), linger = 0 })
      local box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 128 } })
      sandbar.assert(box.files:upload(table.remove(arg, 1), "probe", { mode = "755" }))
      local watch = sandbar.assert(box.files:watch("/tmp"))
      io.write(sandbar.assert(box:exec({ "./probe", (table.unpack or unpack)(arg) }, { timeout = 60 })).stdout)
      watch:close()
      sandbar.assert(box:destroy())
    ]])
    local words = {}
    for _, entry in ipairs(PROBES) do
      words[#words + 1] = argument(entry)
    end
    local text = helper.sh("cd / && HOME=%s setpriv --reuid 23456 --regid 23456 --clear-groups %s %s %s %s/probe %s", root,
      helper.interpreter(), file, root, helper.scratch(), table.concat(words, " "))
    local all = results(text)
    for _, entry in ipairs(PROBES) do
      assert.is_truthy(all[entry[2]], text)
      assert.equal(0, all[entry[2]].status, entry[2] .. ":\n" .. all[entry[2]].text)
    end
    helper.remove(root)
    os.remove(helper.scratch() .. "/probe")
    os.remove(file)
  end)

  it("nobody gets further on another root than the usual: of a snapshot, after a pause", function()
    local words = { "/home/user/probe", "mounts_old", "mounts_new", "chroot_out", "secrets", "init_memory", "descriptors",
      "namespaces", "capabilities", "devices", "routes", "limits_up", "upper=" .. helper.root() }
    local other = equip { limits = { processes = 128 } }
    sandbar.assert(other:snapshot("probed"))
    local new = sandbar.assert(sandboxes:create_scoped { snapshot = "probed" })
    sandbar.assert(other:pause { keep = "disk" })
    sandbar.assert(other:resume())
    for _, where in ipairs { other, new } do
      for _, user in ipairs { "user", has_root and "root" or nil } do
        local all = results(sandbar.assert(where:exec(words, { user = user, timeout = 30 })).stdout)
        for i = 2, #words do
          local result = all[words[i]:match("^[%w_]+")]
          assert.equal(0, result.status, words[i] .. ":\n" .. result.text)
        end
      end
      where:destroy()
    end
    sandbar.assert(sandboxes.snapshots:delete("probed"))
  end)

  it("a device or a set-user-ID program that came with a template is neither", function()
    helper.need_root() -- an ordinary user cannot put them there
    local dir = helper.dir("shipped")
    helper.sh([[cd %s && mkdir -p bin etc proc dev tmp root home/user && cp %s bin/probe && chmod 6755 bin/probe &&
      mknod -m 666 disk b 254 0 && mknod -m 666 entropy c 1 9 && echo 'root:x:0:0::/root:/bin/probe' > etc/passwd &&
      echo 'user:x:1000:1000::/home/user:/bin/probe' >> etc/passwd]], helper.quote(dir), PROBE)
    assert.equal("1", helper.sh("head -c1 %s/entropy | wc -c | tr -d '\n'", dir)) -- outside it is one
    local other = sandbar.assert(sandboxes:create_scoped { template = { rootfs = dir }, cwd = "/tmp" })
    for _, user in ipairs { "user", "root" } do
      for _, device in ipairs { "/disk", "/entropy" } do
        local r = sandbar.assert(other:exec({ "/bin/probe", "become", "devices=" .. device, "capabilities" }, { user = user }))
        assert.equal(user == "user" and "user 1000" or "user 0", r.stdout:match("^[^\n]*"))
        for name, result in pairs(results(r.stdout)) do
          assert.equal(0, result.status, name .. ":\n" .. result.text)
        end
        assert.is_truthy(r.stdout:find("a shipped device: Permission denied", 1, true), r.stdout)
      end
    end
    other:destroy()
    assert.is_truthy(helper.remove(dir))
  end)

  it("who holds all that he can get takes nothing from the sandbox beside", function()
    local other = equip {}
    local hoarders = {}
    for _, user in ipairs { "user", has_root and "root" or nil } do
      local p = sandbar.assert(other:start({ "/home/user/probe", "hoard" }, { user = user, stdin = "pipe" }))
      local line
      repeat
        line = sandbar.assert(p.stdout:read("l", { timeout = 30 }))
      until line == "held"
      hoarders[#hoarders + 1] = p
    end
    local watch = sandbar.assert(box.files:watch("/tmp"))
    sandbar.assert(box.files:write("/tmp/new", "x"))
    assert.equal("new", sandbar.assert(watch:next { timeout = 10 }).path)
    watch:close()
    assert.equal("20 70", sandbar.assert(box:exec("stty size", { pty = { cols = 70, rows = 20 } })).stdout:match("%d+ %d+"))
    assert.is_true(sandbar.assert(box:exec({ "python3", "-c", [[
import os, socket
held = [socket.socket() for _ in range(100)] + [os.pipe() for _ in range(100)]
]] }, { timeout = 10 })).ok)
    local third = sandbar.assert(sandboxes:create_scoped({}))
    assert.is_true(sandbar.assert(third:exec { "true" }).ok)
    third:destroy()
    for _, p in ipairs(hoarders) do
      p.stdin:close()
      sandbar.assert(p:wait { timeout = 20 })
      p:close()
    end
    other:destroy()
  end)

  it("a set-user-ID program gets nothing, or where it is allowed no more than root inside", function()
    need_root_inside()
    local make = "cp /home/user/probe /home/user/up && chown root:root /home/user/up && chmod 6755 /home/user/up"
    local words = { "/home/user/up", "become", "capabilities=setuid", "sysctls", "mounts_old", "mounts_new", "init_memory",
      "namespaces", "forbidden_calls", "families", "routes", "limits_up", "devices" }
    local other = equip { allow_setuid = true, limits = { processes = 128 } }
    for _, each in ipairs { { box, "user 1000\n" }, { other, "user 0\n" } } do
      local where, id = each[1], each[2]
      sandbar.assert(where:exec(make, { user = "root", check = true }))
      local r = sandbar.assert(where:exec(words, { timeout = 30 }))
      assert.equal(id, r.stdout:match("^[^\n]*\n"))
      for name, result in pairs(results(r.stdout)) do
        assert.equal(0, result.status, name .. ":\n" .. result.text)
      end
    end
    -- File capabilities: of those that root inside has, and only where set-user-ID programs count.
    local give = [[import os, struct
os.setxattr("/home/user/up", "security.capability", struct.pack("<IIIIII", 0x03000001, 1 << %d, 0, 0, 0, 0))
os.chown("/home/user/up", 1000, 1000)
os.setxattr("/home/user/up", "security.capability", struct.pack("<IIIIII", 0x03000001, 1 << %d, 0, 0, 0, 0))]]
    for _, where in ipairs { box, other } do
      for _, capability in ipairs { 21, 19 } do -- to rule the system, to trace
        sandbar.assert(where:exec({ "python3", "-c", give:format(capability, capability) }, { user = "root" }))
        local r = where:exec { "/home/user/up", "capabilities=setuid" }
        assert.is_true(r == nil or r.exit_code ~= 0 or results(r.stdout).capabilities.status == 0, r and r.stdout)
      end
    end
    other:destroy()
  end)

  it("nobody reaches the host's loopback, its abstract sockets, or anything outside", function()
    with_host_sockets(function(port, name)
      for _, user in ipairs { "user", has_root and "root" or nil } do
        local r = sandbar.assert(box:exec({ "/home/user/probe", "outside=" .. port, "sockets_of_others=" .. name },
          { user = user, timeout = 30 }))
        for probe, result in pairs(results(r.stdout)) do
          assert.equal(0, result.status, probe .. ":\n" .. result.text)
        end
      end
    end)
  end)

  it("the kernel's settings are what they were", function()
    local look = "cat /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/kernel/randomize_va_space " ..
      "/proc/sys/vm/overcommit_memory /proc/sys/net/ipv4/ip_forward /proc/sys/fs/protected_symlinks 2>/dev/null"
    local before = helper.shell(look)
    for _, user in ipairs { "user", has_root and "root" or nil } do
      box:exec("for f in $(find /proc/sys -type f 2>/dev/null); do echo 1 > $f; done 2>/dev/null; hostname taken", {
        user = user, timeout = 30,
      })
    end
    assert.equal(before, (helper.shell(look)))
  end)

  it("a template's files cannot be changed", function()
    local digest = "find /usr/bin /usr/lib/os-release -printf '%p %s %m %U:%G %T@ %C@ %n %l\\n' | sort | sha256sum"
    local before = helper.shell(digest)
    local other = equip {}
    for _, user in ipairs { "user", has_root and "root" or nil } do
      local r = sandbar.assert(other:exec({ "/home/user/probe", "template_writes=" .. (LONG and 10000 or 100) }, { user = user, timeout = 60 }))
      assert.is_truthy(r.stdout:find("\n# template_writes: 0\n", 1, true), r.stdout)
      other:exec("chmod 777 /usr /usr/bin; mv /usr/lib/os-release /tmp; rm -rf /usr/share/man/man8", { user = user })
    end
    other:destroy()
    assert.equal(before, (helper.shell(digest)))
  end)

  it("an attribute that the overlay uses means nothing when it is set inside, also in a snapshot", function()
    local other = equip {}
    local set = [[
import os
os.makedirs("d/sub", exist_ok=True); open("d/f", "w").write("kept")
for at in ("d", "d/f"):
    for name, value in (("opaque", b"y"), ("redirect", b"/etc"), ("metacopy", b""), ("whiteout", b"y")):
        for prefix in ("user.overlay.", "user.overlay.overlay."):
            try: os.setxattr(at, prefix + name, value)
            except OSError: pass
]]
    sandbar.assert(other:exec({ "python3", "-c", set }, { check = true }))
    sandbar.assert(other:snapshot("noted"))
    local new = sandbar.assert(sandboxes:create_scoped { snapshot = "noted" })
    sandbar.assert(other:pause { keep = "disk" })
    sandbar.assert(other:resume())
    for _, where in ipairs { other, new } do
      assert.equal("f\nsub\nkept", sandbar.assert(where:exec("ls d; cat d/f")).stdout)
    end
    new:destroy()
    other:destroy()
    sandbar.assert(sandboxes.snapshots:delete("noted"))
  end)

  it("what root inside leaves on the host's disk is in reach of nobody else", function()
    need_root_inside()
    helper.need_root() -- an ordinary user's belongs to his subordinate ids
    sandbar.assert(box:exec("cp /usr/bin/env /home/user/armed && chmod 6755 /home/user/armed", { user = "root", check = true }))
    for _, part in ipairs { "", "/v1", "/v1/s", "/v1/s/" .. box.id, "/v1/l", "/v1/n", "/v1/t", "/v1/p", "/v1/trash" } do
      local line = helper.sh("stat -c '%%a %%u' %s", helper.quote(helper.root() .. part))
      assert.equal("700 0\n", line, part)
    end
    local found = helper.sh("find %s/v1/s/%s -name armed", helper.quote(helper.root()), box.id):match("%S+")
    assert.is_truthy(found)
    local _, status = helper.shell("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '" .. found .. " true'")
    assert.is_true(status ~= 0)
    local host = helper.dir("out") -- and a download takes the bits away
    sandbar.assert(box.files:download("/home/user/armed", host .. "/armed", { user = "root" }))
    assert.equal("755\n", helper.sh("stat -c %%a %s/armed", host))
    os.remove(host .. "/armed")
    os.remove(host)
  end)

  it("another user's process is not heard by the supervisor", function()
    helper.need_root()
    local code = [[import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(5)
s.connect(sys.argv[1]); print("connected")
try: print(len(s.recv(100)))
except ConnectionResetError: print(0)]]
    local root = helper.root()
    -- As if somebody had opened the directories, which are the first defence.
    helper.sh("chmod 755 %s %s %s/v1 && chmod 666 %s/v1/sock", helper.scratch(), root, root, root)
    local out = helper.shell(("setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 -c '%s' %s/v1/sock"):format(code, root))
    helper.sh("chmod 700 %s %s %s/v1", helper.scratch(), root, root)
    assert.equal("connected\n0\n", out)
    assert.is_true(sandbar.assert(box:exec { "true" }).ok)
  end)

  it("links planted inside lead the file calls nowhere but inside", function()
    helper.write_file(helper.scratch() .. "/secret", "of the host")
    local lines = ("ln -sfn %s/secret l1; ln -sfn /proc/1/root%s/secret l2; ln -sfn ../../../../../..%s/secret l3")
      :format(helper.scratch(), helper.scratch(), helper.scratch())
    assert.is_true(sandbar.assert(box:exec(lines)).ok)
    for _, link in ipairs { "l1", "l2", "l3" } do
      local data, err = box.files:read(link)
      assert.is_nil(data)
      assert.is_true(err.kind == "NotFound" or err.kind == "PermissionDenied", err.kind)
      box.files:write(link, "planted")
      box.files:remove(link)
    end
    assert.equal("of the host", helper.read_file(helper.scratch() .. "/secret"))
    os.remove(helper.scratch() .. "/secret")
  end)

  it("a directory and a link swapped in a loop do not lead a write outside", function()
    local outside = helper.dir("outside")
    local racer = sandbar.assert(box:start(("mkdir -p d; while :; do rm -rf d; ln -s %s d; rm -f d; mkdir d; done"):format(outside),
      { stdout = "ignore", stderr = "ignore" }))
    for i = 1, LONG and 10000 or 100 do
      box.files:write("/home/user/d/f", "round " .. i)
    end
    sandbar.assert(racer:kill { signal = "KILL" })
    racer:close()
    assert.equal("", (helper.shell("ls -A " .. outside)))
    os.remove(outside)
  end)

  it("a FIFO, a device or a directory named by a path cannot hang a read", function()
    sandbar.assert(box:exec("rm -rf f d; mkfifo f; mkdir d"))
    for _, path in ipairs { "f", "d", "/dev/zero", "/dev/tty", "/proc/kmsg" } do
      local took = helper.timed(function()
        local data, err = box.files:read("/" == path:sub(1, 1) and path or "/home/user/" .. path)
        assert.is_nil(data, path)
        assert.is_string(err.kind)
      end)
      assert.is_true(took < 5, path)
    end
  end)

  it("a working directory below /proc/self/fd is not outside", function()
    for n = 0, 64 do
      local r = box:exec({ "ls", "/" }, { cwd = "/proc/self/fd/" .. n })
      if r and r.ok then
        assert.is_truthy(r.stdout:find("home", 1, true))
        assert.is_nil(r.stdout:find("lost+found", 1, true))
      end
    end
  end)

  it("an odd user name is refused, never taken for another", function()
    for _, user in ipairs { "0abc", "-1", "4294967295", "4294967296", "root:x", "nobody-such", "", " 0", "0x0" } do
      local r, err = box:exec({ "id", "-u" }, { user = user })
      assert.is_nil(r, user)
      assert.equal("InvalidArgument", err.kind, user)
    end
  end)

  it("no argument vector and no environment breaks it", function()
    local empty, err = box:exec {}
    assert.is_nil(empty)
    assert.equal("InvalidArgument", err.kind)
    local big = ("x"):rep(100000)
    local env = {}
    for i = 1, 100 do
      env["V" .. i] = big
    end
    local r, too_big = box:exec({ "true" }, { env = env })
    assert.is_nil(r)
    assert.is_string(too_big.kind)
    assert.is_true(sandbar.assert(box:exec({ "true" }, { env = { A = ("x"):rep(70000) } })).ok)
  end)

  it("orphans, double forks and daemons are gone after destroy", function()
    local victim = sandbar.assert(sandboxes:create_scoped {})
    local sleep = "sleep " .. helper.mark(54321)
    sandbar.assert(victim:exec((("(setsid SLEEP &) ; (SLEEP &) ; sh -c 'setsid sh -c \"SLEEP & SLEEP\" &'"):gsub("SLEEP", sleep))))
    local look = ("pgrep -fc '^%s$'"):format(sleep)
    assert.is_truthy(helper.eventually(function() return (helper.shell(look)):match("^[1-9]") end))
    sandbar.assert(victim:destroy())
    assert.equal("0", (helper.shell(look)):match("^%d+"))
  end)

  it("two sandboxes share no address, abstract socket, shared memory or queue", function()
    local other = sandbar.assert(sandboxes:create_scoped {})
    local MEET = [[
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
first = sys.argv[1] == "first"
def works(f):
    try: return bool(f())
    except OSError: return False
def abstract():
    u = socket.socket(socket.AF_UNIX)
    if not first: return u.connect("\0meeting") is None
    u.bind("\0meeting"); u.listen(); kept.append(u); return True
def tcp(family, address):
    if not first: return socket.create_connection((address, 4000), 2)
    t = socket.socket(family); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    t.bind((address, 4000)); t.listen(); kept.append(t); return True
def shm():
    if first: open("/dev/shm/meeting", "w").write("x")
    return os.path.exists("/dev/shm/meeting")
kept, create = [], 0o1600 if first else 0 # IPC_CREAT and mode
print(works(abstract), *[works(lambda: tcp(family, address)) for family, address in ((socket.AF_INET, "127.0.0.1"),
          (socket.AF_INET6, "::1"))], works(shm),
      libc.semget(4711, 1, create) >= 0, libc.shmget(4711, 4096, create) >= 0, libc.msgget(4711, create) >= 0,
      libc.mq_open(b"/meeting", os.O_RDWR | (os.O_CREAT if first else 0), 0o600, None) >= 0, flush=True)
if first: time.sleep(60)
]]
    local server = sandbar.assert(box:start({ "python3", "-c", MEET, "first" }))
    assert.equal("True True True True True True True True", sandbar.assert(server.stdout:read("l", { timeout = 10 })))
    -- Who is in the same sandbox meets it everywhere.
    assert.equal("True True True True True True True True\n", sandbar.assert(box:exec({ "python3", "-c", MEET, "second" })).stdout)
    for _, user in ipairs { "user", has_root and "root" or nil } do
      local r = sandbar.assert(other:exec({ "python3", "-c", MEET, "second" }, { user = user }))
      assert.equal("False False False False False False False False\n", r.stdout)
    end
    server:kill { signal = "KILL" }
    server:close()
    other:destroy()
  end)

  it("a full process table inside does not slow the sandbox beside it", function()
    local bomb = sandbar.assert(box:start("while :; do sleep 60 & done", { stdout = "ignore", stderr = "ignore" }))
    local beside = sandbar.assert(sandboxes:create_scoped {})
    assert.is_true(sandbar.assert(beside:exec({ "sh", "-c", "true & wait" }, { timeout = 10 })).ok)
    beside:destroy()
    sandbar.assert(bomb:kill { signal = "KILL" })
    bomb:close()
  end)

  -- The kernel counts them by user. Who opens a file has the command's, and pid 1 is root.
  for user, what in pairs { user = "files:open", root = "start and attach" } do
    it(("%s never had an answer while a command kept all the descriptors in flight that it may"):format(what), function()
      if not has_root then
        helper.skip("with a single id they would be counted as the host's own")
      end
      local other = sandbar.assert(sandboxes:create_scoped {})
      local before = sandbar.assert(other:start({ "sleep", "600" }, { stdout = "tail", stderr = "tail" }))
      local hoarder = sandbar.assert(other:start({ "python3", "-c", [[
import array, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pairs, many, sent, full = [], array.array("i", [0] * 250), 0, False
while not full and sent < 1100000:
    pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    pairs[-1][0].setblocking(False)
    try:
        while sent < 1100000:
            pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
            sent += 250
    except BlockingIOError:
        pass
    except OSError:
        full = True
print("full" if full else "not full", flush=True)
time.sleep(600)
]] }, { user = user }))
      local full = sandbar.assert(hoarder.stdout:read("l", { timeout = 60 }))
      local calls = {
        user = function() return other.files:open("/etc/passwd", "r", { timeout = 20 }) end,
        root = function() return other:start({ "sleep", "600" }, { timeout = 20 }) end,
      }
      if full == "full" then
        local r, err = calls[user]()
        assert.is_nil(r)
        assert.equal("LimitExceeded", err.kind)
        assert.truthy(tostring(err):find("as many descriptors are in flight", 1, true))
        if user == "root" then
          assert.equal("LimitExceeded", select(2, other:attach(before.pid, { timeout = 20 })).kind)
        end
        assert.equal("directory", sandbar.assert(other.files:stat("/etc")).type)
        assert.is_true(sandbar.assert(other:exec { "true" }).ok)
        sandbar.assert(hoarder:kill { signal = "KILL" })
        sandbar.assert(sandbar.assert(calls[user]()):close())
        sandbar.assert(other:attach(before.pid)):close()
        assert.equal(1, inside.count(other, "sleep 600"))
      end
      other:destroy()
      if full ~= "full" then
        helper.skip("this machine lets a user have more than a million descriptors in flight")
      end
    end)
  end

  it("directories nested deeper than any path are destroyed", function()
    local deep = sandbar.assert(sandboxes:create_scoped {})
    local r = sandbar.assert(deep:exec({ "python3", "-c", [[
import os, sys
for i in range(int(sys.argv[1])):
    os.mkdir("d"); os.chdir("d")
]], LONG and "20000" or "2500" }, { timeout = 120 }))
    assert.is_true(r.ok, r.stderr)
    sandbar.assert(deep:destroy())
  end)

  it("terminal escape sequences in a command's words do not reach an error text raw", function()
    local r, err = box:exec { "\27[31mno-such\7program" }
    assert.is_nil(r)
    assert.is_nil(tostring(err):find("[%z\1-\31\127]"))
  end)

  it("what runs inside is no id of the host's", function()
    local process = sandbar.assert(box:start { "sleep", helper.mark(60) })
    local pid = helper.eventually(function()
      return helper.shell(("pgrep -fx 'sleep %s'"):format(helper.mark(60))):match("%d+")
    end)
    local uid = helper.read_file("/proc/" .. pid .. "/status"):match("\nUid:%s*(%d+)")
    assert.is_true(tonumber(uid) ~= 0, "kernel uid " .. uid)
    process:kill { signal = "KILL" }
    process:close()
  end)
end)
end)
