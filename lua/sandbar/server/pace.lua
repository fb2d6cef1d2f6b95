-- Long work in Lua, in pieces: whoever else waits for the loop's thread gets a turn between them.

local core = require "sandbar.core"
local wait = require "sandbar.wait"

local PIECE = 0.004 -- seconds
local LOOK = 32 -- steps between two looks at the clock
local RUN = 512 -- elements that are sorted at once

local pace = {
  VALUES = 20000, -- that a client may send at once: they are checked in one piece, in some 10 ms
}

--- A function to be called at every step of a loop. It raises once the task has been cancelled: others get no turn
--- then, and nobody waits for what comes out.
function pace.new()
  local steps, began = 0, core.now()
  return function()
    steps = steps + 1
    if steps % LOOK == 0 and core.now() - began >= PIECE then
      local ok, err = wait.sleep(0)
      if not ok then
        error(err, 0)
      end
      began = core.now()
    end
  end
end

local function merged(a, b, less, step)
  local out, i, j = {}, 1, 1
  for n = 1, #a + #b do
    step()
    if j > #b or i <= #a and not less(b[j], a[i]) then
      out[n], i = a[i], i + 1
    else
      out[n], j = b[j], j + 1
    end
  end
  return out
end

--- The list in order, as a new one.
function pace.sorted(list, less, step)
  local runs = {}
  for first = 1, #list, RUN do
    local run = {}
    for i = first, math.min(first + RUN - 1, #list) do
      run[#run + 1] = list[i]
    end
    table.sort(run, less)
    for _ = 1, #run do
      step()
    end
    runs[#runs + 1] = run
  end
  while #runs > 1 do
    local longer = {}
    for i = 1, #runs, 2 do
      longer[#longer + 1] = runs[i + 1] and merged(runs[i], runs[i + 1], less, step) or runs[i]
    end
    runs = longer
  end
  return runs[1] or {}
end

return pace
