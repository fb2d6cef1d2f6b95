-- The way from a handle to a hosted sandbox: what a link of the local engine asks of pid 1 is asked of the daemon
-- there, and answered in the same words. There is no connection that is kept: each command is a stream of its own.

local address = require "sandbar.e2b.address"
local base = require "sandbar.link"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local process = require "sandbar.e2b.process"
local record = require "sandbar.record"
local request = require "sandbar.e2b.request"
local requests = require "sandbar.e2b.requests"
local wait = require "sandbar.wait"
local who = require "sandbar.e2b.who"

local listed = lazy "sandbar.e2b.listed"
local rpc = lazy "sandbar.e2b.rpc" -- it brings libcurl
local files, watching = lazy "sandbar.e2b.files", lazy "sandbar.e2b.watching"
local links = lazy "sandbar.e2b.links"

local link = {}

local methods = { know = who.know, is_there = who.is_there, release = who.release }

local KILL_LIMIT = 2 -- seconds for what ends a command whose time is over

local SIGKILL = 9

function methods:calls()
  if not self.rpc then
    local driver = self.driver
    local access, client = driver.access, driver.client
    local url = address.daemon(access.vendor_id, access.domain, client.sandbox_url)
    local proxy, err = client:proxy_for((address.split(url, "sandbox_url")))
    if err then
      return nil, err
    end
    self.rpc, err = rpc.new {
      base = url, id = self.id, vendor_id = access.vendor_id,
      token = access.daemon_token, proxy = proxy, ca_file = client.ca_file,
    }
    if not self.rpc then
      return nil, err
    end
  end
  return self.rpc
end

-- It can be asked, or nil and Closed or NotFound.
function methods:native(_, opname)
  if self:is_closed() then
    return self:fail("Closed", ("the handle of sandbox %s is closed"):format(self.id))
  elseif self.gone then
    return self:not_running("gone")
  end
  local calls, err = self:calls()
  if not calls then
    return nil, errors.from(err, opname)
  end
  return self
end

function methods:open_()
  return not self:is_closed()
end

-- Nothing is sent twice: a sandbox that has been paused meanwhile says so.
function methods:again() -- luacheck: ignore 212
  return nil
end

-- ---- commands ----

-- The operation of a command's stream, or nil and why there is none.
local function stream_of(self, fields, max)
  local calls, err = self:calls()
  local message, token
  if calls then
    message, token = request.start(fields)
    err = not message and token or nil
  end
  if not message then
    return nil, err
  end
  fields.token = token
  return calls:stream("process.Process/Start", "process.StartRequest", message, {
    user = fields.user, limit = fields.time_limit_ms, max = max, token = token, run = fields.run or "",
    tails = request.unread(fields),
  })
end

-- The time that the daemon was told is over: it has killed the process, and the rest of the group is killed here.
local function at_limit(self, fields, token)
  self.rpc:killer(""):release(token, fields.pid):fire()
  fields.status, fields.reason = SIGKILL, "limit"
  return { fields = fields }
end

-- What an operation of a command failed for: r where that is an end after all, else nil and the error. `limited`: the
-- token of one that may have a time limit.
local function judged(self, err, partial, op, limited)
  local fields = partial and partial.fields or {}
  if err.kind == "Timeout" or err.kind == "Cancelled" or err.kind == "Closed" then
    return nil, err
  end
  local told = rpc.broken(err, fields, op)
  if limited and fields.pid and told.vendor_code == "deadline_exceeded" then
    local r = at_limit(self, fields, limited)
    r.bytes, r.bytes2 = partial.bytes, partial.bytes2
    return r
  end
  if fields.pid and told.kind ~= "OutcomeUnknown" then -- it was started, and this is no end of it
    told = errors.new { kind = "OutcomeUnknown", op = op, cause = told, message = told.message }
  end
  if told.kind == "OutcomeUnknown" and partial and (partial.bytes or fields.pid) then
    told = errors.from(told, op, { result = record.result(fields, partial.bytes or "", partial.bytes2 or "") })
    told.result.ok, told.result.reason = false, "unknown"
  end
  return nil, errors.from(self:judge(told), op)
end

function methods:exec(fields, _, timeout, max, _, held)
  local ok, err = self:native(timeout, "exec")
  if not ok then
    return nil, errors.from(err, "exec")
  end
  local op
  op, err = stream_of(self, fields, max)
  if not op then
    return nil, errors.from(err, "exec")
  end
  if held then
    held.op = op
  end
  local r, partial
  r, err, partial = wait.op(op, timeout, "exec")
  if r then
    return r
  elseif err.kind == "Timeout" then
    partial = partial or {}
    local pid = partial.fields and partial.fields.pid
    if pid and partial.release and wait.op(partial.release:op(), KILL_LIMIT, "exec") then
      partial.fields.status = SIGKILL
    end
    return nil, err, partial
  elseif err.kind == "Cancelled" then
    return nil, err
  end
  return judged(self, err, partial, "exec", fields.time_limit_ms and fields.token)
