-- Where the local engine keeps its state when the program does not say: a system directory for root, the
-- user's state directory otherwise.

local core = require "sandbar.core"

local root = {}

-- The effective user id, or nil where /proc does not tell.
local function uid()
  local status = io.open("/proc/self/status", "r")
  if not status then
    return nil
  end
  local text = status:read("*a") or ""
  status:close()
  return tonumber(text:match("\nUid:%s*%d+%s+(%d+)"))
end

local function absolute(path)
  return path and path:sub(1, 1) == "/" and path or nil
end

-- The directory, as an absolute path.
function root.default()
  local id = uid()
  if id == 0 then
    return "/var/lib/sandbar"
  end
  local state = absolute(core.getenv("XDG_STATE_HOME"))
  if state then
    return state .. "/sandbar"
  end
  local home = absolute(core.getenv("HOME"))
  if home then
    return home .. "/.local/state/sandbar"
  end
  return ("/var/tmp/sandbar-%s"):format(id and ("%d"):format(id) or "user")
end

return root
