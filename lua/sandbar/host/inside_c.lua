-- Is a call made from inside of a C function that no wait can leave: table.sort, string.gsub, require?

local core = require "sandbar.core"

-- Does the core know whether its caller may yield? One built for LuaJIT does, one built for 5.1 does not.
local core_knows

local function probe()
  table.sort({ 2, 1 }, function(a, b)
    core_knows = core.isyieldable() == false
    return a < b
  end)
end

--- True or false, of who has called the caller of this. It must be known before a wait: a semaphore whose wait fails to
--- yield has queued the light thread already, and waking it crashes the worker.
return function()
  if core_knows == nil then
    probe()
  end
  if core_knows then
    return not core.isyieldable()
  end
  local level = 3
  while true do
    local frame = debug.getinfo(level, "Sf")
    if not frame then
      return false
    end
    local fn = frame.func
    if frame.what == "C" and fn ~= pcall and fn ~= xpcall and debug.getinfo(level + 1, "l") then
      return true
    end
    level = level + 1
  end
end
