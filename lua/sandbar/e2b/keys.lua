-- API keys of the account: `provider.keys`. A program gets one of its own, and it is revoked with the program. Only the
-- user's token (open { access_token, team }) may do that, no key can.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local own = require "sandbar.own"
local record = require "sandbar.e2b.record"

local http = lazy "sandbar.http"

local keys = {}

local TIMEOUT = check.TIMEOUT
local UUID = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

local GONE = "id not found" -- in plain text, as nothing else that the vendor says

local Collection = {}
Collection.__index = Collection

local class
local methods = {}

local function ready(self, op, opts)
  local provider = self._provider
  local open, closed = check.open(provider, op)
  if not open then
    return nil, closed
  end
  local client = provider._driver.client
  if not client.access_token then
    return nil, errors.new { kind = "Unauthenticated", op = op, clause = "access_token",
      message = "keys: open { access_token, team } is needed, a key cannot make keys" }
  end
  local timeout, err = check.timeout(opts, op)
  if err then
    return nil, err
  end
  return client, timeout
end

local function path_of(id)
  return "/api-keys/" .. id
end

local function described(value)
  local mask = type(value.mask) == "table" and value.mask
  return {
    id = value.id, name = value.name, created_at = record.time(value.createdAt),
    mask = mask and ("%s%s...%s"):format(mask.prefix or "", mask.maskedValuePrefix or "", mask.maskedValueSuffix or "")
      or nil,
  }
end

local function mint(self, op, name, timeout)
  if #name < 1 or #name > 128 or name:find("%c") then
    return nil, errors.new { kind = "InvalidArgument", op = op,
      message = "name: 1 to 128 bytes, no control characters" }
  end
  local client = self._provider._driver.client
  local value, err = client:call {
    op = op, method = "POST", path = "/api-keys", user = true, timeout = timeout, body = { name = name },
  }
  if not value then
    return nil, err
  elseif value == true or type(value.key) ~= "string" or not tostring(value.id):find(UUID) then
    return nil, errors.new { kind = "Protocol", op = op, message = "the answer has no key" }
  end
  local out = described(value)
  out.key = core.secret(value.key)
  audit.emit("acquire", { what = "API key", op = op, id = out.id })
  return out
end

--- A new key that stays until it is deleted: { id, name, key (a secret), mask, created_at }. Its value is told this
--- once.
function Collection:create(opts)
  opts = check.options("create", 1, opts, { name = "!string", timeout = "timeout" })
  local client, timeout = ready(self, "keys:create", opts)
  if not client then
    return nil, timeout
  end
  return mint(self, "keys:create", opts.name, timeout)
end

--- The same as a handle that revokes it when the scope (or, without one, the handle) closes, on every path out.
function Collection:create_scoped(opts, scope)
  opts = check.options("create_scoped", 1, opts, { name = "!string", timeout = "timeout" })
  if scope ~= nil then
    local ok, err = own.check("create_scoped", scope)
    if not ok then
      return nil, err
    end
  end
  local client, timeout = ready(self, "keys:create_scoped", opts)
  if not client then
    return nil, timeout
  elseif client.injected then
    return nil, errors.new { kind = "Unsupported", op = "keys:create_scoped", clause = "transport",
      message = "transport: what is injected cannot release anything once Lua has ended; use create" }
  end
  local made, err = mint(self, "keys:create_scoped", opts.name, timeout)
  if not made then
    return nil, err
  end
  local port
  port, err = client.transport:origin()
  local recipe, release
  if port then
    recipe, release = http.recipe(port, { is_key = true, id = made.id, headers = client:lines(true) })
  end
  if not recipe then
    self:delete(made.id)
    return nil, errors.from(err or release, "keys:create_scoped")
  end
  recipe:bind(client:target(path_of(made.id)))
  local state = { id = made.id, name = made.name, key = made.key, mask = made.mask, created_at = made.created_at,
    _release = release, _finalize = function(handle)
      return handle:close()
    end }
  audit.collectable(state, "API key", made.id)
  local handle = core.handle(class, state, release)
  if scope then
    local held, why = own.hold(scope, handle, state)
    if not held then
      return nil, why
    end
  end
  return handle
end

--- Every key, without its value: { id, name, mask, created_at }.
function Collection:list(opts)
  opts = check.options("list", 1, opts, TIMEOUT)
  local client, timeout = ready(self, "keys:list", opts)
  if not client then
    return nil, timeout
  end
  local value, err = client:call {
    op = "keys:list", method = "GET", path = "/api-keys", user = true, timeout = timeout, repeatable = true,
    array = true,
  }
  if not value then
    return nil, err
  end
  local out = {}
  for i, item in ipairs(value) do
    out[i] = described(item)
  end
  return out
end

--- Revokes a key; one that is gone is revoked.
function Collection:delete(id, opts)
  check.arg("delete", 1, id, "string")
  opts = check.options("delete", 2, opts, TIMEOUT)
  local client, timeout = ready(self, "keys:delete", opts)
  if not client then
    return nil, timeout
  elseif not id:find(UUID) then
    return nil, errors.new { kind = "InvalidArgument", op = "keys:delete",
      message = ("%q is no id of a key"):format(id) }
  end
  local value, err = client:call {
    op = "keys:delete", method = "DELETE", path = path_of(id), user = true, timeout = timeout, repeatable = true,
  }
  if value or err.kind == "NotFound" or err.status == 404 and err.message == GONE then
    audit.emit("release", { what = "API key", op = "delete", id = id })
    return true
  end
  return nil, err
end

--- Revokes it and waits for that.
function methods:close(opts)
  local state = core.state(self, class)
  opts = check.options("close", 1, opts, TIMEOUT)
  local timeout, err = own.close_timeout(opts)
  if err then
    return nil, err
  end
  own.let_go(state)
  local release = state._release
  state._release = nil
  if not release or release:fired() then
    return true
  end
  local ok
  ok, err = own.finish(release, timeout, { what = "API key", op = "close", id = state.id })
  return ok, err
end

class = core.class("APIKey", methods, {
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    return ("sandbar.APIKey %s (%s)"):format(state.id, state._release and "held" or "closed")
  end,
})

-- `provider`: the provider's state.
function keys.new(provider)
  return setmetatable({ _provider = provider }, Collection)
end

return keys
