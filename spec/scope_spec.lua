local core = require "sandbar.core"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

local unpack = table.unpack or unpack -- luacheck: ignore

-- Finalizers that write down that they ran.
local function recorder()
  local log = {}
  return log, function(name)
    return function()
      log[#log + 1] = name
    end
  end
end

-- Lets the others go on until done() or for ever so long.
local function until_done(done)
  for _ = 1, 2000 do
    if done() then
      return
    end
    sandbar.sleep(0.001)
  end
end

describe("sandbar.scope", function()
  it("returns what the function returned", function()
    assert.same({ 1, nil, 3 }, { sandbar.scope(function() return 1, nil, 3 end) })
    assert.equal(0, select("#", sandbar.scope(function() end)))
  end)

  it("hands on nil and an error", function()
    local value, err = sandbar.scope(function() return nil, "why" end)
    assert.is_nil(value)
    assert.equal("why", err)
  end)

  it("raises the original error again", function()
    local original = { "anything" }
    local ok, raised = pcall(sandbar.scope, function() error(original) end)
    assert.is_false(ok)
    assert.equal(original, raised)
  end)

  it("raises a nil error as one", function()
    local told
    local ok, raised = pcall(sandbar.scope, function(scope)
      scope:defer(function(exit) told = exit end)
      error(nil)
    end)
    assert.is_false(ok)
    assert.is_not.equal(true, raised)
    assert.is_false(told.ok)
  end)

  if helper.lua == "luajit" then -- it gives up its stack in the handler, too, and then raises what happens to lie there
    it("raises a stack overflow as one, at whatever depth, not the scope itself", function()
      local function overflow(...)
        return 1 + overflow(...)
      end
      local function below(n, fn)
        if n > 0 then
          local r = below(n - 1, fn)
          return r
        end
        return fn()
      end
      for depth = 1, 120 do
        coroutine.wrap(function()
          below(depth, function()
            local ok, err = pcall(sandbar.scope, function() return overflow() end)
            assert.is_false(ok)
            assert.equal("string", type(err), depth)
            assert.is_truthy(err:find("stack overflow", 1, true) or err:find("error handling", 1, true), err)
          end)
        end)()
      end
    end)
  end

  it("tells every finalizer how it ended", function()
    local exits = {}
    local function body(fn)
      pcall(sandbar.scope, function(scope)
        scope:defer(function(exit) exits[#exits + 1] = exit end)
        return fn()
      end)
    end
    body(function() return "v", "w" end)
    body(function() return nil, "why" end)
    body(function() error("boom", 0) end)
    assert.same({ true, "v", "w" }, { exits[1].ok, exits[1][1], exits[1][2] })
    assert.same({ "failure", "why" }, { exits[2].reasons[1].type, exits[2].reasons[1].error })
    assert.same({ "defect", "boom" }, { exits[3].reasons[1].type, exits[3].reasons[1].error })
    assert.equal("string", type(exits[3].reasons[1].traceback))
  end)

  it("takes options before the function and refuses unknown ones", function()
    assert.equal(1, sandbar.scope({ parallel = true }, function() return 1 end))
    assert.error_matches(function() sandbar.scope({ paralel = true }, function() end) end,
      "unknown option 'paralel'; the nearest known one is 'parallel'")
    assert.error_matches(function() sandbar.scope(5) end,
      "bad argument #1 to 'scope' %(function expected, got number%)")
    local _, err = sandbar.scope({ close_timeout = 0 }, function() end)
    assert.equal("InvalidArgument", err.kind)
  end)

  it("is closed afterwards", function()
    local kept
    sandbar.scope(function(scope) kept = scope end)
    assert.equal("closed", kept:state())
    assert.matches("^scope%(%d+, closed%)$", tostring(kept))
  end)
end)

describe("a finalizer", function()
  it("runs when the scope closes, the newest first", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      scope:defer(write "a")
      scope:defer(write "b")
      scope:defer(write "c")
    end)
    assert.same({ "c", "b", "a" }, log)
  end)

  it("that fails makes the whole fail, the value is lost", function()
    local value, err = sandbar.scope(function(scope)
      scope:defer(function() error("first", 0) end)
      scope:defer(function() return nil, "second" end)
      return "value"
    end)
    assert.is_nil(value)
    assert.equal("Aggregate", err.kind)
    assert.same({ "second", "first" }, { err.reasons[1].error, err.reasons[2].error })
    assert.same({ "failure", "defect" }, { err.reasons[1].type, err.reasons[2].type })
  end)

  it("that fails does not keep the others from running", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      scope:defer(write "a")
      scope:defer(function() error("boom") end)
      scope:defer(write "c")
    end)
    assert.same({ "c", "a" }, log)
  end)

  it("never masks the first error", function()
    local value, err = sandbar.scope(function(scope)
      scope:defer(function() error("late", 0) end)
      return nil, "early"
    end)
    assert.is_nil(value)
    assert.same({ "early", "late" }, { err.reasons[1].error, err.reasons[2].error })
    local ok, raised = pcall(sandbar.scope, function(scope)
      scope:defer(function() error("late", 0) end)
      error("early", 0)
    end)
    assert.is_false(ok)
    assert.equal("Aggregate", raised.kind)
    assert.equal("early", raised.reasons[1].error)
  end)

  it("that fails with the error of the body is the same reason, once", function()
    local same = { "x" }
    local _, raised = pcall(sandbar.scope, function(scope)
      scope:defer(function() error(same) end)
      error(same)
    end)
    assert.equal(1, #raised.reasons)
  end)

  it("can wait", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      scope:defer(write "a")
      scope:defer(function()
        assert.is_true(sandbar.sleep(0.001))
        write "b"()
      end)
    end)
    assert.same({ "b", "a" }, log)
  end)

  it("can be withdrawn", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      local token = scope:defer(write "a")
      scope:defer(write "b")
      assert.equal(2, scope:pending())
      assert.is_true(scope:forget(token))
      assert.is_false(scope:forget(token))
      assert.equal(1, scope:pending())
    end)
    assert.same({ "b" }, log)
  end)

  it("can be withdrawn by its own scope only", function()
    local one, two = sandbar.new_scope(), sandbar.new_scope()
    local token = one:defer(function() end)
    assert.is_false(two:forget(token))
    assert.error_matches(function() one:forget("x") end, "token expected, got string")
    one:close()
    two:close()
  end)

  it("registered on a closed scope runs at once, with the exit it was closed with", function()
    local scope = sandbar.new_scope()
    scope:close { ok = true, "done" }
    local got
    scope:defer(function(exit) got = exit[1] end)
    assert.equal("done", got)
    assert.error_matches(function() scope:defer(function() error("mine", 0) end) end, "mine")
    assert.same({ nil, "why" }, { scope:defer(function() return nil, "why" end) })
  end)

  it("registered while the scope closes runs at once", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      scope:defer(write "a")
      scope:defer(function()
        scope:defer(write "late")
        write "b"()
      end)
    end)
    assert.same({ "late", "b", "a" }, log)
  end)

  it("sees the scope as closing", function()
    local state
    sandbar.scope(function(scope)
      scope:defer(function() state = scope:state() end)
      assert.equal("open", scope:state())
    end)
    assert.equal("closing", state)
  end)

  it("cannot close its own scope, or one that waits for it", function()
    local kinds = {}
    sandbar.scope(function(scope)
      local child = scope:fork()
      child:defer(function()
        kinds[1] = select(2, child:close()).kind
        kinds[2] = select(2, scope:close()).kind
      end)
    end)
    assert.same({ "Busy", "Busy" }, kinds)
  end)

  it("of a child that is closed by itself cannot close the parent either", function()
    local kind
    sandbar.scope(function(scope)
      local child = scope:fork()
      child:defer(function() kind = select(2, scope:close()).kind end)
      child:close()
    end)
    assert.equal("Busy", kind)
  end)

  it("has close_timeout for its waits, all of them together", function()
    local first, second, ran
    local _, err = sandbar.scope({ close_timeout = 0.02 }, function(scope)
      scope:defer(function() ran = true end)
      scope:defer(function()
        first = select(2, sandbar.sleep(100))
        second = select(2, sandbar.sleep(0.001))
        return nil, first
      end)
    end)
    assert.equal("Timeout", first.kind)
    assert.equal("close_timeout", first.clock)
    assert.equal("Timeout", second.kind)
    assert.equal("Aggregate", err.kind)
    assert.is_true(ran)
  end)
