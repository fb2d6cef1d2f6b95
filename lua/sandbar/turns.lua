-- Turns: of those who want to do the same thing one has the turn, the others wait until it is over. It is over, too,
-- when who had it is lost: its coroutine was collected, or its request has ended.

local core = require "sandbar.core"
local exit = require "sandbar.exit"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local own = require "sandbar.own"
local wait = require "sandbar.wait"

local turns = {}

local function over(turn)
  if turn.of[turn.key] == turn.signal then
    turn.of[turn.key] = nil
  end
  wait.fire(turn.signal)
end

local function lost(held)
  if held.turn then
    over(held.turn)
  end
end

-- On the stack of who has the turn.
local Turn = core.class("Turn", {}, {
  abandon = true,
  tostring = function()
    return "sandbar.Turn"
  end,
})

--- Runs fn(...) while nobody else runs what is under this key of the table `of`: what it gives, or raises; nil and an
--- error when the turn has not come by `deadline` (false: whenever), or the wait for it has ended early.
function turns.run(of, key, deadline, op, fn, ...)
  local held, let_go = own.tied(lost)
  while of[key] do
    local ok, err = wait.on(of[key], link.left(deadline), op)
    if not ok then
      if let_go then
        let_go()
      end
      return nil, err
    end
  end
  local turn = { of = of, key = key, signal = wait.signal(), _abandoned = over }
  local handle = core.handle(Turn, turn)
  of[key] = turn.signal
  if held then
    held.turn = turn
  end
  local r = nested.try(fn, ...)
  over(core.state(handle, Turn))
  if let_go then
    let_go()
  end
  return exit.pass_on(r)
end

return turns
