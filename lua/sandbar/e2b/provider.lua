-- The E2B provider: sandboxes of a hosted vendor, over its own protocol. Checks and handles are here, what is asked of
-- the vendor is in driver.lua. Credentials come from the program and from nowhere else.

local audit = require "sandbar.audit"
local capabilities = require "sandbar.capabilities"
local check = require "sandbar.check"
local claims = require "sandbar.e2b.claims"
local client_of = require "sandbar.e2b.client"
local core = require "sandbar.core"
local driver = require "sandbar.e2b.driver"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local journal_of = require "sandbar.e2b.journal"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local listing = require "sandbar.listing"
local own = require "sandbar.own"
local record = require "sandbar.record"
local sandbox = require "sandbar.sandbox"
local shape = require "sandbar.shape"
local spec = require "sandbar.e2b.spec"
local values = require "sandbar.values"

local keys, launch = lazy "sandbar.e2b.keys", lazy "sandbar.launch"
local measuring, snapshots = lazy "sandbar.measuring", lazy "sandbar.e2b.snapshots"
local templates = lazy "sandbar.e2b.templates"

local provider = {}

local class
local methods = {}

local function state_of(self)
  return core.state(self, class)
end

local TIMEOUT, refuse = check.TIMEOUT, audit.refuse

-- Its state and the timeout of a call, or nil and why it can do nothing.
local function ready(self, op, opts)
  return check.provider(state_of(self), op, opts)
end

-- ---- creating ----

local function claimed(state)
  return state._attested or claims.all()
end

local function allocate(self, op, given, opts, scope)
  local state, timeout = ready(self, op, opts)
  if not state then
    return nil, timeout
  end
  local merged = spec.merge(state._defaults, given)
  local scoped = op == "create_scoped"
  local plan, err = spec.plan(merged, scoped)
  if not plan then
    return refuse(err, op, merged.id)
  end
  plan.id = plan.id or state._driver.client:uuid()
  if merged.expect then
    local ok, why = capabilities.check(merged.expect, claimed(state), state._measured)
    if not ok then
      return refuse(why, op, plan.id)
    end
  end
  local deadline = link.deadline(timeout)
  if state._driver.client.journal then
    state._driver.client.journal:replay_once()
  end
  local r
  r, err = state._driver:create(plan, link.left(deadline), op)
  if not r then
    return refuse(link.told(err, timeout), op, plan.id)
  end
  audit.emit("acquire", { what = "sandbox", op = op, id = plan.id, owned = scoped })
  if not scoped and not plan.prepare then
    local kept
    kept, err = r.driver:keep(plan.id, link.left(deadline))
    if not kept then
      r.release:fire()
      return refuse(link.told(err, timeout), op, plan.id)
    end
    r.release:cancel() -- from here on it belongs to nobody
    r.release = nil
  end
  local box, ok
  box, err = sandbox.new(r, { driver = r.driver, scope = scope })
  if not box or not plan.prepare then
    r.keeper.settled()
    return box, err
  end
  ok, err = launch.run(r.driver, box, {
    prepare = plan.prepare, policy = plan.policy ~= "allow" and plan.policy or nil, keep = not scoped,
    timeout = timeout, deadline = deadline,
  })
  if not ok then
    return refuse(link.told(err, timeout), op, plan.id)
  end
  r.keeper.settled()
  return scoped and box or sandbox.disown(box)
end

function methods:create(given, opts)
  given = shape.check("create", 1, given, 2, "e2b")
  opts = check.options("create", 2, opts, TIMEOUT)
  return allocate(self, "create", given, opts)
end

function methods:create_scoped(given, scope, opts)
  given = shape.check("create_scoped", 1, given, 2, "e2b")
  opts = check.options("create_scoped", 3, opts, TIMEOUT)
  if scope ~= nil then
    local ok, err = own.check("create_scoped", scope)
    if not ok then
      return nil, err
    end
  end
  return allocate(self, "create_scoped", given, opts, scope)
end

