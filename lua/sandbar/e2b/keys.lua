-- API keys of the account: `provider.keys`. A program gets one of its own, and it is revoked with the program. Only the
-- user's token (open { access_token, team }) may do that, no key can.
--
-- Behind the name that it is given a key has a token in the vendor's list, by which one is found whose answer was lost:
-- nobody has its value, so it is revoked. As with sandboxes its release is there before it is asked for.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local own = require "sandbar.own"
local record = require "sandbar.e2b.record"
local task = require "sandbar.task"

local keys = {}

local TIMEOUT = check.TIMEOUT
local TOKEN = "%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x"
local UUID = "^" .. TOKEN .. "$"

local GONE = "id not found" -- in plain text, as nothing else that the vendor says
local LONGEST = 90 -- bytes of a name; the vendor has room for 128
local UNDO = 15

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
  local name = tostring(value.name):gsub(" #" .. TOKEN .. "$", "")
  return {
    id = value.id, name = name, created_at = record.time(value.createdAt),
    mask = mask and ("%s%s...%s"):format(mask.prefix or "", mask.maskedValuePrefix or "", mask.maskedValueSuffix or "")
      or nil,
  }
end

local function listed(client, timeout, op)
  local value, err = client:call {
    op = op, method = "GET", path = "/api-keys", user = true, timeout = timeout, repeatable = true, array = true,
  }
  if not value then
    return nil, err
  end
  return value
end

-- True: it is gone, if it was there.
local function revoke(client, id, timeout, op)
  local value, err = client:call {
    op = op, method = "DELETE", path = path_of(id), user = true, timeout = timeout, repeatable = true,
  }
  if value or err.kind == "NotFound" or err.status == 404 and err.message == GONE then
    return true
  end
  return nil, err
end

--- Revokes what was minted with this token: how many there were; nil: a key cannot ask that; nil and an error.
function keys.forget(client, token, timeout, op)
  if not client.access_token then
    return nil
  end
  local deadline, count = link.deadline(timeout), 0
  local value, err = listed(client, timeout, op)
  if not value then
    return nil, err
  end
  for _, item in ipairs(value) do
    if tostring(item.name):sub(-#token) == token and tostring(item.id):find(UUID) then
      local ok, why = revoke(client, item.id, link.left(deadline), op)
      if not ok then
        return nil, why
      end
      count = count + 1
    end
  end
  return count
end

-- Of a request that has failed. `open`: it may have been carried out all the same.
local function undo(client, token, release, err, open)
  if not open then
    if release then
      release:cancel()
    end
    if client.journal then
      client.journal:done(token)
    end
    return err
  end
  if release then
    release:fire() -- it goes on looking for a while
  else
    task.shield(function()
      keys.forget(client, token, UNDO, err.op)
    end)
  end
  if err.kind == "Timeout" or err.kind == "Cancelled" or err.kind == "Protocol" then
    return err
  end
  return errors.new { kind = "OutcomeUnknown", op = err.op, cause = err, status = err.status,
    message = "the answer with the key was lost; if there is one, it is revoked: " .. err.message }
end

-- What was made, its release, and what keeps that meanwhile (see own.keeper); nil and an error.
local function mint(client, op, name, timeout)
  if #name < 1 or #name > LONGEST or name:find("%c") then
    return nil, errors.new { kind = "InvalidArgument", op = op,
      message = ("name: 1 to %d bytes, no control characters"):format(LONGEST) }
  end
  local deadline, token = link.deadline(timeout), client:uuid()
  if client.journal then
    client.journal:replay_once()
    local noted, why = client.journal:intent("API key", token, "-", link.left(deadline))
    if not noted then
      return nil, errors.from(why, op)
    end
  end
  local recipe, release = client:recipe({ what = "API key", id = name, key = "id", mark = token,
    prefix = client:target "/api-keys/", find = client:target "/api-keys" }, true)
  if not recipe and release then
    return nil, errors.from(release, op)
  end
  local keeper = release and own.keeper(release)
  local value, err, _, open = client:call {
    op = op, method = "POST", path = "/api-keys", user = true, timeout = link.left(deadline),
    body = { name = name .. " #" .. token },
  }
  if value and (value == true or type(value.key) ~= "string" or not tostring(value.id):find(UUID)) then
    value, err, open = nil, errors.new { kind = "Protocol", op = op, message = "the answer has no key" }, true
  end
  if not value then
    return nil, undo(client, token, release, link.told(err, timeout), open)
  end
  if recipe then
    recipe:bind(client:target(path_of(value.id)))
  end
  local out = described(value)
  out.key = core.secret(value.key)
  audit.emit("acquire", { what = "API key", op = op, id = out.id })
  return out, nil, { token = token, release = release, keeper = keeper, left = link.left(deadline) }
end

--- A new key that stays until it is deleted: { id, name, key (a secret), mask, created_at }. Its value is told this
--- once.
function Collection:create(opts)
  opts = check.options("create", 1, opts, { name = "!string", timeout = "timeout" })
  local client, timeout = ready(self, "keys:create", opts)
  if not client then
    return nil, timeout
  end
  local made, err, held = mint(client, "keys:create", opts.name, timeout)
  if not made then
    return nil, err
  elseif client.journal then
    local kept, why = client.journal:kept(held.token, held.left)
    if not kept then
      held.release:fire()
      return nil, errors.from(why, "keys:create")
    end
  end
  if held.release then
    held.release:cancel()
    held.keeper.settled()
  end
  return made
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
  local made, err, held = mint(client, "keys:create_scoped", opts.name, timeout)
  if not made then
    return nil, err
  end
  local release = held.release
  local state = { id = made.id, name = made.name, key = made.key, mask = made.mask, created_at = made.created_at,
    _release = release, _keeper = held.keeper, _finalize = function(handle)
      return handle:close()
    end }
  audit.collectable(state, "API key", made.id)
  local handle = core.handle(class, state, release)
  held.keeper.settled()
  if scope then
    local ok, why = own.hold(scope, handle, state)
    if not ok then
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
  local value, err = listed(client, timeout, "keys:list")
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
  local ok, err = revoke(client, id, timeout, "keys:delete")
  if ok then
    audit.emit("release", { what = "API key", op = "delete", id = id })
  end
  return ok, err
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
