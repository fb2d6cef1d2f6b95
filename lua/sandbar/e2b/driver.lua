-- The E2B provider's private side: what the handles ask of a sandbox, as calls of the control plane. The provider's own
-- driver finds sandboxes by their logical id, each time anew; one that is bound to a sandbox (driver:bound) means that
-- sandbox of the vendor's and no other, whatever becomes of the id.

local core = require "sandbar.core"
local creating = require "sandbar.e2b.creating"
local errors = require "sandbar.errors"
local finding = require "sandbar.e2b.finding"
local identity = require "sandbar.e2b.identity"
local lazy = require "sandbar.lazy"
local link_of = require "sandbar.link"
local policy_of = require "sandbar.e2b.policy"
local record = require "sandbar.e2b.record"
local record_of = require "sandbar.record"
local spec = require "sandbar.e2b.spec"
local values = require "sandbar.values"

local copies, measured = lazy "sandbar.e2b.copies", lazy "sandbar.e2b.measured"
local ports = lazy "sandbar.e2b.ports"

local driver = {}

local Driver = {}
Driver.__index = Driver

local LIFETIME = 3600
local VENDOR_ID = 21 -- characters

--- `client`: see client.lua.
function driver.new(client)
  return setmetatable({ client = client }, Driver)
end

--- The driver of one sandbox of the vendor's. `access`: see creating.access.
function Driver:bound(access)
  return setmetatable({ client = self.client, vendor_id = access.vendor_id, access = access, env = self.env }, Driver)
end

-- The way of a handle to its sandbox.
function Driver.link(fields)
  local to = require("sandbar.e2b.link").new(fields)
  local close = to.close
  to.hosted = ports
  function to.close(self)
    for _, entry in pairs(self.ports or {}) do
      entry.object:close()
    end
    self.ports = nil
    return close(self)
  end
  return to
end

-- ---- finding ----

local function ask(self, vendor_id, id, timeout, op)
  local value, err = self.client:call {
    op = op, id = id, method = "GET", path = "/sandboxes/" .. vendor_id, timeout = timeout, repeatable = true,
  }
  return value, err
end

-- The vendor's id of the sandbox that is meant: by its logical id or, where nothing has that, by the vendor's own,
-- which tells two of one id apart.
local function vendor_of(self, id, timeout, op)
  if self.vendor_id then
    return self.vendor_id
  end
  local deadline = link_of.deadline(timeout)
  local entry, err = finding.one(self.client, id, timeout, op)
  if not entry and err.kind == "NotFound" and #id == VENDOR_ID and record.vendor_id(id) == id then
    local value, why = ask(self, id, id, link_of.left(deadline), op)
    entry = value and value ~= true and record.of(value) and value
    if not value and why.kind ~= "NotFound" then
      err = why
    end
  end
  if not entry then
    return nil, err
  end
  return record.vendor_id(entry.sandboxID)
end

-- Only of what the sandbox has that is meant, and read only: { fields, driver }.
local function detail(self, id, timeout, op)
  local deadline = link_of.deadline(timeout)
  local vendor_id, err = vendor_of(self, id, timeout, op)
  if not vendor_id then
    return nil, err
  end
  local value
  value, err = ask(self, vendor_id, id, link_of.left(deadline), op)
  if not value then
    return nil, err
  end
  local fields = value ~= true and record.of(value)
  if not fields or fields.provider_id ~= vendor_id or fields.id ~= id and vendor_id ~= id then
    return nil, errors.new { kind = "Protocol", op = op, id = id,
      message = "the answer is about another sandbox than was asked for" }
  end
  return { fields = fields, driver = self:bound(creating.access(value, self.client.domain)), detail = value }
end

-- A call about the sandbox. `on_conflict(r)`: what 404 and 409 mean, asked with what the sandbox is then.
local function about(self, id, call, on_conflict)
  local deadline = link_of.deadline(call.timeout)
  local vendor_id, err = vendor_of(self, id, call.timeout, call.op)
  if not vendor_id then
    return nil, err
  end
  call.path, call.id = ("%s/sandboxes/%s%s"):format(call.prefix or "", vendor_id, call.path), id
  call.timeout = link_of.left(deadline)
  local value, answer = (call.generations and creating.post or self.client.call)(self.client, call)
  if value then
    return value, answer, vendor_id
  end
  if on_conflict and (answer.status == 409 or answer.kind == "NotFound") then
    local r, why = detail(self, id, link_of.left(deadline), call.op)
    if not r then
      return nil, why
    end
    return on_conflict(r, answer)
  end
  return nil, answer
end

