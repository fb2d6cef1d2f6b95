-- Iterators as the contract has them: one object that a `for` calls (failures raise there), with
-- :next() (nil at the end, nil and an error on failure) and :close(). State machines, no coroutines.

local iterator = {}

local Iterator = {}
Iterator.__index = Iterator
Iterator.__name = "sandbar.Iterator"

local function pass(a, b, ...)
  if a == nil and b ~= nil then
    error(b, 0)
  end
  return a, b, ...
end

function Iterator:__call()
  return pass(self:next())
end

function Iterator:next()
  if self.closed then
    return nil
  end
  return self.step(self.state)
end

function Iterator:close()
  if not self.closed then
    self.closed = true
    if self.stop then
      self.stop(self.state)
    end
  end
  return true
end

Iterator.__close = Iterator.close

-- `step(state)` answers as :next() does; `stop(state)`, if given, ends early and must not wait.
-- The object comes three times: as the function, and on 5.4 as the value a `for` closes.
function iterator.new(step, state, stop)
  local object = setmetatable({ step = step, state = state, stop = stop, closed = false }, Iterator)
  return object, nil, nil, object
end

-- One whose start has failed: a `for` over it raises that, :next() returns it, once.
function iterator.failed(err)
  return iterator.new(function(state)
    local why = state.err
    state.err = nil
    return nil, why
  end, { err = err })
end

return iterator
