-- check: only 5.4
-- Limits of a whole sandbox: memory, processor time, running time, commands. What the machine cannot enforce is refused.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local MIB = 1048576

describe("limits of a sandbox", function()
  helper.guard()

  local sandboxes = helper.open()
  local engine, can

  setup(function()
    helper.shell("mkdir -p -m 700 " .. helper.root() .. "/v1")
    helper.write_file(helper.root() .. "/v1/test-clock", "")
    engine = core.engine { root = helper.root(), linger = 0 }
    can = sandbar.assert(sandboxes:capabilities())
  end)

  teardown(function()
    engine = nil
  end)

  local advanced = 0

  local function advance(seconds)
    advanced = advanced + seconds
    sandbar.assert(wait.op(engine:request("advance", { ms = seconds * 1000 }), 10, "advance"))
  end

  local function need(capability)
    if not can[capability] then
      helper.skip("this machine gives this user no " .. capability)
    end
  end

  -- The groups of the old kind that sandboxes of this state root have, one path a line.
  local function groups()
    local id = inside.supervisor(helper.root())
    local name = id and (helper.read_file(("/proc/%d/cgroup"):format(id)) or ""):match("sandbar%-%x+")
    return name and (helper.shell("find /sys/fs/cgroup -type d -path '*/" .. name .. "/*' 2>/dev/null |"
      .. " grep -v -e /unified/ -e /self$")) or ""
  end

  it("capabilities, explain and create agree on what can be enforced, and nothing is made of what cannot", function()
    assert.is_true(can.limit_processes)
    assert.equal(can.limit_memory, can.oom_reported)
    for limit, capability in pairs { memory = "limit_memory", cpus = "limit_cpu", disk = "limit_disk" } do
      local spec = { id = "one", limits = { [limit] = limit == "cpus" and 1 or 64 * MIB } }
      local told = sandbar.assert(sandboxes:explain(spec))
      assert.equal(can[capability], told.ok, limit)
      local box, err = sandboxes:create(spec)
      if can[capability] then
        sandbar.assert(box, err):destroy()
      else
        assert.equal("Unsupported", err.kind, tostring(err))
        assert.is_truthy(tostring(err):find("limits." .. limit, 1, true), tostring(err))
        assert.equal("NotFound", select(2, sandboxes:info("one")).kind)
        assert.equal("Unsupported", select(2, sandboxes:create {
          expect = { capability }, limits = spec.limits }).kind)
      end
    end
    for limit, values in pairs {
      memory = { 0, -1, 4 * MIB - 1, 1.5, 0 / 0, 1 / 0 }, cpus = { 0, -1, 0.009, 8193, 0 / 0 },
      max_commands = { 0, -1, 1.5 }, wall_time = { 0, -1, "soon", 1e12, 0 / 0 },
    } do
      for _, value in ipairs(values) do
        local _, err = sandboxes:create { limits = { [limit] = value } }
        assert.equal("InvalidArgument", err.kind, limit .. " = " .. tostring(value))
      end
    end
  end)

  it("a machine without control groups refuses what it cannot enforce, as an ordinary user's does", function()
    helper.need_root()
    local root = helper.dir("bare")
    local wrapper = helper.write_file(helper.scratch() .. "/bare", ([[#!/bin/sh
exec unshare -m sh -c '
  awk "/ - cgroup2? /{ print \$5 }" /proc/self/mountinfo | xargs -r -n1 umount -l
  exec "$@"' sh %s "$@"
]]):format(helper.quote(helper.interpreter())))
    helper.shell("chmod 755 " .. helper.quote(wrapper))
    local r = helper.run_lua([[
local sandbar = require "sandbar"
local sandboxes = sandbar.assert(sandbar.open { root = arg[1], linger = 0 })
local can = sandbar.assert(sandboxes:capabilities())
print(can.limit_memory, can.limit_cpu, can.oom_reported, can.limit_processes, can.tree_kill)
print(select(2, sandboxes:create_scoped { limits = { memory = 1e8 } }))
print(sandboxes:explain { limits = { cpus = 1 } }.ok, #sandboxes:list())
local box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 40, wall_time = 60 } })
io.write(box:exec("echo works").stdout)
box:close()
]], { interpreter = wrapper, args = { root }, timeout = 60 })
    assert.equal("", r.stderr)
    assert.is_truthy(r.stdout:find("^false%s+false%s+false%s+true%s+descendants\n"), r.stdout)
    assert.is_truthy(r.stdout:find("limits.memory: there is no control group with a memory controller here", 1, true),
      r.stdout)
    assert.is_truthy(r.stdout:find("\nfalse%s+0\nworks\n"), r.stdout)
    assert.is_truthy(helper.eventually(function()
      return not inside.supervisor(root)
    end))
  end)

  it("the groups of a supervisor that was killed go with the next one, which was never asked for a limit", function()
    helper.need_root()
    local root = helper.dir("killed")
    local own = sandbar.assert(sandbar.open { provider = "local", root = root, linger = 0 })
    local box = sandbar.assert(own:create { limits = { wall_time = 60 } })
    sandbar.assert(own:capabilities()) -- makes groups of each kind
    local id = inside.supervisor(root)
    local name = helper.read_file(("/proc/%d/cgroup"):format(id)):match("sandbar%-%x+")
    if not name then
      helper.skip("this machine has no control groups of the new kind, whose name tells that of the others")
    end
    helper.shell("kill -9 " .. id)
    sandbar.assert(box:destroy())
    own:close()
    assert.is_truthy(helper.eventually(function()
      return not inside.supervisor(root)
    end))
    assert.equal("", helper.shell("find /sys/fs/cgroup -name " .. name .. " 2>/dev/null || true"))
  end)

  it("a command that runs out of memory is told from one that was killed, and pid 1 stays (B06, B15)", function()
    need("limit_memory")
    local box = sandbar.assert(sandboxes:create_scoped { limits = { memory = 16 * MIB } })
    local function ends(cmd, reason, code, signal, opts)
      local r = sandbar.assert(box:exec(cmd, opts))
      assert.same({ reason, code, signal, false }, { r.reason, r.exit_code, r.signal, r.ok })
      assert.equal("next\n", sandbar.assert(box:exec("echo next")).stdout)
    end
    ends("head -c 500M /dev/zero | tail", "memory", 137, nil)
    ends({ "tail", "/dev/zero" }, "memory", 137, "SIGKILL")
    ends({ "tail", "/dev/zero" }, "memory", 137, "SIGKILL", { pty = { cols = 80, rows = 24 } })
    ends({ { "cat", "/dev/zero" }, { "tail" } }, "memory", 137, "SIGKILL")
    ends("kill -9 $$", "signal", 137, "SIGKILL")
    ends("exit 137", "exit", 137, nil)
    ends("sleep 60", "limit", 137, "SIGKILL", { time_limit = 0.2 })
    -- A part that was killed, in a command that goes on.
    local r = sandbar.assert(box:exec("tail /dev/zero; echo $?"))
    assert.same({ true, "exit", "137\n" }, { r.ok, r.reason, r.stdout })
    -- Killed by us, while another one runs out of memory.
    local p = sandbar.assert(box:start { "sleep", "60" })
    ends({ "tail", "/dev/zero" }, "memory", 137, "SIGKILL")
    sandbar.assert(p:signal("KILL"))
    assert.equal("signal", sandbar.assert(p:wait { timeout = 10 }).reason)
    p:close()
    -- A file system in memory cannot take all of it.
    r = sandbar.assert(box:exec("cat /dev/zero >/dev/shm/full; rm /dev/shm/full"))
    assert.is_truthy(r.stderr:find("No space left", 1, true), r.stderr)
    assert.equal("running", sandbar.assert(box:info()).state)
    box:destroy()
  end)

  it("a program of the sandbox's root that has its pid 1 killed for memory ends the sandbox, with that cause", function()
    need("limit_memory")
    local box = sandbar.assert(sandboxes:create { limits = { memory = 16 * MIB } })
    -- Several, none of which has as much as that score stands for.
    box:exec([[while :; do echo 1000 >/proc/1/oom_score_adj; done & echo 0 >/proc/self/oom_score_adj
      for i in 1 2 3 4; do tail /dev/zero & done; wait]], { user = "root" })
    assert.is_truthy(helper.eventually(function()
      return sandboxes:info(box.id).state == "failed"
    end))
    assert.equal("memory", sandboxes:info(box.id).cause.reason)
    sandbar.assert(box:resume())
    assert.equal("back\n", sandbar.assert(box:exec("echo back")).stdout)
    assert.equal(16 * MIB, sandbar.assert(box:info()).limits.memory)
    sandbar.assert(box:destroy())
  end)

  it("a share of a processor is not exceeded", function()
    need("limit_cpu")
    local box = sandbar.assert(sandboxes:create_scoped { limits = { cpus = 0.5 } })
    local r = sandbar.assert(box:exec({ "sh", "-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; times" }))
    local minutes, seconds = r.stdout:match("^(%d+)m([%d.]+)s")
    local used = minutes * 60 + seconds
    -- What a period of 0.1 s allows may be used at once at the start, and once more by a process that has just moved.
    assert.is_true(r.duration >= (used - 0.1) / 0.5 * 0.9, ("%g s in %g s"):format(used, r.duration))
    box:destroy()
  end)

  it("a fork storm under a limit of processes ends by itself or by kill, and nobody else notices (B15)", function()
    local box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 64 } })
    local beside = sandbar.assert(sandboxes:create_scoped {})
    local storm = sandbar.assert(box:start("while :; do sleep 100 & done", { stdout = "ignore", stderr = "ignore" }))
    assert.is_true(sandbar.assert(beside:exec("true", { timeout = 10 })).ok)
    assert.equal("running", sandbar.assert(box:info()).state)
    sandbar.assert(storm:kill { signal = "KILL", timeout = 20 })
    storm:close()
    assert.equal("again\n", sandbar.assert(box:exec("echo again", { timeout = 10 })).stdout)
    box:destroy()
    beside:destroy()
  end)

  it("processes that a command left behind filled the sandbox: nothing could be started until it was destroyed (B15)", function()
    local box = sandbar.assert(sandboxes:create_scoped { limits = { processes = 64 } })
    local beside = sandbar.assert(sandboxes:create_scoped {})
    local is_root = box:exec({ "true" }, { user = "root" }) ~= nil -- or there is but one id
    local function processes()
      return tonumber(sandbar.assert(box:exec { "sh", "-c", "set -- /proc/[0-9]*; echo $#" }).stdout)
    end
    local few = processes() + 3 -- and pid 1's workers
    for _, user in ipairs { "user", is_root and "root" or nil } do
      local storm = sandbar.assert(box:exec("i=0; while [ $i -lt 10000 ]; do sleep 100 & i=$((i+1)); done", { user = user }))
      assert.is_false(storm.ok)
      assert.is_truthy(storm.stderr:find("fork", 1, true), storm.stderr)
      local seconds = helper.timed(function()
        assert.is_true(sandbar.assert(beside:exec { "true" }).ok)
      end)
      assert.is_true(seconds < 1, seconds)
      assert.equal("running", sandbar.assert(box:info()).state)
      -- What is started still comes up to the limit itself.
      local r = sandbar.assert(box:exec("true & wait", { user = user }))
      assert.is_truthy(r.stderr:find("fork", 1, true), r.stderr)
      local n = processes()
      assert.is_true(n >= 60 and n <= 64 + 3, n)
      sandbar.assert(box.files:write("f", "x"))
      sandbar.assert(box:exec({ "sh", "-c", "kill -9 -1" }, { user = user }))
      assert.is_truthy(helper.eventually(function() -- kill does not wait for the ends of whom it has killed
        return processes() <= few
      end, 20))
      assert.is_true(sandbar.assert(box:exec("true & wait", { user = user, check = true })).ok)
    end
    -- One that goes on for ever, and that nobody has a handle of.
    sandbar.assert(sandbar.assert(box:start({ "python3", "-c", [[
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
    except OSError:
        pass]] }, { tag = "storm" })):detach())
    assert.is_truthy(helper.eventually(function()
      return sandbar.assert(box:exec("true & wait")).stderr:find("fork", 1, true)
    end))
    local storm = sandbar.assert(box:attach { tag = "storm" })
    sandbar.assert(storm:kill { signal = "KILL", timeout = 20 })
    storm:close()
    assert.is_true(sandbar.assert(box:exec("true & wait", { check = true })).ok)
    box:destroy()
    beside:destroy()
  end)

  it("a limit is kept over pauses, a kill of the supervisor, snapshots and copies; its groups go with the sandbox", function()
    local limits = { processes = 100, files = 500, max_concurrent_execs = 7, max_commands = 40, wall_time = 3600,
      max_output = 12345, max_env = 9999 }
    limits.memory = can.limit_memory and 16 * MIB or nil
    limits.cpus = can.limit_cpu and 1.5 or nil
    local box = sandbar.assert(sandboxes:create { limits = limits })
    local function holds(which)
      assert.same(limits, sandbar.assert(which:info()).limits)
      if limits.memory then
        assert.equal("memory", sandbar.assert(which:exec { "tail", "/dev/zero" }).reason)
      end
    end
    holds(box)
    sandbar.assert(box:pause())
    sandbar.assert(box:resume())
    holds(box)
    local pid = inside.supervisor(helper.root())
    helper.shell("kill -9 " .. pid)
    holds(box)
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:snapshot("limited"))
    sandbar.assert(box:resume())
    holds(box)
    local copy = sandbar.assert(box:fork(1))[1]
    holds(copy)
    local new = sandbar.assert(sandboxes:create { snapshot = "limited" })
    holds(new)
    for _, which in ipairs { box, copy, new } do
      sandbar.assert(which:destroy())
    end
    sandbar.assert(sandboxes.snapshots:delete("limited"))
    assert.is_truthy(helper.eventually(function()
      return groups() == ""
    end), groups())
  end)

  it("wall_time is what the sandbox may run in all: pauses do not count, nothing adds to it (P-15, PS-06)", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 3600, limits = { wall_time = "100s" } })
    local function left(which)
      return which.ends_at - core.wall() - advanced
    end
    assert.is_true(left(box) < 101)
    local function pauses(opts)
      sandbar.assert(box:pause(opts))
      advance(1000)
      sandbar.assert(box:resume())
    end
    advance(30)
    pauses { keep = "memory" }
    advance(30)
    pauses { keep = "disk" }
    sandbar.assert(box:set_lifetime(3600))
    assert.is_true(left(box) > 0 and left(box) < 41, left(box))
    helper.shell("kill -9 " .. inside.supervisor(helper.root()))
    assert.equal("running", sandbar.assert(box:info()).state)
    advance(41)
    assert.is_truthy(helper.eventually(function()
      return sandboxes:info(box.id).state == "paused"
    end))
    assert.equal("wall_time", sandboxes:info(box.id).cause.reason)
    for _ = 1, 2 do
      local ok, err = box:resume { lifetime = 60 }
      assert.is_nil(ok)
      assert.equal("LimitExceeded", err.kind)
      assert.is_truthy(tostring(err):find("limits.wall_time = 100 s", 1, true), tostring(err))
    end
    local copy = sandbar.assert(box:fork(1))[1] -- has its own time
    assert.is_true(left(copy) > 90)
    sandbar.assert(copy:destroy())
    sandbar.assert(box:destroy())
    local gone = sandbar.assert(sandboxes:create_scoped { limits = { wall_time = 50 } })
    advance(51)
    assert.is_truthy(helper.eventually(function()
      return not sandboxes:info(gone.id)
    end))
    gone:close()
  end)

  it("max_concurrent_execs is how many run at once, those that have ended not counted (P-49)", function()
    local box = sandbar.assert(sandboxes:create { limits = { max_concurrent_execs = 2 } })
    local one = sandbar.assert(box:start("cat", { stdin = "pipe" }))
    local two = sandbar.assert(box:start("cat", { stdin = "pipe" }))
    assert.equal("LimitExceeded", select(2, box:exec "true").kind)
    assert.equal("LimitExceeded", select(2, box:start "true").kind)
    one.stdin:close()
    sandbar.assert(one:wait { timeout = 20 })
    assert.is_true(sandbar.assert(box:exec "true").ok)
    sandbar.assert(two:kill { grace = 0 })
    sandbar.assert(box:destroy())
  end)

  it("max_commands counts what was ever started, over pauses and supervisors", function()
    local box = sandbar.assert(sandboxes:create { limits = { max_commands = 6 } })
    local function one()
      return sandbar.assert(box:exec { { "true" }, { "true" } }) -- a pipeline is one command
    end
    one()
    assert.equal("StartFailed", select(2, box:exec { "/no/such/program" }).kind) -- none was started
    one()
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:resume())
    one()
    helper.shell("kill -9 " .. inside.supervisor(helper.root()))
    one()
    sandbar.assert(box:pause())
    sandbar.assert(box:resume())
    one()
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:resume())
    one()
    local r, err = box:exec("true")
    assert.is_nil(r)
    assert.equal("LimitExceeded", err.kind)
    assert.is_truthy(tostring(err):find("limits.max_commands", 1, true), tostring(err))
    assert.equal("LimitExceeded", select(2, box:start("true")).kind)
    assert.is_true(sandbar.assert(box.files:write("still", "files")).size == 5)
    sandbar.assert(box:destroy())
  end)
end)
