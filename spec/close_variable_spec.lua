-- check: only 5.4
-- Scopes in variables with <close>.

local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

-- The syntax exists on 5.4 only, so every piece is compiled here.
local function compile(code)
  return assert(load("local sandbar, log = ...\n" .. code))
end

local function run(code)
  local log = {}
  local results = { pcall(compile(code), sandbar, log) }
  return log, table.unpack(results)
end

if _VERSION < "Lua 5.4" then
  return
end

describe("a scope in a variable with <close>", function()
  it("is closed at the end of the block, with success", function()
    local log, ok = run [[
      local scope <close> = sandbar.new_scope()
      scope:defer(function(exit) log[1] = exit.ok end)
    ]]
    assert.is_true(ok)
    assert.same({ true }, log)
  end)

  it("is closed with the error that ends the block", function()
    local log, ok, err = run [[
      local scope <close> = sandbar.new_scope()
      scope:defer(function(exit) log[1] = exit.reasons[1].error end)
      error("boom", 0)
    ]]
    assert.is_false(ok)
    assert.equal("boom", err)
    assert.same({ "boom" }, log)
  end)

  it("raises when a finalizer fails, with the first error first", function()
    local _, ok, err = run [[
      local scope <close> = sandbar.new_scope()
      scope:defer(function() return nil, "late" end)
      error("early", 0)
    ]]
    assert.is_false(ok)
    assert.equal("Aggregate", err.kind)
    assert.same({ "early", "late" }, { err.reasons[1].error, err.reasons[2].error })
    _, ok, err = run [[
      local scope <close> = sandbar.new_scope()
      scope:defer(function() return nil, "late" end)
    ]]
    assert.is_false(ok)
    assert.equal("late", err.reasons[1].error)
  end)

  it("may have been closed before", function()
    local _, ok = run [[
      local scope <close> = sandbar.new_scope()
      scope:close()
    ]]
    assert.is_true(ok)
  end)

  it("waits for finalizers inside a task", function()
    local log = {}
    sandbar.run(function()
      compile([[
        local scope <close> = sandbar.new_scope()
        scope:defer(function() log[1] = sandbar.sleep(0.001) end)
      ]])(sandbar, log)
      log[2] = "after"
    end)
    assert.same({ true, "after" }, log)
  end)

  it("is interrupted, not successful, when coroutine.close ends it, and closes by itself", function()
    local log = {}
    local co = coroutine.create(function()
      compile([[
        local scope <close> = sandbar.new_scope()
        scope:defer(function(exit)
          log[1] = exit.ok
          log[2] = exit.reasons[1].type
        end)
        coroutine.yield()
      ]])(sandbar, log)
    end)
    coroutine.resume(co)
    assert.is_true(coroutine.close(co))
    sandbar.sleep(0.005)
    assert.same({ false, "interrupted" }, log)
  end)
end)
