-- per_user: one long-lived sandbox for each user, the same for every caller, process and worker.

local check = require "sandbar.check"
local common = require "sandbar.policy.common"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local keyed = require "sandbar.policy.keyed"

local per_user = {}

local class
local methods = {}

local OPTIONS = { provider = "any", spec = "table", name = "string" }
local GET = { min_lifetime = "duration", timeout = "timeout" }

--- The user's sandbox, running: found, woken or made. Its life is never shortened.
function methods:get(user, opts)
  local state = core.state(self, class)
  check.arg("get", 1, user, "string")
  opts = check.options("get", 2, opts, GET)
  if state.closed then
    return common.closed("get")
  end
  local timeout, err = check.timeout(opts, "get")
  local least
  if not err and opts.min_lifetime ~= nil then
    least, err = duration.positive(opts.min_lifetime, "min_lifetime")
  end
  if err then
    return nil, errors.from(err, "get")
  end
  if user == "" or user:find("%z") then
    return common.invalid("get", "user: it is empty or contains a zero byte")
  end
  local labels = { ["sandbar.policy"] = state.name, ["sandbar.user"] = user }
  local spec = common.copy(state.spec)
  spec.labels = common.copy(spec.labels, labels)
  local box
  box, err = keyed.get("get", state.provider, common.id(state.name, user), labels, spec, least, timeout)
  return box, err
end

--- The sandboxes stay.
function methods:close()
  core.state(self, class).closed = true
  return true
end

class = core.class("PerUser", methods, {
  tostring = function(state)
    return ("sandbar.PerUser %s (%s)"):format(state.name, state.closed and "closed" or "open")
  end,
})

function per_user.new(opts)
  opts = common.options("per_user", opts, OPTIONS, 2)
  local name, err = common.check_name("per_user", opts.name or "user")
  if not name then
    return nil, err
  end
  local spec
  spec, err = common.spec("per_user", opts.provider, opts.spec, { "id" }, { ["sandbar.policy"] = name }, 2)
  if not spec then
    return nil, err
  end
  if spec.labels["sandbar.user"] ~= nil then
    return common.invalid("per_user", "spec.labels: \"sandbar.user\" is the policy's own")
  end
  return core.handle(class, { provider = opts.provider, spec = spec, name = name })
end

return per_user
