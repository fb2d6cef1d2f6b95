-- Turns: of what belongs to one key a single task does something at a time, in which others may wait for theirs.

local nested = require "sandbar.nested"
local wait = require "sandbar.wait"

local Turns = {}
Turns.__index = Turns

local turns = {}

--- Runs fn(...) once nobody else is at `key`: its first two results; nil and an error when the wait has ended early.
function Turns:run(key, fn, ...)
  while self.taken[key] do
    local ok, err = wait.on(self.taken[key], false, "serve")
    if not ok then
      return nil, err
    end
  end
  local signal = wait.signal()
  self.taken[key] = signal
  local called, result, err = nested.pcall(fn, ...)
  self.taken[key] = nil
  wait.fire(signal)
  if not called then
    error(result, 0)
  end
  return result, err
end

function turns.new()
  return setmetatable({ taken = {} }, Turns)
end

return turns