local function not_running(r, op)
  return nil, errors.new { kind = "NotRunning", op = op, id = r.fields.id,
    message = ("sandbox %s is %s; resume() wakes it"):format(r.fields.id, r.fields.state[1]) }
end

-- What a refusal means for a call that needs a running sandbox.
local function needs_running(r, err)
  if r.fields.state[1] == "running" then
    return nil, errors.from(err, err.op, { id = r.fields.id })
  end
  return not_running(r, err.op)
end

function Driver:page(filter, after, timeout)
  local states = {}
  for _, state in ipairs(filter.state or { "running", "paused" }) do
    if state == "running" or state == "paused" then
      states[#states + 1] = state
    end
  end
  local labels = record_of.labels(filter.label)
  local ok, err = identity.check_labels(labels)
  if not ok then
    return nil, err
  end
  if #states == 0 then -- the vendor keeps nothing of what has gone
    return {}, nil
  end
  local entries, more = finding.page(self.client, {
    filter = identity.filter { labels = labels }, states = states, after = after,
    limit = math.min(filter.page_size, 100),
  }, timeout, "list")
  if not entries then
    return nil, more
  end
  local out = {}
  for _, entry in ipairs(entries) do
    out[#out + 1] = record.of(entry)
  end
  return out, more
end

-- ---- a life ----

--- { fields, driver, release } of a new sandbox. `plan`: see spec.lua.
function Driver:create(plan, timeout, op)
  local r, err = creating.run(self.client, plan, timeout, op)
  if not r then
    return nil, err
  end
  r.driver = self:bound(r.access)
  r.driver.env = plan.env
  return r
end

-- Read only: it wakes nothing, and lengthens no life.
function Driver:info(id, timeout)
  return detail(self, id, timeout, "info")
end

--- The same, of one that has the labels that are expected.
function Driver:connect(id, labels, timeout)
  local r, err = detail(self, id, timeout, "connect")
  if not r then
    return nil, err
  end
  local ok
  ok, err = identity.expect(identity.read(r.detail.metadata).labels, labels, id, "connect")
  return ok and r, err
end

local function seconds_of(lifetime, op)
  local ms, err = values.check_lifetime(lifetime)
  if not ms then
    return nil, errors.from(err, op)
  end
  return math.ceil(ms / 1000)
end

-- The vendor's connect, which wakes: only after it was asked for.
local function wake(self, r, lifetime, timeout)
  local op, id = "resume", r.fields.id
  local seconds = lifetime or math.ceil((r.fields.lifetime_ms or LIFETIME * 1000) / 1000)
  local value, err = about(r.driver, id, {
    op = op, method = "POST", path = "/connect", timeout = timeout, repeatable = true, slow = true, generations = true,
    body = { timeout = seconds },
  })
  if not value then
    return nil, err
  end
  if value == true or record.vendor_id(value.sandboxID) ~= r.fields.provider_id then
    return nil, errors.new { kind = "Protocol", op = op, id = id, message = "the answer is about another sandbox" }
  end
  local now = core.wall()
  local fields = r.fields
  fields.state, fields.kept, fields.ends_ms = { "running" }, nil, math.max(fields.ends_ms or 0, (now + seconds) * 1000)
  local bound = self:bound(creating.access(value, self.client.domain))
  return { fields = fields, driver = bound }
end

--- Its ports are private, and what was heard of it did not tell the token: the detail call never does.
function Driver:lacks_token()
  return self.access ~= nil and self.access.private and not self.access.traffic_token
end

--- Wakes a paused one; of a running one it only tells (the token of its ports too), and lengthens its life where that
--- is asked for.
function Driver:resume(id, lifetime, timeout, labels)
  local deadline = link_of.deadline(timeout)
  local seconds, err
  if lifetime ~= nil then
    seconds, err = seconds_of(lifetime, "resume")
    if not seconds then
      return nil, err
    end
  end
  local r
  r, err = self:connect(id, labels, timeout)
  if not r then
    return nil, errors.from(err, "resume")
  end
  local sleeps = r.fields.state[1] == "paused"
  if not sleeps and seconds then
    local ends_at, why = r.driver:set_lifetime(id, lifetime, link_of.left(deadline), true)
    if not ends_at then
      return nil, errors.from(why, "resume")
    end
    r.fields.ends_ms = ends_at * 1000
  end
  if sleeps or r.driver:lacks_token() and not (self.access and self.access.traffic_token) then
    if not sleeps then -- what is left of its life, in case that it falls asleep meanwhile; nothing is shortened
      local left = math.floor((r.fields.ends_ms or 0) / 1000 - core.wall())
      seconds = left >= 1 and left or nil
    end
    r, err = wake(self, r, seconds, link_of.left(deadline))
    if r and self.vendor_id then -- the handle's own driver: the tokens stay valid, the traffic token is told only here
      self.access = r.driver.access
    end
  end
  return r, err
end

--- When it ends, in seconds of wall time. `extend`: never earlier than it would without this call.
function Driver:set_lifetime(id, lifetime, timeout, extend)
  local deadline = link_of.deadline(timeout)
  local seconds, err = seconds_of(lifetime, "set_lifetime")
  if not seconds then
    return nil, err
  end
  if extend then
    local r
    r, err = detail(self, id, timeout, "set_lifetime")
    if not r then
      return nil, err
    end
    local ends_at = (r.fields.ends_ms or 0) / 1000
    if r.fields.state[1] == "running" and ends_at >= core.wall() + seconds then
      return ends_at
    end
  end
  local value
  value, err = about(self, id, {
    op = "set_lifetime", method = "POST", path = "/timeout", timeout = link_of.left(deadline), repeatable = true,
    body = { timeout = seconds },
  }, needs_running)
  if not value then
    return nil, err
  end
  -- The vendor cuts what its plan does not allow, and says nothing.
  local r = detail(self, id, link_of.left(deadline), "set_lifetime")
  return r and r.fields.ends_ms and r.fields.ends_ms / 1000 or core.wall() + seconds
end

--- The kind that was taken; of a paused one what it has, which the vendor does not say.
function Driver:pause(id, keep, timeout)
  if keep ~= "memory" and keep ~= "disk" then
    return nil, errors.new { kind = "InvalidArgument", op = "pause", id = id,
      message = ("keep: %q is neither \"memory\" nor \"disk\""):format(keep) }
  end
  local value, err = about(self, id, {
    op = "pause", method = "POST", path = "/pause", timeout = timeout, repeatable = true, slow = true,
    body = { memory = keep == "memory" }, kinds = { [503] = "Busy", [429] = "Busy" },
  }, function(r, refusal)
    if r.fields.state[1] == "paused" then
      return "unknown"
    end
    return nil, errors.from(refusal, "pause", { id = id })
  end)
  if not value then
    return nil, err
  end
  return value == "unknown" and value or keep
end

--- True; of one that is gone, too.
function Driver:destroy(id, timeout)
  local value, err = about(self, id, {
    op = "destroy", method = "DELETE", path = "", timeout = timeout, repeatable = true,
  })
  if value or err.kind == "NotFound" then
    return true
  end
  return nil, err
end

--- A whole new policy. Returns once the vendor has taken it.
function Driver:update_network(id, wanted, timeout)
  local body = {}
  local told, err, internet = policy_of.map(wanted, body)
  if not told then
    return nil, errors.from(err, "update_network", { id = id })
  end
  body.allow_internet_access = internet ~= false
  local value
  value, err = about(self, id, {
    op = "update_network", method = "PUT", path = "/network", timeout = timeout, body = body,
    repeatable = true,
  }, needs_running)
  return value and true, not value and err or nil
end

--- A sandbox that was this program's is nobody's from now on, for later programs too.
function Driver:keep(_, timeout)
  if not self.client.journal then
    return true
  end
  local ok, err = self.client.journal:kept(self.access.create_token, timeout)
  return ok, err
end

-- ---- images, measures ----

function Driver:snapshot(id, name, _, timeout)
  local value, err = true, nil
  if name then
    value, err = spec.check_reference(name, "snapshot")
  end
  if not value then
    return nil, errors.from(err, "snapshot", { id = id })
  end
  value, err = about(self, id, {
    op = "snapshot", method = "POST", path = "/snapshots", timeout = timeout, slow = true,
    body = { name = name },
  }, needs_running)
  if not value then
    return nil, err
  elseif type(value) ~= "table" or type(value.snapshotID) ~= "string" then
    return nil, errors.new { kind = "Protocol", op = "snapshot", id = id, message = "the answer names no snapshot" }
  end
  return value.snapshotID
end

function Driver:copies(id, n, owned, timeout)
  return copies.make(self, id, n, owned, timeout)
end

function Driver:metrics(id, opts, timeout)
  return measured.metrics(about, self, id, opts, timeout)
end

function Driver:logs(id, opts, timeout)
  return measured.logs(about, self, id, opts, timeout)
end

--- Everything the detail call says, as the vendor has it.
function Driver:detail(id, timeout, op)
  return detail(self, id, timeout, op)
end

return driver
