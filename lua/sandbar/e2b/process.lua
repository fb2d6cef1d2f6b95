-- A process in a hosted sandbox with the methods of the engine's native process, so that the same handle works on both.

local headers = require "sandbar.headers"
local http = require "sandbar.http"
local message = require "sandbar.e2b.message"
local request = require "sandbar.e2b.request"

local process = {}

local Process = {}
Process.__index = Process

local SIGKILL = 9

function Process:pid()
  return self._pid
end

Process.serial = Process.pid

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

function Process:exited()
  return self._run:exited()
end

function Process:wait()
  return self._run:wait()
end

-- There is one reader by the way things are: the stream is the handle's own.
function Process:lease_release() -- luacheck: ignore 212
end

function Process:release()
  return process.release(self._link, self._pid)
end

--- Ends the process and its group on every path out; made by the I/O thread when no Lua runs any more.
function process.release(to, pid)
  local calls = to.rpc
  local port = calls:port()
  local body = message.envelope(0, message.encode("process.StartRequest", request.kill(SIGKILL, pid, 0), "proto"))
  local recipe, release = http.recipe(port, {
    id = ("%s/%d"):format(to.id, pid), headers = calls:headers("application/connect+proto", "root"), post = body,
  })
  recipe:bind(calls:target "/process.Process/Start")
  return release
end

--- `run`: see http.run. `fields`: of the request.
function process.new(to, run, fields)
  local pid, terminal = run:pid(), fields.cols ~= nil
  local calls, stdin = to.rpc, nil
  if fields.in_mode ~= 0 then
    stdin = http.input(calls:port(), calls:target "/process.Process/SendInput",
      calls:target "/process.Process/CloseStdin", headers.lines(calls:headers "application/proto"), pid, terminal)
  end
  return setmetatable({ _link = to, _run = run, _pid = pid, _terminal = terminal, _stdin = stdin }, Process)
end

return process
