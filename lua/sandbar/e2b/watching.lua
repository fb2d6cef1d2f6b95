-- A watch of a directory in a hosted sandbox: the daemon's stream of events, in the lines of the engine's own
-- (enum sb_watch_line), so that the same handle works on both. The stream lasts until it is closed; a cut one never
-- looks like silence, since the daemon says from time to time that it is there.

local answers = require "sandbar.e2b.errors"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local json = require "sandbar.json"
local link_of = require "sandbar.link"
local message = require "sandbar.e2b.message"
local rpc = require "sandbar.e2b.rpc"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"
local work = require "sandbar.e2b.work"

local MAX_EVENT, MAX_TOLD = 1048576, 65536
local TEMPORARY = "%.sb%-" .. ("%x"):rep(20) .. "$" -- see worker/changing.lua
local ASK = 5 -- seconds to find out why it has ended

local LETTERS = {
  EVENT_TYPE_CREATE = "c", EVENT_TYPE_WRITE = "w", EVENT_TYPE_REMOVE = "d", EVENT_TYPE_RENAME = "r",
  EVENT_TYPE_CHMOD = "a",
}

local watching = {}

local Watching = { remote = true }
Watching.__index = Watching

local function cut(op, why, cause)
  return errors.new { kind = "OutcomeUnknown", op = op, cause = cause,
    message = why .. ": what has changed since is not known" }
end

-- One event as a line, "" for one of a write's own temporary file; or nil and an error.
local function line_of(self, event, op)
  local letter = LETTERS[event.type]
  if not letter then
    return nil, errors.new { kind = "Protocol", op = op, message = ("%s is no event of a watch"):format(
      tostring(event.type)) }
  end
  local name = event.name or ""
  if name == "" then
    name = "."
  elseif name:find(TEMPORARY) then
    return ""
  end
  self.over = name == "." and (letter == "d" and "eremoved\n" or letter == "r" and "emoved\n")
  return letter .. name:gsub("\\", "\\\\"):gsub("\n", "\\n") .. "\n"
end

-- Why it was cut: where the sandbox does not run any more, that.
local function judged(self, err)
  local link = self.link
  local told = link:judge(err)
  if told ~= err then
    return told
  end
  local r = link.driver:info(link.id, ASK)
  local now = r and (r.fields.state or {})[1]
  if now and now ~= "running" then
    local _, why = link:not_running(now)
    return why
  end
  return err
end

-- What the end of the stream means: the last line where its last event has told why, else nil and an error.
local function ended(self, payload, op)
  local value = json.decode(payload)
  local told = type(value) == "table" and value.error
  if type(value) ~= "table" or told and type(told) ~= "table" then
    return nil, errors.new { kind = "Protocol", op = op, message = "the end of the stream makes no sense" }
  elseif not told then
    if self.over then
      return self.over
    end
    return nil, cut(op, "the watch was ended by the other side")
  elseif told.code == "resource_exhausted" then
    return nil, errors.new { kind = "LimitExceeded", op = op,
      message = tostring(told.message) .. ": what has been left out is not known" }
  end
  return nil, judged(self, answers.of_code(tostring(told.code), told.message, op))
end

-- What the next envelope says: a line or "", nil where it has not come whole; or nil and an error.
local function next_line(self, op)
  local flags, payload = self.parser:next()
  if not flags then
    return nil, payload
  elseif flags >= message.END then
    return ended(self, payload, op)
  elseif flags ~= 0 then
    return nil, errors.new { kind = "Protocol", op = op, message = "compressed events were not asked for" }
  end
  local value, err = message.decode("filesystem.WatchDirResponse", payload, "proto")
  if not value then
    return nil, errors.new { kind = "Protocol", op = op, message = err.message }
  end
  self.started = self.started or value.start ~= nil
  if value.filesystem then
    return line_of(self, value.filesystem, op)
  end
  return ""
end

-- The lines of what has come, or nil and an error: that comes behind them, with the next look.
local function take(self, op)
  local lines = {}
  while true do
    local line, err = next_line(self, op)
    if not line then
      self.failed = err
      if err and not lines[1] then
        return nil, err
      end
      return table.concat(lines)
    elseif line ~= "" then
      lines[#lines + 1] = line
    end
  end
end

-- Bytes of the stream, or nil and an error. `timeout` is of this wait; silence has its own limit.
local function bytes(self, timeout, op)
  local done, data, e = self.body:try_read("some", 65536)
  local err = e and errors.from(e, op)
  if not done then
    local left = math.max(self.heard + rpc.SILENCE - core.now(), 0)
    if timeout == 0 and left > 0 then
      return nil, wait.not_now(op)
    end
    local limit = timeout and math.min(timeout, left) or left
    data, err = wait.bytes(self.body:read("some", 65536), limit, op)
    if err and err.kind == "Timeout" and err.clock == "timeout" and (not timeout or left < timeout) then
      return nil, judged(self, cut(op, ("nothing has come for %d s"):format(rpc.SILENCE)))
    end
  end
  if data then
    self.heard = core.now()
    return data
  elseif err and err.kind ~= "OutcomeUnknown" and err.kind ~= "Protocol" then
    return nil, err
  end
  return nil, judged(self, cut(op, "the watch was cut", err))
end

--- More lines, perhaps none yet; or nil and an error. An error of the caller's wait changes
--- nothing, any other is the end.
function Watching:more(timeout, op)
  if self.failed then
    return nil, self.failed
  end
  local data, err = bytes(self, timeout, op)
  if not data then
    return nil, err
  end
  self.parser:feed(data)
  return take(self, op)
end

function Watching:close()
  if self.body then
    self.body:close()
  end
end

local function refusal(answer, deadline, op)
  answer.body = answer.body:read("a", { timeout = link_of.left(deadline) or rpc.SILENCE, max = MAX_TOLD }) or ""
  return rpc.refusal(answer, op)
end

local function open(self, path, recursive, deadline, op)
  local calls = self.rpc
  local port, err = calls:port()
  if not port then
    return nil, err
  end
  local all = calls:headers "application/connect+proto"
  all[#all + 1] = { "Keepalive-Ping-Interval", tostring(rpc.PING) }
  local answer
  answer, err = http.request(port, {
    method = "POST", path = calls:target "/filesystem.Filesystem/WatchDir", headers = all, stream = true,
    body = message.envelope(0, message.encode("filesystem.WatchDirRequest", { path = path, recursive = recursive },
      "proto")),
  }, link_of.left(deadline), op)
  if not answer then
    return nil, err
  elseif answer.status ~= 200 then
    return nil, refusal(answer, deadline, op)
  end
  local native = setmetatable({
    link = self, handle = answer.body, body = stream.state(answer.body)._native, parser = message.parser(MAX_EVENT),
    heard = core.now(),
  }, Watching)
  local early = ""
  while not native.started do
    local text
    text, err = native:more(link_of.left(deadline), op)
    if not text then
      native:close()
      return nil, err
    end
    early = early .. text
  end
  return native, early
end

--- A watch that has begun, or nil and an error. `fields`: of the engine's request.
function watching.open(self, op, timeout, fields)
  local deadline = link_of.deadline(timeout)
  local path, err = work.run(self, op, timeout, "directory", { path = fields.path }, fields.user)
  if not path then
    return nil, err
  end
  local native, early = open(self, path, fields.recursive == 1, deadline, op)
  if not native then
    return nil, errors.from(self:judge(link_of.told(early, timeout)), op, { path = path })
  end
  return { fields = { path = path, data = early }, object = native }
end

return watching
