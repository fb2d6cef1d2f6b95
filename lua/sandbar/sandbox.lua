-- Sandbox: the handle of one sandbox. Its fields are what was last heard; every call that can wait
-- takes a timeout. Lifecycle goes to the provider's driver, everything else to the link.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local command = require "sandbar.command"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local exec = require "sandbar.exec"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local own = require "sandbar.own"
local record = require "sandbar.record"

local attach, files = lazy "sandbar.attach", lazy "sandbar.files"
local metrics, port, start = lazy "sandbar.metrics", lazy "sandbar.port", lazy "sandbar.start"
local trust = lazy "sandbar.local.trust"
local snapshots, values = lazy "sandbar.local.snapshots", lazy "sandbar.values"

local sandbox = {}

local class
local methods = {}

local function state_of(self)
  return core.state(self, class)
end

local TIMEOUT, timeout_of = check.TIMEOUT, check.timeout

-- Takes over what a record says.
local function see(state, fields)
  local seen = record.sandbox(fields)
  for _, key in ipairs { "state", "kept", "labels", "template", "ends_at", "owned" } do
    state[key] = seen[key]
  end
  return seen
end

local function usable(state, op)
  if state._link:is_closed() then
    return nil, errors.new {
      kind = "Closed", op = op, id = state.id,
      message = ("the handle of sandbox %s is closed"):format(state.id),
    }
  end
  return true
end

-- Whether a lifecycle call may begin, and its timeout; or nil and why not. `opts` have been checked.
local function ready(state, op, opts)
  local timeout, err = timeout_of(opts, op)
  local ok = not err
  if ok then
    ok, err = usable(state, op)
  end
  if not ok then
    return nil, err
  end
  return true, timeout
end

-- ---- processes ----

function methods:exec(cmd, opts)
  local state = state_of(self)
  opts = check.options("exec", 2, opts, exec.SCHEMA)
  command.shape("exec", cmd, opts)
  return exec.run(state._link, cmd, opts)
end

function methods:start(cmd, opts)
  local state = state_of(self)
  opts = check.options("start", 2, opts, command.SCHEMA)
  command.shape("start", cmd, opts)
  return start.run(state._link, cmd, opts)
end

function methods:attach(target, opts)
  local state = state_of(self)
  local given, timeout = attach.given(target, opts)
  if not given then
    return nil, timeout
  end
  return attach.attach(state._link, target, given, timeout)
end

function methods:processes(opts)
  local state = state_of(self)
  opts = check.options("processes", 1, opts, TIMEOUT)
  local timeout, why = timeout_of(opts, "processes")
  if why then
    return nil, why
  end
  local r, err = state._link:call("request", "processes", timeout, "list", {})
  if not r then
    return nil, err
  end
  local out = {}
  for i, part in ipairs(r.parts or {}) do
    out[i] = record.process(part)
  end
  return out
end

-- ---- ports ----

function methods:port(number)
  local state = state_of(self)
  check.arg("port", 1, number, "number")
  if number < 1 or number > 65535 or number % 1 ~= 0 then
    return nil, errors.new {
      kind = "InvalidArgument", op = "port",
      message = ("%s is not between 1 and 65535"):format(tostring(number)),
    }
  end
  return port.new(state._link, number)
end

-- ---- lifecycle ----

-- One request of the driver about this sandbox, for the methods that call this: never as a tail call, which would
-- hide who called them. `level`: how much further out the caller is.
local function drive(self, op, opts, extra, fn, level)
  local state = state_of(self)
  local schema = { timeout = "timeout" }
  for key, kind in pairs(extra or {}) do
    schema[key] = kind
  end
  opts = check.options(op, 1, opts, schema, level or 2)
  local ok, timeout = ready(state, op, opts)
  if not ok then
    return nil, timeout
  end
  local result, err = fn(state, opts, timeout)
  return result, state._link:heard(err)
end

local function info(self, op, opts)
  local seen, err = drive(self, op, opts, nil, function(state, _, timeout)
    local r, why = state._link.driver:info(state.id, timeout)
    if not r then
      return nil, why
    end
    return see(state, r.fields)
  end, 3)
  return seen, err
end

function methods:info(opts)
  local seen, err = info(self, "info", opts)
  return seen, err
end

-- What it uses now; with start or end, what it used.
function methods:metrics(opts)
  local state = state_of(self)
  opts = check.options("metrics", 1, opts, metrics.SCHEMA)
  local ok, timeout = ready(state, "metrics", opts)
  if not ok then
    return nil, timeout
  end
  state._sampled = state._sampled or {}
  local seen, err = metrics.get(state._link.driver, state.id, opts, timeout, state._sampled)
  return seen, state._link:heard(err)
end

-- The exposed ones, as an array of numbers.
function methods:ports(opts)
  local to = state_of(self)._link
  if to.hosted then -- they are recorded inside
    local numbers, why = drive(self, "ports", opts, nil, function(_, _, timeout)
      return to.hosted.exposed(to, timeout)
    end)
    return numbers, why
  end
  local seen, err = info(self, "ports", opts)
  return seen and seen.ports, err
end

function methods:set_lifetime(lifetime, opts)
  local state = state_of(self)
  check.arg("set_lifetime", 1, lifetime, "timeout")
  opts = check.options("set_lifetime", 2, opts, TIMEOUT)
  local ok, timeout = ready(state, "set_lifetime", opts)
  if not ok then
    return nil, timeout
  end
  local err
  state.ends_at, err = state._link.driver:set_lifetime(state.id, lifetime, timeout)
  return state.ends_at and true, state._link:heard(err)
end

