-- The local provider: this machine's kernel. Policy and names are here and in spec.lua; what it does is
-- asked of the engine through driver.lua.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local compat = require "sandbar.compat"
local copied = require "sandbar.copied"
local core = require "sandbar.core"
local driver = require "sandbar.local.driver"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local shape = require "sandbar.shape"
local spec = require "sandbar.local.spec"
local values = require "sandbar.values"

local capabilities, claims = lazy "sandbar.capabilities", lazy "sandbar.local.claims"
local explaining = lazy "sandbar.local.explaining"
local iterator, listing = lazy "sandbar.iterator", lazy "sandbar.listing"
local link, own = lazy "sandbar.link", lazy "sandbar.own"
local measuring, network = lazy "sandbar.measuring", lazy "sandbar.local.network"
local record, sandbox = lazy "sandbar.record", lazy "sandbar.sandbox"
local launch, snapshots = lazy "sandbar.launch", lazy "sandbar.local.snapshots"
local templates, trust = lazy "sandbar.local.templates", lazy "sandbar.local.trust"

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

-- What it claims, asked of the supervisor once and then remembered; a host's attestation comes before.
local function claimed(state, timeout)
  if state._attested then
    return state._attested
  end
  if not state._claims then
    local r, err = state._driver:hello(timeout)
    if not r then
      return nil, err
    end
    state._claims = claims.of(r.fields)
  end
  return state._claims
end

-- What a spec with `prepare` asks the engine for: until that is done there is network, and an owner.
local function open_fields(merged, fields, scoped)
  local open = copied(merged)
  open.id, open.network = fields.id, "allow"
  local made, err = spec.fields(open, scoped)
  local proxy = made and network.proxy(merged.network)
  if proxy then
    made.net_inject = { proxy }
  end
  return made, err
end

-- What a handle needs is loaded while the supervisor makes the sandbox.
local function load_handles()
  return compat.load "sandbar.sandbox"
end

local function allocate(self, op, given, opts, scope)
  local state, timeout = ready(self, op, opts)
  if not state then
    return nil, timeout
  end
  local merged = shape.merge(state._defaults, given)
  local scoped = op == "create_scoped"
  local fields, err = spec.fields(merged, scoped)
  if not fields then
    return refuse(err, op, merged.id)
  end
  if merged.expect then
    local have, why = claimed(state, timeout)
    local ok = have ~= nil
    if ok then
      ok, why = capabilities.check(merged.expect, have, state._measured)
    end
    if not ok then
      return refuse(why, op, merged.id)
    end
  end
  local deadline = link.deadline(timeout)
  if merged.prepare then
    fields = open_fields(merged, fields, scoped)
  end
  local authority
  if fields.net_inject and trust.is_needed(fields.net_inject) then
    local have
    have, err = claimed(state, timeout)
    if have and have.inject_https then
      authority, err = trust.add(fields.net_inject)
    end
    if err then
      return refuse(err, op, merged.id)
    end
  end
  fields.owned = (scoped or merged.prepare or authority) and 1 or 0
  local r
  r, err = state._driver:create(fields, timeout, load_handles)
  if not r then
    return refuse(err, op, fields.id)
  end
  audit.emit("acquire", { what = "sandbox", op = op, id = fields.id, owned = scoped })
  local handles, why = load_handles()
  if not handles then
    r.release:fire() -- nobody could get at it
    return nil, errors.new {
      kind = "LimitExceeded", op = op, id = fields.id, message = "sandbox handles cannot be loaded: " .. why,
    }
  end
  if merged.prepare or r.fields.start or authority then
    local box
    box, err = handles.new(r, { driver = state._driver, scope = scope })
    if not box then
      return nil, err
    end
    local ok
    ok, err = launch.run(state._driver, box, {
      prepare = merged.prepare, policy = merged.network ~= "allow" and (merged.network or "deny") or nil,
      authority = authority, start = r.fields.start, ready = r.fields.ready, keep = not scoped, timeout = timeout,
      deadline = deadline,
    })
    if not ok then
      return refuse(link.told(err, timeout), op, fields.id)
    end
    return scoped and box or handles.disown(box)
  end
  if not scoped then
    r.release:cancel() -- from here on it belongs to nobody
    r.release = nil
  end
  return handles.new(r, { driver = state._driver, scope = scope })
end

function methods:create(given, opts)
  given = shape.check("create", 1, given)
  opts = check.options("create", 2, opts, TIMEOUT)
  return allocate(self, "create", given, opts)
end

function methods:create_scoped(given, scope, opts)
  given = shape.check("create_scoped", 1, given)
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
  given = shape.check("explain", 1, given)
  local state, bad = ready(self, "explain", {})
  if not state then
    return nil, bad
  end
  local told, err = explaining.spec(shape.merge(state._defaults, given), function()
    return claimed(state, false)
  end, state._measured)
  return told, err
end

-- ---- finding ----

local CONNECT = {
  expect_labels = "table",
  resume = "boolean",
  lifetime = "duration",
  timeout = "timeout",
}

