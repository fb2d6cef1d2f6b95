-- Templates at the vendor: `provider.templates`.

local address = require "sandbar.e2b.address"
local body = require "sandbar.e2b.body"
local check = require "sandbar.check"
local errors = require "sandbar.errors"
local fields = require "sandbar.e2b.record"
local lazy = require "sandbar.lazy"
local snapshots = require "sandbar.e2b.snapshots"
local spec = require "sandbar.e2b.spec"
local steps = require "sandbar.steps"

local building = lazy "sandbar.e2b.building"

local templates = {}

local TIMEOUT = check.TIMEOUT
local BUILD_TIMEOUT = 3600

local Collection = {}
Collection.__index = Collection

local function ready(self, op, opts)
  local provider, timeout = check.provider(self._provider, op, opts)
  return provider and provider._driver.client, timeout
end

local BUILD = {
  name = "!string", from = "string|table", steps = "table", network = "string|table", limits = "table",
  cache = "boolean", tags = "table", on_progress = "callable", timeout = "timeout",
}
local FROM = { image = "!string", username = "string", password = "secret" }
local LIMITS = { memory = "number", cpus = "number", disk = "number", processes = "number", files = "number" }

local function check_tags(tags, op)
  for _, tag in ipairs(tags) do
    if not tag:find("^[a-z0-9_.-]+$") then
      return nil, errors.new { kind = "InvalidArgument", op = op, clause = "tags",
        message = ("tags: %q is not of a-z 0-9 . _ -"):format(tag) }
    end
  end
  return true
end

--- Returns once the vendor has it ready: { name, id, build, steps }. Steps are those of the local provider; `from` is a
--- template ("base") or { image, username, password }.
function Collection:build(opts)
  opts = check.options("build", 1, opts, BUILD)
  steps.shape("build", opts.steps or {})
  check.options("build", 1, opts.limits, LIMITS)
  if type(opts.from) == "table" then
    check.options("build", 1, opts.from, FROM)
  end
  if opts.tags then
    check.list("build", 1, opts.tags, "string")
  end
  local client, timeout = ready(self, "templates:build", {
    timeout = opts.timeout == nil and BUILD_TIMEOUT or opts.timeout })
  if not client then
    return nil, timeout
  end
  local ok, err = spec.check_reference(opts.name, "template")
  if ok and type(opts.from) == "string" then
    ok, err = spec.check_reference(opts.from, "from")
  end
  if ok and opts.tags then
    ok, err = check_tags(opts.tags, "templates:build")
  end
  if ok and opts.network ~= nil and opts.network ~= "allow" then
    ok, err = nil, errors.new { kind = "Unsupported", clause = "network",
      message = "network: the vendor builds with all of the network" }
  end
  if not ok then
    return nil, errors.from(err, "templates:build")
  end
  return building.run(client, opts, timeout)
end

--- Every one of the account's: { name, id, names, created_at, cpus, memory, public, state }.
function Collection:list(opts)
  opts = check.options("list", 1, opts, TIMEOUT)
  local client, timeout = ready(self, "list", opts)
  if not client then
    return nil, timeout
  end
  local out = {}
  local ok, err = client:pages("list", "/v2/templates", timeout, function(item)
    local names = fields.list(item.names, "string") or {}
    out[#out + 1] = {
      name = names[1] or item.templateID, id = item.templateID, names = names,
      created_at = fields.time(item.createdAt), cpus = item.cpuCount, state = item.buildStatus,
      memory = type(item.memoryMB) == "number" and item.memoryMB * 1048576 or nil, public = item.public == true,
    }
  end)
  return ok and out, err
end

--- True; Busy while sandboxes stand on it (B-59), running and paused ones.
function Collection:delete(name, opts)
  check.arg("delete", 1, name, "string")
  opts = check.options("delete", 2, opts, TIMEOUT)
  local client, timeout = ready(self, "delete", opts)
  if not client then
    return nil, timeout
  end
  local ok, err = spec.check_reference(name, "template")
  if not ok then
    return nil, errors.from(err, "delete")
  end
  return snapshots.delete(client, name, timeout, "delete")
end

-- One call about tags, all checked.
local function tagging(self, op, name, tags, opts, call)
  local client, timeout = ready(self, op, opts)
  if not client then
    return nil, timeout
  end
  local ok, err = spec.check_reference(name, "template")
  if ok and tags then
    ok, err = check_tags(tags, op)
  end
  if not ok then
    return nil, errors.from(err, op)
  end
  call.op, call.timeout = op, timeout
  return client:call(call)
end

--- The tags of a template: { tag, build, created_at }.
function Collection:tags(name, opts)
  check.arg("tags", 1, name, "string")
  opts = check.options("tags", 2, opts, TIMEOUT)
  local list, err = tagging(self, "tags", name, nil, opts, {
    method = "GET", path = ("/templates/%s/tags"):format(address.escape(name)), repeatable = true, array = true,
  })
  if not list then
    return nil, err
  end
  local out = {}
  for i, item in ipairs(list) do
    out[i] = { tag = item.tag, build = item.buildID, created_at = fields.time(item.createdAt) }
  end
  return out
end

--- Gives the build that `name` (with or without a tag) means more tags.
function Collection:tag(name, tags, opts)
  check.arg("tag", 1, name, "string")
  check.list("tag", 2, tags, "string")
  opts = check.options("tag", 3, opts, TIMEOUT)
  local ok, err = tagging(self, "tag", name, tags, opts, {
    method = "POST", path = "/templates/tags", body = { target = name, tags = body.list(tags) }, repeatable = true,
  })
  return ok and true, err
end

--- Takes tags away.
function Collection:untag(name, tags, opts)
  check.arg("untag", 1, name, "string")
  check.list("untag", 2, tags, "string")
  opts = check.options("untag", 3, opts, TIMEOUT)
  local ok, err = tagging(self, "untag", name, tags, opts, {
    method = "DELETE", path = "/templates/tags", body = { name = name, tags = body.list(tags) },
  })
  return ok and true, err
end

-- `provider`: the provider's state.
function templates.new(provider)
  return setmetatable({ _provider = provider }, Collection)
end

return templates