end

--- Of a held command, see link.lua.
function methods:ended(err, partial, serial)
  local known = self.known[serial or ""]
  return judged(self, err, partial, err.op or "wait", known and known.token)
end

--- The operation that starts a held command (streamed.lua).
function methods:start(fields)
  local op, err = stream_of(self, fields)
  if op then
    return op
  end
  error(err, 0)
end

--- Its result as the engine's: with the process as it is asked.
function methods:started(r, fields)
  local known = self:know { pid = r.fields.pid, token = fields.token, run = fields.run or "" }
  known.kept = request.keeps(fields) and fields.token or nil
  fields.who = known
  local native = process.new(self, r.object, fields)
  r.fields.serial = known.serial
  r.object = native
  self.natives[known.serial] = native
  return r
end

-- ---- calls ----

local calls = {}

local function not_there(self, op)
  local _, err = self:fail("Unsupported", "this is not there yet for hosted sandboxes")
  return nil, errors.from(err, op)
end

function calls.watch(self, op, timeout, fields)
  return watching.open(self, op, timeout, fields)
end

for _, name in ipairs { "read_all", "write_all", "begin", "commit", "open" } do
  calls[name] = function(self, ...)
    return files[name](self, ...)
  end
end

function calls.request(self, op, timeout, name, fields)
  return (requests[name] or not_there)(self, op, timeout, fields)
end

function calls.start(self, op, timeout, fields)
  local deadline = base.deadline(timeout)
  local ok, err = self:native(timeout, op)
  if ok then
    fields.run, err = who.run(self, timeout)
  end
  if err then
    return nil, errors.from(self:judge(base.told(err, timeout)), op)
  end
  local running
  running, err = stream_of(self, fields)
  if not running then
    return nil, errors.from(err, op)
  end
  local r, partial
  r, err, partial = wait.op(running, base.left(deadline), op)
  if not r then
    return judged(self, base.told(err, timeout), partial, op)
  end
  return self:started(r, fields)
end

-- By number or tag; of one whose output is kept here that output.
function calls.attach(self, op, timeout, fields)
  local native = fields.serial and not fields.lease and op == "read" and self.natives[fields.serial]
  if native then
    return listed.tails(native)
  end
  local ok, err = self:native(timeout, op)
  local r
  if ok then
    r, err = listed.attach(self, self.rpc, fields, timeout, op)
  end
  if not r then
    return nil, errors.from(self:judge(base.told(err, timeout)), op)
  end
  return r
end

function calls.spool(self, op, timeout, fields)
  local ok, err = self:native(timeout, op)
  local r
  if ok then
    r, err = listed.spool(self, self.rpc, fields, timeout)
  end
  if not r then
    return nil, errors.from(self:judge(err), op)
  end
  return r
end

function methods:call(method, op, timeout, ...)
  return (calls[method] or not_there)(self, op, timeout, ...)
end

-- An operation of the engine's by its name, not waited for: of a kill, that of its helper.
function methods:request(name, fields)
  if name == "kill" then
    return self:release(self.known[fields.serial]):op()
  end
end

--- Which run of the sandbox it is tells whoever finds a process, each time anew.
function methods:boot(told) -- luacheck: ignore 212
  return told
end

--- A link by which others may "read" or "write" the file of `fields`, for `expires` seconds (nil: for good).
function methods:file_url(op, what, fields, expires)
  return links.of(self, op, what, fields, expires)
end

function methods:close()
  self.closed = true
  for file in pairs(self.held or {}) do
    file:drop()
  end
  self.held = nil
  for native in pairs(self.watches or {}) do
    native:close()
  end
  self.watches = nil
  if self.rpc then
    self.rpc:close()
  end
end

--- `fields` as link.new has them; the driver is bound to the sandbox.
function link.new(fields)
  local to = base.new(fields)
  local take = to.take
  for name, fn in pairs(methods) do
    to[name] = fn
  end
  to.feeds, to.carries, to.ends_behind = true, true, true
  -- By the serial of a process: who it is, and of those that were started here what asks them.
  to.known, to.natives = setmetatable({}, { __mode = "v" }), setmetatable({}, { __mode = "v" })
  function to.take(self, r)
    who.forget(self)
    return take(self, r)
  end
  return to
end

return link
