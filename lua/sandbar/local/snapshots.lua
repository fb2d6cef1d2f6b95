-- Snapshots: names for what was on a sandbox's disk, and sandboxes that begin with it. `provider.snapshots` is the
-- collection; `fork` is a temporary snapshot and creates from it.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local values = require "sandbar.values"

local snapshots = {}

local TIMEOUT = check.TIMEOUT
local MOST, AHEAD = 1000, 8 -- so many creates more are under way while one is waited for

local Collection = {}
Collection.__index = Collection

local function ready(self, op, opts)
  local provider, timeout = check.provider(self._provider, op, opts)
  return provider and provider._driver, timeout
end

function Collection:list(opts)
  opts = check.options("list", 1, opts, TIMEOUT)
  local driver, timeout = ready(self, "list", opts)
  if not driver then
    return nil, timeout
  end
  local parts, err = driver:snapshots(timeout)
  if not parts then
    return nil, err
  end
  local out = {}
  for i, part in ipairs(parts) do
    out[i] = { name = part.snapshot, template = part.template, created_at = part.created_ms / 1000 }
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
  local ok, err = values.check_id(name, "snapshot")
  if ok then
    ok, err = driver:delete_snapshot(name, timeout)
  end
  if not ok then
    return nil, errors.from(err, "delete")
  end
  return true
end

-- A snapshot is taken of a sandbox, not built.
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

-- ---- copies ----

--- A snapshot of a handle's sandbox, for copies with settings of their own: its name and what deletes it, whoever has
--- begun with it; or nil and an error. It ends with this process at the latest.
function snapshots.take_temporary(box)
  local state = core.state(box, require("sandbar.sandbox").class)
  local name = core.uuid()
  local taken, err = state._link.driver:snapshot(state.id, name, true)
  if not taken then
    state._link.driver:delete_snapshot(name, 10) -- it may be there, or will be, for nobody
    return nil, state._link:heard(err)
  end
  return name, function()
    return state._link.driver:delete_snapshot(name, 10)
  end
end

local function undo(driver, made)
  for _, r in ipairs(made) do
    if r.object then
      r.object:close()
    end
    if driver:destroy(r.fields.id, 10) then
      r.release:cancel()
    else
      r.release:fire() -- which goes on trying
    end
  end
end

-- `n` sandboxes that begin with what is on the disk of sandbox `id` now: the driver's answers to their creates, or nil
-- and an error, with none left.
function snapshots.copies(driver, id, n, owned, timeout)
  local deadline = link.deadline(timeout)
  if n % 1 ~= 0 or n < 1 or n > MOST then
    return nil, errors.new {
      kind = "InvalidArgument", op = "fork", id = id,
      message = ("the number of copies is a whole one from 1 to %d"):format(MOST),
    }
  end
  local info, err = driver:info(id, link.left(deadline))
  if not info then
    return nil, err
  end
  local name = core.uuid()
  local taken
  taken, err = driver:snapshot(id, name, true, link.left(deadline))
  if not taken then
    driver:delete_snapshot(name, 10) -- it may be there, or will be, for nobody
    return nil, err
  end
  local of, made, ops, ids = info.fields, {}, {}, {}
  local failed
  for i = 1, n do
    while not failed and #ops < n and #ops < i + AHEAD do
      ids[#ids + 1] = core.uuid()
      ops[#ops + 1] = driver:begin_create {
        id = ids[#ids],
        snapshot = name,
        label = of.label,
        lifetime_ms = of.lifetime_ms,
        on_expiry = of.on_expiry,
        auto_resume = of.auto_resume,
        network = of.network,
        net_allow = of.net_allow,
        net_deny = of.net_deny,
        inject_of = of.net_inject and id,
        owned = owned and 1 or 0,
      }
    end
    if not ops[i] then
      break
    end
    local r
    r, err = driver:end_create(ops[i], ids[i], link.left(deadline)) -- also of those behind one that failed
    failed = failed or err
    if r then
      made[#made + 1] = r
      audit.emit("acquire", { what = "sandbox", op = "fork", id = ids[i], owned = owned })
    end
  end
  driver:delete_snapshot(name, 10)
  if #made < n then
    undo(driver, made)
    return nil, errors.from(failed, "fork")
  end
  if not owned then
    for _, r in ipairs(made) do
      r.release:cancel()
      r.release = nil
    end
  end
  return made
end

return snapshots
