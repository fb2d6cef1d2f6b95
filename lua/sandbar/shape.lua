-- What a spec may look like on every provider, and what counts of the layers it is made of. What it asks for is each
-- provider's (local/spec.lua, e2b/spec.lua).

local check = require "sandbar.check"
local copied = require "sandbar.copied"
local lazy = require "sandbar.lazy"

local capabilities, launch = lazy "sandbar.capabilities", lazy "sandbar.launch"

local shape = {}

local SCHEMA = {
  id = "string",
  template = "string|table",
  snapshot = "string",
  prepare = "function|table",
  lifetime = "timeout",
  on_expiry = "string",
  auto_resume = "boolean",
  labels = "table",
  env = "table",
  user = "string",
  cwd = "string",
  network = "string|table",
  limits = "table",
  public_ports = "boolean",
  allow_setuid = "boolean",
  expect = "table",
  providers = "table",
}

check.advise(SCHEMA, {
  timeout = "how long the sandbox lives is 'lifetime', how long the call may take is in the next argument",
  memory = "it is in 'limits'", cpus = "it is in 'limits'", disk = "it is in 'limits'",
  image = "what a sandbox begins with is its 'template'",
})

-- What providers[name] may say: anything but providers again.
local OWN_SCHEMA = {}
for key, types in pairs(SCHEMA) do
  OWN_SCHEMA[key] = key ~= "providers" and types or nil
end

local LIMITS = { wall_time = "timeout" }
for _, name in ipairs { "cpus", "files", "max_commands", "max_concurrent_execs", "processes" } do
  LIMITS[name] = "number"
end
for _, name in ipairs { "disk", "max_env", "max_output", "memory" } do
  LIMITS[name] = "size"
end

local DEEP = { labels = true, env = true, limits = true }

-- The spec as it counts: the provider's defaults below it, what it says for this provider above it.
-- Labels, env and limits are merged key by key. A new table. `provider`: whose, "local" unless said.
function shape.merge(defaults, given, provider)
  local merged = {}
  for _, layer in ipairs { defaults, given } do
    local own = layer.providers and layer.providers[provider or "local"] or {}
    for _, part in ipairs { layer, own } do
      for key, value in pairs(part) do
        if DEEP[key] then
          value = copied(merged[key], value)
        end
        merged[key] = value
      end
    end
  end
  merged.providers = nil
  return merged
end

-- Raises for what no spec may look like, at the level of the caller of the method that calls this.
function shape.check(fname, index, given, level, provider)
  level = level or 2
  given = check.options(fname, index, given, SCHEMA, level)
  local own = given.providers and given.providers[provider or "local"]
  check.map(fname, index, "providers", given.providers, "table", level)
  for _, part in ipairs { given, own } do
    if part == own then
      check.options(fname, index, own, OWN_SCHEMA, level)
    end
    check.options(fname, index, part.limits, LIMITS, level)
    check.map(fname, index, "labels", part.labels, "string", level)
    check.map(fname, index, "env", part.env, "secret", level)
    if part.prepare ~= nil then
      launch.shape(fname, part.prepare, level)
    end
    if part.expect ~= nil then
      capabilities.shape(fname, index, part.expect, level)
    end
  end
  return given
end

return shape
