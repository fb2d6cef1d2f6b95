-- check: one Lua
-- Sandboxes whose supervisor was killed and which nobody comes for: pid 1 ends by itself, some time (ten minutes; here
-- as long as the test clock's file says) after its deadline, or alone when its owner watched for it. Until then a later
-- supervisor finds it.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("with nobody to look after it", function()
  helper.guard()

  local sandboxes = helper.open()

  local function grace(milliseconds)
    helper.shell("mkdir -p -m 700 " .. helper.root() .. "/v1")
    helper.write_file(helper.root() .. "/v1/test-clock", "0 " .. milliseconds)
  end

  -- A program that runs `code` (which gives `box` and has a command with `word` in it), killed together with its
  -- supervisor. Returns pid 1.
  local function leave_alone(word, code)
    local program = helper.start_lua(([[
      local sandbar = require "sandbar"
      local assert = sandbar.assert
      local sandboxes = sandbar.open { root = %q, linger = 60 }
      %s
      assert(box:start { "sleep", %q }):detach()
      print "up"
      io.stdout:flush()
      sandbar.sleep(60)
    ]]):format(helper.root(), code, word))
    assert.equal("up", program:line())
    local supervisor = inside.supervisor(helper.root())
    local pid1 = helper.eventually(function()
      return inside.pid1(word)
    end)
    assert.is_truthy(pid1 and supervisor)
    program:signal("STOP") -- it would start the next one
    helper.shell("kill -9 " .. supervisor)
    program:signal("KILL")
    program:wait()
    return pid1
  end

  local function ends(pid1)
    assert.is_truthy(helper.eventually(function()
      return not helper.proc.alive(pid1)
    end, 10), "pid 1 goes on")
  end

  it("a scoped sandbox ends", function()
    grace(300)
    ends(leave_alone(helper.mark(8181001), "local box = assert(sandboxes:create_scoped { id = 'scoped' })"))
    assert.equal("NotFound", select(2, sandboxes:info("scoped")).kind)
  end)

  it("a kept one is paused after the end of its lifetime, or gone", function()
    grace(300)
    ends(leave_alone(helper.mark(8181002), [[
      local box = assert(sandboxes:create { id = "kept", lifetime = 1 })
      assert(box.files:write("f", "still there"))
    ]]))
    local info = sandbar.assert(sandboxes:info("kept"))
    assert.equal("paused", info.state)
    assert.equal("disk", info.kept)
    assert.equal("lifetime", info.cause.reason)
    local box = sandbar.assert(sandboxes:connect("kept", { resume = true, lifetime = 60 }))
    assert.equal("still there", box.files:read("f"))
    sandbar.assert(box:destroy())

    ends(leave_alone(helper.mark(8181003),
      [[local box = assert(sandboxes:create { id = "short", lifetime = 1, on_expiry = "destroy" })]]))
    assert.equal("NotFound", select(2, sandboxes:info("short")).kind)
  end)

  it("a kept one with time left goes on, and learns of a changed lifetime", function()
    grace(300)
    local pid1 = leave_alone(helper.mark(8181004), [[
      local box = assert(sandboxes:create { id = "long", lifetime = 1 })
      assert(box:set_lifetime(3600))
    ]])
    local again = sandbar.assert(sandboxes:connect("long"))
    assert.equal("running", again.state)
    assert.is_true(helper.proc.alive(pid1))
    sandbar.assert(again:set_lifetime(1))
    local supervisor = inside.supervisor(helper.root())
    faults.let_go(again, sandboxes)
    helper.shell("kill -9 " .. supervisor)
    ends(pid1)
    assert.equal("paused", sandbar.assert(sandboxes:info("long")).state)
    sandbar.assert(sandboxes:destroy("long"))
  end)

  it("a supervisor that comes in time takes over", function()
    grace(3600000)
    local pid1 = leave_alone(helper.mark(8181005), "local box = assert(sandboxes:create { id = 'found' })")
    local box = sandbar.assert(sandboxes:connect("found"))
    assert.is_true(helper.proc.alive(pid1))
    assert.equal("still me\n", sandbar.assert(box:exec("echo still me")).stdout)
    sandbar.assert(box:destroy())
    ends(pid1)
  end)
end)
