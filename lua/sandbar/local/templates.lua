-- Named templates: what sandboxes begin with, built of steps. `provider.templates` is the collection.

local check = require "sandbar.check"
local copied = require "sandbar.copied"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local steps = require "sandbar.steps"
local values = require "sandbar.values"

local build = lazy "sandbar.local.build"

local templates = {}

local TIMEOUT = check.TIMEOUT
local BUILD_TIMEOUT = 3600

local Collection = {}
Collection.__index = Collection

local function ready(self, op, opts)
  local provider, timeout = check.provider(self._provider, op, opts)
  return provider and provider._driver, timeout
end

local BUILD = {
  name = "!string",
  from = "string|table",
  steps = "table",
  network = "string|table",
  limits = "table",
  cache = "boolean",
  on_progress = "callable",
  timeout = "timeout",
}

local MOST = 2 ^ 53
local FROM = { path = "!string", image = "string", max_bytes = "size", max_entries = "integer" }

local function check_name(name, op)
  local ok, err = values.check_id(name, "template")
  if ok and name == "base" then
    ok, err = values.invalid("template", "template: \"base\" is the one that is always there")
  end
  if not ok then
    return nil, errors.from(err, op)
  end
  return ok
end

-- Returns once the template is on the disk: { name, digest, steps }, each step with kind, text and cached. One of
-- that name is replaced; sandboxes that were made from it keep it.
function Collection:build(opts)
  opts = check.options("build", 1, opts, BUILD)
  steps.shape("build", opts.steps or {})
  if type(opts.from) == "table" then
    check.options("build", 1, opts.from, FROM)
    for _, name in ipairs { "max_bytes", "max_entries" } do
      local bound = opts.from[name]
      if bound and not (bound >= 0 and bound <= MOST) then
        return nil, errors.new {
          kind = "InvalidArgument", op = "templates:build", clause = "from." .. name,
          message = ("from.%s: %s is not from 0 to 2^53"):format(name, tostring(bound)),
        }
      end
    end
  end
  local given = copied(opts)
  if given.timeout == nil then
    given.timeout = BUILD_TIMEOUT
  end
  given.network = given.network or "allow"
  local driver, timeout = ready(self, "templates:build", given)
  if not driver then
    return nil, timeout
  end
  local ok, err = check_name(given.name, "templates:build")
  if not ok then
    return nil, err
  end
  return build.run(driver, given, timeout)
end

function Collection:list(opts)
  opts = check.options("list", 1, opts, TIMEOUT)
  local driver, timeout = ready(self, "list", opts)
  if not driver then
    return nil, timeout
  end
  local parts, err = driver:templates(nil, nil, timeout)
  if not parts then
    return nil, err
  end
  local out = {}
  for i, part in ipairs(parts) do
    out[i] = {
      name = part.template, digest = part.digest, created_at = part.created_ms / 1000, user = part.user,
      cwd = part.cwd, start = part.start and #part.start > 0 and steps.runnable(part.start, 1) or nil,
    }
  end
  return out
end

function Collection:delete(name, opts)
  check.arg("delete", 1, name, "string")
  opts = check.options("delete", 2, opts, TIMEOUT)
  local driver, timeout = ready(self, "delete", opts)
  if not driver then
    return nil, timeout
  end
  local ok, err = check_name(name, "delete")
  if ok then
    ok, err = driver:delete_template(name, timeout)
  end
  if not ok then
    return nil, errors.from(err, "delete")
  end
  return true
end

-- `provider`: the provider's state.
function templates.new(provider)
  return setmetatable({ _provider = provider }, Collection)
end

return templates
