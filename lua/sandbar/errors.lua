-- Error objects: what comes as the second result of a call that failed. A table with kind, message, op,
-- retryable, cause and the fields of its kind; tostring gives one readable line. All text in it has been
-- through core.redact, so that no live secret shows in an error.

local copied = require "sandbar.copied"
local core = require "sandbar.core"

local errors = {}

errors.list = {
  "InvalidArgument", "Unsupported", "NotFound", "AlreadyExists", "Ambiguous", "WrongOwner", "NotRunning",
  "Busy", "StartFailed", "ExecTimedOut", "CommandFailed", "Timeout", "OutcomeUnknown", "Closed",
  "Cancelled", "Forked", "CannotWait", "LimitExceeded", "NoSpace", "PermissionDenied", "Platform",
  "Unauthenticated", "RateLimited", "Unavailable", "Protocol", "Aggregate", "Internal",
}

-- Worth trying again as it is; what a caller says wins.
local RETRYABLE = { Busy = true, RateLimited = true, Unavailable = true }

local kinds = {}
for i, kind in ipairs(errors.list) do
  kinds[i] = kind
  kinds[kind] = kind
end

--- The kinds, as an array and by name; a misspelt one raises instead of comparing unequal for ever.
errors.kinds = setmetatable(kinds, {
  __index = function(_, name)
    if type(name) ~= "string" then
      return nil
    end
    error(("there is no error kind '%s'"):format(name), 2)
  end,
})

--- "ENOENT" of 2, nil for an unknown number.
function errors.code(errno)
  local _, name = core.errno(errno)
  return name
end

--- The kind an errno means by itself.
function errors.kind_of(errno)
  return (core.errno(errno))
end

local function one_line(text)
  return (text:gsub("%s*%c+%s*", " "))
end

local Error = { __name = "sandbar.Error" }

-- Is this the interpreter, or another message handler in C, that asks for the text of what has just been raised?
local function just_raised()
  local asker, raiser = debug.getinfo(3, "S"), debug.getinfo(4, "f")
  return asker ~= nil and asker.what == "C" and raiser ~= nil and raiser.func == error
end

function Error.__tostring(e)
  local op = e.op and e.op .. ": " or ""
  local path = type(e.path) == "string" and not e.message:find(e.path, 1, true) and one_line(e.path) .. ": " or ""
  local where = e.where and just_raised() and e.where .. ": " or ""
  return ("%s%s%s%s (%s)"):format(where, op, path, e.message, e.kind)
end

function Error.__concat(a, b)
  return tostring(a) .. tostring(b)
end

local RAW = { kind = true, result = true, cause = true, reasons = true, retryable = true }

--- An error object of { kind =, message =, op =, errno =, … }. `result`, `cause` and `reasons` are carried
--- untouched; every other text is redacted.
function errors.new(spec)
  local e = {}
  for key, value in pairs(spec) do
    if type(value) == "string" and not RAW[key] then
      value = core.redact(value)
    end
    e[key] = value
  end
  e.kind = e.kind or "Internal"
  if not rawget(kinds, e.kind) then
    e.message = ("%s: %s"):format(tostring(e.kind), tostring(e.message))
    e.kind = "Internal"
  end
  e.code = e.code or type(e.errno) == "number" and errors.code(e.errno) or nil
  e.message = one_line(tostring(e.message or e.code or e.kind))
  if e.retryable == nil then
    e.retryable = RETRYABLE[e.kind] or false
  end
  return setmetatable(e, Error)
end

