-- fork(n): a snapshot, creates from it with identities of their own, and no snapshot left. (The vendor's own fork
-- copies the identity, too, which then two sandboxes have.) The snapshot has its name before it is, and its release and
-- its line in the journal with that.

local address = require "sandbar.e2b.address"
local audit = require "sandbar.audit"
local body = require "sandbar.e2b.body"
local errors = require "sandbar.errors"
local fields = require "sandbar.e2b.record"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local own = require "sandbar.own"
local record = require "sandbar.record"
local spec = require "sandbar.e2b.spec"
local task = require "sandbar.task"

local snapshots = lazy "sandbar.e2b.snapshots"

local copies = {}

local NAME = "sandbar-" -- of a snapshot, before its token

local MOST, UNDO = 1000, 15
local BESIDE = 8 -- creates at a time
local LIFETIME = 3600

-- The policy as the vendor has it, for a create; nil: that makes no sense. Values of headers come back only where the
-- vendor tells them.
local function network_of(detail)
  local network, out = detail.network or {}, { maskRequestHost = spec.HOST }
  if type(network) ~= "table" or type(network.rules or {}) ~= "table" then
    return nil
  end
  for _, name in ipairs { "allowOut", "denyOut" } do
    local list = network[name] ~= nil and fields.list(network[name], "string")
    if list == nil then
      return nil
    end
    out[name] = list and body.list(list) or nil
  end
  for _, rules in pairs(network.rules or {}) do
    if not fields.list(rules, "table") then
      return nil
    end
    body.list(rules)
  end
  out.rules, out.allowPublicTraffic = network.rules, network.allowPublicTraffic
  return out
end

-- The plan of a copy: what the original has, but its identity.
local function plan_of(r, network, snapshot, id, env)
  local of, labels = r.fields, {}
  for name, value in pairs(record.labels(of.label)) do
    labels[name] = value
  end
  return {
    id = id, template = snapshot, snapshot = snapshot, labels = labels, label = of.label, env = env,
    lifetime = math.ceil((of.lifetime_ms or LIFETIME * 1000) / 1000), on_expiry = of.on_expiry or "pause_disk",
    auto_resume = of.auto_resume == 1, user = of.user, cwd = of.cwd, network = network,
    internet = r.detail.allowInternetAccess,
  }
end

-- The snapshot to be: token, name and, where there can be one, its release; nil and an error.
local function intend(client, deadline)
  local token = client:uuid()
  local self = { token = token, name = NAME .. token, client = client }
  if client.journal then
    local noted, why = client.journal:intent("snapshot", token, self.name, link.left(deadline))
    if not noted then
      return nil, why
    end
  end
  local target = "/templates/" .. address.escape(self.name)
  self.recipe, self.release = client:recipe { what = "snapshot", id = self.name, early = client:target(target) }
  if not self.recipe and self.release then
    return nil, self.release
  end
  self.keeper = self.release and own.keeper(self.release)
  return self
end

-- After a failure of these kinds it may still come.
local OPEN = { OutcomeUnknown = true, Timeout = true, Cancelled = true, Protocol = true }

-- `refusal`: what asking for it has failed of, nil: it is there. What cannot be deleted now, or may still come, is its
-- release's, which goes on for a while. Where the vendor keeps what copies stand on it stays, and in the journal, for
-- when they are gone.
local function drop(self, refusal)
  local open = refusal and (OPEN[refusal.kind] or (refusal.status or 0) >= 500)
  local gone, err = refusal and not open, nil
  if not gone then
    task.shield(function()
      gone, err = snapshots.delete(self.client, self.snapshot or self.name, UNDO, "fork")
    end)
    gone = gone or err.kind == "NotFound" and not open
  end
  local used = not gone and err.kind == "Busy"
  if used then
    audit.emit("release", { what = "snapshot", op = "fork", id = self.name, error = err })
  elseif gone and self.client.journal then
    self.client.journal:done(self.token)
  end
  if not self.release then
    return
  elseif gone or used then
    self.release:cancel()
    self.keeper.settled()
  else
    self.release:fire()
  end
end

--- Deletes the snapshot of a fork by its token: how many there were; nil: there are sandboxes that stand on it; nil and
--- an error.
function copies.forget(client, token, timeout, op)
  local ok, err = snapshots.delete(client, NAME .. token, timeout, op)
  if ok or err.kind == "NotFound" then
    return ok and 1 or 0
  end
  return nil, err.kind ~= "Busy" and err or nil
end

local function undo(made)
  task.shield(function()
    for _, r in pairs(made) do
      if r.driver:destroy(r.fields.id, UNDO) then
        r.release:cancel()
      else
        r.release:fire() -- which goes on trying for a while
      end
    end
  end)
end

-- Puts the answers to `n` creates into `made`, several at a time. True, or nil and an error: then some are missing.
local function create_all(made, n, create)
  local next_one = 0
  local function work()
    while next_one < n do
      next_one = next_one + 1
      local at = next_one
      local copy, err = create()
      if not copy then
        return nil, err
      end
      made[at] = copy
    end
    return true
  end
  if n == 1 then
    return work()
  end
  local beside = {}
  for i = 1, math.min(n, BESIDE) do
    beside[i] = work
  end
  return task.all(beside)
end

--- The answers to `n` creates, or nil, an error and no copies.
function copies.make(driver, id, n, owned, timeout)
  local deadline = link.deadline(timeout)
  if n % 1 ~= 0 or n < 1 or n > MOST then
    return nil, errors.new { kind = "InvalidArgument", op = "fork", id = id,
      message = ("the number of copies is a whole one from 1 to %d"):format(MOST) }
  end
  local r, err = driver:detail(id, timeout, "fork")
  if not r then
    return nil, err
  end
  local network = network_of(r.detail)
  if not network then
    return nil, errors.new { kind = "Protocol", op = "fork", id = id, message = "the answer's network makes no sense" }
  end
  local image
  image, err = intend(driver.client, deadline)
  if not image then
    return nil, errors.from(err, "fork", { id = id })
  end
  local snapshot
  snapshot, err = driver:snapshot(id, image.name, true, link.left(deadline))
  if not snapshot then
    drop(image, err)
    return nil, errors.from(err, "fork")
  end
  image.snapshot = snapshot
  if image.recipe then
    image.recipe:bind(driver.client:target("/templates/" .. address.escape(snapshot)))
  end
  local made, ok = {}
  ok, err = create_all(made, n, function()
    local own_id = driver.client:uuid()
    local copy, why = driver:create(plan_of(r, network, snapshot, own_id, driver.env), link.left(deadline),
      owned and "create_scoped" or "create")
    if copy then
      audit.emit("acquire", { what = "sandbox", op = "fork", id = copy.fields.id, owned = owned })
    end
    return copy, why
  end)
  if not ok then
    undo(made)
  end
  drop(image)
  if not ok then
    return nil, errors.from(link.told(err, timeout), "fork", { id = id })
  end
  if not owned then
    for _, copy in ipairs(made) do
      ok, err = copy.driver:keep(copy.fields.id, link.left(deadline))
      if not ok then
        undo(made)
        return nil, errors.from(err, "fork", { id = id })
      end
    end
    for _, copy in ipairs(made) do
      copy.release:cancel()
      copy.release = nil
    end
  end
  for _, copy in ipairs(made) do
    copy.keeper.settled()
  end
  return made
end

return copies