-- Gives a running sandbox more time if what it has is less; never takes any away.
local function extend(state, r, lifetime, timeout)
  local now = (r.fields.state or {})[1]
  if now ~= "running" then
    return nil, errors.new {
      kind = "NotRunning", op = "connect", id = r.fields.id,
      message = ("sandbox %s is %s and has no lifetime to extend; resume = true wakes it"):format(r.fields.id, now),
    }
  end
  local ends_at, err = state._driver:set_lifetime(r.fields.id, lifetime, timeout, true)
  if not ends_at then
    return nil, err
  end
  r.fields.ends_ms = ends_at * 1000
  return true
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
  local labels
  if ok then
    labels, err = values.check_labels(opts.expect_labels or {}, "expect_labels")
  end
  if ok and labels and opts.lifetime ~= nil then
    ok, err = values.check_lifetime(opts.lifetime)
  end
  if not ok or not labels then
    return nil, errors.from(err, "connect")
  end
  local r
  r, err = state._driver:connect(id, labels, timeout)
  if r and opts.resume and (r.fields.state or {})[1] == "paused" then
    r, err = state._driver:resume(id, opts.lifetime, timeout, labels)
  elseif r and opts.lifetime ~= nil then
    ok, err = extend(state, r, opts.lifetime, timeout)
    r = ok and r
  end
  if not r then
    return nil, errors.from(err, "connect")
  end
  return sandbox.new({ fields = r.fields, object = r.object }, { driver = state._driver })
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

function methods:list(opts)
  opts = check.options("list", 1, opts, {
    labels = EACH.labels, state = EACH.state, page_size = EACH.page_size, timeout = EACH.timeout,
    limit = "integer",
  })
  check.map("list", 1, "labels", opts.labels, "string")
  local it, err = each(self, opts, "list", true)
  if not it then
    return nil, err
  end
  return listing.take(it, opts.limit)
end

-- `fn(driver, timeout)` about one id, for the methods that call this: never as a tail call, which would hide who
-- called them.
local function about(self, op, id, opts, fn)
  check.arg(op, 1, id, "string", 2)
  opts = check.options(op, 2, opts, TIMEOUT, 2)
  local state, timeout = ready(self, op, opts)
  if not state then
    return nil, timeout
  end
  local ok, err = values.check_id(id)
  if not ok then
    return nil, errors.from(err, op)
  end
  return fn(state._driver, timeout)
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

-- ---- the rest ----

function methods:capabilities(opts)
  opts = check.options("capabilities", 1, opts, { measure = "userdata", timeout = "timeout" })
  local box = opts.measure
  if box ~= nil and not core.is(box, sandbox.class) then
    check.fail("capabilities", 1, "option 'measure': sandbox expected, got " .. check.type_name(box))
  end
  local state, timeout = ready(self, "capabilities", opts)
  if not state then
    return nil, timeout
  end
  local deadline = link.deadline(timeout)
  local have, err = claimed(state, timeout)
  if not have then
    return nil, err
  end
  local out = capabilities.complete(have)
  if box then
    local _, why = box:processes { timeout = link.left(deadline) or false } -- in one that answers nothing is measured
    if why then
      return nil, link.told(why, timeout)
    end
    out.measured, err = measuring.all(box, deadline, timeout)
    if not out.measured then
      return nil, err
    end
    if core.state(box, sandbox.class)._link.driver == state._driver then -- that is, on this machine
      state._measured = out.measured
    end
  end
  return out
end

-- Nothing to let go of: the engine's connection belongs to the process, and handles of sandboxes go on.
function methods:close()
  state_of(self)._closed = true
  return true
end

class = core.class("Provider", methods, {
  getters = {
    templates = function(state)
      state._templates = state._templates or templates.new(state)
      return state._templates
    end,
    snapshots = function(state)
      state._snapshots = state._snapshots or snapshots.new(state)
      return state._snapshots
    end,
  },
  tostring = function(state)
    return ("sandbar.Provider local (%s)"):format(
      state._closed and "closed" or state._driver.root or "default root")
  end,
})

provider.OPTIONS = {
  provider = "any",
  journal = "string",
  defaults = "table",
  capabilities = "table",
  root = "string",
  templates = "string",
  linger = "duration|false",
}

-- `opts` as sandbar.open got them, checked against OPTIONS. `level`: how far out its caller is, from here.
function provider.open(opts, level)
  for _, clause in ipairs { "journal", "templates" } do
    if opts[clause] ~= nil then
      return nil, errors.new {
        kind = "Unsupported", op = "open", clause = clause,
        message = clause == "journal"
          and "journal: scoped local sandboxes are destroyed by the supervisor, there is nothing to replay"
          or "templates: they are below the provider's root",
      }
    end
  end
  if opts.root and (opts.root:sub(1, 1) ~= "/" or opts.root:find("%z")) then
    return nil, errors.new {
      kind = "InvalidArgument", op = "open", message = "root: an absolute path is needed",
    }
  end
  local linger, err
  if opts.linger ~= nil and opts.linger ~= false then
    linger, err = duration.parse(opts.linger, "linger")
    if not linger then
      return nil, errors.from(err, "open")
    end
  end
  return core.handle(class, {
    name = "local",
    _driver = driver.new { root = opts.root, linger = linger },
    _defaults = opts.defaults and shape.check("open", 1, opts.defaults, level + 1) or {},
    _attested = opts.capabilities and capabilities.complete(opts.capabilities),
  })
end

return provider
