-- declared: one sandbox with a name. It is made at its first use, paused with its memory when its lifetime ends, woken
-- by the next use, and made anew when its template has changed.

local check = require "sandbar.check"
local common = require "sandbar.policy.common"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local keyed = require "sandbar.policy.keyed"
local link = require "sandbar.link"

local declared = {}

local class
local methods = {}

local OPTIONS = { provider = "any", name = "!string", spec = "table" }
local TIMEOUT = { timeout = "timeout" }

-- What it is made from, as text: another text is another sandbox.
local function template_of(spec)
  if spec.snapshot ~= nil then
    return "snapshot:" .. tostring(spec.snapshot)
  end
  local template = spec.template
  if type(template) == "table" then
    return "rootfs:" .. tostring(template.rootfs)
  end
  return template or "base"
end

-- Destroys those of the same name that were made from something else: all, by him who has made ours; by others those
-- that are older: he may have ended before he came to that. A newer one is being put in our place.
local function replace(state, timeout)
  local found, err = state.provider:list { labels = { ["sandbar.declared"] = state.name }, timeout = timeout }
  if not found then
    return nil, err
  end
  local ours
  for _, info in ipairs(found) do
    if info.id == state.id then
      ours = info.created_at
    end
  end
  for _, info in ipairs(found) do
    local older = ours and info.created_at and info.created_at < ours
    if info.id ~= state.id and (older or state.unclean == "all") then
      local ok, why = state.provider:destroy(info.id, { timeout = timeout })
      if not ok then
        return nil, why
      end
    end
  end
  return true
end

--- The sandbox, running: found, woken or made. Who makes it, or first looks for it, destroys what was
--- made from another template before.
function methods:get(opts)
  local state = core.state(self, class)
  opts = check.options("get", 1, opts, TIMEOUT)
  if state.closed then
    return common.closed("get")
  end
  local timeout, err = check.timeout(opts, "get")
  if err then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  local box, made = keyed.get("get", state.provider, state.id, state.labels, state.spec, nil, timeout)
  if not box then
    return nil, made
  end
  if made == true then
    state.unclean = "all"
  end
  if state.unclean then
    local ok
    ok, err = replace(state, link.left(deadline))
    if not ok then
      box:close()
      return nil, errors.from(err, "get")
    end
    state.unclean = nil
  end
  return box
end

--- The sandbox stays.
function methods:close()
  core.state(self, class).closed = true
  return true
end

class = core.class("Declared", methods, {
  tostring = function(state)
    return ("sandbar.Declared %s (%s)"):format(state.name, state.closed and "closed" or "open")
  end,
})

function declared.new(opts)
  opts = common.options("declared", opts, OPTIONS, 2)
  local name, err = common.check_name("declared", opts.name)
  if not name then
    return nil, err
  end
  local given = common.copy(opts.spec)
  if given.on_expiry ~= nil and given.on_expiry ~= "pause" then
    return common.invalid("declared", "spec.on_expiry: of a declared sandbox it is \"pause\"")
  end
  given.on_expiry = "pause"
  local labels = { ["sandbar.declared"] = name, ["sandbar.template"] = template_of(given) }
  local spec
  spec, err = common.spec("declared", opts.provider, given, { "id" }, labels, 2)
  if not spec then
    return nil, err
  end
  return core.handle(class, {
    provider = opts.provider, spec = spec, name = name, labels = labels,
    id = common.id(name, labels["sandbar.template"]), unclean = "older",
  })
end

return declared
