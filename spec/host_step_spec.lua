local core = require "sandbar.core"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

-- Frames until no task is left; between them the program looks at the descriptor, as a game loop would.
local function play(frame)
  local frames = 0
  while sandbar.step() > 0 do
    frames = frames + 1
    assert(frames < 10000, "this never ends")
    if frame then
      frame(frames)
    end
    core.mailbox():poll(core.now() + 0.01)
  end
  return frames
end

describe("sandbar.step", function()
  after_each(function()
    play()
    sandbar.config { host = "blocking" }
  end)

  it("lets tasks go on and tells how many have not ended", function()
    local log = {}
    sandbar.spawn(function()
      log[#log + 1] = "start"
      sandbar.sleep(3600)
      log[#log + 1] = "end"
    end)
    assert.same({}, log)
    assert.equal(1, sandbar.step())
    assert.same({ "start" }, log)
    core.advance(3600)
    play()
    assert.same({ "start", "end" }, log)
    assert.equal(0, sandbar.step())
  end)

  it("raised for a time with its unit", function()
    assert.equal(0, sandbar.step("2ms"))
    local n, err = sandbar.step("2 moments")
    assert.is_nil(n)
    assert.equal("InvalidArgument", err.kind)
  end)

  it("never blocks", function()
    sandbar.spawn(function() sandbar.sleep(3600) end)
    local took = helper.timed(function()
      for _ = 1, 20 do
        sandbar.step()
      end
    end)
    assert.is_true(took < 0.5, took)
    core.advance(3600)
  end)

  it("stops between two tasks when its time is used up", function()
    local ran = 0
    for _ = 1, 10 do
      sandbar.spawn(function()
        ran = ran + 1
        core.advance(1)
      end)
    end
    assert.equal(7, sandbar.step(2.5))
    assert.equal(3, ran)
  end)

  it("gives a task that yields by itself its turn in the next frame", function()
    local log = {}
    sandbar.spawn(function()
      for i = 1, 3 do
        log[#log + 1] = i
        coroutine.yield()
      end
    end)
    play(function(frame)
      assert.equal(frame, #log)
    end)
    assert.same({ 1, 2, 3 }, log)
  end)

  it("makes waits outside of tasks impossible, with a message that names the way out", function()
    sandbar.step()
    local ok, err = sandbar.sleep(0.001)
    assert.is_nil(ok)
    assert.equal("CannotWait", err.kind)
    assert.truthy(err.message:find("sandbar.spawn", 1, true))
    local task = sandbar.spawn(function() sandbar.sleep(0.001) return "x" end)
    assert.equal("CannotWait", select(2, task:wait()).kind)
    assert.equal("Timeout", select(2, task:wait { timeout = 0 }).kind)
    play()
    assert.equal("x", task:wait())
    assert.equal("x", task:wait { timeout = 0 })
  end)

  it("closes a scope of the main part at once as far as nothing waits, the rest in later frames", function()
    sandbar.step()
    local log = {}
    local function write(name) return function() log[#log + 1] = name end end
    local kept
    assert.equal("value", sandbar.scope(function(scope)
      kept = scope
      scope:defer(write "old")
      scope:defer(function()
        assert.is_true(sandbar.sleep(0.001))
        write "slow"()
      end)
      scope:defer(write "new")
      return "value"
    end))
    assert.same({ "new" }, log)
    assert.equal("closing", kept:state())
    play()
    assert.same({ "new", "slow", "old" }, log)
    assert.equal("closed", kept:state())
    sandbar.scope(function(scope) scope:defer(write "simple") end)
    assert.equal("simple", log[4])
  end)

  it("cannot be called inside a task", function()
    local got
    sandbar.spawn(function() got = select(2, sandbar.step()) end)
    sandbar.step()
    assert.equal("CannotWait", got.kind)
  end)

  it("runs the finalizers of lost scopes", function()
    local ran
    do
      local scope = sandbar.new_scope()
      scope:defer(function() ran = true end)
      scope = nil -- luacheck: ignore
    end
    collectgarbage()
    collectgarbage()
    sandbar.step()
    play()
    assert.is_true(ran)
  end)

  it("says on stderr that a task failed which nobody can wait for any more", function()
    local blocking = require "sandbar.host.blocking"
    local report, said = blocking.report, {}
    blocking.report = function(message) said[#said + 1] = message end
    sandbar.spawn(function() return nil, "lost for good" end)
    play()
    collectgarbage()
    collectgarbage()
    sandbar.step()
    blocking.report = report
    assert.equal(1, #said)
    assert.truthy(said[1]:find("failed and nobody waited for it: lost for good", 1, true), said[1])
  end)
end)

describe("sandbar.fd", function()
  it("is the descriptor that becomes readable", function()
    assert.equal("number", type(sandbar.fd()))
    assert.is_true(helper.proc.fds()[sandbar.fd()] ~= nil)
  end)
end)
