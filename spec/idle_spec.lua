-- check: only 5.4
-- check: no asan
-- Where nothing happens, nothing runs: no process of the engine wakes up, whatever it looks after.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("idle:", function()
  helper.guard { seconds = 25 }

  local sandboxes = helper.open()

  -- How often the supervisor and what it has started have been put on a processor.
  local function switches()
    local supervisor = assert(inside.supervisor(helper.root()))
    local pids, of = { supervisor }, {}
    for _, stat in ipairs(helper.proc.children(supervisor, true)) do
      pids[#pids + 1] = stat.pid
    end
    for _, pid in ipairs(pids) do
      local n = 0
      for times in (helper.read_file(("/proc/%d/status"):format(pid)) or ""):gmatch("voluntary_ctxt_switches:%s*(%d+)") do
        n = n + tonumber(times)
      end
      of[pid] = n
    end
    return of
  end

  -- Who has run within some seconds, and how many there are.
  local function awake(seconds)
    local before, list, n = switches(), {}, 0
    sandbar.sleep(seconds)
    for pid, times in pairs(switches()) do
      n = n + 1
      if times ~= before[pid] then
        local name = (helper.read_file(("/proc/%d/comm"):format(pid)) or "?"):gsub("\n", "")
        list[#list + 1] = ("%s (%d) %d times"):format(name, pid, times - (before[pid] or 0))
      end
    end
    return table.concat(list, ", "), n
  end

  it("neither supervisor, pid 1 nor relay wakes up", function()
    local boxes = {}
    for i = 1, 4 do
      boxes[i] = sandbar.assert(sandboxes:create_scoped { lifetime = 3000 })
      assert.is_true(sandbar.assert(boxes[i]:exec("true")).ok)
    end
    sandbar.assert(boxes[1]:start({ "sleep", "3600" }, { detached = true }))
    sandbar.assert(boxes[2]:pause())
    sandbar.assert(boxes[3]:pause { keep = "disk" })
    local connected = sandboxes:create_scoped { network = { allow = { "203.0.113.7" } } }
    if connected then -- where policies can be had
      boxes[#boxes + 1] = connected
    end
    -- Stocks are filled and trash is emptied in between; then it is over.
    local who, n
    assert.is_truthy(helper.eventually(function()
      who, n = awake(inside.times(1) > 1 and 20 or 2)
      return who == ""
    end, inside.times(1) > 1 and 100 or 30), who)
    assert.is_true(n > 5, n .. " processes")
    for _, box in ipairs(boxes) do
      box:close()
    end
  end)
end)
