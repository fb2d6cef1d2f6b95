local core = require "sandbar.core"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

local function kind(_, err)
  return err and err.kind
end

-- Moves the clock once everything else waits.
local function advance_soon(scope, seconds)
  return scope:spawn(function()
    sandbar.sleep(0.001)
    core.advance(seconds)
  end)
end

describe("a task", function()
  it("gives what its function returned to whoever waits", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function(a, b)
        sandbar.sleep(0.001)
        return a + b, nil, "x"
      end, 1, 2)
      assert.equal("running", task.state)
      assert.same({ 3, nil, "x" }, { task:wait() })
      assert.same({ 3, nil, "x" }, { task:wait() })
      assert.equal("succeeded", task.state)
      assert.matches("^task%(%d+, succeeded%)$", tostring(task))
    end)
  end)

  it("gives nil and the error it failed with", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() return nil, "why" end)
      assert.same({ nil, "why" }, { task:wait() })
      assert.equal("failed", task.state)
    end)
  end)

  it("raises in the waiter what it raised", function()
    local original = {}
    sandbar.scope(function(scope)
      local task = scope:spawn(function() error(original) end)
      local ok, raised = sandbar.pcall(task.wait, task)
      assert.is_false(ok)
      assert.equal(original, raised)
    end)
  end)

  it("can be waited for by many", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() sandbar.sleep(0.001) return "x" end)
      local results = assert(sandbar.all {
        function() return task:wait() end,
        function() return task:wait() end,
      })
      assert.same({ "x", "x", n = 2 }, results)
    end)
  end)

  it("goes on when a wait for it times out", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() return sandbar.sleep(60) end)
      local _, err = task:wait { timeout = 0 }
      assert.equal("Timeout", err.kind)
      assert.same({ "timeout", 0 }, { err.clock, err.limit })
      advance_soon(scope, 5)
      _, err = task:wait { timeout = 5 }
      assert.same({ "Timeout", "timeout", 5 }, { err.kind, err.clock, err.limit })
      assert.equal("running", task.state)
      advance_soon(scope, 60)
      assert.is_true(task:wait())
    end)
  end)

  it("refuses time-outs without a meaning", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() end)
      assert.equal("InvalidArgument", kind(task:wait { timeout = -1 }))
      assert.error_matches(function() task:wait { timeout = true } end, "option 'timeout'")
      assert.error_matches(function() task:wait { tiemout = 1 } end, "nearest known one is 'timeout'")
    end)
  end)

  it("cannot wait for itself", function()
    sandbar.scope(function(scope)
      local task
      task = scope:spawn(function()
        sandbar.sleep(0)
        return kind(task:wait())
      end)
      assert.equal("Busy", task:wait())
    end)
  end)

  it("has no field that can be set", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() end)
      assert.is_false(pcall(function() task.state = "done" end))
    end)
  end)
end)

describe("cancellation", function()
  it("comes at the wait the task is in, with the reason", function()
    sandbar.scope(function(scope)
      local got
      local task = scope:spawn(function()
        got = select(2, sandbar.sleep(100))
        return nil, got
      end)
      sandbar.sleep(0)
      task:cancel("no longer needed")
      assert.equal("Cancelled", kind(task:wait()))
      assert.equal("cancelled: no longer needed (Cancelled)", tostring(got))
      assert.equal("no longer needed", got.reason)
      assert.equal("cancelled", task.state)
    end)
  end)

  it("is sticky: every later wait answers the same", function()
    sandbar.scope(function(scope)
      local kinds = {}
      local task = scope:spawn(function()
        for i = 1, 3 do
          kinds[i] = kind(sandbar.sleep(100))
        end
      end)
      sandbar.sleep(0)
      task:cancel()
      task:wait()
      assert.same({ "Cancelled", "Cancelled", "Cancelled" }, kinds)
    end)
  end)

  it("before its start keeps a task from running", function()
    sandbar.scope(function(scope)
      local ran
      local task = scope:spawn(function() ran = true end)
      task:cancel()
      assert.equal("Cancelled", kind(task:wait()))
      assert.is_nil(ran)
    end)
  end)

  it("does not reach into finalizers", function()
    sandbar.scope(function(scope)
      local slept
      local task = scope:spawn(function()
        return sandbar.scope(function(inner)
          inner:defer(function() slept = sandbar.sleep(0.001) end)
          return sandbar.sleep(100)
        end)
      end)
      sandbar.sleep(0)
      task:cancel()
      assert.equal("Cancelled", kind(task:wait()))
      assert.is_true(slept)
    end)
  end)

  it("is an interruption to finalizers, not a failure", function()
    sandbar.scope(function(scope)
      local types = {}
      for i, wait in ipairs {
        function() return sandbar.sleep(100) end,
        function() return sandbar.assert(sandbar.sleep(100)) end,
      } do
        local task = scope:spawn(function()
          return sandbar.scope(function(inner)
            inner:defer(function(exit) types[i] = exit.reasons[1].type end)
            return wait()
          end)
        end)
        sandbar.sleep(0)
        task:cancel()
        assert.equal("Cancelled", kind(task:wait()))
        assert.equal("cancelled", task.state)
      end
      assert.same({ "interrupted", "interrupted" }, types)
    end)
  end)

  it("of a task that has ended does nothing", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() return 1 end)
      task:wait()
      assert.is_true(task:cancel())
      assert.equal(1, task:wait())
    end)
  end)

  it("of the waiter leaves the task alone that it waits for", function()
    sandbar.scope(function(scope)
      local long = scope:spawn(function() sandbar.sleep(60) return "done" end)
      local waiter = scope:spawn(function() return long:wait() end)
      sandbar.sleep(0)
      waiter:cancel()
      assert.equal("Cancelled", kind(waiter:wait()))
      core.advance(60)
      assert.equal("done", long:wait())
    end)
  end)
