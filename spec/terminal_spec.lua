-- Terminals of commands.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

local SIZE = { cols = 80, rows = 24 }

describe("terminals", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  local function start(box, cmd, opts)
    local all = { pty = SIZE }
    for k, v in pairs(opts or {}) do
      all[k] = v
    end
    return sandbar.assert(box:start(cmd, all))
  end

  local function exec(box, cmd, opts)
    local all = { pty = SIZE, timeout = 60 }
    for k, v in pairs(opts or {}) do
      all[k] = v
    end
    return sandbar.assert(box:exec(cmd, all))
  end

  -- Reads up to and with this text.
  local function read_to(p, text)
    local got = ""
    while not got:find(text, 1, true) do
      local byte, err = p.stdout:read(1, { timeout = 20 })
      if not byte then
        error(("no %q after %q: %s"):format(text, got, tostring(err)), 2)
      end
      got = got .. byte
    end
    return got
  end

  local function lines(text)
    return (text:gsub("\r\n", "\n"))
  end

  it("lost the end of a fast program's output, or called its end an error (B16)", function()
    with_box(function(box)
      for _ = 1, inside.times(20) * 3 / 2 do -- 300 times in the long suite
        local r = exec(box, "head -c 20000 /dev/zero | tr '\\0' x")
        assert.equal(20000, #r.stdout)
        assert.equal(0, r.exit_code)
        assert.is_false(r.truncated)
        r = exec(box, "printf hi; exit 5")
        assert.same({ "hi", "", 5, "exit" }, { r.stdout, r.stderr, r.exit_code, r.reason })
        r = exec(box, "stty raw; head -c 200000 /dev/zero")
        assert.equal(200000, #r.stdout)
      end
    end)
  end)

  it("give a started process's whole output as well, however late it is read", function()
    with_box(function(box)
      for i = 1, inside.times(20) do
        local late = i % 2 == 0
        local n = late and 3000 or 20000 -- there is not always room for more, as for pipes
        local p = start(box, ("head -c %d /dev/zero | tr '\\0' x"):format(n))
        if late then
          assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
        end
        assert.equal(n, #sandbar.assert(p.stdout:read("a", { timeout = 20 })))
        assert.is_nil(p.stdout:read("l"))
        assert.is_true(sandbar.assert(p:wait { timeout = 20, output = true }).ok)
      end
    end)
  end)

  it("change nothing in the bytes but the ends of lines", function()
    with_box(function(box)
      local plain = sandbar.assert(box:exec("seq 1 20000")).stdout
      local r = exec(box, "seq 1 20000")
      assert.equal(plain, lines(r.stdout))
      assert.equal(#plain + 20000, #r.stdout)
      local all = {}
      for byte = 0, 255 do
        all[byte + 1] = string.char(byte)
      end
      all = table.concat(all)
      sandbar.assert(box.files:write("all", all))
      assert.equal(all, exec(box, "stty raw; cat all").stdout)
      -- a character and an escape sequence in pieces
      r = exec(box, "stty raw; printf '\\303'; printf '\\251\\033'; printf '[1'; printf 'mx'")
      assert.equal("\195\169\27[1mx", r.stdout)
    end)
  end)

  it("are the command's own, in a session of its own, of the right size and kind (B17)", function()
    with_box(function(box)
      local r = exec(box, "tty; stty size; echo $TERM; test -t 0 -a -t 1 -a -t 2 && echo all; echo to >/dev/tty"
        .. "; ps -o pid=,sid=,tpgid= -p $$; echo err >&2; ls -l $(tty)")
      local name, rest, own, session, group, mode = lines(r.stdout):match(
        "^(/dev/pts/%d+)\n(.-\n)%s*(%d+)%s+(%d+)%s+(%d+)\nerr\n(%S+)")
      assert.is_truthy(name, r.stdout)
      assert.equal("24 80\nxterm-256color\nall\nto\n", rest)
      assert.equal(own, session)
      assert.equal(own, group)
      assert.equal("crw-------", mode)
      assert.equal("", r.stderr)
      assert.equal("vt100\r\n", exec(box, "echo $TERM", { env = { TERM = "vt100" } }).stdout)
      assert.equal("\r\n", exec(box, "echo ${TERM#dumb}", { clean_env = true }).stdout)
      assert.equal("1 65535\r\n", exec(box, "stty size", { pty = { cols = 65535, rows = 1 } }).stdout)
    end)
  end)

  it("are resized, which their programs are told of (B17)", function()
    with_box(function(box)
      local p = start(box, "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.05; done")
      read_to(p, "ready\r\n")
      assert.is_true(sandbar.assert(p:resize { cols = 132, rows = 50 }))
      assert.equal("50 132\r\n", read_to(p, "\n"))
      assert.equal(3, sandbar.assert(p:wait { timeout = 20 }).exit_code)
    end)
  end)

  it("raised an error when they were resized after the end (B17)", function()
    with_box(function(box)
      local p = start(box, "exit 0")
      sandbar.assert(p:wait { timeout = 20 })
      for _, handle in ipairs { p, sandbar.assert(box:attach(p.pid)) } do
        local ok, err = handle:resize { cols = 10, rows = 10 }
        assert.is_nil(ok)
        assert.equal("NotFound", err.kind)
        assert.matches("has ended, and its terminal is gone", err.message)
      end
    end)
  end)

  it("refuse what is no size, and a size for what is no terminal", function()
    with_box(function(box)
      for _, size in ipairs { { cols = 0, rows = 1 }, { cols = 1, rows = 65536 }, { cols = 1.5, rows = 2 },
        { cols = 0 / 0, rows = 2 }, { cols = -1, rows = 2 } } do
        local r, err = box:exec("true", { pty = size })
        assert.is_nil(r)
        assert.equal("InvalidArgument", err.kind)
      end
      assert.has_error(function() box:exec("true", { pty = { cols = 80 } }) end)
      assert.has_error(function() box:exec("true", { pty = { cols = 80, rows = 24, rowz = 1 } }) end)
      assert.has_error(function() box:exec("true", { pty = { cols = "wide", rows = 24 } }) end)
      local p = sandbar.assert(box:start({ "sleep", "30" }))
      local ok, err = p:resize(SIZE)
      assert.is_nil(ok)
      assert.equal("InvalidArgument", err.kind)
      p = start(box, { "sleep", "30" })
      ok, err = p:resize { cols = 0, rows = 3 }
      assert.is_nil(ok)
      assert.equal("InvalidArgument", err.kind)
      for clause, opts in pairs { stdout = { stdout = "ignore" }, stderr = { stderr = "pipe" } } do
        opts.pty = SIZE
        ok, err = box:start("true", opts)
        assert.is_nil(ok)
        assert.equal("InvalidArgument", err.kind)
        assert.matches("^" .. clause, err.message)
      end
      ok, err = box:start({ { "true" }, { "true" } }, { pty = SIZE })
      assert.is_nil(ok)
      assert.equal("InvalidArgument", err.kind)
      assert.matches("pipeline", err.message)
    end)
  end)

  it("interrupt the job in the foreground only, and end at the end of input (B17)", function()
    with_box(function(box)
      local p = start(box, { "sh", "-i" }, { env = { PS1 = "$ " } })
      read_to(p, "$ ")
      assert.is_nil(p.stderr)
      local job = "sh -c 'echo go; exec sleep 100'\n"
      sandbar.assert(p.stdin:write(job))
      read_to(p, "go\r\n")
      sandbar.assert(p.stdin:write("\3"))
      read_to(p, "$ ")
      sandbar.assert(p.stdin:write("echo =$?=\n"))
      read_to(p, "=130=\r\n")
      sandbar.assert(p.stdin:write(job))
      read_to(p, "go\r\n")
      sandbar.assert(p.stdin:write("\26"))
      read_to(p, "$ ")
      sandbar.assert(p.stdin:write("jobs\n"))
      assert.matches("[Ss]topped", read_to(p, "\n$ "))
      p = start(box, { "sh", "-i" }, { env = { PS1 = "$ " } }) -- has no stopped job, which would keep it
      read_to(p, "$ ")
      sandbar.assert(p.stdin:write("\4"))
      assert.equal(0, sandbar.assert(p:wait { timeout = 20, output = true }).exit_code)
    end)
  end)

  it("take a character and an escape sequence in pieces, as whoever types or pastes sends them (B17)", function()
    with_box(function(box)
      local typed = "\195\169\27[1mx\226\130\172"
      local p = start(box, "stty raw -echo; echo ready; head -c " .. #typed)
      read_to(p, "ready\n")
      for byte in typed:gmatch(".") do
        assert.equal(1, sandbar.assert(p.stdin:write(byte)))
      end
      assert.equal(typed, sandbar.assert(p.stdout:read("a", { timeout = 20 })))
      assert.is_true(sandbar.assert(p:wait { timeout = 20 }).ok)
    end)
  end)

  it("end their input when it is closed, also in the middle of a line", function()
    with_box(function(box)
      for typed, shown in pairs { ["a\nb\n"] = "a\nb\n", ["a\nb"] = "a\nb", [""] = "" } do
        local p = start(box, "stty -echo; echo ready; cat; echo over")
        read_to(p, "ready\r\n")
        sandbar.assert(p.stdin:write(typed))
        assert.is_true(p.stdin:close())
        assert.equal(shown .. "over\n", lines(sandbar.assert(p.stdout:read("a", { timeout = 20 }))))
        local n, err = p.stdin:write("x")
        assert.is_nil(n)
        assert.equal("Closed", err.kind)
      end
      assert.equal("ab\nab\nover\n", lines(exec(box, "cat; echo over", { stdin = "ab\n" }).stdout))
      assert.equal("over\r\n", exec(box, "cat; echo over").stdout) -- no input is at its end
      local pieces = { "x", "y\n", "z" }
      local r = exec(box, "stty -echo; echo ready >&2; cat; echo over", { stdin = function()
        return table.remove(pieces, 1)
      end })
      assert.matches("xy\nzover\n$", lines(r.stdout))
    end)
  end)

  it("carry a mebibyte through a raw terminal, both ways (B17)", function()
    with_box(function(box)
      local piece = {}
      for i = 1, 4096 do
        piece[i] = string.char((i * 7 + math.floor(i / 256)) % 256)
      end
      local data = table.concat(piece):rep(256)
      local p = start(box, "stty raw -echo; echo ready; head -c 1048576")
      read_to(p, "ready\n")
      local results = sandbar.assert(sandbar.all {
        function() return sandbar.assert(p.stdin:write(data)) end,
        function() return sandbar.assert(p.stdout:read("a")) == data end,
      })
      assert.same({ #data, true }, { results[1], results[2] })
      assert.is_true(sandbar.assert(p:wait { timeout = 20 }).ok)
    end)
  end)

  it("said that a long line was written of which its end was lost: how much went is told (B17)", function()
    with_box(function(box)
      local data = ("0123456789abcdef"):rep(65536)
      local p = start(box, "stty raw -echo; echo ready; kill -STOP $$; cat")
      read_to(p, "ready\n")
      local n, err = p.stdin:write(data, { timeout = 0.5 })
      assert.equal("Timeout", err.kind)
      assert.is_true(n > 4096 and n < #data, n)
      sandbar.assert(p:signal("CONT"))
      assert.equal(data:sub(1, n), sandbar.assert(p.stdout:read(n, { timeout = 20 })))
      -- lines of the longest kind
      local line = ("x"):rep(4094) .. "\n"
      p = start(box, "stty -echo; echo ready; cat")
      read_to(p, "ready\r\n")
      for _ = 1, 3 do
        assert.equal(#line, sandbar.assert(p.stdin:write(line)))
        assert.equal(line, lines(read_to(p, "\n")))
      end
    end)
  end)

  it("hold up nobody else when nobody reads them, and are killed like others (B17)", function()
    with_box(function(box)
      local flood = start(box, { "yes" })
      local other = start(box, { "cat" })
      sandbar.scope(function(scope)
        local neighbour = sandbar.assert(sandboxes:create_scoped({}, scope))
        local began, i = helper.now(), 0
        repeat -- for 5 s in the long suite
          i = i + 1
          assert.is_true(helper.timed(function()
            assert.equal("ok\n", sandbar.assert(neighbour:exec("echo ok")).stdout)
            assert.equal("ok\r\n", exec(box, "echo ok").stdout)
            sandbar.assert(other.stdin:write(i .. "\n"))
            read_to(other, i .. "\r\n" .. i .. "\r\n")
          end) < 10)
        until i >= 20 and helper.now() - began > (inside.times(1) > 1 and 5 or 0)
      end)
      local took, r = helper.timed(function() return sandbar.assert(flood:kill { signal = "KILL" }) end)
      assert.equal("SIGKILL", r.signal)
      assert.is_true(took < 10, took)
      assert.equal("y\r\ny\r\n", flood.stdout:read(6))
      flood = start(box, { "yes" })
      r = sandbar.assert(flood:kill { timeout = 20 })
      assert.equal("SIGTERM", r.signal)
    end)
  end)

  it("tell the end of a command whose output nobody takes", function()
    with_box(function(box)
      -- As much as there is room for, on the way to a reader and in the terminal.
      local p = start(box, { "python3", "-c", [[
import os, time, tty
tty.setraw(1)
os.set_blocking(1, False)
n = full = 0
while full < 5:
    try:
        n += os.write(1, b"x" * 4096)
        full = 0
    except BlockingIOError:
        full += 1
        time.sleep(0.05)
open("count", "w").write(str(n))
]] })
      assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
      local n = tonumber(sandbar.assert(box.files:read("count")))
      assert.is_true(n > 8192, n)
      assert.equal(n, #sandbar.assert(p.stdout:read("a", { timeout = 20 })))
    end)
  end)

  it("end with their command's clocks, its signals and its scope", function()
    with_box(function(box)
      local r = exec(box, "echo a; sleep 600", { time_limit = 0.3 })
      assert.same({ "limit", "a\r\n" }, { r.reason, r.stdout })
      local _, err = box:exec("echo a; sleep 600", { pty = SIZE, timeout = 0.5 })
      assert.equal("ExecTimedOut", err.kind)
      assert.equal("a\r\n", err.result.stdout)
      local p = start(box, "trap '' TERM HUP INT; echo ready; while :; do sleep 1; done")
      read_to(p, "ready\r\n")
      assert.equal("SIGKILL", sandbar.assert(p:kill { grace = 0.1 }).signal)
      p = start(box, "sleep 4711 & sleep 4711")
      assert.is_truthy(helper.eventually(function() return inside.count(box, "4711") >= 2 end))
      assert.is_true(sandbar.assert(p:signal("TERM", { group = true })).count >= 3)
      assert.equal("SIGTERM", sandbar.assert(p:wait { timeout = 20 }).signal)
      sandbar.scope(function(scope)
        start(box, { "sleep", "4712" }, { scope = scope })
        start(box, "trap '' HUP; sleep 4712 & sleep 4712", { scope = scope })
      end)
      assert.equal(0, inside.count(box, "4712"))
    end)
  end)

  it("hang up on what is left in their session when their command ends", function()
    with_box(function(box)
      -- The first prints when it is hung up on; the other holds the terminal, and ends later.
      local p = start(box, "set -m; (trap 'echo late; exit' TERM; echo ready; while :; do sleep 0.05; done) & wait $!")
      read_to(p, "ready\r\n")
      sandbar.assert(p:signal("KILL"))
      assert.equal("SIGKILL", sandbar.assert(p:wait { timeout = 20 }).signal)
      sandbar.assert(box:exec("pkill -TERM -f 'echo late' || true"))
      -- Its shell may say "Terminated" of a child before: one that was killed on its way to be a sleep.
      assert.matches("late\r\n$", sandbar.assert(p.stdout:read("a", { timeout = 20 })))
    end)
  end)

  it("go on when they are detached, and are typed at and read by whoever attaches", function()
    local box = sandbar.assert(sandboxes:create { id = "terms", lifetime = 120 })
    local child = helper.start_lua([[
      local sandbar = require "sandbar"
      local box = sandbar.assert(sandbar.assert(sandbar.open { root = (...), linger = 0 }):connect("terms"))
      local p = sandbar.assert(box:start("stty -echo; echo ready; while read line; do echo =$line=; done; echo over",
        { pty = { cols = 80, rows = 24 } }))
      assert(p.stdout:read("l", { timeout = 20 }) == "ready\r")
      sandbar.assert(p.stdin:write("one\n"))
      assert(p.stdout:read("l", { timeout = 20 }) == "=one=\r")
      print(p:reference())
      io.stdout:flush()
      io.read()
    ]], { args = { helper.root() } })
    local reference = child:line()
    child:signal("KILL")
    child:wait()
    local p
    assert.is_truthy(helper.eventually(function() -- its reader may not be known to be gone yet
      p = sandbar.assert(box:attach(reference))
      if p.stdin:write("two\n") then
        return true
      end
      p:close()
    end))
    assert.equal("=two=\r", sandbar.assert(p.stdout:read("l", { timeout = 20 })))
    assert.is_nil(p.stderr)
    sandbar.assert(p.stdin:write("three\n"))
    assert.equal("=three=\r", sandbar.assert(p.stdout:read("l", { timeout = 20 })))
    assert.is_true(sandbar.assert(p:resize { cols = 100, rows = 30 }))
    sandbar.assert(p:detach())
    p:close()
    p = sandbar.assert(box:attach(reference))
    assert.is_true(p:running())
    sandbar.assert(p.stdin:write("four\n"))
    p.stdin:close()
    assert.equal("=four=\r\nover\r\n", sandbar.assert(p.stdout:read("a", { timeout = 20 })))
    assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
    p:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("are drained into a tail", function()
    with_box(function(box)
      local p = start(box, "stty raw; head -c 3000000 /dev/zero | tr '\\0' x; printf end", { stdout = "tail" })
      assert.equal(0, sandbar.assert(p:wait { timeout = 60 }).exit_code)
      local tail = sandbar.assert(p.stdout:read("a"))
      assert.equal(65536, #tail)
      assert.equal("xend", tail:sub(-4))
    end)
  end)

  it("give the record of their size", function()
    with_box(function(box)
      local p = start(box, { "cat" }, { tag = "term" })
      sandbar.assert(p:resize { cols = 33, rows = 44 })
      sandbar.assert(box:start({ "cat" }, { stdin = "pipe", tag = "pipe" }))
      local found = {}
      for _, entry in ipairs(sandbar.assert(box:processes())) do
        found[entry.tag] = entry.pty or "none"
      end
      assert.same({ term = { cols = 33, rows = 44 }, pipe = "none" }, found)
    end)
  end)

  it("belong to their user alone", function()
    with_box(function(box)
      if not box:exec("true", { user = "root" }) then
        return -- one user only: there is nobody else
      end
      local p = start(box, "tty; cat")
      local name = read_to(p, "\n"):match("%S+")
      local r = sandbar.assert(box:exec("echo x >" .. name, { user = "nobody" }))
      assert.not_equal(0, r.exit_code)
      assert.matches("[Pp]ermission denied", r.stderr)
      assert.equal("0\r\n", exec(box, "stat -c %u $(tty)", { user = "root" }).stdout)
      assert.equal("ok\r\n", exec(box, "exec 3<>$(tty); echo ok >&3").stdout)
    end)
  end)

  it("take no input that a program puts into them behind their user's back", function()
    with_box(function(box)
      local r = exec(box, { "python3", "-c", [[
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
for number in 0x5412, 0x541C, 0x500000000 | 0x5412, 0x500000000 | 0x541C:
    print(c.ioctl(0, ctypes.c_ulong(number), b"x"), ctypes.get_errno())
]] })
      assert.equal(("-1 1\n"):rep(4), lines(r.stdout))
    end)
  end)

  it("of one sandbox cannot use up those of the machine", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec({ "python3", "-c", [[
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
n = 0
try:
    while n < 1000:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        n += 1
except OSError as e:
    print(n, e.errno)
print("held", flush=True)
]] }))
      assert.equal("256 28\nheld\n", r.stdout, r.stderr)
      local p = sandbar.assert(box:start({ "python3", "-c", [[
import os
for i in range(256):
    os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
print("held", flush=True)
os.read(0, 1)
]] }, { stdin = "pipe" }))
      assert.equal("held", p.stdout:read("l"))
      local none, err = box:exec("true", { pty = SIZE })
      assert.is_nil(none)
      assert.equal("LimitExceeded", err.kind)
      sandbar.scope(function(scope)
        local neighbour = sandbar.assert(sandboxes:create_scoped({}, scope))
        assert.equal("ok\r\n", exec(neighbour, "echo ok").stdout)
      end)
      p:close()
      assert.equal("ok\r\n", exec(box, "echo ok").stdout)
    end)
  end)

  it("leave no descriptor behind in pid 1", function()
    with_box(function(box)
      local function round()
        exec(box, "echo x; (sleep 0.01 &)", { stdin = "typed" })
        local p = start(box, { "cat" })
        sandbar.assert(p.stdin:write("x\n"))
        read_to(p, "x\r\nx\r\n")
        p:close()
      end
      local word = helper.mark(7411)
      sandbar.assert(box:start({ "sleep", word }))
      local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
      local function open()
        local n = 0
        for _, target in pairs(helper.proc.fds(pid1)) do
          if target:find("^pipe:") or target:find("/pt[sm]") then
            n = n + 1
          end
        end
        return n
      end
      round()
      local before = open() -- none for an ordinary user, who may not look
      for _ = 1, 10 do
        round()
      end
      assert.is_truthy(helper.eventually(function() return open() <= before end))
    end)
  end)

  it("are claimed", function()
    assert.is_true(sandbar.assert(sandboxes:capabilities()).pty)
  end)
end)

describe("the input of a detached process", function()
  helper.guard()

  local sandboxes = helper.open()

  it("never ended, since pid 1 held it as well", function()
    inside.with_box(sandboxes, function(box)
      local p = sandbar.assert(box:start({ "cat" }, { stdin = "pipe", detached = true }))
      p.stdin:close()
      assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
      p = sandbar.assert(box:start({ "cat" }, { stdin = "all of it", detached = true }))
      assert.equal("all of it", sandbar.assert(p.stdout:read("a", { timeout = 20 })))
      p = sandbar.assert(box:start({ "cat" }, { stdin = "pipe", detached = true }))
      sandbar.assert(p:detach())
      local other = sandbar.assert(box:attach(p.pid))
      p:close()
      sandbar.assert(other.stdin:write("more"))
      other.stdin:close()
      assert.equal("more", sandbar.assert(other.stdout:read("a", { timeout = 20 })))
      other:close()
    end)
  end)
end)