function methods:explain(given)
  given = shape.check("explain", 1, given, 2, "e2b")
  local state, bad = ready(self, "explain", {})
  if not state then
    return nil, bad
  end
  local merged = spec.merge(state._defaults, given)
  local clauses, ok = spec.explain(merged)
  for _, each in ipairs(capabilities.judge(merged.expect or {}, claimed(state), state._measured)) do
    local refusal = each.err
    ok = ok and not refusal
    clauses[#clauses + 1] = {
      clause = each.clause, verdict = refusal and "refused" or "enforced", kind = refusal and refusal.kind,
      message = refusal and refusal.message or "it is claimed, or attested by the host",
    }
  end
  return { ok = ok, clauses = clauses }
end

-- ---- finding ----

local CONNECT = { expect_labels = "table", resume = "boolean", lifetime = "duration", timeout = "timeout" }

-- A running one gets more time if what it has is less; never is any taken away.
local function extend(r, lifetime, timeout)
  if r.fields.state[1] ~= "running" then
    return nil, errors.new { kind = "NotRunning", op = "connect", id = r.fields.id,
      message = ("sandbox %s is %s and has no lifetime to extend; resume = true wakes it"):format(r.fields.id,
        r.fields.state[1]) }
  end
  local ends_at, err = r.driver:set_lifetime(r.fields.id, lifetime, timeout, true)
  if not ends_at then
    return nil, err
  end
  r.fields.ends_ms = ends_at * 1000
  return r
end

function methods:connect(id, opts)
  check.arg("connect", 1, id, "string")
  opts = check.options("connect", 2, opts, CONNECT)
  check.map("connect", 2, "expect_labels", opts.expect_labels, "string")
  local state, timeout = ready(self, "connect", opts)
  if not state then
    return nil, timeout
  end
  local ok, err = values.check_id(id)
  if ok and opts.lifetime ~= nil then
    ok, err = values.check_lifetime(opts.lifetime)
  end
  if not ok then
    return nil, errors.from(err, "connect")
  end
  local deadline = link.deadline(timeout)
  local r
  r, err = state._driver:connect(id, opts.expect_labels, timeout)
  if r and opts.resume and (r.fields.state[1] == "paused" or r.driver:lacks_token()) then
    r, err = r.driver:resume(id, opts.lifetime, link.left(deadline), opts.expect_labels)
  elseif r and opts.lifetime ~= nil then
    r, err = extend(r, opts.lifetime, link.left(deadline))
  end
  if not r then
    return nil, errors.from(link.told(err, timeout), "connect")
  end
  return sandbox.new({ fields = r.fields }, { driver = r.driver })
end

local EACH = { labels = "table", state = "string|table", page_size = "integer", timeout = "timeout" }

local function each(self, opts, op, whole)
  local state, timeout = ready(self, op, opts)
  if not state then
    return nil, timeout
  end
  return listing.each(state._driver, opts, op, timeout, whole and link.deadline(timeout))
end

function methods:each(opts)
  opts = check.options("each", 1, opts, EACH)
  check.map("each", 1, "labels", opts.labels, "string")
  local it, err, _, object = each(self, opts, "each")
  if not it then
    return iterator.failed(err)
  end
  return it, nil, nil, object
end

local LIST = { labels = EACH.labels, state = EACH.state, page_size = EACH.page_size, timeout = EACH.timeout,
  limit = "integer" }

function methods:list(opts)
  opts = check.options("list", 1, opts, LIST)
  check.map("list", 1, "labels", opts.labels, "string")
  local it, err = each(self, opts, "list", true)
  if not it then
    return nil, err
  end
  return listing.take(it, opts.limit)
end

-- `fn(driver, timeout)` about one id, for the methods that call this: never as a tail call, which would hide who
-- called them.
local function about(self, op, id, opts, fn, schema)
  check.arg(op, 1, id, "string", 2)
  opts = check.options(op, 2, opts, schema or TIMEOUT, 2)
  local state, timeout = ready(self, op, opts)
  if not state then
    return nil, timeout
  end
  local ok, err = values.check_id(id)
  if not ok then
    return nil, errors.from(err, op)
  end
  return fn(state._driver, timeout, opts)
end

function methods:info(id, opts)
  local found, err = about(self, "info", id, opts, function(to, timeout)
    local r, why = to:info(id, timeout)
    if not r then
      return nil, why
    end
    return record.sandbox(r.fields)
  end)
  return found, err
end

