-- Named images of sandboxes at the vendor: `provider.snapshots`. A snapshot is made by sandbox:snapshot(name).

local address = require "sandbar.e2b.address"
local check = require "sandbar.check"
local errors = require "sandbar.errors"
local fields = require "sandbar.e2b.record"
local spec = require "sandbar.e2b.spec"

local snapshots = {}

local TIMEOUT = check.TIMEOUT

local Collection = {}
Collection.__index = Collection

local function ready(self, op, opts)
  local provider, timeout = check.provider(self._provider, op, opts)
  return provider and provider._driver, timeout
end

--- Every one of the account's: { name, names }.
function Collection:list(opts)
  opts = check.options("list", 1, opts, TIMEOUT)
  local driver, timeout = ready(self, "list", opts)
  if not driver then
    return nil, timeout
  end
  local out = {}
  local ok, err = driver.client:pages("list", "/snapshots", timeout, function(item)
    out[#out + 1] = { name = item.snapshotID, names = fields.list(item.names, "string") or {} }
  end)
  return ok and out, err
end

-- What a 400 says of an image that sandboxes stand on, here and there.
local function is_used(message)
  return message:find("sandboxes", 1, true) or message:find("in use", 1, true) or message:find("using", 1, true)
end

--- True; of one that is not there, NotFound; of one that sandboxes stand on, Busy.
function snapshots.delete(client, name, timeout, op)
  local value, err = client:call {
    op = op, method = "DELETE", path = "/templates/" .. address.escape(name), timeout = timeout, repeatable = true,
  }
  if value then
    return true
  elseif err.status == 400 and is_used(err.message) then
    return nil, errors.new { kind = "Busy", op = op, status = 400, message = err.message }
  end
  return nil, err
end

function Collection:delete(name, opts)
  check.arg("delete", 1, name, "string")
  opts = check.options("delete", 2, opts, TIMEOUT)
  local driver, timeout = ready(self, "delete", opts)
  if not driver then
    return nil, timeout
  end
  local ok, err = spec.check_reference(name, "snapshot")
  if not ok then
    return nil, errors.from(err, "delete")
  end
  return snapshots.delete(driver.client, name, timeout, "delete")
end

function Collection:build()
  return nil, errors.new {
    kind = "Unsupported", op = "snapshots:build", clause = "snapshots",
    message = "snapshots: they are taken, with sandbox:snapshot(name)",
  }
end

-- `provider`: the provider's state.
function snapshots.new(provider)
  return setmetatable({ _provider = provider }, Collection)
end

return snapshots
