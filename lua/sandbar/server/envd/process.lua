-- The service process.Process: commands in a sandbox. A context has box, entry (of boxes.lua), boxes, headers, timeout.

local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local running = require "sandbar.server.envd.running"
local task = require "sandbar.task"
local users = require "sandbar.server.envd.users"
local wait = require "sandbar.wait"

local PING = { event = { keepalive = {} } }
local STALL = 600 -- seconds that a command may leave its input unread
local EXEC = 'exec "$0" "$@"' -- a shell says why a program cannot be run

local failure = connect.failure

local process = {}

-- ---- finding one ----

-- The process a selector names, or nil and a failure. `ended`: also one that has ended.
local function select(context, selector, ended)
  selector = selector or {}
  if selector.pid == nil and selector.tag == nil then
    return nil, failure("unimplemented", "a pid or a tag is needed")
  end
  local found, err = running.find(context.entry, selector.pid, selector.tag)
  if err then
    return nil, err
  elseif not found or found.ended and not ended then
    local which = selector.pid and ("pid %d"):format(selector.pid) or ("tag %s"):format(selector.tag)
    return nil, failure("not_found", ("process with %s not found"):format(which))
  end
  return found
end

-- ---- streams ----

local function timed_out()
  return failure("deadline_exceeded", "context deadline exceeded")
end

-- The stream of a process until its end, its client's, or the deadline's. True or nil and a failure.
local function follow(context, found, sink, deadline)
  local boxes, entry = context.boxes, context.entry
  running.listen(found, sink)
  boxes:open(entry, sink)
  local over = sink:attend(PING, deadline)
  running.leave(found, sink)
  boxes:close(entry, sink)
  if over == nil then
    return nil, timed_out()
  end
  return true, over
end

-- ---- Start ----

local function options(context, m)
  local given = m.process or {}
  local opts = {
    cwd = given.cwd ~= "" and given.cwd or nil, env = given.envs, user = users.named(context.headers), tag = m.tag,
    detached = true, stdin = m.stdin ~= false and "pipe" or nil,
  }
  if m.pty then
    local size = m.pty.size or {}
    opts.pty = { cols = size.cols or 80, rows = size.rows or 24 }
    opts.stdin = "pipe"
  end
  if opts.tag == "" then
    opts.tag = nil
  end
  return opts
end

-- What the contract's refusal of a start is in the protocol.
local function not_started(context, m, opts, err)
  if err.kind == "NotFound" and opts.cwd and err.path then
    return failure("invalid_argument", ("cwd '%s' does not exist"):format(opts.cwd))
  elseif err.kind == "InvalidArgument" then
    local user, why = users.find(context.box, opts.user)
    return user and failure("invalid_argument", err.message) or why
  elseif err.kind == "StartFailed" or m.pty then
    return failure("invalid_argument", err.message)
  end
  return err
end

local function start(context, m)
  local given = m.process or {}
  local cmd = given.cmd or ""
  if cmd == "" then
    return nil, failure("invalid_argument", "no command")
  elseif given.cwd and given.cwd:match("^~[^/]") then
    return nil, failure("invalid_argument", ("cwd '%s' does not exist"):format(given.cwd))
  end
  local known, why = running.look(context.entry)
  if not known then
    return nil, why
  end
  local opts = options(context, m)
  local argv = { cmd }
  for i, arg in ipairs(given.args or {}) do
    argv[i + 1] = arg
  end
  local handle, err = context.box:start(argv, opts)
  if not handle and err.kind == "StartFailed" then
    table.insert(argv, 1, "/bin/sh")
    table.insert(argv, 2, "-c")
    table.insert(argv, 3, EXEC)
    handle, err = context.box:start(argv, opts)
  end
  if not handle then
    return nil, not_started(context, m, opts, err)
  end
  return running.add(context.entry, {
    handle = handle, tag = opts.tag, typed = opts.stdin ~= nil, pty = m.pty ~= nil,
    config = { cmd = cmd, args = given.args, envs = given.envs, cwd = given.cwd },
  })
end

-- Its time is over: that one process is killed.
local function kill(found)
  if not found.ended then
    found.handle:signal("KILL")
    running.cut_output(found)
  end
end

local function run_start(context, m, sink)
  local deadline = context.timeout and core.now() + context.timeout
  local found, err = start(context, m)
  if not found then
    return nil, err
  end
  local told = sink:send { event = { start = { pid = found.pid } } }
  if told then
    running.listen(found, sink)
  end
  running.begin(found)
  local alone = not told
  if told then
    local ok, over = follow(context, found, sink, deadline)
    if not ok then
      kill(found)
      return nil, over
    end
    alone = not over
  end
  if alone and deadline then -- nobody listens any more, but its time goes on
    task.spawn(function()
      if not wait.on(found.done, math.max(deadline - core.now(), 0), "serve") then
        kill(found)
      end
    end)
  end
  return true