function methods:destroy(id, opts)
  local ok, err = about(self, "destroy", id, opts, function(to, timeout)
    local gone, why = to:destroy(id, timeout)
    if gone then
      audit.emit("release", { what = "sandbox", op = "destroy", id = id })
    end
    return gone, why
  end)
  return ok, err
end

--- Destroys what programs that were killed have left in the journal, as the first create does by itself. How many
--- sandboxes, snapshots and keys there were.
function methods:recover(opts)
  opts = check.options("recover", 1, opts, TIMEOUT)
  local state, timeout = ready(self, "recover", opts)
  if not state then
    return nil, timeout
  end
  local journal = state._driver.client.journal
  if not journal then
    return nil, errors.new { kind = "Unsupported", op = "recover", clause = "journal",
      message = "journal: open { journal = directory } has none" }
  end
  local count, err = journal:replay(timeout)
  return count, err and errors.from(err, "recover")
end

local LOGS = { start = "number", limit = "integer", direction = "string", level = "string", search = "string",
  timeout = "timeout" }

--- What the vendor has logged of a sandbox: an array of { at, level, message, fields }, the latest first.
function methods:logs(id, opts)
  local lines, err = about(self, "logs", id, opts, function(to, timeout, given)
    return to:logs(id, given, timeout)
  end, LOGS)
  return lines, err
end

-- ---- the rest ----

function methods:capabilities(opts)
  opts = check.options("capabilities", 1, opts, { measure = "userdata", timeout = "timeout" })
  local state, timeout = ready(self, "capabilities", opts)
  if not state then
    return nil, timeout
  end
  local out = capabilities.complete(claimed(state))
  if opts.measure then
    local err
    out.measured, err = measuring.all(opts.measure, link.deadline(timeout), timeout)
    if not out.measured then
      return nil, err
    end
    if core.is(opts.measure, sandbox.class)
      and core.state(opts.measure, sandbox.class)._link.driver.client == state._driver.client then
      state._measured = out.measured
    end
  end
  return out
end

-- Sandboxes live on, and so do handles.
function methods:close()
  state_of(self)._closed = true
  return true
end

local function collection(name, module)
  return function(state)
    local kept = "_" .. name
    state[kept] = state[kept] or module.new(state)
    return state[kept]
  end
end

class = core.class("E2BProvider", methods, {
  getters = {
    keys = collection("keys", keys),
    snapshots = collection("snapshots", snapshots),
    templates = collection("templates", templates),
  },
  tostring = function(state)
    return ("sandbar.E2BProvider (%s)"):format(state._closed and "closed" or state._driver.client.origin)
  end,
})

provider.OPTIONS = {
  provider = "any",
  journal = "string",
  defaults = "table",
  capabilities = "table",
  api_key = "secret",
  access_token = "secret",
  team = "string",
  api_url = "string",
  domain = "string",
  sandbox_url = "string",
  request_timeout = "timeout",
  headers = "table",
  proxy = "secret",
  ca_file = "string",
  retries = "integer",
  transport = "table|userdata",
  random = "callable",
}

-- `opts` as sandbar.open got them, checked against OPTIONS. `level`: how far out its caller is, from here.
function provider.open(opts, level)
  if opts.api_key == nil or opts.api_key == "" then
    return nil, errors.new { kind = "InvalidArgument", op = "open", clause = "api_key",
      message = "api_key: it is missing (no environment variable is read for it)" }
  elseif (opts.access_token == nil) ~= (opts.team == nil) then
    return nil, errors.new { kind = "InvalidArgument", op = "open", clause = "access_token",
      message = "access_token and team: one does nothing without the other" }
  end
  check.map("open", 1, "headers", opts.headers, "secret", level)
  local client, err = client_of.new(opts)
  if not client then
    return nil, errors.from(err, "open")
  end
  if opts.journal ~= nil then
    if client.injected then
      return nil, errors.new { kind = "Unsupported", op = "open", clause = "journal",
        message = "journal: with a transport that is injected there is none" }
    end
    client.journal, err = journal_of.new(opts.journal, client)
    if not client.journal then
      return nil, err
    end
  end
  return core.handle(class, {
    name = "e2b",
    _driver = driver.new(client),
    _defaults = opts.defaults and shape.check("open", 1, opts.defaults, level + 1, "e2b") or {},
    _attested = opts.capabilities and capabilities.complete(opts.capabilities),
  })
end

return provider