-- Returns once the new policy holds: what it does not allow has been cut.
function methods:update_network(policy, opts)
  local state = state_of(self)
  check.arg("update_network", 1, policy, "string|table")
  opts = check.options("update_network", 2, opts, TIMEOUT)
  local ok, timeout = ready(state, "update_network", opts)
  if not ok then
    return nil, timeout
  end
  local done, more = state._link.driver:update_network(state.id, policy, timeout)
  if done and more then
    done, more = trust.install(self.files, more, timeout)
  end
  return done, state._link:heard(more)
end

-- Returns the kind that was really taken.
function methods:pause(opts)
  local taken, err = drive(self, "pause", opts, { keep = "string" }, function(state, given, timeout)
    local kept, why = state._link.driver:pause(state.id, given.keep or "memory", timeout)
    if not kept then
      return nil, why
    end
    state.state, state.kept, state.ends_at = "paused", kept, nil
    return kept
  end)
  return taken, err
end

function methods:resume(opts)
  local ok, err = drive(self, "resume", opts, { lifetime = "duration" }, function(state, given, timeout)
    local to = state._link
    local r, why = to.driver:resume(state.id, given.lifetime, timeout)
    if not r then
      return nil, why
    end
    to:take(r)
    return true
  end)
  return ok, err
end

-- Returns the snapshot's name.
function methods:snapshot(name, opts)
  local state = state_of(self)
  check.arg("snapshot", 1, name, "string?")
  opts = check.options("snapshot", 2, opts, TIMEOUT)
  local ok, timeout = ready(state, "snapshot", opts)
  if not ok then
    return nil, timeout
  end
  if name ~= nil then
    local named, why = values.check_id(name, "snapshot")
    if not named then
      return nil, errors.from(why, "snapshot")
    end
  end
  local taken, err = state._link.driver:snapshot(state.id, name, false, timeout)
  return taken, state._link:heard(err)
end

-- Copies of what is on its disk, as an array of handles. They are owned as this one is, by the scope it is in.
function methods:fork(n, opts)
  local state = state_of(self)
  check.arg("fork", 1, n, "number?")
  opts = check.options("fork", 2, opts, TIMEOUT)
  local ok, timeout = ready(state, "fork", opts)
  if not ok then
    return nil, timeout
  end
  local to = state._link
  local made, err = (to.driver.copies or snapshots.copies)(to.driver, state.id, n or 1, state.owned, timeout)
  if not made then
    return nil, to:heard(err)
  end
  local out = {}
  for i, r in ipairs(made) do
    out[i], err = sandbox.new(r, { driver = r.driver or to.driver, scope = state.owned and to.scope or nil })
    if not out[i] then
      return nil, err
    end
  end
  return out
end

-- Drops what the handle owns without running it: somebody else has done it, or will.
local function disown(state)
  own.let_go(state)
  if state._release then
    state._release:cancel()
    state._release = nil
  end
end

function methods:destroy(opts)
  local ok, err = drive(self, "destroy", opts, nil, function(state, _, timeout)
    local gone, why = state._link.driver:destroy(state.id, timeout)
    if not gone then
      return nil, why
    end
    disown(state)
    audit.emit("release", { what = "sandbox", op = "destroy", id = state.id })
    state._link.lost()
    state._link.gone = true
    if state._link.box then
      state._link.box:close()
    end
    return true
  end)
  return ok, err
end

-- Destroys what it owns and waits for that; of a sandbox it does not own it only lets go.
function methods:close(opts)
  local state = state_of(self)
  opts = check.options("close", 1, opts, TIMEOUT)
  local timeout, err = own.close_timeout(opts)
  if err then
    return nil, err
  end
  if state._link.closed then
    return true
  end
  own.let_go(state)
  local release = state._release
  state._release = nil
  state._link:close()
  local ok = true
  if release and not release:fired() then
    ok, err = own.finish(release, timeout, { what = "sandbox", op = "close", id = state.id })
    state.state = "gone"
  end
  return ok, err
end

class = core.class("Sandbox", methods, {
  getters = {
    files = function(state)
      state._files = state._files or files.new(state._link)
      return state._files
    end,
  },
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    return ("sandbar.Sandbox %s (%s)"):format(state.id, state._link:is_closed() and "closed" or state.state)
  end,
})

sandbox.class = class

-- A handle that owned its sandbox until that was prepared. Returns it.
function sandbox.disown(handle)
  local state = state_of(handle)
  disown(state)
  state.owned, state._link.owned = false, false
  return handle
end

-- `r` is the driver's answer to create, connect or resume: fields, object, release. `opts`: driver,
-- scope. A release means that the sandbox ends with the scope or, without one, the handle.
function sandbox.new(r, opts)
  local to = (opts.driver.link or link.new) {
    id = r.fields.id,
    driver = opts.driver,
    box = r.object,
    limits = { max_output = r.fields.limit_output, max_env = r.fields.limit_env },
    scope = opts.scope,
    owned = r.release ~= nil,
  }
  local state = {
    id = r.fields.id,
    provider_id = r.fields.provider_id or r.fields.id,
    _link = to,
    _release = r.release,
    _keeper = r.keeper,
    _finalize = function(handle)
      return handle:close()
    end,
  }
  see(state, r.fields)
  state.owned = r.release ~= nil
  to.seen = function(fields)
    local owned = state.owned
    see(state, fields)
    state.owned = owned
  end
  to.lost = function()
    state.state, state.kept, state.ends_at = "gone", nil, nil
  end
  if r.release then
    audit.collectable(state, "sandbox", state.id)
  end
  -- The handle itself carries the release: collected, it fires. A scope holds the handle.
  local handle = core.handle(class, state, r.release)
  to.handle = handle
  if opts.scope then
    local held, err = own.hold(opts.scope, handle, state)
    if not held then
      return nil, err
    end
  end
  return handle
end

return sandbox
