-- Pauses that keep memory: what runs stands still and goes on where it was.
-- check: limit 300

local helper = require "spec.helper"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

describe("pause that keeps memory", function()
  helper.guard()

  local sandboxes = helper.open()
  local engine

  setup(function()
    helper.shell("mkdir -p -m 700 " .. helper.root() .. "/v1")
    helper.write_file(helper.root() .. "/v1/test-clock", "")
    engine = core.engine { root = helper.root(), linger = 0 }
  end)

  teardown(function()
    engine = nil
  end)

  local function advance(seconds)
    sandbar.assert(wait.op(engine:request("advance", { ms = seconds * 1000 }), 10, "advance"))
  end

  local function becomes(id, state)
    assert.is_truthy(helper.eventually(function()
      return sandbar.assert(sandboxes:info(id)).state == state
    end), id .. " never became " .. state)
  end

  local function create(spec)
    return sandbar.assert(sandboxes:create_scoped(spec or {}))
  end

  local function kind_of(_, err)
    return err and err.kind
  end

  -- A command that counts into a file, and the number it has come to.
  local COUNTER = "i=0; while :; do i=$((i+1)); echo $i >count.new; mv count.new count; done"
  local function count(box)
    return tonumber(sandbar.assert(box.files:read("count")))
  end
  local function counting(box)
    local p = sandbar.assert(box:start(COUNTER, { stdout = "ignore", stderr = "ignore" }))
    assert.is_truthy(helper.eventually(function()
      return box.files:exists("count")
    end))
    return p
  end

  it("lets nothing run, and everything go on where it was (B30)", function()
    local box = create()
    local p = counting(box)
    local says = sandbar.assert(box:start("i=0; while read line; do i=$((i+1)); echo $i $line; done", { stdin = "pipe" }))
    sandbar.assert(says.stdin:write("a\n"))
    assert.equal("1 a", says.stdout:read("l"))
    local boot, listed = sandbar.assert(box:info()).boot_id, #sandbar.assert(box:processes())
    assert.equal("memory", sandbar.assert(box:pause()))
    assert.equal("paused", box.state)
    assert.equal("memory", box.kept)
    assert.is_nil(box.ends_at)
    assert.equal(0, sandbar.assert(says.stdin:write("b\n")) - 2) -- the pipe has room, nobody reads it
    assert.equal("Timeout", kind_of(says.stdout:read("l", { timeout = 0.3 })))
    local other = sandbar.assert(sandboxes:connect(box.id, { resume = true }))
    local first = count(other)
    assert.is_true(sandbar.assert(p:running()))
    assert.equal("2 b", says.stdout:read("l", { timeout = 5 }))
    assert.equal(listed, #sandbar.assert(box:processes()))
    assert.is_truthy(helper.eventually(function()
      return count(box) > first
    end))
    assert.equal(boot, sandbar.assert(box:info()).boot_id)
    assert.equal("running", box.state)
    assert.is_nil(box.kept)
    other:close()
    box:close()
  end)

  it("answers NotRunning to every call, and Busy to none (B31)", function()
    local box = create()
    local p = counting(box)
    sandbar.assert(box.files:write("here", "x"))
    sandbar.assert(box:pause { keep = "memory" })
    for name, call in pairs {
      exec = function() return box:exec("true") end,
      streamed = function() return box:exec("cat", { stdin = function() end }) end,
      start = function() return box:start("true") end,
      processes = function() return box:processes() end,
      signal = function() return p:signal("TERM") end,
      kill = function() return p:kill() end,
      attach = function() return box:attach(p.pid) end,
      read = function() return box.files:read("here") end,
      write = function() return box.files:write("here", "y") end,
      list = function() return box.files:list(".") end,
      connect = function() return box:port(80):connect() end,
      fetch = function() return box:port(80):fetch { path = "/" } end,
      set_lifetime = function() return box:set_lifetime(10) end,
    } do
      assert.equal("NotRunning", kind_of(call()), name)
    end
    -- Pausing the paused changes nothing, whatever is asked for.
    assert.equal("memory", sandbar.assert(box:pause()))
    assert.equal("memory", sandbar.assert(box:pause { keep = "disk" }))
    local info = sandbar.assert(sandboxes:info(box.id))
    assert.same({ "paused", "memory" }, { info.state, info.kept })
    assert.equal(1, #sandbar.assert(sandboxes:list { state = "paused" }))
    assert.equal(0, #sandbar.assert(sandboxes:list { state = "running" }))
    local again = sandbar.assert(sandboxes:connect(box.id))
    assert.equal("paused", again.state)
    assert.equal("NotRunning", kind_of(again:exec("true")))
    -- What one handle wakes runs for the other, without a call of its own.
    sandbar.assert(again:resume())
    assert.is_true(sandbar.assert(box:exec("true")).ok)
    sandbar.assert(box:resume())
    assert.equal("x", box.files:read("here"))
    assert.is_true(sandbar.assert(p:running()))
    again:close()
    box:close()
  end)

  it("runs nothing afterwards that was asked for before", function()
    local box = create()
    for round = 1, 5 do
      local ok, refused = 0, 0
      sandbar.assert(box.files:write("log", ""))
      sandbar.scope(function(scope)
        local tasks = {}
        for i = 1, 40 do
          tasks[i] = scope:spawn(function()
            local r, err = box:exec("echo line >>log")
            if r then
              ok = ok + 1
            else
              assert.equal("NotRunning", err.kind, tostring(err))
              refused = refused + 1
            end
          end)
          if i == 20 then
            tasks[41] = scope:spawn(function()
              sandbar.assert(box:pause())
              sandbar.sleep(0.05) -- those under way stand meanwhile
              sandbar.assert(box:resume())
            end)
          end
        end
        for _, t in pairs(tasks) do
          t:wait()
        end
      end)
      local _, lines = sandbar.assert(box.files:read("log")):gsub("line\n", "")
      assert.equal(40, ok + refused)
      assert.equal(ok, lines, ("round %d: %d succeeded, %d were refused"):format(round, ok, refused))
    end
    box:close()
  end)

  it("leaves a command the time it had, and the lifetime too (B30, B35)", function()
    local box = create { lifetime = 1800 }
    local ends = box.ends_at
    local p = sandbar.assert(box:start({ "sleep", "60" }, { time_limit = 1.2 }))
    sandbar.sleep(0.3)
    sandbar.assert(box:pause())
    sandbar.sleep(1.5)
    advance(5000)
    assert.equal("paused", sandbar.assert(sandboxes:info(box.id)).state)
    sandbar.assert(box:resume())
    assert.is_true(sandbar.assert(p:running()))
    local now = tonumber(sandbar.assert(box:exec("date +%s")).stdout)
    assert.is_true(math.abs(now - os.time()) <= 1)
    assert.equal("limit", sandbar.assert(p:wait { timeout = 10 }).reason)
    local info = sandbar.assert(box:info())
    assert.is_true(math.abs(info.ends_at - os.time() - 5000 - 1800) < 5, ("%g s"):format(info.ends_at - os.time()))
    assert.is_true(info.ends_at >= ends)
    sandbar.assert(box:pause())
    sandbar.assert(box:resume { lifetime = 300 })
    info = sandbar.assert(box:info())
    assert.is_true(math.abs(info.ends_at - os.time() - 5000 - 300) < 5)
    box:close()
  end)

  it("comes at the end of a lifetime with on_expiry = \"pause\", and the next call wakes it with auto_resume", function()
    local box = sandbar.assert(sandboxes:create { id = "dozing", lifetime = 100, on_expiry = "pause" })
    local p = counting(box)
    advance(101)
    becomes("dozing", "paused")
    local info = sandbar.assert(box:info())
    assert.same({ "memory", "lifetime" }, { info.kept, info.cause.reason })
    assert.equal("NotRunning", kind_of(box:exec("true")))
    sandbar.assert(box:resume())
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(box:destroy())
    box:close()

    box = sandbar.assert(sandboxes:create {
      id = "woken", lifetime = 100, on_expiry = "pause", auto_resume = true,
    })
    p = counting(box)
    for _, call in ipairs {
      function(b) return b:exec("true") end,
      function(b) return b.files:read("count") end,
      function(b) return b:processes() end,
      function(b) return b:start("true") end,
      function(b) return b:exec("cat", { stdin = function() end }) end,
    } do
      advance(101)
      becomes("woken", "paused")
      sandbar.assert(call(box))
      assert.equal("running", sandbar.assert(sandboxes:info("woken")).state)
    end
    sandbar.assert(box:pause())
    local other = sandbar.assert(sandboxes:connect("woken"))
    assert.equal("paused", other.state) -- to connect wakes nothing
    assert.is_true(sandbar.assert(other:exec("true")).ok)
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(other:destroy())
    other:close()
    box:close()
  end)

  it("is over for a sandbox that is destroyed, whose scope ends, or whose pid 1 dies", function()
    local box = create()
    counting(box)
    sandbar.assert(box:pause())
    sandbar.assert(box:destroy())
    assert.equal("NotFound", kind_of(sandboxes:info(box.id)))
    box:close()

    box = create()
    counting(box)
    sandbar.assert(box:pause())
    sandbar.assert(box:close())
    assert.equal("NotFound", kind_of(sandboxes:info(box.id)))
  end)

  it("held up the end of a scope whose process stood still", function()
    local box = create()
    local p
    local began = helper.now()
    sandbar.scope(function(scope)
      p = sandbar.assert(box:start(COUNTER, { scope = scope }))
      sandbar.assert(box:pause())
    end)
    assert.is_true(helper.now() - began < 10)
    sandbar.assert(box:resume())
    assert.is_truthy(helper.eventually(function()
      local list = sandbar.assert(box:processes())
      return #list == 1 and not list[1].running and list[1].pid == p.pid
    end))
    box:close()
  end)

  it("lets an exec time out, which is killed when it goes on", function()
    local box = create()
    local r, err
    sandbar.scope(function(scope)
      local t = scope:spawn(function()
        r, err = box:exec("echo begun; sleep 77", { timeout = 1 })
      end)
      sandbar.sleep(0.3)
      sandbar.assert(box:pause())
      t:wait { timeout = 20 }
    end)
    assert.is_nil(r)
    assert.equal("ExecTimedOut", err.kind)
    assert.equal("begun\n", err.result.stdout)
    sandbar.assert(box:resume())
    assert.is_truthy(helper.eventually(function()
      return sandbar.assert(box:exec("ps -A -o args= | grep -c '[s]leep 77' || true")).stdout == "0\n"
    end))
    box:close()
  end)

  it("leaves stopped what was stopped", function()
    local box = create()
    local p = counting(box)
    sandbar.assert(p:signal("STOP", { group = true }))
    assert.is_truthy(helper.eventually(function() -- D: its child was stopped before its execve; N: niced
      return not sandbar.assert(box:exec("ps -o stat= -g " .. p.pid)).stdout:find("[^%sTDZNs+]")
    end))
    local stands = count(box)
    sandbar.assert(box:pause())
    sandbar.assert(box:resume())
    sandbar.sleep(0.2)
    assert.equal(stands, count(box))
    sandbar.assert(p:signal("CONT", { group = true }))
    assert.is_truthy(helper.eventually(function()
      return count(box) > stands
    end))
    box:close()
  end)

  it("can be repeated without limit, loses no output and no byte", function()
    local box = create()
    local p = sandbar.assert(box:start("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done"))
    local got = {}
    for _ = 1, 20 do
      sandbar.assert(box:pause())
      got[#got + 1] = p.stdout:read("L", { timeout = 0 })
      sandbar.assert(box:resume())
    end
    got[#got + 1] = sandbar.assert(p.stdout:read("a"))
    local want = {}
    for i = 1, 3000 do
      want[i] = i .. "\n"
    end
    assert.equal(table.concat(want), table.concat(got))
    assert.equal(0, sandbar.assert(p:wait()).exit_code)
    box:close()
  end)

  it("outlives the program that made it", function()
    local root = helper.dir()
    local made = helper.run_lua(([[
      local sandbar = require "sandbar"
      local box = sandbar.assert(sandbar.assert(sandbar.open { root = %q, linger = 1 }):create { id = "left" })
      local p = sandbar.assert(box:start(%q, { detached = true, stdout = "ignore", stderr = "ignore", tag = "c" }))
      while not box.files:exists("count") do end
      io.write((sandbar.assert(p:reference())))
      sandbar.assert(box:pause())
    ]]):format(root, COUNTER))
    assert.equal("", made.stderr)
    local own = helper.open { root = root }
    local box = sandbar.assert(own:connect("left", { resume = true }))
    local p = sandbar.assert(box:attach(made.stdout))
    local first = count(box)
    assert.is_truthy(helper.eventually(function()
      return count(box) > first
    end))
    assert.is_true(p:running())
    p:close()
    sandbar.assert(box:destroy())
    box:close()
    own:close()
    helper.remove(root)
  end)

  it("is one clear outcome for two hosts that pause, resume, run and destroy at once", function()
    local root = helper.dir()
    local WORK = [[
      local sandbar = require "sandbar"
      local own = sandbar.assert(sandbar.open { root = arg[1], linger = 1 })
      local box = sandbar.assert(own:connect("shared"))
      local allowed = { NotRunning = true, NotFound = true, Busy = true }
      local seen = {}
      local calls = {
        function() return box:pause() end,
        function() return box:resume() end,
        function() return box:exec("echo x >>f; true", { timeout = 20 }) end,
        function() return box:info() end,
      }
      math.randomseed(tonumber(arg[2]))
      local n = 0
      while not seen.NotFound and n < 20000 do
        n = n + 1
        local r, err = calls[math.random(#calls)]()
        local kind = r and "ok" or err.kind
        seen[kind] = (seen[kind] or 0) + 1
        if not r and not allowed[kind] then print(kind, err) end
      end
      print(seen.NotFound and (seen.ok or 0) > 10 and "done" or "never destroyed")
    ]]
    local own = helper.open { root = root }
    local box = sandbar.assert(own:create { id = "shared" })
    local one = helper.start_lua(WORK, { args = { root, 1 } })
    local two = helper.start_lua(WORK, { args = { root, 2 } })
    local ok = 0
    assert.is_truthy(helper.eventually(function()
      local r, err = box:exec("true", { timeout = 20 })
      ok = ok + (r and 1 or 0)
      assert.is_true(r ~= nil or err.kind == "NotRunning", tostring(err))
      return ok > 30
    end, 20))
    sandbar.assert(box:destroy())
    for _, child in ipairs { one, two } do
      local r = child:wait()
      assert.equal("done\n", r.stdout, r.stderr)
    end
    assert.same({}, sandbar.assert(own:list()))
    box:close()
    own:close()
    helper.remove(root)
  end)

  it("stays what it is when its supervisor is killed", function()
    local root = helper.dir()
    local own = helper.open { root = root }
    local box = sandbar.assert(own:create { id = "kept" })
    local p = counting(box)
    sandbar.assert(box:pause())
    for _ = 1, 8 do
      local other = core.engine { root = root, linger = 0 }
      local pid = sandbar.assert(wait.op(other:request("hello", { version = 1, linger_ms = 0 }), 10, "hello")).fields.pid
      helper.shell("kill -KILL " .. pid)
      assert.is_truthy(helper.eventually(function()
        return not helper.proc.alive(pid)
      end))
      local info = sandbar.assert(own:info("kept"))
      assert.same({ "paused", "memory" }, { info.state, info.kept })
      assert.equal("NotRunning", kind_of(box:exec("true")))
    end
    sandbar.assert(box:resume())
    local first = count(box)
    assert.is_truthy(helper.eventually(function()
      return count(box) > first
    end))
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(box:destroy())
    box:close()
    own:close()
    helper.remove(root)
  end)

  it("keeps the files when what it kept of the memory is lost", function()
    local box = sandbar.assert(sandboxes:create { id = "lost" })
    sandbar.assert(box.files:write("f", "x"))
    sandbar.assert(box:start({ "sleep", helper.mark(9191) }, { stdout = "tail" }))
    sandbar.assert(box:pause())
    local pid = helper.shell("pgrep -f '^sleep " .. helper.mark(9191) .. "$'"):match("%d+")
    local parent = tonumber(helper.read_file("/proc/" .. pid .. "/stat"):match("^%d+ %b() %S (%d+)"))
    helper.shell("kill -KILL " .. parent)
    local info
    assert.is_truthy(helper.eventually(function()
      info = sandbar.assert(sandboxes:info("lost"))
      return info.kept == "disk"
    end))
    assert.same({ "paused", "pid1" }, { info.state, info.cause.reason })
    sandbar.assert(box:resume())
    assert.equal("x", box.files:read("f"))
    assert.same({}, sandbar.assert(box:processes()))
    sandbar.assert(box:destroy())
    box:close()
  end)
end)
