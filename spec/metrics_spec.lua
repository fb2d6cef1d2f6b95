-- check: only 5.4
-- What a sandbox uses, as a sample and as a series.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local MIB = 1048576

describe("metrics of a sandbox", function()
  helper.guard()

  local sandboxes = helper.open()
  local engine
  local advanced = 0

  setup(function()
    helper.shell("mkdir -p -m 700 " .. helper.root() .. "/v1")
    helper.write_file(helper.root() .. "/v1/test-clock", "")
    engine = core.engine { root = helper.root(), linger = 0 }
  end)

  teardown(function()
    engine = nil
  end)

  local function advance(seconds)
    advanced = advanced + seconds
    sandbar.assert(wait.op(engine:request("advance", { ms = seconds * 1000 }), 10, "advance"))
  end

  local function now()
    return core.wall() + advanced
  end

  -- Each number goes up by at least what a command makes it go up by.
  local function follows(box)
    local before = sandbar.assert(box:metrics())
    assert.is_nil(before.cpu_percent)
    assert.is_true(math.abs(before.at - now()) < 5)
    assert.equal(1, before.processes) -- pid 1
    local p = sandbar.assert(box:start([[head -c 4000000 /dev/zero >file; ln file name
      i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; times; (exec head -c 8M /dev/zero | tail -n1 | sleep 60) ]]))
    local user = p.stdout:read("l", { timeout = 20 })
    local after
    assert.is_truthy(helper.eventually(function()
      after = sandbar.assert(box:metrics())
      -- The disk may be as it was some time ago: a walk through it takes one part in twenty of the time.
      return after.memory >= before.memory + 8 * MIB and after.processes >= 3 and after.disk > before.disk
    end, 20), "memory, processes and disk")
    local used = user:match("m([%d.]+)s")
    assert.is_true(after.cpu - before.cpu >= used - 0.03, ("%g of %g s"):format(after.cpu - before.cpu, used))
    assert.is_true(after.cpu_percent == nil or after.cpu_percent >= 0) -- two within a millisecond have none
    local grown = after.disk - before.disk
    assert.is_true(grown >= 4000000 and grown < 4200000, grown) -- a file of two names is there once
    assert.same({ sent = 0, received = 0 }, after.network)
    p:kill { signal = "KILL" }
    p:close()
  end

  it("follow what its processes do", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    follows(box)
    box:destroy()
  end)

  it("come from the groups of its limits where it has some", function()
    if not sandbar.assert(sandboxes:capabilities()).limit_memory then
      helper.skip("this machine gives this user no limit_memory")
    end
    local box = sandbar.assert(sandboxes:create_scoped { limits = { memory = 64 * MIB } })
    follows(box)
    -- What lies in memory without a process.
    sandbar.assert(box:exec("head -c 20M /dev/zero >/dev/shm/file"))
    local m = sandbar.assert(box:metrics())
    assert.is_true(m.memory >= 20 * MIB and m.memory <= 64 * MIB, m.memory)
    box:destroy()
  end)

  it("are answered with what is known when somebody inside stands in the way", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local p = sandbar.assert(box:start("trap '' TERM; for i in 1 2 3 4 5; do sleep 60 & done; kill -STOP $$; wait"))
    assert.is_truthy(helper.eventually(function()
      return sandbar.assert(box:metrics({ timeout = 20 })).processes == 7
    end))
    p:kill { signal = "KILL" }
    p:close()
    box:destroy()
  end)

  it("are a series from the first time that one is asked for, as long as somebody does", function()
    local box = sandbar.assert(sandboxes:create {})
    local function series(options)
      return sandbar.assert(box:metrics(options or { start = 0 }))
    end
    local begun = now()
    assert.equal(1, #series())
    assert.equal(1, #series()) -- none is taken for that
    for n = 2, 4 do
      advance(5)
      assert.is_truthy(helper.eventually(function()
        return #series() == n
      end))
    end
    local all = series()
    assert.is_true(all[1].at <= all[2].at - 4.9 and all[3].at <= all[4].at - 4.9)
    assert.is_true(all[1].cpu >= 0 and all[1].cpu_percent == nil and all[2].cpu_percent >= 0)
    assert.equal(2, #series { start = all[2].at, ["end"] = all[3].at })
    assert.same({}, series { ["end"] = begun - 60 })
    assert.same({}, series { start = now() + 60 })

    -- Not while it is paused, nor afterwards unless somebody asks again.
    sandbar.assert(box:pause())
    assert.equal("NotRunning", select(2, box:metrics()).kind)
    advance(100)
    assert.equal(4, #series())
    advance(700)
    sandbar.assert(box:resume())
    advance(100)
    assert.equal("running", sandbar.assert(box:info()).state)
    assert.equal(4, #series { start = 0, ["end"] = all[4].at })
    assert.equal(5, #series())

    -- A supervisor takes its samples with it; the numbers go on.
    local cpu = sandbar.assert(box:metrics()).cpu
    helper.shell("kill -9 " .. inside.supervisor(helper.root()))
    assert.equal(1, #series())
    assert.is_true(sandbar.assert(box:metrics()).cpu >= cpu)
    sandbar.assert(box:pause { keep = "disk" })
    assert.equal("NotRunning", select(2, box:metrics()).kind)
    sandbar.assert(box:destroy())
    assert.equal("NotFound", select(2, box:metrics()).kind)
  end)

  it("cost nothing that nobody has asked for", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    sandbar.assert(box:metrics())
    local function switches()
      local status = helper.read_file(("/proc/%d/status"):format(inside.supervisor(helper.root()))) or ""
      return status:match("voluntary_ctxt_switches:%s*(%d+)")
    end
    -- What it does ahead, and behind, comes to an end.
    assert.is_truthy(helper.eventually(function()
      local before = switches()
      sandbar.sleep(1.5)
      return before == switches()
    end, 20))
    box:destroy()
  end)

  it("refuse what is no time", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    for _, value in ipairs { -1, 0 / 0, 1 / 0 } do
      for _, key in ipairs { "start", "end" } do
        assert.equal("InvalidArgument", select(2, box:metrics { [key] = value }).kind)
      end
    end
    assert.has_error(function()
      box:metrics { from = 1 }
    end)
    box:destroy()
  end)
end)
