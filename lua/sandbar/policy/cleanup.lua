-- cleanup: a provider whose sandboxes carry the labels of a deployment, and what is left of them. `get` gives an object
-- with the provider's own calls, which adds the labels to every spec; whatever takes a provider takes it.

local check = require "sandbar.check"
local common = require "sandbar.policy.common"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"

local cleanup = {}

local class
local methods = {}

local OPTIONS = { provider = "any", stack = "!string", stage = "string", binding = "string" }
local EACH = { state = "string|table", page_size = "integer", timeout = "timeout" }
local TIMEOUT = { timeout = "timeout" }

-- ---- the provider that adds labels ----

local function labelled(spec, labels, op)
  spec = common.copy(spec)
  spec.labels = common.copy(spec.labels)
  for key, value in pairs(labels) do
    if spec.labels[key] ~= nil and spec.labels[key] ~= value then
      return common.invalid(op, ("labels: %q is the policy's own"):format(key))
    end
    spec.labels[key] = value
  end
  return spec
end

-- Every call of the provider; those of `CREATING` have a spec first.
local CREATING = { create = true, create_scoped = true, explain = true }

local function wrap(provider, labels)
  return setmetatable({}, {
    __index = function(self, name)
      local value = provider[name]
      if type(value) ~= "function" then
        return value -- collections
      end
      local function call(_, spec, ...)
        if CREATING[name] and (spec == nil or type(spec) == "table" and
          (spec.labels == nil or type(spec.labels) == "table")) then
          local err
          spec, err = labelled(spec, labels, name)
          if not spec then
            return nil, err
          end
        end
        return value(provider, spec, ...) -- a tail call: what the provider raises, it raises at our caller
      end
      rawset(self, name, call)
      return call
    end,
    __tostring = function()
      return tostring(provider)
    end,
  })
end

-- ---- the policy ----

--- The provider.
function methods:get()
  local state = core.state(self, class)
  if state.closed then
    return common.closed("get")
  end
  state.wrapped = state.wrapped or wrap(state.provider, state.labels)
  return state.wrapped
end

--- What is there with these labels, whoever made it.
function methods:each(opts)
  local state = core.state(self, class)
  opts = check.options("each", 1, opts, EACH)
  if state.closed then
    local _, err = common.closed("each")
    return iterator.failed(err)
  end
  opts = common.copy(opts)
  opts.labels = state.labels
  return state.provider:each(opts)
end

--- Destroys all of it; how many there were. One that cannot be destroyed does not keep the others.
function methods:destroy(opts)
  local state = core.state(self, class)
  opts = check.options("destroy", 1, opts, TIMEOUT)
  if state.closed then
    return common.closed("destroy")
  end
  local timeout, err = check.timeout(opts, "destroy")
  if err then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  local found
  found, err = state.provider:list { labels = state.labels, timeout = timeout }
  if not found then
    return nil, err
  end
  local reasons = {}
  for _, info in ipairs(found) do
    local ok, why = state.provider:destroy(info.id, { timeout = link.left(deadline) })
    if not ok then
      reasons[#reasons + 1] = { type = "failure", error = why }
    end
  end
  if reasons[1] then
    return nil, errors.aggregate(reasons, "destroy")
  end
  return #found
end

--- Nothing is destroyed by that.
function methods:close()
  core.state(self, class).closed = true
  return true
end

class = core.class("Cleanup", methods, {
  tostring = function(state)
    return ("sandbar.Cleanup %s (%s)"):format(state.labels.stack, state.closed and "closed" or "open")
  end,
})

function cleanup.new(opts)
  opts = common.options("cleanup", opts, OPTIONS, 2)
  local labels = {}
  for _, key in ipairs { "stack", "stage", "binding" } do
    local value = opts[key]
    if value and (value == "" or value:find("%z")) then
      return common.invalid("cleanup", key .. ": it is empty or contains a zero byte")
    end
    labels[key] = value
  end
  return core.handle(class, { provider = opts.provider, labels = labels })
end

return cleanup
