-- The ends of a program, each in an interpreter of its own: what is closed, what it says, how fast it goes.

local helper = require "spec.helper"

helper.guard()

local PRELUDE = [[
local sandbar = require "sandbar"
local function open_scope()
  local scope = sandbar.new_scope()
  scope:defer(function(exit) print("closed", exit.ok) end)
  return scope
end
]]

local function run(code)
  local r = helper.run_lua(PRELUDE .. code, { timeout = 20 })
  assert.is_nil(r.signal, "it crashed: " .. r.stderr)
  assert.is_true(r.seconds < 4, "it took " .. r.seconds)
  return r
end

describe("a program that ends", function()
  it("normally, with operations and tasks under way, ends at once", function()
    local r = run [[
      sandbar.spawn(function() sandbar.sleep(60) end)
      sandbar.sleep(0.001)
      print(sandbar.pending())
    ]]
    assert.equal("1\n", r.stdout)
    assert.equal("", r.stderr)
    assert.equal(0, r.code)
  end)

  it("by an uncaught error closes the scopes it came through", function()
    local r = run [[
      sandbar.scope(function(scope)
        scope:defer(function(exit) print("closed", exit.reasons[1].type) end)
        sandbar.sleep(0.001)
        error("boom", 0)
      end)
    ]]
    assert.equal("closed\tdefect\n", r.stdout)
    assert.matches("boom", r.stderr)
    assert.equal(1, r.code)
  end)

  it("by an uncaught error object says what it says", function()
    local r = run [[
      local errors = require "sandbar.errors"
      local ok, err = pcall(sandbar.assert, nil, errors.new { kind = "NotFound", op = "connect", message = "no such" })
      io.stderr:write(tostring(err))
      os.exit(ok and 0 or 1)
    ]]
    assert.equal("connect: no such (NotFound)", r.stderr)
  end)

  it("without having waited for a task that failed heard nothing of it", function()
    local r = run [[
      sandbar.run(function()
        sandbar.spawn(function() error("boom", 0) end)
        seen = sandbar.spawn(function() return nil, "seen" end)
        kept = sandbar.spawn(function() return nil, "kept" end)
      end)
      print(seen:wait())
    ]]
    assert.equal("nil\tseen\n", r.stdout)
    assert.matches("^sandbar: task %d+ failed and nobody waited for it: boom.*\n"
      .. "sandbar: task %d+ failed and nobody waited for it: kept\n$", r.stderr)
    assert.equal(0, r.code)
  end)

  it("by os.exit inside of a wait of another task", function()
    local r = run [[
      sandbar.spawn(function() sandbar.sleep(60) end)
      sandbar.run(function()
        sandbar.sleep(0.001)
        os.exit(3)
      end)
    ]]
    assert.equal("", r.stderr)
    assert.equal(3, r.code)
  end)

  it("by os.exit that closes the state, inside of a scope", function()
    local r = run [[
      sandbar.scope(function(scope)
        scope:spawn(function() sandbar.sleep(60) end)
        sandbar.sleep(0.001)
        os.exit(4, true)
      end)
    ]]
    assert.equal("", r.stderr)
    assert.equal(4, r.code)
  end)

  it("with a scope still open runs no Lua code any more, and does not crash", function()
    local r = run [[
      local scope = open_scope()
      scope:fork():defer(function() print "child" end)
      sandbar.sleep(0.001)
      keep = scope
    ]]
    assert.equal("", r.stdout .. r.stderr)
    assert.equal(0, r.code)
  end)

  it("with a scope that was lost before runs its finalizers if it waits once more", function()
    local r = run [[
      open_scope()
      collectgarbage() collectgarbage()
      sandbar.sleep(0.001)
      print "end"
    ]]
    assert.equal("closed\tfalse\nend\n", r.stdout)
  end)

  it("inside a finalizer", function()
    local r = run [[
      sandbar.scope(function(scope)
        scope:defer(function() print "older" end)
        scope:defer(function() sandbar.sleep(0.001) os.exit(5) end)
      end)
    ]]
    assert.equal("", r.stdout)
    assert.equal(5, r.code)
  end)
end)
