local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local lfs = require "lfs"
local sandbar = require "sandbar"

describe("a sandbox's lifetime", function()
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

  local wait = require "sandbar.wait"

  local function advance(seconds)
    sandbar.assert(wait.op(engine:request("advance", { ms = seconds * 1000 }), 10, "advance"))
  end

  local function state_of(id)
    local info, err = sandboxes:info(id)
    return info and info.state or err.kind
  end

  local function becomes(id, state)
    assert.is_truthy(helper.eventually(function()
      return state_of(id) == state
    end), ("%s is %s, not %s"):format(id, state_of(id), state))
  end

  local function near(expected, got)
    assert.is_true(math.abs(expected - got) < 3, ("%s instead of %s"):format(got, expected))
  end

  it("is an hour when nothing is said, and pauses to disk at its end (A-31, A-32)", function()
    local box = sandbar.assert(sandboxes:create { id = "a" })
    sandbar.assert(box.files:write("kept", "yes"))
    local p = sandbar.assert(box:start { "sleep", "7200" })
    local boot = sandbar.assert(box:info()).boot_id
    advance(3590)
    assert.equal("running", state_of("a"))
    advance(20)
    becomes("a", "paused")
    assert.equal("disk", sandbar.assert(sandboxes:info("a")).kept)
    assert.equal("NotRunning", select(2, box:exec("true")).kind)
    assert.is_truthy(select(2, p:signal("TERM")))
    sandbar.assert(box:resume())
    assert.equal("running", box.state)
    assert.equal("yes", box.files:read("kept"))
    assert.same({}, sandbar.assert(box:processes()))
    assert.is_not.equal(boot, sandbar.assert(box:info()).boot_id)
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("ends in destruction when told so", function()
    local box = sandbar.assert(sandboxes:create { id = "b", lifetime = 100, on_expiry = "destroy" })
    advance(101)
    becomes("b", "NotFound")
    assert.equal("NotFound", select(2, box:exec("true")).kind)
    box:close()
  end)

  it("of a paused sandbox was lost by connect without a word", function()
    local box = sandbar.assert(sandboxes:create { id = "sleeper", lifetime = 5 })
    sandbar.assert(box:pause { keep = "disk" })
    local again, err = sandboxes:connect("sleeper", { lifetime = 500 })
    assert.is_nil(again)
    assert.equal("connect: sandbox sleeper is paused and has no lifetime to extend; resume = true wakes it (NotRunning)",
      tostring(err))
    assert.equal("paused", state_of("sleeper"))
    again = sandbar.assert(sandboxes:connect("sleeper", { lifetime = 500, resume = true }))
    local info = sandbar.assert(again:info())
    near(info.started_at + 500, info.ends_at)
    sandbar.assert(box:destroy())
    again:close()
    box:close()
  end)

  it("left the state \"running\" on the handle of a sandbox that was gone", function()
    local calls = {
      exec = function(box) return box:exec("true") end,
      info = function(box) return box:info() end,
      set_lifetime = function(box) return box:set_lifetime(5) end,
      resume = function(box) return box:resume() end,
    }
    for name, call in pairs(calls) do
      local box = sandbar.assert(sandboxes:create { id = "g-" .. name, lifetime = 100, on_expiry = "destroy" })
      if name == "exec" then
        advance(101)
        becomes(box.id, "NotFound")
      else
        sandbar.assert(sandboxes:destroy(box.id))
      end
      local r, err = call(box)
      assert.is_nil(r)
      assert.equal("NotFound", err.kind, tostring(err))
      assert.equal("gone", box.state)
      assert.is_nil(box.ends_at)
      box:close()
    end
  end)

  it("is not shortened by connecting, and extended only when asked (B28)", function()
    local sandboxes = helper.open { root = helper.dir() } -- luacheck: ignore 431
    local box = sandbar.assert(sandboxes:create { id = "c", lifetime = 1800 })
    local ends = box.ends_at
    for _, lifetime in ipairs { false, 300 } do
      local again = sandbar.assert(sandboxes:connect("c", { lifetime = lifetime or nil }))
      near(ends, again.ends_at)
      again:exec("true")
      again.files:write("x", "")
      again:info()
      near(ends, sandbar.assert(sandboxes:info("c")).ends_at)
      again:close()
    end
    local again = sandbar.assert(sandboxes:connect("c", { lifetime = 3600 }))
    near(ends + 1800, again.ends_at)
    sandbar.assert(again:set_lifetime(60))
    near(ends - 1740, sandbar.assert(sandboxes:info("c")).ends_at)
    sandbar.assert(again:pause { keep = "disk" })
    sandbar.assert(again:resume { lifetime = "5 minutes" })
    near(ends - 1500, sandbar.assert(sandboxes:info("c")).ends_at)
    again:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("grants the configured time at a resume that asks for none (B28)", function()
    local box = sandbar.assert(sandboxes:create { id = "d", lifetime = 1800 })
    sandbar.assert(box:pause { keep = "disk" })
    assert.is_nil(box.ends_at)
    advance(5000)
    assert.equal("paused", state_of("d"))
    sandbar.assert(box:resume())
    local info = sandbar.assert(box:info())
    near(1800, info.ends_at - info.started_at)
    assert.equal("disk", sandbar.assert(box:pause { keep = "disk" }))
    assert.equal("disk", sandbar.assert(box:pause { keep = "disk" }))
    assert.equal("disk", sandbar.assert(box:pause { keep = "memory" }))
    assert.equal("disk", sandbar.assert(box:pause()))
    assert.equal("InvalidArgument", select(2, box:pause { keep = "all" }).kind)
    sandbar.assert(box:destroy())
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("that a resume asked for while a snapshot was taken did not begin", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 100 })
    sandbar.assert(box:exec("seq 5000 | xargs touch"))
    sandbar.scope(function(scope)
      local snapshot, job = inside.copying(scope, function()
        return sandbar.assert(box:snapshot("meanwhile", { timeout = 60 }))
      end)
      local resume = scope:spawn(function() return sandbar.assert(box:resume { lifetime = 7200, timeout = 60 }) end)
      sandbar.sleep(0)
      sandbar.assert(box:info()) -- which is asked after the resume was
      helper.sh("kill -CONT %d", job)
      assert.equal("meanwhile", snapshot:wait())
      assert.is_truthy(resume:wait())
    end)
    advance(101)
    assert.equal("running", state_of(box.id))
    faults.kill(faults.supervisor()) -- the next one knows it from the record
    assert.equal("running", state_of(box.id))
    advance(7200)
    becomes(box.id, "paused")
    sandbar.assert(sandboxes.snapshots:delete("meanwhile"))
    sandbar.assert(box:destroy())
    box:close()
  end)

  -- Its pid 1, which does not answer the next supervisor yet.
  local function unanswered(box, word)
    local p = sandbar.assert(box:start { "sleep", helper.mark(word) })
    local pid1 = assert(helper.eventually(function() return inside.pid1(helper.mark(word)) end))
    p:close()
    helper.sh("kill -STOP %d", pid1)
    faults.kill(faults.supervisor())
    assert.equal("running", state_of(box.id))
    return pid1
  end

  it("was forgotten when it ended before a new supervisor could take the snapshot it had been asked for", function()
    for i, expires_first in ipairs { false, true } do
      local box = sandbar.assert(sandboxes:create { lifetime = 100, on_expiry = "pause" })
      local pid1 = unanswered(box, 6120 + i)
      sandbar.scope(function(scope)
        if expires_first then
          advance(101)
        end
        local snapshot = scope:spawn(function() return sandbar.assert(box:snapshot("before", { timeout = 20 })) end)
        sandbar.sleep(0)
        assert.is_truthy(helper.eventually(function() return lfs.attributes(helper.root() .. "/v1/n/before") end))
        advance(101)
        helper.sh("kill -CONT %d", pid1)
        assert.equal("before", snapshot:wait())
      end)
      becomes(box.id, "paused")
      local info = sandbar.assert(box:info())
      assert.same({ "memory", "lifetime" }, { info.kept, info.cause.reason })
      sandbar.assert(sandboxes.snapshots:delete("before"))
      sandbar.assert(box:destroy())
      box:close()
    end
  end)

  it("means what it says for odd numbers (B36)", function()
    for _, bad in ipairs { 0, -1, 1 / 0, 0 / 0, "60", "1 fortnight", 1e12, false } do
      if bad ~= false then
        local box, err = sandboxes:create { lifetime = bad }
        assert.is_nil(box)
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find("lifetime", 1, true))
      end
    end
    for _, good in ipairs { 2147483, 2147484, 4294968, 3e8, "10 minutes" } do
      local box = sandbar.assert(sandboxes:create_scoped { lifetime = good })
      assert.is_true(sandbar.assert(box:exec("true")).ok)
      assert.equal("running", sandbar.assert(box:info()).state)
      box:close()
    end
    for _, tiny in ipairs { 0.001, 1e-9 } do
      -- It may be over before create has an answer.
      local box, err = sandboxes:create { id = "tiny", lifetime = tiny, on_expiry = "destroy" }
      assert.is_true(box ~= nil or err.kind == "NotFound")
      becomes("tiny", "NotFound")
      if box then
        box:close()
      end
    end
  end)

  it("means what it says for command limits (B36)", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    for _, bad in ipairs { -1, 1 / 0, 0 / 0, "60", "soon" } do
      for _, option in ipairs { "timeout", "time_limit" } do
        local r, err = box:exec("true", { [option] = bad })
        assert.is_nil(r)
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find(option, 1, true))
      end
    end
    assert.equal("InvalidArgument", select(2, box:exec("true", { time_limit = 0 })).kind)
    for _, good in ipairs { 2147483, 2147484, 4294968, 1e9, "1h" } do
      assert.is_true(sandbar.assert(box:exec("true", { timeout = good, time_limit = good })).ok)
    end
    assert.is_true(sandbar.assert(box:exec("true", { timeout = false, time_limit = false })).ok)
    assert.equal("limit", sandbar.assert(box:exec("sleep 30", { time_limit = 1e-9 })).reason)
    assert.equal("ExecTimedOut", select(2, box:exec("sleep 30", { timeout = 0.001 })).kind)
    box:close()
  end)

  it("was cut short for a sandbox paused while its creator still waited: it was destroyed, \"pid 1 ended\"", function()
    sandbar.run(function()
      for i = 1, 20 do
        local id = "early" .. i
        sandbar.scope(function(scope)
          local create = scope:spawn(function()
            local box = sandbar.assert(sandboxes:create { id = id })
            return box:close()
          end)
          local pause = scope:spawn(function()
            local box = sandbar.assert(helper.eventually(function() return sandboxes:connect(id) end))
            local kept = sandbar.assert(box:pause { keep = i % 2 == 0 and "memory" or "disk" })
            box:close()
            return kept
          end)
          assert.is_true(sandbar.assert(create:wait { timeout = 20 }))
          assert.equal(i % 2 == 0 and "memory" or "disk", sandbar.assert(pause:wait { timeout = 20 }))
        end)
        local box = sandbar.assert(sandboxes:connect(id, { resume = true }))
        assert.is_true(sandbar.assert(box:exec("true")).ok)
        sandbar.assert(box:destroy())
      end
    end)
  end)
end)
