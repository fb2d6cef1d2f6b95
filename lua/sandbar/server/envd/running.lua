-- The processes of a sandbox as the protocol has them: started or found again, read by one task each, which hands what
-- they write to every stream that listens; without one it is thrown away. The end of a process is known for 30 s.
--
-- Of an entry's processes: list, by pid. Of a process: handle, pid, tag, config, typed (has an stdin), pty, listeners,
-- ended (when), event (the end event), done (a signal).

local core = require "sandbar.core"
local gunzip = require "sandbar.server.envd.gunzip"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local KEPT = 30 -- seconds
local CUT_GRACE = 0.5 -- seconds to read what is there after a signal from outside

local running = {}

local SIGNALS = {
  SIGHUP = "hangup", SIGINT = "interrupt", SIGQUIT = "quit", SIGILL = "illegal instruction",
  SIGTRAP = "trace/breakpoint trap", SIGABRT = "aborted", SIGBUS = "bus error", SIGFPE = "floating point exception",
  SIGKILL = "killed", SIGUSR1 = "user defined signal 1", SIGSEGV = "segmentation fault",
  SIGUSR2 = "user defined signal 2", SIGPIPE = "broken pipe", SIGALRM = "alarm clock", SIGTERM = "terminated",
}

--- The end event of a result of the contract's.
function running.end_event(result)
  if result.signal then
    local text = "signal: " .. (SIGNALS[result.signal] or ("signal %d"):format(result.exit_code - 128))
    return { exitCode = -1, exited = false, status = text, error = text }
  end
  local text = ("exit status %d"):format(result.exit_code)
  return { exitCode = result.exit_code, exited = true, status = text,
    error = result.exit_code ~= 0 and text or nil }
end

local function purge(entry)
  local list, now = entry.processes.list, core.now()
  for pid, process in pairs(list) do
    if process.ended and process.ended + KEPT < now then
      list[pid] = nil
    end
  end
end

-- To everybody who listens, one after the other: who does not read holds the process up.
local function tell(process, name, data)
  local now = {}
  for listener in pairs(process.listeners) do
    now[#now + 1] = listener
  end
  for _, listener in ipairs(now) do
    if process.listeners[listener] and not listener:data(name, data) then
      process.listeners[listener] = nil
    end
  end
end

local function finish(process, event)
  process.ended, process.event = core.now(), event
  process.handle:close()
  for listener in pairs(process.listeners) do
    if event and listener:send { event = { ["end"] = event } } then
      listener:finish()
    elseif not event then
      listener:cut()
    end
  end
  process.listeners = {}
  wait.fire(process.done)
end

-- Until its output is at an end and the process too.
local function read(process)
  local output = process.handle:output()
  while not process.cut do
    local fd, data = output:next()
    if not fd then
      break
    end
    local name = process.pty and "pty" or fd == 1 and "stdout" or "stderr"
    if next(process.listeners) then
      tell(process, name, data)
    end
  end
  local result = process.handle:wait()
  finish(process, result and running.end_event(result))
end

--- Takes a process over. `fields`: handle, config, tag, typed, pty.
function running.add(entry, fields)
  purge(entry)
  local process = fields
  process.pid, process.listeners, process.done = fields.handle.pid, {}, wait.signal()
  entry.processes.list[process.pid] = process
  return process
end

--- Begins to read it.
function running.begin(process)
  task.spawn(read, process)
end

--- A stream listens from now on.
function running.listen(process, listener)
  process.listeners[listener] = true
end

function running.leave(process, listener)
  process.listeners[listener] = nil
end

-- What is in the sandbox and not in the list: started before this server was.
local function adopt(entry, info)
  local handle, err = entry.box:attach(info.pid)
  if not handle then
    return nil, err
  end
  local args = {}
  for i = 2, #info.args do
    args[i - 1] = info.args[i]
  end
  local process = running.add(entry, {
    handle = handle, tag = info.tag, pty = info.pty ~= nil, typed = true,
    config = { cmd = info.args[1], args = args, cwd = info.cwd },
  })
  running.begin(process)
  return process
end

-- Once for each entry: processes of before.
local function look(entry)
  if entry.processes.known then
    return true
  end
  local list, err = entry.box:processes()
  if not list then
    return nil, err
  end
  if not entry.processes.known then
    entry.processes.known = true
    for _, info in ipairs(list) do
      if info.running and info.tag ~= gunzip.TAG and not entry.processes.list[info.pid] then
        adopt(entry, info)
      end
    end
  end
  return true
end

--- Those that run, the one with the lowest pid first; nil and an error.
function running.all(entry)
  local ok, err = look(entry)
  if not ok then
    return nil, err
  end
  local out = {}
  for _, process in pairs(entry.processes.list) do
    if not process.ended then
      out[#out + 1] = process
    end
  end
  table.sort(out, function(a, b)
    return a.pid < b.pid
  end)
  return out
end

--- The one with this pid or tag, running or ended lately. Nil without an error when there is none.
function running.find(entry, pid, tag)
  local ok, err = look(entry)
  if not ok then
    return nil, err
  end
  purge(entry)
  if pid then
    return entry.processes.list[pid]
  end
  local found
  for _, process in pairs(entry.processes.list) do
    if process.tag == tag and (not found or found.ended and not process.ended or process.pid > found.pid
      and not process.ended) then
      found = process
    end
  end
  return found
end

--- A signal from outside ends the reading as well: what others still hold open is not waited for.
function running.cut_output(process)
  if process.cutting then
    return
  end
  process.cutting = true
  task.spawn(function()
    if process.handle:wait() and not process.ended then
      wait.on(process.done, CUT_GRACE, "serve")
      if not process.ended then
        process.cut = true
        process.handle.stdout:close()
        if process.handle.stderr then
          process.handle.stderr:close()
        end
      end
    end
  end)
end

return running
