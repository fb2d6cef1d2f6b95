-- What specs of faults from outside share: killing, the root whose supervisor dies, errors that must be typed.

local assert = require "luassert"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

local faults = {}

-- The first lines of a program that is given a state root.
faults.PRELUDE = [[
  local sandbar = require "sandbar"
  local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
  local function say(...) print(...) io.stdout:flush() end
]]

-- kill -9 of one process or several; false when one of them was gone.
function faults.kill(pid)
  local _, status = helper.shell("kill -9 " .. pid)
  return status == 0
end

-- Closes a handle before its supervisor is killed. What is closed lets go of its supervisor with the next wait, or
-- some milliseconds later; until then a lost one is missed, and its successor started, who sees what is half dead.
function faults.let_go(handle, provider)
  handle:close()
  sandbar.assert(provider:list())
end

-- The supervisor of a state root, this spec file's unless named, or nil.
function faults.supervisor(root)
  local pid = inside.supervisor(root or helper.root())
  return pid and helper.proc.alive(pid) and pid or nil
end

-- The kind of an error, which must be a typed one and not our own fault.
function faults.typed(err, where)
  assert.is_truthy(type(err) == "table" and err.kind and sandbar.errors[err.kind], ("%s: %s"):format(
    where or "an error", tostring(err)))
  assert.is_not.equal("Internal", err.kind, where)
  return err.kind
end

-- A state root of its own with fn(root, provider), destroyed to the last sandbox afterwards.
function faults.with_root(fn)
  local root = helper.dir("root")
  helper.shell("chmod 700 " .. root)
  local ok, why = pcall(fn, root, sandbar.assert(sandbar.open { root = root, linger = 0 }))
  local own = sandbar.assert(sandbar.open { root = root, linger = 0 })
  for _, info in ipairs(own:list { timeout = 20 } or {}) do
    own:destroy(info.id, { timeout = 20 })
  end
  assert.is_truthy(helper.eventually(function()
    return next(helper.proc.of_dir(root)) == nil
  end, 15), "processes of the root are left" .. (ok and "" or "; " .. tostring(why)))
  if not ok then
    error(why, 0)
  end
  assert.is_truthy(helper.remove(root))
end

return faults