end)

describe("sandbar.shield", function()
  it("keeps cancellation away from its waits, and only from them", function()
    sandbar.scope(function(scope)
      local inside, after
      local task = scope:spawn(function()
        local a, b = sandbar.shield(function(x)
          inside = sandbar.sleep(0.002)
          return x, "b"
        end, "a")
        assert.same({ "a", "b" }, { a, b })
        after = kind(sandbar.sleep(100))
      end)
      sandbar.sleep(0)
      task:cancel()
      task:wait()
      assert.is_true(inside)
      assert.equal("Cancelled", after)
    end)
  end)

  it("holds for close_timeout once the task has been cancelled", function()
    sandbar.config { close_timeout = 20 }
    sandbar.scope(function(scope)
      local inside
      local task = scope:spawn(function()
        sandbar.shield(function() inside = select(2, sandbar.sleep(1000)) end)
      end)
      sandbar.sleep(0)
      task:cancel()
      advance_soon(scope, 21)
      task:wait()
      assert.same({ "Timeout", "close_timeout" }, { inside.kind, inside.clock })
    end)
    sandbar.config { close_timeout = 30 }
  end)

  it("raises on what is raised inside", function()
    assert.error_matches(function() sandbar.shield(function() error("x", 0) end) end, "x")
  end)
end)

