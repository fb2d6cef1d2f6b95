-- check: only 5.4
-- check: limit 120
-- Zero, negative, huge and fractional times, for every clock there is (B36), and which clock it was (B13's
-- part that is local). Sandbox lifetimes by the test clock are in lifetime_spec.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

local INFINITE, NAN = 1 / 0, 0 / 0
local REFUSED = { -1, -1e-9, -INFINITE, INFINITE, NAN, "60", "", "soon", "-1s", "1 fortnight" }
local LONG = { 2147483, 2147484, 4294968, 4294967.295, 1e9, 1e12, 1e300, "1h", "30 days", false }

describe("clocks", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  -- Every call that takes a timeout: fn(box, timeout) that would take about `seconds` (nil: for ever).
  local CALLS = {
    exec = function(box, timeout, seconds)
      return box:exec({ "sleep", tostring(seconds or 60) }, { timeout = timeout })
    end,
    ["exec with on_output"] = function(box, timeout, seconds)
      return box:exec({ "sleep", tostring(seconds or 60) }, { timeout = timeout, on_output = function() end })
    end,
    ["process:wait"] = function(box, timeout, seconds)
      local p = sandbar.assert(box:start { "sleep", tostring(seconds or 60) })
      return p:wait { timeout = timeout }
    end,
    ["stdout:read"] = function(box, timeout, seconds)
      local p = sandbar.assert(box:start(("sleep %s; echo x"):format(seconds or 60)))
      return p.stdout:read("l", { timeout = timeout })
    end,
    ["stdout:lines"] = function(box, timeout, seconds)
      local p = sandbar.assert(box:start(("sleep %s; echo x"):format(seconds or 60)))
      local lines, err = p.stdout:lines("l", { timeout = timeout })
      if not lines then
        return nil, err
      end
      return lines:next()
    end,
    ["process:output"] = function(box, timeout, seconds)
      local p = sandbar.assert(box:start(("sleep %s; echo x"):format(seconds or 60)))
      local output, err = p:output { timeout = timeout }
      if not output then
        return nil, err
      end
      return output:next()
    end,
    ["stdin:write"] = function(box, timeout, seconds)
      local p = sandbar.assert(box:start(("sleep %s; cat >/dev/null"):format(seconds or 60), { stdin = "pipe" }))
      local data = ("x"):rep(4000000)
      local n, err = p.stdin:write(data, { timeout = timeout })
      return n == #data and n or nil, err
    end,
    ["port:wait"] = function(box, timeout, seconds)
      if seconds then
        box:start(("sleep %s; exec %s 127.0.0.1 3000 x"):format(seconds, inside.program(box, "answer")))
      end
      local r, err = box:port(3000):wait { timeout = timeout }
      return r, err
    end,
    ["task:wait"] = function(_, timeout, seconds)
      local task = sandbar.assert(sandbar.spawn(function() return sandbar.sleep(seconds or 60) end))
      local r, err = task:wait { timeout = timeout }
      if not r then
        task:cancel()
        sandbar.sleep(0)
      end
      return r, err
    end,
  }

  local function each_call(fn)
    for name, call in pairs(CALLS) do
      with_box(function(box)
        fn(name, call, box)
      end)
    end
  end

  it("are refused by name where they mean nothing", function()
    each_call(function(name, call, box)
      for _, bad in ipairs(REFUSED) do
        local seconds, r, err
        seconds = helper.timed(function()
          r, err = call(box, bad, 0.05)
        end)
        local where = ("%s with timeout = %s"):format(name, tostring(bad))
        assert.is_nil(r, where)
        assert.equal("InvalidArgument", err.kind, where .. ": " .. tostring(err))
        assert.is_truthy(err.message:find("timeout", 1, true), where .. ": " .. err.message)
        assert.is_true(seconds < 2, where)
      end
    end)
  end)

  it("never end early, however far away they are", function()
    each_call(function(name, call, box)
      for _, long in ipairs(name == "port:wait" and { 2147484, 1e12 } or LONG) do
        local r, err = call(box, long, 0.02)
        assert.is_truthy(r, ("%s with timeout = %s: %s"):format(name, tostring(long), tostring(err)))
      end
      assert.is_truthy(call(box, nil, 0.02), name .. " without a timeout")
    end)
  end)

  it("end in time, never before it, and say which they were", function()
    each_call(function(name, call, box)
      for _, short in ipairs { 0.4, 0.001, 1e-9 } do
        local r, err
        local seconds = helper.timed(function()
          r, err = call(box, short)
        end)
        local where = ("%s with timeout = %s"):format(name, tostring(short))
        assert.is_nil(r, where)
        assert.is_truthy(err.kind == "Timeout" or err.kind == "ExecTimedOut", where .. ": " .. tostring(err))
        assert.equal("timeout", err.clock, where)
        assert.equal(short, err.limit, where)
        assert.is_true(seconds >= short and seconds < short + 3, ("%s: %.4f s"):format(where, seconds))
      end
    end)
  end)

  it("of zero do not wait", function()
    each_call(function(name, call, box)
      local r, err
      local seconds = helper.timed(function()
        r, err = call(box, 0)
      end)
      assert.is_nil(r, name)
      assert.is_truthy(err.kind == "Timeout" or err.kind == "ExecTimedOut", name .. ": " .. tostring(err))
      assert.is_true(seconds < 2, name .. " took " .. seconds)
    end)
  end)

  it("time_limit: another clock of the command, positive or false", function()
    with_box(function(box)
      for _, bad in ipairs { 0, -1, INFINITE, NAN, "60", "soon", 1e12, "0s" } do
        for _, call in ipairs { box.exec, box.start } do
          local r, err = call(box, { "true" }, { time_limit = bad })
          assert.is_nil(r, tostring(bad))
          assert.equal("InvalidArgument", err.kind)
          assert.is_truthy(err.message:find("time_limit", 1, true))
        end
      end
      for _, long in ipairs { 2147483, 2147484, 4294968, 1e9, "30 days", false } do
        local p = sandbar.assert(box:start({ "sleep", "0.02" }, { time_limit = long }))
        local r = sandbar.assert(p:wait())
        assert.equal("exit", r.reason, tostring(long))
      end
      for _, short in ipairs { 0.4, 0.001, 1e-9 } do
        for _, opts in ipairs { {}, { on_output = function() end } } do
          opts.time_limit = short
          local seconds, r = helper.timed(box.exec, box, { "sleep", "60" }, opts)
          assert.equal("limit", r.reason)
          assert.is_true(seconds >= short and seconds < short + 3, ("%.4f s for %g"):format(seconds, short))
        end
        local p = sandbar.assert(box:start({ "sleep", "60" }, { time_limit = short }))
        assert.equal("limit", sandbar.assert(p:wait { timeout = short + 3 }).reason)
      end
      -- Both at once: the nearer one counts, and the other is not named.
      assert.equal("limit", sandbar.assert(box:exec("sleep 60", { time_limit = 0.2, timeout = 60 })).reason)
      local _, err = box:exec("sleep 60", { time_limit = 60, timeout = 0.2 })
      assert.equal("ExecTimedOut", err.kind)
    end)
  end)

  it("kill's grace may be zero, and is refused by name otherwise", function()
    with_box(function(box)
      for _, bad in ipairs(REFUSED) do
        local p = sandbar.assert(box:start { "sleep", "60" })
        local r, err = p:kill { grace = bad }
        assert.is_nil(r)
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find("grace", 1, true))
        assert.is_true(p:running())
        p:close()
      end
      for _, grace in ipairs { 0, 1e-9, 0.3 } do
        local p = sandbar.assert(box:start("trap '' TERM; echo up; while :; do sleep 0.05; done"))
        assert.equal("up", p.stdout:read("l", { timeout = 5 }))
        local seconds, r = helper.timed(p.kill, p, { grace = grace })
        assert.equal("SIGKILL", r.signal)
        assert.is_true(seconds >= grace and seconds < grace + 2, ("%.3f s for %g"):format(seconds, grace))
      end
      for _, grace in ipairs { 2147484, 4294968, 1e9 } do
        local p = sandbar.assert(box:start { "sleep", "60" })
        assert.equal("SIGTERM", sandbar.assert(p:kill { grace = grace }).signal)
      end
    end)
  end)

  it("a lifetime is positive, and what is too long for it is refused, not cut", function()
    for _, bad in ipairs { 0, -1, -INFINITE, INFINITE, NAN, "60", "soon", 1e12 } do
      for _, create in ipairs { sandboxes.create, sandboxes.create_scoped } do
        local r, err = create(sandboxes, { lifetime = bad })
        assert.is_nil(r, tostring(bad))
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find("lifetime", 1, true))
      end
    end
    assert.same({}, sandbar.assert(sandboxes:list()))
    with_box(function(box)
      for _, bad in ipairs { 0, -1, INFINITE, NAN, "60", 1e9, 1e12 } do -- ten years are the most
        local r, err = box:set_lifetime(bad)
        assert.is_nil(r, tostring(bad))
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find("lifetime", 1, true))
      end
      for _, long in ipairs { 2147483, 2147484, 4294968, 4294967.295, 3e8, "30 days" } do
        sandbar.assert(box:set_lifetime(long))
        local info = sandbar.assert(box:info())
        local seconds = type(long) == "number" and long or 30 * 86400
        assert.equal("running", info.state)
        assert.is_true(math.abs(info.ends_at - os.time() - seconds) < 5, ("%s for %s"):format(
          info.ends_at - os.time(), tostring(long)))
      end
    end)
    for _, short in ipairs { 0.4, 0.001, 1e-9 } do
      local id = "short" .. tostring(short):gsub("%W", "")
      local box, began = sandbar.assert(sandboxes:create { id = id, on_expiry = "destroy" }), helper.now()
      sandbar.assert(box:set_lifetime(short))
      assert.is_truthy(helper.eventually(function()
        return select(2, sandboxes:info(id)) ~= nil
      end), "it lives on after " .. short)
      assert.is_true(helper.now() - began >= short)
      box:close()
    end
  end)

  it("of the library itself are checked as well", function()
    local function refused(what, ...)
      local r, err = ...
      assert.is_nil(r)
      assert.equal("InvalidArgument", err.kind)
      assert.is_truthy(err.message:find(what, 1, true), err.message)
    end
    for _, bad in ipairs(REFUSED) do
      refused("sleep", sandbar.sleep(bad))
      refused("drain", sandbar.config { drain = bad })
      refused("close_timeout", sandbar.config { close_timeout = bad })
      refused("linger", sandbar.open { root = "/nonexistent", linger = bad })
      refused("timeout", sandboxes:list { timeout = bad })
      refused("timeout", sandboxes:info("none", { timeout = bad }))
      refused("timeout", sandboxes:destroy("none", { timeout = bad }))
    end
    for _, short in ipairs { 0, 1e-9, 0.02 } do
      local seconds = helper.timed(function() sandbar.assert(sandbar.sleep(short)) end)
      assert.is_true(seconds >= short and seconds < short + 1)
    end
    for _, long in ipairs(LONG) do
      local r, err = sandboxes:info("none", { timeout = long })
      assert.is_nil(r)
      assert.equal("NotFound", err.kind)
    end
  end)
end)
