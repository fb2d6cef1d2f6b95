-- core.leash: the end of a connection of this process to itself, as an operation.

local core = require "sandbar.core"
local helper = require "spec.helper"
local lfs = require "lfs"
local wait = require "sandbar.wait"

local has_socket, unix = pcall(require, "socket.unix")

helper.guard()

local function connect(path)
  local socket = assert(unix())
  assert(socket:connect(path))
  return socket
end

local function vanished(path)
  return helper.eventually(function()
    return not lfs.attributes(path, "mode") and not lfs.attributes(path:match("^(.*)/"), "mode")
  end)
end

describe("a leash", function()
  local busted_it = it
  local function it(name, fn)
    busted_it(name, function()
      if not has_socket then
        helper.skip("luasocket is not installed")
      end
      fn()
    end)
  end

  it("completes when its connection is closed, and leaves nothing on disk", function()
    local op, path = core.leash()
    local socket = connect(path)
    assert.is_true(vanished(path))
    assert.equal("Timeout", select(2, wait.any({ op }, 0.01, "leash")).kind)
    assert.is_false(op:done())
    socket:close()
    assert.truthy(wait.op(op, 5, "leash"))
  end)

  it("takes no notice of what is sent", function()
    local op, path = core.leash()
    local socket = connect(path)
    socket:send("hello")
    assert.equal("Timeout", select(2, wait.any({ op }, 0.01, "leash")).kind)
    socket:close()
    assert.truthy(wait.op(op, 5, "leash"))
  end)

  it("can be cancelled, connected or not", function()
    local op, path = core.leash()
    local socket = connect(path)
    assert.is_true(vanished(path))
    op:cancel()
    assert.equal("Cancelled", select(2, wait.op(op, 5, "leash")).kind)
    socket:close()
    op, path = core.leash()
    op:cancel()
    assert.equal("Cancelled", select(2, wait.op(op, 5, "leash")).kind)
    connect(path):close()
    assert.is_true(vanished(path))
  end)

  it("fails when nobody connects", function()
    local op, path = core.leash()
    wait.sleep(0) -- the I/O thread has begun to listen
    core.advance(31)
    assert.equal("Unavailable", select(2, wait.op(op, 5, "leash")).kind)
    assert.is_true(vanished(path))
  end)
end)