end)

describe("scope:close", function()
  it("does nothing the second time, and answers as the first", function()
    local log, write = recorder()
    local scope = sandbar.new_scope()
    scope:defer(write "a")
    scope:defer(function() return nil, "why" end)
    local _, first = scope:close()
    local _, second = scope:close()
    assert.same({ "a" }, log)
    assert.equal("why", first.reasons[1].error)
    assert.equal("why", second.reasons[1].error)
    local good = sandbar.new_scope()
    assert.is_true(good:close())
    assert.is_true(good:close())
  end)

  it("waits for a closing that is under way", function()
    local log, write = recorder()
    sandbar.scope(function(outer)
      local scope = sandbar.new_scope()
      scope:defer(function()
        sandbar.sleep(20)
        write "released"()
      end)
      local task = outer:spawn(function() return scope:close() end)
      sandbar.sleep(0)
      assert.equal("closing", scope:state())
      core.advance(20)
      assert.is_true(scope:close())
      write "second caller"()
      task:wait()
    end)
    assert.same({ "released", "second caller" }, log)
  end)

  it("takes an exit, an error, or nothing for success", function()
    local exits = {}
    for _, arg in ipairs { { n = 0 }, { { ok = false, reasons = {} }, n = 1 } } do
      local scope = sandbar.new_scope()
      scope:defer(function(exit) exits[#exits + 1] = exit.ok end)
      scope:close(unpack(arg, 1, arg.n))
    end
    local scope = sandbar.new_scope()
    scope:defer(function(exit) exits[#exits + 1] = exit.reasons[1].error end)
    scope:close("error of a block")
    assert.same({ true, false, "error of a block" }, exits)
  end)
end)

describe("scope:acquire", function()
  it("gives the value and releases it with the exit", function()
    local got
    sandbar.scope(function(scope)
      assert.equal("thing", scope:acquire(function() return "thing" end, function(value, exit)
        got = { value, exit.ok }
      end))
    end)
    assert.same({ "thing", true }, got)
  end)

  it("registers nothing when there was nothing to acquire", function()
    sandbar.scope(function(scope)
      local release = function() error("must not run") end
      assert.same({ nil, "why" }, { scope:acquire(function() return nil, "why" end, release) })
      assert.error_matches(function() scope:acquire(function() error("boom", 0) end, release) end, "boom")
      assert.equal(0, scope:pending())
    end)
  end)

  it("acquires nothing for a closed scope", function()
    local scope = sandbar.new_scope()
    scope:close()
    local value, err = scope:acquire(function() error("must not run") end, function() end)
    assert.is_nil(value)
    assert.equal("Closed", err.kind)
  end)

  it("is not reached by cancellation, before the release is registered", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      local inner = sandbar.new_scope()
      local task = scope:spawn(function()
        local value = inner:acquire(function()
          assert.is_true(sandbar.sleep(0.005))
          return "thing"
        end, write "released")
        assert.equal("thing", value)
        return sandbar.sleep(100)
      end)
      sandbar.sleep(0)
      task:cancel()
      local _, err = task:wait()
      assert.equal("Cancelled", err.kind)
      assert.equal(1, inner:pending())
      inner:close()
    end)
    assert.same({ "released" }, log)
  end)

  it("releases at once when the scope was closed meanwhile", function()
    local log, write = recorder()
    sandbar.scope(function(outer)
      local scope = sandbar.new_scope()
      local task = outer:spawn(function()
        return scope:acquire(function()
          sandbar.sleep(20)
          return "thing"
        end, write "released")
      end)
      sandbar.sleep(0)
      scope:close()
      core.advance(20)
      local _, err = task:wait()
      assert.equal("Closed", err.kind)
    end)
    assert.same({ "released" }, log)
  end)
end)

describe("scope:fork", function()
  it("makes a child that closes at its place in the parent's order, with the same exit", function()
    local log, write = recorder()
    local exit_of_child
    sandbar.scope(function(scope)
      scope:defer(write "a")
      local child = scope:fork()
      child:defer(write "child")
      child:defer(function(exit) exit_of_child = exit end)
      scope:defer(write "b")
      return "value"
    end)
    assert.same({ "b", "child", "a" }, log)
    assert.equal("value", exit_of_child[1])
  end)

  it("makes a child that takes itself out when it closes first", function()
    local log, write = recorder()
    sandbar.scope(function(scope)
      local child = scope:fork()
      child:defer(write "child")
      assert.equal(1, scope:pending())
      child:close()
      assert.equal(0, scope:pending())
      write "body"()
    end)
    assert.same({ "child", "body" }, log)
  end)

  it("of a closed scope makes a closed child", function()
    local scope = sandbar.new_scope()
    scope:close()
    assert.equal("closed", scope:fork():state())
  end)

  it("brings the reasons of the child to the parent one by one", function()
    local _, err = sandbar.scope(function(scope)
      scope:fork():defer(function() return nil, "one" end)
      local child = scope:fork()
      child:defer(function() return nil, "two" end)
      child:defer(function() return nil, "three" end)
    end)
    assert.equal(3, #err.reasons)
    assert.equal("three", err.reasons[1].error)
  end)

  it("does not hand the strategy down", function()
    local log, write = recorder()
    sandbar.scope({ parallel = true }, function(scope)
      local child = scope:fork()
      child:defer(write "a")
      child:defer(function() sandbar.sleep(0.002) write "b"() end)
    end)
    assert.same({ "b", "a" }, log)
  end)
end)

describe("a parallel scope", function()
  it("starts all finalizers, the newest first, and waits for all", function()
    local log, write = recorder()
    sandbar.scope({ parallel = true }, function(scope)
      for _, name in ipairs { "a", "b" } do
        scope:defer(function()
          write("start " .. name)()
          sandbar.sleep(0.001)
          write("end " .. name)()
        end)
      end
    end)
    assert.same({ "start b", "start a" }, { log[1], log[2] })
    assert.equal(4, #log)
  end)

  it("gathers the reasons in the order of starting", function()
    local _, err = sandbar.scope({ parallel = true }, function(scope)
      scope:defer(function() return nil, "first" end)
      scope:defer(function() sandbar.sleep(0.002) return nil, "second" end)
    end)
    assert.same({ "second", "first" }, { err.reasons[1].error, err.reasons[2].error })
  end)
end)

describe("a lost scope", function()
  it("runs its finalizers at the next turn, not inside the collector", function()
    local log, write = recorder()
    do
      local scope = sandbar.new_scope()
      scope:defer(function(exit)
        sandbar.sleep(0.001)
        write(exit.reasons[1].type)()
      end)
      scope = nil -- luacheck: ignore
    end
    collectgarbage()
    collectgarbage()
    assert.same({}, log)
    until_done(function() return log[1] end)
    assert.same({ "interrupted" }, log)
  end)

  it("is kept by its child, and the child by it", function()
    local log, write = recorder()
    local child
    do
      local scope = sandbar.new_scope()
      scope:defer(write "parent")
      scope:fork():defer(write "other child")
      child = scope:fork()
      scope = nil -- luacheck: ignore
    end
    collectgarbage()
    collectgarbage()
    sandbar.sleep(0)
    assert.same({}, log)
    assert.equal("open", child:state())
    child = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    until_done(function() return log[2] end)
    assert.same({ "other child", "parent" }, log)
  end)
end)

describe("scope:adopt", function()
  local Thing = core.class("SpecThing", {}, { tostring = function() return "thing" end })

  local function thing(log, name)
    local state = {}
    state._finalize = function()
      log[#log + 1] = name
      return true
    end
    return core.handle(Thing, state), state
  end

  it("moves a release from one scope to another", function()
    local log = {}
    local longer = sandbar.new_scope()
    sandbar.scope(function(scope)
      local handle = thing(log, "thing")
      assert.equal(handle, scope:adopt(handle))
      assert.equal(1, scope:pending())
      assert.equal(handle, longer:adopt(handle))
      assert.equal(0, scope:pending())
    end)
    assert.same({}, log)
    longer:close()
    assert.same({ "thing" }, log)
  end)

  it("leaves it where it was when the scope is closed", function()
    local log = {}
    local closed = sandbar.new_scope()
    closed:close()
    sandbar.scope(function(scope)
      local handle = thing(log, "thing")
      scope:adopt(handle)
      local moved, err = closed:adopt(handle)
      assert.is_nil(moved)
      assert.equal("Closed", err.kind)
      assert.equal(1, scope:pending())
    end)
    assert.same({ "thing" }, log)
  end)

  it("does not let a failing native release fail the scope", function()
    local host = require("sandbar.host.select").current()
    local report, said = host.report, nil
    host.report = function(message) said = message end
    local value = sandbar.scope(function(scope)
      local handle, state = thing({}, "thing")
      state._finalize = function() error("broken", 0) end
      scope:adopt(handle)
      return "value"
    end)
    host.report = report
    assert.equal("value", value)
    assert.matches("^a release failed: broken", said)
  end)

  it("takes handles only", function()
    local scope = sandbar.new_scope()
    assert.error_matches(function() scope:adopt("x") end, "bad argument #1 to 'adopt' %(handle expected, got string%)")
    scope:close()
  end)
end)
