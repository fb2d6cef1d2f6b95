-- What a link to a hosted sandbox is asked about its processes, done by the daemon's calls and by helper commands.

local base = require "sandbar.link"
local errors = require "sandbar.errors"
local helper = require "sandbar.e2b.helper"
local lazy = require "sandbar.lazy"
local wait = require "sandbar.wait"
local who = require "sandbar.e2b.who"

local files, listed = lazy "sandbar.e2b.files", lazy "sandbar.e2b.listed"

local KEPT = 4096 -- bytes of what a helper says

-- Each (link, op, timeout, fields): what the engine answers, or nil and an error.
local requests = {}

-- One helper command to its end: true, or nil and an error; `missing`: what its failure means.
local function help(self, message, timeout, op, missing)
  local running, err = self.rpc:stream("process.Process/Start", "process.StartRequest", message,
    { user = "root", max = KEPT })
  if not running then
    return nil, errors.from(err, op)
  end
  local r, partial
  r, err, partial = wait.op(running, timeout, op)
  if not r then
    return self:ended(err, partial)
  elseif r.fields.status == helper.ANOTHER_RUN * 256 then
    who.forget(self)
    return nil, listed.of_earlier_run(op)
  elseif r.fields.status ~= 0 then
    return nil, errors.new { kind = "NotFound", op = op, message = missing }
  end
  return { fields = { count = 1 } }
end

-- A helper command about a process, by its serial; `make(who)` of helper.lua's `who`.
local function about(self, serial, timeout, op, missing, make)
  local deadline = base.deadline(timeout)
  local native, err = self:native(timeout, op)
  if not native then
    return nil, errors.from(err, op)
  end
  local meant
  meant, err = who.meant(self, serial, timeout, op)
  if not meant then
    return nil, errors.from(self:judge(base.told(err, timeout)), op)
  end
  local r
  r, err = help(self, make(meant), base.left(deadline), op, missing)
  return r, base.told(err, timeout)
end

-- None to deliver to is no failure: nothing was delivered.
local function none(r, err)
  if not r and err.kind == "NotFound" and not err.id then
    return { fields = { count = 0 } }
  end
  return r, err
end

function requests.signal(self, op, timeout, f)
  return none(about(self, f.serial, timeout, op, "the process has ended", function(meant)
    return helper.signal(f.signal, meant, f.group == 1)
  end))
end

function requests.kill(self, op, timeout, f)
  return none(about(self, f.serial, timeout, op, "it has ended", function(meant)
    return helper.kill(f.signal, meant, f.grace_ms)
  end))
end

function requests.list(self, op, timeout)
  local native, err = self:native(timeout, op)
  local r
  if native then
    r, err = listed.all(self.rpc, timeout, op)
  end
  if not r then
    return nil, errors.from(self:judge(err), op)
  end
  return r
end

-- Its output is the stream's, which goes on without a reader; only its release ends it.
function requests.detach(self, op, timeout)
  local native, err = self:native(timeout, op)
  if not native then
    return nil, errors.from(err, op)
  end
  return { fields = {} }
end

function requests.resize(self, op, timeout, f)
  local deadline = base.deadline(timeout)
  local native, err = self:native(timeout, op)
  local r
  if native then
    local known, there = self.known[f.serial]
    there, err = listed.is_there(self.rpc, known, timeout, op)
    if there then
      r, err = self.rpc:call("process.Process/Update", { process = { pid = known.pid },
        pty = { size = { cols = f.cols, rows = f.rows } } }, base.left(deadline), op)
    elseif there == false then
      err = errors.new { kind = "NotFound", op = op, message = "the process has ended" }
    end
  end
  if not r then
    return nil, errors.from(self:judge(err), op)
  end
  return { fields = {} }
end

function requests.file(self, op, timeout, fields)
  return files.request(self, op, timeout, fields)
end

return requests
