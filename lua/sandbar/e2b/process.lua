-- A process in a hosted sandbox with the methods of the engine's native process, so that the same handle works on both.

local headers = require "sandbar.headers"
local http = require "sandbar.http"

local process = {}

local Process = {}
Process.__index = Process

local PASSIVE = 0 -- bytes that are kept of an output that is only waited for

function Process:pid()
  return self._pid
end

function Process:serial()
  return self._who.serial
end

function Process:start_ns() -- luacheck: ignore 212
  return 0
end

function Process:stdin()
  return self._stdin
end

function Process:stdout()
  return self._run:stdout()
end

function Process:stderr()
  return not self._terminal and self._run:stderr() or nil
end

--- What is kept in this program of an output that is not read, once it has ended.
function Process:tail(fd)
  return self._run:tail(fd)
end

function Process:exited()
  return self._run:exited()
end

function Process:wait()
  return self._run:wait()
end

--- What it wrote comes, read or not, since its end comes behind it.
function Process:killed()
  self._run:killed()
end

-- The stream is the handle's own: what is not read any more was closed, and its end may still be waited for.
function Process:lease_release() -- luacheck: ignore 212
end

--- Ends the process and its group on every path out; run by the I/O thread when no Lua runs any more.
function Process:release()
  return self._link:release(self._who)
end

-- `run`: the stream of it, if there is one.
local function input(to, pid, terminal, run)
  local calls = to.rpc
  return http.input(calls:port(), calls:target "/process.Process/SendInput",
    calls:target "/process.Process/CloseStdin", headers.lines(calls:headers "application/proto"), pid, terminal,
    run)
end

--- `run`: see http.run. `fields`: of the request, or of what was found (listed.lua), with `who` it is (link.lua).
function process.new(to, run, fields)
  local pid, terminal = run:pid(), fields.cols ~= nil or fields.terminal == true
  local stdin = fields.in_mode ~= 0 and input(to, pid, terminal, run) or nil
  return setmetatable({
    _link = to, _run = run, _pid = pid, _who = fields.who, _terminal = terminal, _stdin = stdin,
  }, Process)
end

-- ---- one that is not read ----

local Watched = setmetatable({}, { __index = Process })
Watched.__index = Watched

local function nothing()
end

Watched.stdout, Watched.stderr, Watched.exited, Watched.killed = nothing, nothing, nothing, nothing

function Watched:stdin()
  self._stdin = self._stdin or input(self._link, self._pid, self._terminal)
  return self._stdin
end

function Watched:tail() -- luacheck: ignore 212
  return ""
end

-- A stream of its own, whose output goes nowhere, to who has the number: asked first is who that is.
function Watched:wait(timeout)
  local ok, err = self._link:is_there(self._who, timeout, "wait")
  if ok == nil then
    return nil, err
  end
  local op
  op, err = self._link.rpc:stream("process.Process/Connect", "process.ConnectRequest",
    { process = { pid = self._pid } }, { max = PASSIVE })
  return op, err
end

--- Of what was found: it can be written to and waited for.
function process.watched(to, fields)
  return setmetatable({
    _link = to, _pid = fields.pid, _who = fields.who, _terminal = fields.terminal == true,
  }, Watched)
end

return process
