-- Which host this Lua state runs in: decided at the first wait, by what is loaded, never by loading
-- anything; or said by sandbar.config{ host = }.

local errors = require "sandbar.errors"

local select_host = {}

local current

local KNOWN = { blocking = "blocking", step = "blocking", openresty = "openresty" }

local function in_nginx()
  local ngx = rawget(_G, "ngx")
  return type(ngx) == "table" and ngx.get_phase ~= nil
end

--- The adapter: name, waits, context(), can_wait(), waiter(ctx), park(w), unpark(w), release(w),
--- start(ctx, job, detached, at_once), report(message).
function select_host.current()
  if not current then
    current = require(in_nginx() and "sandbar.host.openresty" or "sandbar.host.blocking")
  end
  return current
end

--- Takes the named one. True, or nil and an error.
function select_host.use(name)
  local file = KNOWN[name]
  if not file then
    return nil, errors.new {
      kind = "InvalidArgument", op = "config",
      message = ("host '%s' is not known (known are blocking, step, openresty)"):format(tostring(name)),
    }
  end
  if file == "openresty" and not in_nginx() then
    return nil, errors.new {
      kind = "InvalidArgument", op = "config", message = "host 'openresty' works only inside nginx, which this is not",
    }
  end
  current = require("sandbar.host." .. file)
  if file == "blocking" then
    current.stepping = name == "step"
  end
  return true
end

return select_host
