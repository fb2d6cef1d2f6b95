-- Starting a command: the request, the handle of what runs, who ends it and what feeds it.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local command = require "sandbar.command"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local own = require "sandbar.own"
local process = require "sandbar.process"
local record = require "sandbar.record"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local start = {}

-- Feeds a function's or a file's pieces to the process, in a task of its own. The input ends also when the
-- source raises or gives nil and an error, or when a piece may not have come: the process must not wait for more.
local function feed(state, source)
  local stdin = state._native:stdin()
  local function run()
    while true do
      local ok, chunk, err, errno = nested.pcall(source)
      if ok and chunk == nil and err ~= nil then
        ok, chunk = false, errors.reported("start", err, errno)
      elseif ok and chunk ~= nil and type(chunk) ~= "string" then
        ok, chunk = false, ("the stdin function gave a %s instead of a string"):format(type(chunk))
      end
      if not ok then
        process.end_input(state, stdin)
        error(chunk, 0)
      end
      if chunk == nil then
        break
      end
      local written, why = true, nil
      if chunk ~= "" then
        written, why = wait.op(stdin:write(chunk), false, "stdin")
      end
      if not written and why.kind == "Closed" then
        stdin:close() -- it reads no more
        return
      elseif not written then
        process.end_input(state, stdin)
        error(why, 0)
      end
    end
    process.end_input(state, stdin)
  end
  local ok = own.background(state._scope, run)
  if not ok then
    process.end_input(state, stdin)
  end
end

local MODE_NAMES = { [0] = "ignore", [1] = "pipe", [2] = "tail", [3] = "merged", [4] = "merged", [5] = "spool" }

-- Output of a "tail" process is read when it has ended.
local function open_tail(state, fd)
  return function(timeout)
    local deadline = link.deadline(timeout)
    local _, err = wait.op(state._native:wait(), timeout, "read")
    if err then
      return nil, err
    end
    local r
    r, err = state._link:call("attach", "read", link.left(deadline), { serial = state._serial })
    if not r then
      return nil, link.told(err, timeout)
    end
    stream.supply(fd == 1 and state.stdout or state.stderr, nil, record.tails(r.parts)[fd])
    return true
  end
end

local function outputs(state, handle, modes)
  for fd, name in ipairs { "out", "err" } do
    local mode = MODE_NAMES[modes[fd]]
    if mode ~= "merged" then
      state["std" .. name] = stream.output("std" .. name, {
        native = fd == 1 and state._native:stdout() or fd == 2 and state._native:stderr() or nil,
        mode = mode,
        open = mode == "tail" and open_tail(state, fd) or nil,
        kept = mode == "spool" and require "sandbar.kept" or nil,
        pipe = mode == "spool" and process.spool(state, fd) or nil,
        process = handle,
      })
    end
  end
end

-- `to` is the sandbox's link; `opts` have been checked against command.SCHEMA.
function start.run(to, cmd, opts)
  local source, whole = command.source(opts.stdin, "start")
  local fields, err = command.fields(cmd, opts, to.limits, false)
  if not fields then
    return nil, errors.from(err, "start")
  end
  local typed = opts.stdin == "pipe"
  if opts.pty then
    fields.keep_in = 1
    typed = typed or opts.stdin == nil -- a terminal is there to be typed at
    fields.in_mode = 1
  end
  local timeout
  timeout, err = check.timeout(opts, "start")
  if err then
    return nil, err
  end
  local scope = opts.scope or to.scope
  if scope then
    local ok
    ok, err = own.check("start", scope, 2)
    if not ok then
      return nil, err
    end
  end
  local r
  r, err = to:call("start", "start", timeout, fields)
  if not r then
    return nil, err
  end
  local state = {
    pid = r.fields.pid,
    tag = opts.tag,
    dropped = 0,
    _link = to,
    _native = r.object,
    _serial = r.fields.serial,
    _start_ns = r.fields.start_ns,
    _began = core.now(),
    _release = r.release,
    _sandbox = to.handle,
    _kept_in = opts.pty ~= nil or opts.detached,
  }
  audit.emit("acquire", { what = "process", op = "start", id = to.id, pid = state.pid })
  local handle = process.handle(state)
  outputs(state, handle, { fields.out_mode, fields.err_mode })
  if r.object:stdout() or r.object:stderr() then -- else it goes to the tail, for whoever attaches
    to.readers[state._serial] = state
  end
  state.stdin = process.input(state, handle, typed)
  if scope and not opts.detached then
    state._guard = own.guard(r.release, "process", to.id)
    local held
    held, err = own.hold(scope, handle, state)
    if not held then
      return nil, err
    end
  else
    r.release:cancel() -- it lives as long as its sandbox
    state._release = nil
    state._kill = to.owned and not opts.detached -- by close() at the latest
  end
  if whole then
    local stdin = r.object:stdin()
    state._feed = stdin:write(whole)
    process.end_input(state, stdin)
  elseif source then
    feed(state, source)
  end
  return handle
end

return start
