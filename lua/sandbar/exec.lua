-- exec: one command, its whole output, one result. The plain case is a single operation in C; with
-- on_output or a source of input the same is done in streamed.lua.

local check = require "sandbar.check"
local command = require "sandbar.command"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local own = require "sandbar.own"
local record = require "sandbar.record"

local streamed = lazy "sandbar.streamed"

local MAX_OUTPUT = 67108864 -- bytes kept per stream
local TAIL = 4096 -- bytes of the end of stderr that the last line is looked for in
local SHOWN = 200 -- bytes of the last line on stderr that an error shows
local GRACE = 0.25 -- seconds for the end of the output once the command itself has ended

local exec = { GRACE = GRACE }

exec.SCHEMA = command.schema {
  check = "boolean",
  max_output = "size",
  on_output = "callable",
}

-- ---- the end of a command ----

--- nil and ExecTimedOut with what there is of a result. Says what is known: it has ended, it was started, or
--- neither.
function exec.timed_out(result, timeout, cause)
  local message = "the command did not end within timeout = %g s"
  if result.exit_code then
    message = message .. " and was killed with its whole tree"
  elseif result.pid then
    message = message .. "; the sandbox was told to kill its whole tree and has not said yet that it has ended"
  else
    message = "the sandbox has not said within timeout = %g s that the command was started; if it was, it is killed"
  end
  result.ok, result.reason = false, "timeout"
  return nil, errors.new {
    kind = "ExecTimedOut",
    op = "exec",
    message = message:format(timeout),
    clock = "timeout",
    limit = timeout,
    result = result,
    cause = cause,
  }
end

-- The beginning of the last line that is not blank. The patterns are anchored: what a command writes must not decide
-- how long it takes to look at it.
local function last_line(text)
  local said = errors.last_of(text, TAIL):match("^.*%S") or ""
  return (said:match("^.*[\r\n](.*)$") or said):sub(1, SHOWN)
end

local function failed(result)
  local how = result.signal and "ended by " .. result.signal
    or ("exited with %d"):format(result.exit_code or -1)
  if result.reason == "limit" then
    how = "was killed at its time_limit"
  elseif result.reason == "memory" then
    how = "was killed for its memory"
  end
  return nil, errors.new {
    kind = "CommandFailed",
    op = "exec",
    message = errors.with_output("the command " .. how, last_line(result.stderr or "")),
    result = result,
  }
end

--- The result; or, where it is to be checked, nil and CommandFailed.
function exec.finish(result, opts)
  if opts.check and not result.ok then
    return failed(result)
  end
  return result
end

-- Its request has ended. `held`: the operation, later the run and the release.
local function lost(held)
  if held.run then
    held.run:close()
  end
  if held.release then
    held.release:fire()
  elseif held.op then
    held.op:cancel()
  end
end

-- ---- all in C ----

local function run_native(to, fields, _, stdin, timeout, opts, max, held)
  local start = core.now()
  local r, err, partial = to:exec(fields, stdin, timeout, max, GRACE, held)
  if r then
    return exec.finish(record.result(r.fields, r.bytes or "", r.bytes2 or "", core.now() - start), opts)
  elseif partial then
    local result = record.result(partial.fields or {}, partial.bytes or "", partial.bytes2 or "",
      core.now() - start)
    return exec.timed_out(result, timeout, err)
  end
  return nil, err
end

-- `opts` have been checked against SCHEMA; `to` is the sandbox's link.
function exec.run(to, cmd, opts)
  local source, stdin = command.source(opts.stdin, "exec")
  local fields, err = command.fields(cmd, opts, to.limits, true)
  if not fields then
    return nil, errors.from(err, "exec")
  end
  if opts.stdin == "pipe" then
    return nil, errors.new {
      kind = "InvalidArgument",
      op = "exec",
      message = "stdin = \"pipe\" is for start; exec takes a string, a function or a file",
    }
  end
  if opts.detached then
    return nil, errors.new {
      kind = "InvalidArgument",
      op = "exec",
      message = "detached is for start; exec waits for its command",
    }
  end
  local timeout
  timeout, err = check.timeout(opts, "exec")
  if err then
    return nil, err
  end
  local max = opts.max_output or to.limits.max_output or MAX_OUTPUT
  if max < 0 or max ~= max or max > 2 ^ 31 then
    return nil, errors.new {
      kind = "InvalidArgument",
      op = "exec",
      message = ("max_output: %s is not between 0 and 2147483648 bytes"):format(tostring(max)),
    }
  end
  local run = (opts.on_output or source or stdin and to.feeds) and streamed.run or run_native
  fields.in_mode = (source or stdin) and 1 or 0
  local held, let_go = own.tied(lost)
  if not let_go then
    return run(to, fields, source, stdin, timeout, opts, max)
  end
  local result, why = run(to, fields, source, stdin, timeout, opts, max, held)
  let_go()
  return result, why
end

return exec
