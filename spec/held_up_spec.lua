-- check: one Lua
-- A program that does what it can to keep pid 1 busy, and what becomes of the others beside it.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("a program that holds up whatever starts beside it", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  -- What is stopped between its start and its execve has pid 1's memory, and pid 1 stands still for it.
  it("by stopping it holds up nobody else", function()
    with_box(function(box)
      local stopper = sandbar.assert(box:start({ "python3", "-c", [[
import os
print("ready", flush=True)
while True: os.kill(-1, 19)]] }, { user = "root" }))
      assert.equal("ready", stopper.stdout:read("l", { timeout = 20 }))
      for _ = 1, 200 do -- some of them at the wrong moment
        local p, why = box:start({ "true" }, { timeout = 20 })
        assert.is_true(p ~= nil or why.code == "ETIMEDOUT", tostring(why))
      end
      assert.is_table(sandbar.assert(box:processes { timeout = 20 }))
      for _ = 1, 20 do -- more than may work at once for one caller
        local data, why = box.files:read("/etc/hostname", { timeout = 20 })
        assert.is_true(data ~= nil or why.kind == "OutcomeUnknown", tostring(why))
      end
    end)
  end)

  it("by a lease on its file holds up others for some seconds only", function()
    with_box(function(box)
      local holder = sandbar.assert(box:start({ "python3", "-c", [[
import fcntl, os, shutil, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
shutil.copy("/bin/true", "held")
fcntl.fcntl(os.open("held", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
signal.pause()]] }))
      assert.equal("ready", holder.stdout:read("l", { timeout = 20 }))
      local p, err
      local took = helper.timed(function()
        p, err = box:start({ "./held" }, { timeout = 40 })
      end)
      assert.is_nil(p)
      assert.equal("ETIMEDOUT", err.code)
      assert.is_true(took < 20)
      assert.equal("x", sandbar.assert(box:exec({ "echo", "-n", "x" }, { timeout = 20 })).stdout)
    end)
  end)
end)
