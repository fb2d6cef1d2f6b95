-- One run of the worker inside a hosted sandbox (worker.lua), and what its failures mean.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local helper = require "sandbar.e2b.helper"
local link_of = require "sandbar.link"
local own = require "sandbar.own"
local process = require "sandbar.e2b.process"
local rpc = require "sandbar.e2b.rpc"
local wait = require "sandbar.wait"
local worker = require "sandbar.e2b.worker"

local ANSWER = 67108864 -- the most that it may say
local MOST_ARGUMENT = 100000 -- bytes of one field: a program's argument has 128 KiB at most
local SAID = 65536 -- the most that one says which is given input
local TRIES, PAUSE = 3, 0.1
local ENDED = 2 -- seconds until what one has said is here that has ended
local ENOENT = 2
local NO_PROGRAM = { [126 * 256] = true, [127 * 256] = true }

-- What can be asked again when its answer was lost.
local REPEATABLE = {
  stat = true, list = true, readlink = true, getxattr = true, glob = true, read = true, gate = true, directory = true,
  abort = true, chmod = true, chown = true, setxattr = true,
}

local work = {}

--- What a call ends with whose request may have been carried out all the same.
work.UNTOLD = { Timeout = true, Cancelled = true, OutcomeUnknown = true, Closed = true }

--- After this error of a start something may have begun all the same.
function work.may_have_begun(err)
  return work.UNTOLD[err.kind] or err.kind == "Protocol"
end

--- The error of an answer that makes no sense.
function work.nonsense(op)
  return errors.new { kind = "Protocol", op = op, message = "the helper inside the sandbox does not make sense" }
end

--- The error that it tells.
function work.failed(text, op)
  local errno, kind, step, message, path = text:match("^%-(%d+)%z(%Z*)%z(%Z*)%z(%Z*)%z(%Z*)%z$")
  if not errno then
    return work.nonsense(op)
  end
  errno = tonumber(errno)
  return errors.new {
    kind = errno ~= 0 and errors.kind_of(errno) or kind, errno = errno ~= 0 and errno or nil, op = op,
    step = step ~= "" and step or nil, message = message, path = path ~= "" and path or nil,
  }
end

-- No such user: the vendor calls that a failure to show who one is.
local function of_user(err, user)
  if user and err.vendor_code == "unauthenticated" and err.message:find("user", 1, true) then
    return errors.new { kind = "InvalidArgument", errno = ENOENT, op = err.op, cause = err,
      message = "the sandbox has no such user or group" }
  end
  return err
end

--- Starts `name` with these fields: the result of its stream (see http.run); nil, an error and the release, fired, of
--- what may have begun. `held`: it is complete at the start, with what it says to be read and its input open; else at
--- its end, with up to `max` bytes.
function work.start(self, op, timeout, name, fields, user, max, held)
  for _, value in pairs(fields) do
    if type(value) == "string" and #value > MOST_ARGUMENT then
      return nil, errors.new { kind = "LimitExceeded", op = op, limit = MOST_ARGUMENT,
        message = ("what is asked for is longer than %d bytes"):format(MOST_ARGUMENT) }
    end
  end
  if timeout == 0 then
    return nil, wait.not_now(op)
  end
  local native, err = self:native(timeout, op)
  local token, running = core.uuid(), nil
  if native then
    running, err = self.rpc:stream("process.Process/Start", "process.StartRequest", {
      process = worker.process(name, fields, token), stdin = held or false, tag = helper.TAG,
    }, { user = user, max = not held and max or nil, token = token })
  end
  if not running then
    return nil, errors.from(err, op)
  end
  local r, partial
  r, err, partial = wait.op(running, timeout, op)
  if r then
    r.fields.who = self:know { pid = r.fields.pid, token = token }
    return r
  elseif work.UNTOLD[err.kind] and err.kind ~= "OutcomeUnknown" then -- its release is on its way
    return nil, err, partial and partial.release
  end
  local said = partial and partial.fields or {}
  local told = of_user(rpc.broken(err, said, op), user)
  if said.pid and told.kind ~= "OutcomeUnknown" then
    told = errors.new { kind = "OutcomeUnknown", op = op, cause = told, message = told.message }
  end
  if not work.may_have_begun(told) then
    return nil, told
  end
  local release = self.rpc:killer():release(token, said.pid) -- it may wait for its input, or for anything else
  release:fire()
  return nil, told, release