end

local function run_connect(context, m, sink)
  local deadline = context.timeout and core.now() + context.timeout
  local found, err = select(context, m.process, true)
  if not found then
    return nil, err
  end
  if found.ended then
    if not found.event then
      return nil, failure("unavailable", "the sandbox does not run")
    end
    sink:send { event = { start = { pid = found.pid } } }
    sink:send { event = { ["end"] = found.event } }
    return true
  end
  -- What it writes from now on waits until the start has been sent: a client that knows of it misses nothing.
  running.listen(found, sink)
  sink:send { event = { start = { pid = found.pid } } }
  return follow(context, found, sink, deadline)
end

-- ---- the rest ----

local function run_list(context)
  local all, err = running.all(context.entry)
  if not all then
    return nil, err
  end
  local out = {}
  for i, found in ipairs(all) do
    out[i] = { pid = found.pid, tag = found.tag, config = found.config }
  end
  return { processes = out[1] and out }
end

-- Writes what a request has for a process. True, or nil and a failure.
local function type_in(found, input)
  input = input or {}
  if input.stdin == nil and input.pty == nil then
    return nil, failure("unimplemented", "no input")
  elseif input.stdin and found.pty then
    return nil, failure("internal", "error writing to stdin: the process has a terminal, use pty")
  elseif input.pty and not found.pty then
    return nil, failure("internal", "error writing to tty: the process has no terminal")
  elseif not found.typed or found.input_closed then
    return nil, failure("internal", "error writing to stdin: stdin not enabled or closed")
  end
  local data = input.stdin or input.pty
  if data ~= "" then
    local written, err = found.handle.stdin:write(data, { timeout = STALL })
    if not written then
      return nil, err.kind == "Closed" and failure("internal", "error writing to stdin: it is closed") or err
    end
  end
  return true
end

local function run_input(context, m)
  local found, err = select(context, m.process)
  local ok
  if found then
    ok, err = type_in(found, m.input)
  end
  return ok and {}, err
end

-- The first message says which process, the others what it gets.
local function run_stream_input(context, next_message)
  local found
  while true do
    local m, err = next_message()
    if not m then
      return not err and {} or nil, err
    end
    local ok = true
    if m.start and not found then
      found, err = select(context, m.start.process)
      ok = found
    elseif m.start or not found and m.data then
      ok, err = nil, failure("invalid_argument", "a stream begins with one start")
    elseif m.data then
      ok, err = type_in(found, m.data.input)
    end
    if not ok then
      return nil, err
    end
  end
end

local function run_close_stdin(context, m)
  local found, err = select(context, m.process)
  if not found then
    return nil, err
  elseif found.pty then
    return nil, failure("unknown", "the input of a terminal is ended by typing its end (byte 4)")
  end
  if found.typed and not found.input_closed then
    found.handle.stdin:close()
  end
  found.input_closed = true
  return {}
end

local SIGNALS = { SIGNAL_SIGKILL = "KILL", SIGNAL_SIGTERM = "TERM" }

local function run_signal(context, m)
  local found, err = select(context, m.process)
  if not found then
    return nil, err
  end
  local signal = SIGNALS[m.signal]
  if not signal then
    return nil, failure("unimplemented", ("invalid signal: %s"):format(tostring(m.signal)))
  end
  local sent
  sent, err = found.handle:signal(signal)
  if not sent then
    return nil, err
  end
  running.cut_output(found)
  return {}
end

local function run_update(context, m)
  local found, err = select(context, m.process)
  if not found then
    return nil, err
  elseif not m.pty then
    return {}
  elseif not found.pty then
    return nil, failure("internal", "the process has no terminal")
  end
  local size = m.pty.size or {}
  local ok
  ok, err = found.handle:resize { cols = size.cols or 0, rows = size.rows or 0 }
  if not ok then
    return nil, err
  end
  return {}
end

local function call(name, run, stream)
  return { input = ("process.%sRequest"):format(name), output = ("process.%sResponse"):format(name), run = run,
    stream = stream }
end

--- The service's methods by name.
process.calls = {
  List = call("List", run_list),
  Start = call("Start", run_start, true),
  Connect = call("Connect", run_connect, true),
  Update = call("Update", run_update),
  SendInput = { input = "process.SendInputRequest", output = "process.SendInputResponse", bulk = true,
    run = run_input },
  StreamInput = { input = "process.StreamInputRequest", output = "process.StreamInputResponse", many = true,
    run = run_stream_input },
  SendSignal = call("SendSignal", run_signal),
  CloseStdin = call("CloseStdin", run_close_stdin),
}

return process
