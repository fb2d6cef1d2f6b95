-- A sandbox whose pid 1 does not answer: every call that can wait ends in time, what was to be released still is.
-- check: only 5.4
-- check: no user

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("a pid 1 that does not answer", function()
  helper.guard()

  local sandboxes = helper.open()

  -- Runs fn(box, process) while the pid 1 is stopped.
  local function silent(fn)
    inside.with_box(sandboxes, function(box)
      local p = sandbar.assert(box:start({ "sleep", helper.mark(86407) }, { stdin = "pipe" }))
      local pid = assert(helper.eventually(function() return inside.pid1(helper.mark(86407)) end))
      assert.equal(0, select(2, helper.shell("kill -STOP " .. pid)))
      local ok, err = pcall(fn, box, p)
      helper.shell("kill -CONT " .. pid)
      assert(ok, err)
    end)
  end

  local function times_out(fn, limit)
    local began = helper.now()
    local result, err = fn()
    local took = helper.now() - began
    assert.is_nil(result)
    assert.equal("Timeout", err.kind)
    assert.is_true(took < (limit or 3), ("it took %.1f s"):format(took))
  end

  it("ends detach, reference and close of a process", function()
    silent(function(_, p)
      times_out(function() return p:detach { timeout = 0.2 } end)
      times_out(function() return p:reference { timeout = 0.2 } end)
      times_out(function() return p:close { timeout = 0.2 } end)
      assert.is_true(p:close())
    end)
  end)

  it("does not keep a close without a timeout for longer than close_timeout", function()
    sandbar.assert(sandbar.config { close_timeout = 0.3 })
    silent(function(_, p)
      times_out(function() return p:close() end)
    end)
    sandbar.assert(sandbar.config { close_timeout = 30 })
  end)

  it("ends an exec whose output is taken by a function", function()
    inside.with_box(sandboxes, function(box)
      sandbar.assert(box:start { "sleep", helper.mark(86408) })
      local pid = assert(helper.eventually(function() return inside.pid1(helper.mark(86408)) end))
      local start = helper.now()
      local r, err = box:exec({ "sh", "-c", "echo 1; exec sleep 86408" }, { timeout = 0.5, on_output = function()
        helper.shell("kill -STOP " .. pid)
      end })
      local took = helper.now() - start
      helper.shell("kill -CONT " .. pid)
      assert.is_nil(r)
      assert.equal("ExecTimedOut", err.kind)
      assert.equal("1\n", err.result.stdout)
      assert.is_true(took < 6, ("it took %.1f s"):format(took))
      assert.matches("has not said yet that it has ended", err.message)
    end)
  end)

  -- The text said "was killed" although nobody had heard of that.
  it("is not said to have killed what timed out", function()
    silent(function(box)
      local _, err = box:exec("true", { timeout = 0.2 })
      assert.equal("ExecTimedOut", err.kind)
      assert.matches("has not said within timeout = 0.2 s that the command was started", err.message)
      assert.is_nil(err.result.pid)
    end)
    inside.with_box(sandboxes, function(box)
      local pid
      local stopper = assert(sandbar.spawn(function()
        while not pid do
          sandbar.sleep(0.005)
          pid = inside.pid1("86409")
        end
        helper.shell("kill -STOP " .. pid)
        return true
      end))
      -- More than a pipe holds: when it sleeps, its start was answered for.
      local _, err = box:exec("head -c 200000 /dev/zero; exec sleep 86409", { timeout = 3 })
      assert(stopper:wait { timeout = 5 })
      helper.shell("kill -CONT " .. pid)
      assert.equal("ExecTimedOut", err.kind)
      assert.matches("did not end within timeout = 3 s; .* has not said yet that it has ended", err.message)
      assert.equal(200000, #err.result.stdout)
      assert.is_nil(err.result.exit_code)
    end)
    inside.with_box(sandboxes, function(box)
      local _, err = box:exec("sleep 60", { timeout = 0.1 })
      assert.matches("was killed with its whole tree", err.message)
      assert.equal("SIGKILL", err.result.signal)
    end)
  end)
end)
