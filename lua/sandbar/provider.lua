-- What sandbar.open does: chooses a provider. Pure configuration: no I/O, never waits, survives fork.

local check = require "sandbar.check"
local errors = require "sandbar.errors"

local provider = {}

-- What a Lua object must have to be taken for a provider.
local NEEDED = { "create", "create_scoped", "connect", "each", "list", "info", "destroy", "capabilities" }

local function is_object(value)
  return type(value) == "table" or type(value) == "userdata"
end

local function check_object(object)
  for _, name in ipairs(NEEDED) do
    if object[name] == nil then
      return nil, errors.new {
        kind = "InvalidArgument", op = "open",
        message = ("provider: the object has no method %q"):format(name),
      }
    end
  end
  return object
end

function provider.open(opts)
  local which = opts.provider
  if which == nil then
    which = "local"
  end
  if is_object(which) then
    check.options("open", 1, opts, { provider = "any" }, 2)
    return check_object(which)
  end
  if which == "local" or which == "e2b" then
    local module = require("sandbar." .. which .. ".provider")
    check.options("open", 1, opts, module.OPTIONS, 2, ("provider %s: "):format(which))
    local opened, err = module.open(opts, 3) -- no tail call: it would hide the caller
    return opened, err
  end
  check.arg("open", 1, which, "string", 2)
  return nil, errors.new {
    kind = "InvalidArgument", op = "open", clause = "provider",
    message = ("provider: %q is neither \"local\", \"e2b\" nor an object"):format(which),
  }
end

return provider
