-- The processes of a sandbox as the protocol has them: started or found again, read by one task each, which hands what
-- they write to every stream that listens; without one it is thrown away. Where only one listens, what is written goes
-- there without Lua, until another one comes. The end of a process is known for 30 s.
--
-- Of an entry's processes: list, by pid. Of a process: handle, pid, tag, config, typed (has an stdin), pty, listeners,
-- output (what reads it in Lua), pumps (what does without), ended (when), event (the end event), later (the one that
-- ended next), siblings (its entry's processes), done (a signal).

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

-- Forgets those whose end is long ago. They wait in the order of their ends.
local function purge(entry)
  local all, now = entry.processes, core.now()
  local first = all.first
  while first and first.ended + KEPT < now do
    if all.list[first.pid] == first then
      all.list[first.pid] = nil
    end
    first = first.later
  end
  all.first = first
end

local function keep(process)
  local all = process.siblings
  if all.first then
    all.last.later = process
  else
    all.first = process
  end
  all.last = process
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
  process.note("process ended", { pid = ("%d"):format(process.pid), status = event and event.status or "unknown" })
  keep(process)
  local listeners = process.listeners
  process.listeners = {}
  for listener in pairs(listeners) do
    if not event then
      listener:cut()
    elseif next(listeners, listener) then -- one that does not read is not to hold up the next one
      task.spawn(listener.finish, listener, nil, { event = { ["end"] = event } })
    else
      listener:finish(nil, { event = { ["end"] = event } })
    end
  end
  process.handle:close()
  process.handle, process.output = nil, nil -- streams and all: the record of the end stays for a while
  wait.fire(process.done)
end

-- The only one that listens, unless pumping to it has failed.
local function alone(process)
  local listener = next(process.listeners)
  return listener and not next(process.listeners, listener) and not listener.by_hand and listener or nil
end

-- What it writes goes to the one listener by itself. True at its end, false when somebody else came or it failed.
local function pump(process, listener)
  if process.output then
    process.output:close()
    process.output = nil
  end
  local handle = process.handle
  local pumps, ended = {}, true
  process.pumps = pumps
  for name, output in pairs { [process.pty and "pty" or "stdout"] = handle.stdout, stderr = handle.stderr } do
    local one, err
    if alone(process) == listener then
      one, err = listener:pump(name, output)
    end
    ended = ended and one ~= nil
    listener.by_hand = listener.by_hand or err ~= nil
    pumps[#pumps + 1] = one
  end
  if not ended or alone(process) ~= listener then
    running.interrupt(process)
  end
  for _, one in ipairs(pumps) do
    local n, err = one:wait()
    ended = ended and n ~= nil
    listener.by_hand = listener.by_hand or n == nil and err.kind ~= "Cancelled"
  end
  process.pumps = nil
  return ended
end

-- The next piece by way of Lua. True at the end.
local function read_piece(process)
  process.output = process.output or process.handle:output()
  local fd, data = process.output:next()
  if not fd then
    return true
  end
  if next(process.listeners) then
    tell(process, process.pty and "pty" or fd == 1 and "stdout" or "stderr", data)
  end
  return false
end

-- Until its output is at an end and the process too.
local function read(process)
  local over
  while not over and not process.cut do
    local listener = alone(process)
    if listener then
      over = pump(process, listener)
    else
      over = read_piece(process)
    end
  end
  local result = process.handle:wait()
  finish(process, result and running.end_event(result))
end

--- Who listens is no longer the same: what is pumped is read by Lua again, or goes elsewhere.
function running.interrupt(process)
  for _, one in ipairs(process.pumps or {}) do
    one:stop()
  end
end

--- Takes a process over. `fields`: handle, config, tag, typed, pty.
function running.add(entry, fields)
  purge(entry)
  local process = fields
  process.siblings = entry.processes
  process.pid, process.listeners, process.done = fields.handle.pid, {}, wait.signal()
  entry.processes.list[process.pid], process.note = process, entry.note
  process.note("process started", { pid = ("%d"):format(process.pid), cmd = process.config.cmd, tag = process.tag })
  return process
end

--- Begins to read it.
function running.begin(process)
  task.spawn(read, process)
end

--- A stream listens from now on.
function running.listen(process, listener)
  process.listeners[listener] = true
  running.interrupt(process)
end

function running.leave(process, listener)
  process.listeners[listener] = nil
  running.interrupt(process)
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

--- Once for each entry: takes over the processes of before. Whoever starts one looks first: found while it is on its
--- way it would pass for one of before, known by what it runs instead of by what was asked for. True; nil and an error.
function running.look(entry)
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
  local ok, err = running.look(entry)
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
  local ok, err = running.look(entry)
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
  if process.cutting or process.ended then
    return
  end
  process.cutting = true
  local handle = process.handle
  task.spawn(function()
    if handle:wait() and not process.ended then
      wait.on(process.done, CUT_GRACE, "serve")
      if not process.ended then
        process.cut = true
        handle.stdout:close()
        if handle.stderr then
          handle.stderr:close()
        end
      end
    end
  end)
end

return running
