local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("processes", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  -- Does a process of the sandbox have this word among its arguments?
  local function runs(box, word)
    for _, p in ipairs(sandbar.assert(box:processes())) do
      for _, arg in ipairs(p.args) do
        if p.running and arg:find(word, 1, true) then
          return true
        end
      end
    end
    return false
  end

  it("reads and writes the pipes", function()
    with_box(function(box)
      local p = sandbar.assert(box:start({ "cat" }, { stdin = "pipe", tag = "cat" }))
      assert.equal("cat", p.tag)
      assert.is_true(p.pid > 1)
      assert.is_true(p:running())
      assert.equal(6, sandbar.assert(p.stdin:write("one\ntw")))
      assert.equal("one", sandbar.assert(p.stdout:read("l")))
      assert.equal("tw", sandbar.assert(p.stdout:read(2)))
      p.stdin:write("rest\nof\nit")
      p.stdin:close()
      p.stdin:close()
      assert.equal("rest\n", p.stdout:read("L"))
      assert.equal("of\nit", p.stdout:read("a"))
      assert.is_nil(p.stdout:read("l"))
      assert.is_true(sandbar.assert(p:wait()).ok)
      assert.is_false(p:running())
    end)
  end)

  it("consumes nothing in a read that times out", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("printf ab; read go; echo c; sleep 30", { stdin = "pipe" }))
      local data, err = p.stdout:read("l", { timeout = 0.2 })
      assert.is_nil(data)
      assert.equal("Timeout", err.kind)
      sandbar.assert(p.stdin:write("\n"))
      assert.equal("abc", sandbar.assert(p.stdout:read("l", { timeout = 5 })))
    end)
  end)

  it("lost lines, or was Busy with itself, when it was read without waiting while they came", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i + 1)); done; "
        .. "head -c 700000 /dev/zero | tr '\\0' x; echo"))
      local function poll()
        local line, err
        assert.is_truthy(helper.eventually(function()
          for _ = 1, 200 do
            line, err = p.stdout:read("l", { timeout = 0 })
            if line or not err or err.kind ~= "Timeout" then
              return true
            end
          end
        end, 20))
        return line, err
      end
      for i = 0, 2999 do
        local line, err = poll()
        assert.equal(tostring(i), line, tostring(err))
      end
      assert.equal(700000, #poll()) -- more than is buffered for one who does not ask for it
      local line, err = poll()
      assert.is_nil(line)
      assert.is_nil(err)
      p:close()
    end)
  end)

  it("wrote, or not, and said that it had written nothing, when it was not to wait", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("sleep 0.2; wc -c", { stdin = "pipe" }))
      local data, total = ("x"):rep(50000), 0
      repeat
        local taken, err = p.stdin:write(data, { timeout = 0 })
        total = total + taken
        assert.is_true(taken == #data and err == nil or taken < #data and err.kind == "Timeout")
      until total >= 1000000
      p.stdin:close()
      assert.equal(total, tonumber((p.stdout:read("l", { timeout = 10 }))))
      local taken, err = p.stdin:write("x", { timeout = 0 })
      assert.is_nil(taken)
      assert.equal("Closed", err.kind)
      p:close()
    end)
  end)

  it("keeps the stream usable after a line that is too long", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("head -c 5000 /dev/zero | tr '\\0' x; echo; echo next"))
      local data, err = p.stdout:read("l", { max = 1000 })
      assert.is_nil(data)
      assert.equal("LimitExceeded", err.kind)
      assert.equal(5000, #sandbar.assert(p.stdout:read("l", { max = 10000 })))
      assert.equal("next", p.stdout:read("l"))
    end)
  end)

  it("iterates lines, and both streams as they come (B-33)", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo a; echo b; printf c"))
      local lines = {}
      for line in p.stdout:lines() do
        lines[#lines + 1] = line
      end
      assert.same({ "a", "b", "c" }, lines)
      p = sandbar.assert(box:start("echo 1; read go; echo 2 >&2; read go; echo 3", { stdin = "pipe" }))
      local seen, offsets = {}, {}
      for fd, data, offset in p:output() do
        seen[#seen + 1] = fd .. data
        offsets[#offsets + 1] = offset
        p.stdin:write("\n")
      end
      assert.same({ "11\n", "22\n", "13\n" }, seen)
      assert.same({ 0, 0, 2 }, offsets)
    end)
  end)

  it("loses nothing when an output loop is left early", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo first; read go; echo second", { stdin = "pipe" }))
      local it = p:output()
      assert.same({ 1, "first\n", 0 }, { it:next() })
      assert.is_nil((p.stdout:read("l", { timeout = 0.05 })))
      it:close()
      sandbar.assert(p.stdin:write("\n"))
      assert.equal("second", sandbar.assert(p.stdout:read("l", { timeout = 5 })))
    end)
  end)

  it("is Busy for a second reader, who may wait and signal", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("read go; echo x", { stdin = "pipe" }))
      local results = sandbar.assert(sandbar.all {
        function() return sandbar.assert(p.stdout:read("l")) end,
        function()
          local _, err = p.stdout:read("l")
          sandbar.assert(p.stdin:write("\n"))
          return err.kind
        end,
        function() return sandbar.assert(p:wait { output = true }).exit_code end,
      })
      assert.same({ "x", "Busy", 0, n = 3 }, results)
    end)
  end)

  it("holds a process back with a full pipe and drops nothing", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("head -c 3000000 /dev/zero; echo done >&2"))
      local _, err = p:wait { timeout = 0.3 }
      assert.equal("Timeout", err.kind)
      assert.equal(3000000, #sandbar.assert(p.stdout:read("a")))
      assert.is_true(sandbar.assert(p:wait { timeout = 5 }).ok)
    end)
  end)

  it("keeps a bounded tail in \"tail\" mode and never wedges", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("head -c 3000000 /dev/zero | tr '\\0' x; echo end", { stdout = "tail" }))
      assert.is_true(sandbar.assert(p:wait { timeout = 20 }).ok)
      local tail = sandbar.assert(p.stdout:read("a"))
      assert.equal(65536, #tail)
      assert.equal("xend\n", tail:sub(-5))
    end)
  end)

  it("kept everybody from the output of a \"tail\" process until its starter's handle was closed", function()
    with_box(function(box)
      local line = "echo one; echo err >&2; read x; echo $x; read y"
      local p = sandbar.assert(box:start(line, { stdin = "pipe", stdout = "tail", stderr = "tail" }))
      local again = sandbar.assert(box:attach(p.pid))
      assert.equal("one", sandbar.assert(again.stdout:read("l", { timeout = 10 })))
      assert.equal("err", sandbar.assert(again.stderr:read("l", { timeout = 10 })))
      sandbar.assert(p.stdin:write("two\n"))
      assert.equal("two", sandbar.assert(again.stdout:read("l", { timeout = 10 })))
      p.stdin:close()
      assert.equal(1, sandbar.assert(p:wait { timeout = 10 }).exit_code)
      assert.is_nil(again.stdout:read("l"))
      again:close()
    end)
  end)

  it("was Busy for others although its starter had closed both ends, and named no way out", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one; read x; echo two", { stdin = "pipe" }))
      assert.equal("one", sandbar.assert(p.stdout:read("l", { timeout = 10 })))
      local again = sandbar.assert(box:attach(p.pid))
      local _, err = again.stdout:read("l", { timeout = 5 })
      assert.equal(("read: the output of process %d belongs to another handle, started or attached, until that one is "
        .. "closed (Busy)"):format(p.pid), tostring(err))
      p.stdout:close()
      p.stderr:close()
      sandbar.assert(p.stdin:write("\n"))
      assert.equal("two", sandbar.assert(again.stdout:read("l", { timeout = 10 })))
      assert.is_nil(again.stdout:read("l", { timeout = 10 }))
      again:close()
    end)
  end)

  it("took the output from a third handle when the second, which had closed both ends, was closed as well", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one; read x; echo two; read x; echo three", { stdin = "pipe" }))
      assert.equal("one", sandbar.assert(p.stdout:read("l", { timeout = 10 })))
      local second = sandbar.assert(box:attach(p.pid)) -- gets the output later, on a lease of its own
      p.stdout:close()
      p.stderr:close()
      sandbar.assert(p.stdin:write("\n"))
      assert.equal("two", sandbar.assert(second.stdout:read("l", { timeout = 10 })))
      second.stdout:close()
      second.stderr:close()
      local third = sandbar.assert(box:attach(p.pid))
      second:close()
      sandbar.assert(p.stdin:write("\n"))
      sandbar.assert(p:wait { timeout = 10 })
      assert.equal("three", sandbar.assert(third.stdout:read("l", { timeout = 10 })))
      third:close()
    end)
  end)

  it("ended the output of an attached process that has none as Busy", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("read x", { stdin = "pipe", stdout = "ignore", stderr = "ignore" }))
      local again = sandbar.assert(box:attach(p.pid))
      local line, err = again.stdout:read("l", { timeout = 10 })
      assert.is_nil(line)
      assert.is_nil(err)
      again:close()
    end)
  end)

  it("signals by name and number and says what was delivered", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done"))
      assert.equal("ready", p.stdout:read("l"))
      local sent = sandbar.assert(p:signal("USR1"))
      assert.equal("SIGUSR1", sent.signal)
      assert.equal("usr1", sandbar.assert(p.stdout:read("l", { timeout = 5 })))
      sandbar.assert(p:signal(15))
      assert.equal("SIGTERM", sandbar.assert(p:wait { timeout = 5 }).signal)
      local _, err = p:signal("NOSUCH")
      assert.equal("InvalidArgument", err.kind)
    end)
  end)

  it("did not know a real-time signal by the name it gives it, and called 32 SIGRTMIN+-2", function()
    with_box(function(box)
      for signal, name in pairs { [32] = "SIG32", ["SIGRTMIN+1"] = "SIGRTMIN+1", ["rtmin+30"] = "SIGRTMIN+30" } do
        local p = sandbar.assert(box:start { "sleep", "60" })
        assert.equal(name, sandbar.assert(p:signal(signal)).signal)
        assert.equal(name, sandbar.assert(p:wait { timeout = 10 }).signal)
      end
      local p = sandbar.assert(box:start { "sleep", "60" })
      assert.equal("InvalidArgument", select(2, p:signal("RTMIN+31")).kind)
    end)
  end)

  it("kills the tree, escalating, and returns after the exit (B-35, B11)", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("trap '' TERM; (setsid sleep 345 &); echo up; sleep 345 & wait; sleep 345"))
      assert.equal("up", p.stdout:read("l"))
      local r = sandbar.assert(p:kill { signal = "TERM", grace = 0.2 })
      assert.equal("SIGKILL", r.signal)
      assert.is_false(p:running())
      assert.equal(0, inside.count(box, "sleep 345"))
    end)
  end)

  local function sleeping(box, seconds)
    local n = 0
    for _, line in ipairs(inside.commands(box)) do
      n = n + (line:match("^sleep (%d+) ?$") == seconds and 1 or 0)
    end
    return n
  end

  it("kills what left session and parents, also by a time limit, and nothing of another command", function()
    with_box(function(box)
      local ways = {
        function(p) return p:kill {} end,
        function(p) return p:kill { grace = 0.2, signal = "INT" } end,
        function(p) return p:kill { signal = "KILL" } end,
      }
      local other = sandbar.assert(box:start("(setsid sleep 347 &); echo up; sleep 347"))
      assert.equal("up", other.stdout:read("l"))
      for _, kill in ipairs(ways) do
        local p = sandbar.assert(box:start("(setsid sh -c '(setsid sleep 346 &); sleep 346' &); echo up; sleep 346"))
        assert.equal("up", p.stdout:read("l"))
        assert.is_truthy(helper.eventually(function() return sleeping(box, "346") == 3 end))
        sandbar.assert(kill(p))
        assert.equal(0, sleeping(box, "346"))
      end
      local _, err = box:exec("(setsid sleep 346 &); sleep 346", { timeout = 0.5 })
      assert.equal("ExecTimedOut", err.kind)
      assert.equal(0, sleeping(box, "346"))
      assert.equal(2, sleeping(box, "347"))
      -- An ordinary user's engine knows it by a limit that is inherited and can only be lowered.
      local exact = sandbar.assert(sandboxes:capabilities()).tree_kill == "exact"
      local _, late = box:exec("bash -c 'ulimit -R 1000; (setsid sleep 346 &); :'; sleep 346", { timeout = 0.5 })
      assert.equal("ExecTimedOut", late.kind)
      assert.equal(exact and 0 or 1, sleeping(box, "346"))
    end)
  end)

  it("waits with a timeout, several at once, and again after the end", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("read go; exit 9", { stdin = "pipe" }))
      local _, err = p:wait { timeout = 0.05 }
      assert.equal("Timeout", err.kind)
      sandbar.assert(p.stdin:write("\n"))
      local codes = sandbar.assert(sandbar.all {
        function() return sandbar.assert(p:wait()).exit_code end,
        function() return sandbar.assert(p:wait()).exit_code end,
      })
      assert.same({ 9, 9, n = 2 }, codes)
      assert.equal(9, sandbar.assert(p:wait { timeout = 0 }).exit_code)
    end)
  end)

  it("feeds start from a string and a function", function()
    with_box(function(box)
      local p = sandbar.assert(box:start({ "cat" }, { stdin = "abc" }))
      assert.equal("abc", p.stdout:read("a"))
      local n = 0
      p = sandbar.assert(box:start({ "wc", "-c" }, { stdin = function()
        n = n + 1
        return n < 50 and ("y"):rep(5000) or nil
      end }))
      assert.equal(49 * 5000, tonumber(p.stdout:read("a")))
    end)
  end)

  it("counts what an attached process has lost, of both streams", function()
    with_box(function(box)
      local line = "head -c 100000 /dev/zero >&2; head -c 70000 /dev/zero; echo done >f; read x; head -c 70000 /dev/zero"
      local p = sandbar.assert(box:start(line, { stdin = "pipe", stdout = "tail", stderr = "tail", tag = "lossy" }))
      assert.is_truthy(helper.eventually(function() return box.files:exists("f") end))
      local lost = 100000 + 70000 - 2 * 65536
      assert.is_truthy(helper.eventually(function()
        local again = sandbar.assert(box:attach { tag = "lossy" })
        local dropped = again.dropped
        again:close()
        return dropped == lost
      end))
      p.stdin:close()
      local r = sandbar.assert(p:wait { timeout = 10 })
      assert.is_true(r.dropped >= lost)
      assert.equal(r.dropped, p.dropped)
      p:close()
    end)
  end)

  it("attaches by pid, tag and reference, and lists (B-38, B-S2)", function()
    with_box(function(box)
      local p = sandbar.assert(box:start({ "sleep", "346" }, { tag = "the sleeper" }))
      local found
      for _, entry in ipairs(sandbar.assert(box:processes())) do
        if entry.pid == p.pid then
          found = entry
        end
      end
      assert.same({ "sleep", "346" }, found.args)
      assert.equal("the sleeper", found.tag)
      assert.is_true(found.running)
      for _, target in ipairs { p.pid, { tag = "the sleeper" }, sandbar.assert(p:reference()) } do
        local again = sandbar.assert(box:attach(target))
        assert.equal(p.pid, again.pid)
        assert.is_true(again:running())
        local _, err = again.stdout:read("l", { timeout = 0.1 })
        assert.equal("Busy", err.kind) -- the starter reads
        again:close()
      end
      assert.is_true(p:running())
      local _, err = box:attach { tag = "nobody" }
      assert.equal("NotFound", err.kind)
      _, err = box:attach(-1)
      assert.equal("InvalidArgument", err.kind)
      _, err = box:attach(99999)
      assert.equal("NotFound", err.kind)
    end)
  end)

  it("that had ended was called running by its handle, and by one attached afterwards", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("exit 3", { tag = "short", stdout = "tail", stderr = "tail" }))
      sandbar.assert(helper.eventually(function() return not p:running() end))
      local again = sandbar.assert(box:attach { tag = "short" })
      assert.is_false(again:running())
      for _, handle in ipairs { p, again } do
        assert.equal(("sandbar.Process %d (ended)"):format(p.pid), tostring(handle))
      end
      assert.equal(3, sandbar.assert(again:wait { timeout = 10 }).exit_code)
      again:close()
    end)
  end)

  it("answers for a process that has ended: status and tail, not \"not found\" (B13)", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo last words; exit 6", { stdout = "tail" }))
      sandbar.assert(p:wait())
      local pid = p.pid
      p:close()
      local again = sandbar.assert(box:attach(pid))
      assert.equal(6, sandbar.assert(again:wait { timeout = 5 }).exit_code)
      assert.equal("last words\n", again.stdout:read("a"))
    end)
  end)

  it("held a detached process up at a full pipe as long as its handle lived", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo first; read x; head -c 3000000 /dev/zero | tr '\\0' z; echo; echo last",
        { stdin = "pipe" }))
      assert.equal("first", p.stdout:read("l"))
      local waiting = sandbar.spawn(function() return p.stdout:read("l") end)
      sandbar.assert(p:detach())
      assert.is_nil(waiting:wait())
      sandbar.assert(p.stdin:write("go\n"))
      assert.equal(0, sandbar.assert(p:wait { timeout = 10 }).exit_code)
      assert.is_nil(p.stdout:read("l"))
      local other = sandbar.assert(box:attach(p.pid))
      local tail = sandbar.assert(other.stdout:read("a"))
      assert.matches("z\nlast\n$", tail)
      assert.is_true(#tail <= 65536 and #tail > 60000)
      other:close()
      p:close()
    end)
  end)

  it("reads what had come before a detach, the rest by attaching, nothing twice", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("printf 'one\\ntwo\\n'; read x; echo three; read x; echo four",
        { stdin = "pipe" }))
      assert.equal("one", p.stdout:read("l")) -- two has come with it
      sandbar.assert(p.stdin:write("go\n"))
      sandbar.assert(p:detach())
      local rest = p.stdout:read("a")
      assert.equal("two\n", rest:sub(1, 4))
      assert.is_nil(p.stdout:read("l"))
      local other = sandbar.assert(box:attach(p.pid))
      sandbar.assert(p.stdin:write("go\n"))
      assert.equal("two\nthree\nfour\n", rest .. other.stdout:read("a"))
      other:close()
      p:close()
    end)
  end)

  it("kills a process at the end of its scope, unless it was detached (A-67, A-69)", function()
    with_box(function(box)
      sandbar.scope(function(scope)
        sandbar.assert(box:start({ "sleep", "347" }, { scope = scope }))
        sandbar.assert(box:start({ "sleep", "348" }, { scope = scope, detached = true }))
        local p = sandbar.assert(box:start({ "sleep", "349" }, { scope = scope }))
        sandbar.assert(p:detach())
      end)
      assert.is_false(runs(box, "347"))
      assert.is_true(runs(box, "348"))
      assert.is_true(runs(box, "349"))
      local p
      for _, entry in ipairs(sandbar.assert(box:processes())) do
        if entry.args[2] == "349" then
          p = sandbar.assert(box:attach(entry.pid))
        end
      end
      sandbar.scope(function(scope)
        sandbar.assert(scope:adopt(p))
      end)
      assert.is_false(runs(box, "349"))
    end)
  end)

  it("lets a process of an unscoped sandbox live on without its handle", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 60 })
    local p = sandbar.assert(box:start("while :; do echo x; sleep 0.01; done"))
    local pid = p.pid
    p:close()
    local again = sandbar.assert(box:attach(pid))
    assert.is_true(again:running())
    assert.is_truthy(sandbar.assert(again.stdout:read("l", { timeout = 5 })))
    again:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("drains a pipe nobody can read any more, so that its process never wedges", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 60 })
    sandbar.assert(box:start("head -c 3000000 /dev/zero; echo done >finished"))
    assert.is_truthy(helper.eventually(function()
      collectgarbage() -- takes the handle that was not kept
      return box.files:read("finished") == "done\n"
    end))
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("is Busy for a reader in another program, until that one has died", function()
    local box = sandbar.assert(sandboxes:create { id = "shared", lifetime = 60 })
    local child = helper.start_lua([[
      local sandbar = require "sandbar"
      local box = sandbar.assert(sandbar.assert(sandbar.open { root = (...), linger = 0 }):connect("shared"))
      local p = sandbar.assert(box:start("while :; do echo tick; sleep 0.01; done"))
      print(p.pid)
      io.stdout:flush()
      for line in p.stdout:lines() do assert(line == "tick") end
    ]], { args = { helper.root() } })
    local p = sandbar.assert(box:attach(tonumber(child:line())))
    local _, err = p.stdout:read("l", { timeout = 5 })
    assert.equal("Busy", err.kind)
    child:signal("KILL")
    child:wait()
    local line, why = helper.eventually(function()
      return p.stdout:read("l", { timeout = 5 })
    end)
    assert.is_truthy(line, tostring(why))
    assert.equal("tick", line:match("tick$"))
    assert.is_true(p:running(), tostring(p))
    p:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("writes to a process without open input as an error value (B10)", function()
    with_box(function(box)
      local p = sandbar.assert(box:start({ "sleep", "30" }))
      local n, err = p.stdin:write("x")
      assert.is_nil(n)
      assert.equal("Closed", err.kind)
      assert.is_truthy(err.message:find("stdin", 1, true))
    end)
  end)

  it("keeps a spool of its output, on every Lua", function() -- more of it: spool_spec.lua
    with_box(function(box)
      local p = sandbar.assert(box:start("seq 1 20000; echo end", { stdout = "spool", stderr = "stdout" }))
      assert.equal("1", p.stdout:read("l", { timeout = 20 }))
      local n, last = 1, nil
      for line in p.stdout:lines("l", { timeout = 20 }) do
        n, last = n + 1, line
      end
      assert.same({ 20001, "end" }, { n, last })
      local at = 70001
      for fd, data, offset in sandbar.assert(box:attach(p.pid, { from = at })):output { timeout = 20 } do
        assert.same({ 1, at }, { fd, offset })
        at = at + #data
      end
      assert.equal(108894 + 4, at)
    end)
  end)

  it("shows itself readably", function()
    with_box(function(box)
      local p = sandbar.assert(box:start({ "sleep", "30" }))
      assert.is_truthy(tostring(p):find(tostring(p.pid), 1, true))
      assert.is_truthy(tostring(box):find("running", 1, true))
      assert.has_error(function() p.pid = 3 end)
    end)
  end)
end)