end

--- What an end with this wait status means that is none in order, or nil.
function work.ended(status, text, op)
  if NO_PROGRAM[status] then
    return errors.new { kind = "Unsupported", op = op, clause = "files",
      message = "the sandbox has no perl, which its files are reached by" }
  elseif status ~= 0 then
    return errors.new { kind = "Platform", op = op,
      message = errors.with_output("the helper inside the sandbox has failed", errors.last_of(text or "", 500)) }
  end
end

-- All that it said, or nil and an error.
local function attempt(self, op, timeout, name, fields, user, max)
  local r, err, release = work.start(self, op, timeout, name, fields, user, max)
  if not r then
    return nil, err, release
  elseif (r.fields.dropped or 0) > 0 then
    return nil, errors.new { kind = "LimitExceeded", op = op, limit = max,
      message = ("the answer is longer than %d bytes"):format(max) }
  end
  err = work.ended(r.fields.status, r.bytes2, op)
  return not err and (r.bytes or "") or nil, err
end

-- What got no answer is asked again where it may be carried out twice.
local function attempts(self, op, deadline, name, ...)
  local text, err, release
  for try = 1, TRIES do
    text, err, release = attempt(self, op, link_of.left(deadline), name, ...)
    if text or not REPEATABLE[name] or err.kind ~= "OutcomeUnknown" and err.kind ~= "Unavailable" or try == TRIES
      or deadline and link_of.left(deadline) <= PAUSE * try then
      break
    end
    local why = self:judge(err)
    if why ~= err then
      return nil, why
    end
    local ok, early = wait.sleep(PAUSE * try)
    if not ok then
      return nil, early
    end
  end
  return text, err, release
end

--- Does `name` with these fields as `user`: what it answers, or nil, an error and what ends it (see work.start).
function work.run(self, op, timeout, name, fields, user, max)
  local text, err, release = attempts(self, op, link_of.deadline(timeout), name, fields, user, max or ANSWER)
  if not text then
    return nil, errors.from(self:judge(link_of.told(err, timeout)), op), release
  elseif text:sub(1, 1) ~= "+" then
    return nil, work.failed(text, op)
  end
  return text:sub(2)
end

-- The answer of a worker that is given `data`.
local function fed(run, deadline, op, data)
  local refused, err
  if data ~= "" then
    local _
    _, refused = wait.op(run:stdin():write(data), link_of.left(deadline), op)
    if refused and refused.kind ~= "Closed" then
      return nil, refused
    elseif refused then -- it has ended already, and says why; but only if that is so
      deadline = link_of.deadline(math.min(link_of.left(deadline) or ENDED, ENDED))
    end
  end
  local text
  text, err = wait.bytes(run:stdout():read("all", SAID), link_of.left(deadline), op)
  local r
  if not err then
    r, err = wait.op(run:wait(), link_of.left(deadline), op)
  end
  if r then
    err = work.ended(r.fields.status, nil, op)
  elseif refused and err.kind == "Timeout" then
    err = errors.new { kind = "OutcomeUnknown", op = op, cause = refused,
      message = "the helper inside the sandbox goes on, and is not given its input" }
  end
  return not err and (text or "") or nil, err
end

--- The same with `data` as its input, of which it reads no more.
function work.feed(self, op, timeout, name, fields, user, data)
  local deadline = link_of.deadline(timeout)
  local r, err, release = work.start(self, op, timeout, name, fields, user, nil, true)
  local text
  if r then
    local run, guard = process.new(self, r.object, { in_mode = 1, who = r.fields.who }), own.guard(r.release)
    text, err = fed(run, deadline, op, data)
    if guard and not text then -- it may wait for the rest
      release = r.release
      release:fire()
    else
      r.release:cancel()
    end
    r.object:close()
  end
  if not text then
    return nil, errors.from(self:judge(link_of.told(err, timeout)), op), release
  elseif text:sub(1, 1) ~= "+" then
    return nil, work.failed(text, op)
  end
  return text:sub(2)
end

return work