describe("scope:spawn", function()
  it("ends the task with the scope, and waits for it", function()
    local log = {}
    sandbar.scope(function(scope)
      scope:defer(function() log[#log + 1] = "resource" end)
      scope:spawn(function()
        local _, err = sandbar.sleep(100)
        sandbar.shield(function() sandbar.sleep(0.002) end)
        log[#log + 1] = err.kind
        return nil, err
      end)
      sandbar.sleep(0)
    end)
    assert.same({ "Cancelled", "resource" }, log)
  end)

  it("takes a task out of the scope that ended by itself", function()
    sandbar.scope(function(scope)
      local task = scope:spawn(function() end)
      assert.equal(1, scope:pending())
      task:wait()
      assert.equal(0, scope:pending())
    end)
  end)

  it("fails the scope with a failure nobody waited for", function()
    local value, err = sandbar.scope(function(scope)
      scope:spawn(function() return nil, "lost" end)
      sandbar.sleep(0.001)
      return "value"
    end)
    assert.is_nil(value)
    assert.same({ "failure", "lost" }, { err.reasons[1].type, err.reasons[1].error })
    local _, raised = sandbar.scope(function(scope)
      scope:spawn(function() error("boom", 0) end)
      sandbar.sleep(0.001)
    end)
    assert.same({ "defect", "boom" }, { raised.reasons[1].type, raised.reasons[1].error })
    -- Once the message did not say where it came from.
    assert.matches("^scope: task %d+, which nobody waited for: boom %(Aggregate%)$", tostring(raised))
    assert.equal("number", type(raised.reasons[1].task))
  end)

  it("fails the scope with what goes wrong while the task is being stopped", function()
    local _, err = sandbar.scope(function(scope)
      scope:spawn(function()
        sandbar.sleep(100)
        error("in the clean-up", 0)
      end)
      sandbar.sleep(0)
    end)
    assert.equal("in the clean-up", err.reasons[1].error)
  end)

  it("does not fail the scope with a failure somebody has seen", function()
    assert.equal("value", sandbar.scope(function(scope)
      scope:spawn(function() return nil, "seen" end):wait()
      return "value"
    end))
  end)

  it("on a closed scope gives a task that was cancelled at once", function()
    local scope = sandbar.new_scope()
    scope:close()
    local task = scope:spawn(function() error("must not run") end)
    assert.equal("cancelled", task.state)
    assert.equal("Cancelled", kind(task:wait()))
  end)

  it("does not ask a task to stop that closes the scope itself", function()
    local log = {}
    local scope = sandbar.new_scope()
    scope:defer(function() log[#log + 1] = "resource" end)
    local task = scope:spawn(function()
      assert.is_true(scope:close())
      log[#log + 1] = tostring(sandbar.sleep(0.001))
      return "done"
    end)
    assert.equal("done", task:wait())
    assert.same({ "resource", "true" }, log)
  end)

  it("does not wait for ever for a task that will not stop", function()
    local _, err = sandbar.scope({ close_timeout = 0.02 }, function(scope)
      scope:spawn(function()
        while true do
          sandbar.shield(function() sandbar.sleep(0.001) end)
          if scope:state() == "closed" then
            return
          end
        end
      end)
      sandbar.sleep(0)
    end)
    assert.same({ "Timeout", "close_timeout" }, { err.reasons[1].error.kind, err.reasons[1].error.clock })
    sandbar.run(function() end) -- until it has stopped after all
  end)
end)

describe("sandbar.all", function()
  it("runs side by side and gives the results in order", function()
    local results = sandbar.all {
      function() sandbar.sleep(0.003) return "a" end,
      function() sandbar.sleep(0.001) return "b" end,
      function() return nil end,
    }
    assert.same({ "a", "b", nil, n = 3 }, results)
  end)

  it("of nothing is nothing", function()
    assert.same({ n = 0 }, sandbar.all {})
  end)

  it("gives the first failure, once the others have been cancelled and have ended", function()
    local others = {}
    local value, err = sandbar.all {
      function() others[1] = kind(sandbar.sleep(100)) end,
      function() sandbar.sleep(0.001) return nil, "first" end,
      function()
        others[2] = kind(sandbar.sleep(100))
        sandbar.shield(function() sandbar.sleep(0.002) end)
        others[3] = "cleaned up"
        return nil, "second"
      end,
    }
    assert.is_nil(value)
    assert.equal("first", err)
    assert.same({ "Cancelled", "Cancelled", "cleaned up" }, others)
  end)

  it("raises what was raised", function()
    assert.error_matches(function() sandbar.all { function() error("boom", 0) end } end, "boom")
  end)

  it("cancels all when the one who waits is cancelled", function()
    sandbar.scope(function(scope)
      local inside
      local task = scope:spawn(function()
        return sandbar.all { function() inside = kind(sandbar.sleep(100)) end }
      end)
      sandbar.sleep(0)
      task:cancel()
      assert.equal("Cancelled", kind(task:wait()))
      assert.equal("Cancelled", inside)
    end)
  end)

  it("takes functions only", function()
    assert.error_matches(function() sandbar.all { 5 } end, "element 1: function expected, got number")
  end)
end)

describe("a coroutine of one's own inside a task", function()
  local function in_task(fn)
    return sandbar.run(fn)
  end

  it("can wait when it is run by sandbar.wrap or sandbar.resume", function()
    assert.same({ "a", "b", true }, { in_task(function()
      local generate = sandbar.wrap(function(first)
        sandbar.sleep(0.001)
        local second = coroutine.yield(first)
        sandbar.sleep(0.001)
        return second
      end)
      local a, b = generate("a"), generate("b")
      local co = coroutine.create(function() return sandbar.sleep(0.001) end)
      return a, b, select(2, sandbar.resume(co))
    end) })
  end)

  it("gets an answer that names the way out when it is not", function()
    local err = in_task(function()
      return coroutine.wrap(function() return select(2, sandbar.sleep(1)) end)()
    end)
    assert.equal("CannotWait", err.kind)
    assert.truthy(err.message:find("sandbar.wrap", 1, true))
  end)

  it("gets it too through a known coroutine in an unknown one", function()
    local err = in_task(function()
      return coroutine.wrap(function()
        return sandbar.wrap(function() return select(2, sandbar.sleep(1)) end)()
      end)()
    end)
    assert.equal("CannotWait", err.kind)
  end)

  it("raises its errors at the one who resumes it", function()
    assert.same({ false, "boom" }, { in_task(function()
      return sandbar.pcall(sandbar.wrap(function() sandbar.sleep(0) error("boom", 0) end))
    end) })
  end)

  it("inside of a C callback gets our message, not Lua's", function()
    local err = in_task(function()
      local got
      table.sort({ 2, 1 }, function(a, b)
        got = select(2, sandbar.sleep(1))
        return a < b
      end)
      return got
    end)
    assert.equal("CannotWait", err.kind)
  end)

  it("can wait inside sandbar.pcall on every Lua", function()
    assert.same({ true, "x", nil, false, "boom" }, { in_task(function()
      local ok, x, y = sandbar.pcall(function() sandbar.sleep(0.001) return "x", nil end)
      local failed, why = sandbar.pcall(function() sandbar.sleep(0.001) error("boom", 0) end)
      return ok, x, y, failed, why
    end) })
  end)

  it("is a coroutine and not something else", function()
    for name, bad in pairs { wrap = 3, resume = "x" } do
      local ok, err = pcall(function()
        local r = sandbar[name](bad)
        return r
      end)
      assert.is_false(ok)
      assert.matches("task_spec.lua:%d+: bad argument #1 to '" .. name .. "'", err)
    end
  end)

  it("that yields by itself lets the others go on", function()
    local log = {}
    sandbar.all {
      function()
        log[#log + 1] = "a1"
        coroutine.yield()
        log[#log + 1] = "a2"
      end,
      function() log[#log + 1] = "b" end,
    }
    assert.same({ "a1", "b", "a2" }, log)
  end)
end)
