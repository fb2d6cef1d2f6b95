-- check: only 5.4
-- check: limit 300
-- The escape suite: what a hostile program tries from inside, and what the host sees of it.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

local function probe_path()
  return (os.getenv("SPEC_BUILD") or "build") .. "/spec/probe"
end

--- Inside attempts: name, argument (a string, or a function of the fixture), users it is tried as.
local PROBES = {
  { "writes a kernel setting", "sysctls" },
  { "mounts with the old calls, remounts, unmounts a mask", "mounts_old" },
  { "mounts with the new calls", "mounts_new" },
  { "makes or opens a device node", "devices" },
  { "leaves a chroot through a kept directory", "chroot_out" },
  { "opens files by handle", "handles" },
  { "reads kernel secrets under /proc and /sys", "secrets" },
  { "finds the state directory", "upper", function() return helper.root() end },
  { "sees or signals processes of others", "strangers" },
  { "kills pid 1", "kill_init" },
  { "reads, writes or debugs pid 1", "init_memory" },
  { "finds an inherited descriptor", "descriptors", function() return helper.scratch() end },
  { "forks without bound", "fork_bomb", function() return "128" end },
  { "makes threads without bound", "thread_bomb", function() return "128" end },
  { "pushes input into a terminal", "terminals" },
  { "makes or enters a namespace", "namespaces" },
  { "holds a capability it should not", "capabilities" },
  { "uses the 32-bit and x32 system calls", "other_abis" },
  { "calls what the filter forbids", "forbidden_calls" },
  { "calls every system call with zeroes", "every_call" },
  { "switches off address randomisation", "personalities" },
  { "opens sockets of other families", "families" },
  { "changes the network's configuration", "routes" },
  { "hoards inotify instances", "inotify_hoard", function() return "64" end },
}

describe("escape:", function()
  helper.guard { each = false, seconds = 60 } -- out here: its last look comes after our teardown, and the trash is deep
describe("", function()
  local sandboxes, box, has_root

  setup(function()
    sandboxes = helper.open()
    box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 128 } })
    sandbar.assert(box.files:upload(probe_path(), "/home/user/probe"))
    sandbar.assert(box.files:chmod("/home/user/probe", "755"))
    local as_root = box:exec({ "true" }, { user = "root" })
    has_root = as_root and as_root.ok
  end)

  teardown(function()
    if box then
      box:destroy()
    end
  end)

  local function try(user, name, argument)
    local argv = { "/home/user/probe", name, argument }
    local r = sandbar.assert(box:exec(argv, { user = user, timeout = 60 }))
    if r.exit_code == 2 then
      helper.skip("it could not be tried here: " .. r.stdout)
    end
    assert.equal(0, r.exit_code, name .. " as " .. user .. ":\n" .. r.stdout .. r.stderr)
    assert(box:exec({ "true" }).ok, "the sandbox is not usable any more")
  end

  for _, entry in ipairs(PROBES) do
    local what, name, argument = entry[1], entry[2], entry[3]
    for _, user in ipairs { "user", "root" } do
      it(("nobody %s (as %s)"):format(what, user), function()
        if user == "root" and not has_root then
          helper.skip("there is no root inside with a single id")
        end
        try(user, name, argument and argument())
      end)
    end
  end

  it("a service on the host's loopback is out of reach", function()
    local listener = helper.start_lua([[
      local p = io.popen("exec python3 -c '" ..
        "import socket,sys;s=socket.socket();s.bind((\"127.0.0.1\",0));s.listen();" ..
        "print(s.getsockname()[1],flush=True);sys.stdin.read()'")
      print(p:read("*l")) io.stdout:flush()
      p:close()
    ]], { timeout = 20 })
    local port = listener:line()
    try("user", "outside", port)
    listener:signal("TERM")
    listener:wait()
  end)

  it("a template's files cannot be changed", function()
    local digest = "cat /usr/bin/env /usr/bin/true | sha256sum"
    local before = helper.shell(digest)
    for _, user in ipairs { "user", has_root and "root" or "user" } do
      box:exec("for f in /usr/bin/env /usr/bin/true; do echo hostile > $f; rm -f $f; done; chmod 777 /usr", { user = user })
    end
    assert.equal(before, (helper.shell(digest)))
    box:destroy()
    box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 128 } })
    assert.is_true(sandbar.assert(box:exec { "/usr/bin/env", "true" }).ok)
    sandbar.assert(box.files:upload(probe_path(), "/home/user/probe"))
    sandbar.assert(box.files:chmod("/home/user/probe", "755"))
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
    for i = 1, 100 do
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
    for n = 0, 32 do
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
    local server = sandbar.assert(box:start({ "python3", "-c", [[
import socket, sys, time
t = socket.socket(); t.bind(("0.0.0.0", 4000)); t.listen()
u = socket.socket(socket.AF_UNIX); u.bind("\0meeting"); u.listen()
open("/dev/shm/meeting", "w").write("x")
print("up", flush=True); time.sleep(60)
]] }))
    assert.equal("up\n", sandbar.assert(server.stdout:read("l", { timeout = 10 })) .. "\n")
    local r = sandbar.assert(other:exec({ "python3", "-c", [[
import socket, os
def works(f):
    try: f(); return True
    except OSError: return False
print(works(lambda: socket.create_connection(("127.0.0.1", 4000), 2)),
      works(lambda: socket.socket(socket.AF_UNIX).connect("\0meeting")),
      os.path.exists("/dev/shm/meeting"))
]] }))
    assert.equal("False False False\n", r.stdout)
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

  it("a hundred thousand nested directories are destroyed", function()
    local deep = sandbar.assert(sandboxes:create_scoped {})
    local r = sandbar.assert(deep:exec({ "python3", "-c", [[
import os
for i in range(20000):
    os.mkdir("d"); os.chdir("d")
]] }, { timeout = 60 }))
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