--- Is it an error object (ours, or a third party's table with one of our kinds)?
function errors.is(v, kind)
  if type(v) ~= "table" then
    return false
  end
  local own = rawget(v, "kind")
  if type(own) ~= "string" or rawget(kinds, own) == nil then
    return false
  end
  return kind == nil or own == kind
end

--- An error object of anything a call may fail with: a table of the core, an error object (returned as it
--- is unless there is something to add), a message. `extra` adds fields the error does not have.
function errors.from(e, op, extra)
  if errors.is(e) then
    if getmetatable(e) == Error and (op == nil or e.op) and extra == nil then
      return e
    end
    local spec = copied(extra, e)
    spec.op = spec.op or op
    return errors.new(spec)
  end
  local spec = copied(extra)
  spec.kind, spec.message, spec.op = "Internal", tostring(e), op
  spec.cause = type(e) ~= "string" and e or nil
  return errors.new(spec)
end

--- An error object of an errno: kind, code and a message that names what was done to what.
function errors.from_errno(errno, op, path)
  local code = errors.code(errno) or ("errno %d"):format(errno)
  return errors.new {
    kind = errors.kind_of(errno), errno = errno, op = op, path = path,
    message = path and ("%s: %s"):format(path, code) or code,
  }
end

--- What a function or a file of the program's gave instead of data: nil, a message and perhaps an errno, as Lua's
--- own files do, or an error object. Without an errno it is Platform: nothing of ours has failed.
function errors.reported(op, err, errno)
  if errors.is(err) then
    return errors.from(err, op)
  end
  local number = type(err) == "string" and type(errno) == "number" and errno or nil
  return errors.new {
    kind = number and errors.kind_of(number) or "Platform", errno = number, op = op, message = tostring(err),
    cause = type(err) ~= "string" and err or nil,
  }
end

local QUOTED = 200

--- A text that the program gave, for a message. A long one is not shown: half a secret would not be known as one.
function errors.quoted(text)
  return #text <= QUOTED and ("%q"):format(text) or ("(%d bytes)"):format(#text)
end

--- Bytes that the form of a secret in a text is taken to have at most.
errors.LONGEST_SECRET = 65536

--- The last `most` bytes of what a command has written (errors.LONGEST_SECRET more of it are enough). Secrets go first:
-- of one that is cut in the middle a part would be left, at the front of what is looked at.
function errors.last_of(output, most)
  local looked_at = most + errors.LONGEST_SECRET
  if #output < looked_at then
    return core.redact(output):sub(-most)
  end
  return core.redact(output:sub(-looked_at)):sub(errors.LONGEST_SECRET + 1):sub(-most)
end

--- `text`, and what a command has written behind it; by itself where that is nothing but blanks. These patterns take
-- time by its length alone, whatever is in it.
function errors.with_output(text, output)
  output = output:gsub("^%s+", ""):match("^.*%S")
  return output and text .. ": " .. output or text
end

-- The text of a reason of what `op` failed of, without the call if that is `op` itself, or what it begins with
-- (files:write of files:write_many).
local function text_of(reason, op)
  local text = tostring(reason)
  local own = errors.is(reason) and reason.op
  if own and op and op:sub(1, #own) == own and text:sub(1, #own + 2) == own .. ": " then
    return text:sub(#own + 3)
  end
  return text
end

--- One error of several reasons ({ type =, error = }, see scope.lua), the first one leading the message.
function errors.aggregate(reasons, op)
  local texts = {}
  for i, reason in ipairs(reasons) do
    texts[i] = (reason.task and ("task %d, which nobody waited for: "):format(reason.task) or "")
      .. text_of(reason.error, op)
  end
  local message = texts[1] or "unknown"
  if #texts > 1 then
    message = ("%d failures: %s"):format(#texts, table.concat(texts, "; "))
  end
  return errors.new { kind = "Aggregate", op = op, message = message, reasons = reasons,
    cause = reasons[1] and reasons[1].error }
end

--- Told of what sandbar.assert and sandbar.scope are about to raise. A host that shows no error objects has its own.
function errors.raised() end

--- The standard assert, but what it raises is the error object itself, on every Lua. `where` of it is the file and line
--- that raised it first: nobody else knows once scopes have closed, and an interpreter shows it.
function errors.assert(...)
  local ok, err = ...
  if ok then
    return ...
  end
  if err == nil then
    err = "assertion failed!"
  elseif getmetatable(err) == Error and err.where == nil then
    local at = debug.getinfo(2, "Sl")
    if at and at.currentline > 0 then
      err.where = ("%s:%d"):format(at.short_src, at.currentline)
    end
  end
  errors.raised(err)
  error(err, 0)
end

return errors
