-- A command and its options as the engine's exec request. Everything travels as data: nothing given
-- here is ever put into a shell's text.

local check = require "sandbar.check"
local errors = require "sandbar.errors"
local duration = require "sandbar.duration"
local values = require "sandbar.values"

local SHELL = "/bin/sh"
local MAX_STRING = 131071 -- bytes of one argument or NAME=value the kernel takes
local MAX_ENV = 262144
local MAX_SIDE = 65535 -- columns and rows of a terminal

local IO_NULL, IO_PIPE, IO_TAIL, IO_MERGE, IO_TERMINAL, IO_SPOOL = 0, 1, 2, 3, 4, 5

local command = {}

local invalid, unsupported = values.invalid, values.unsupported

-- Options common to exec and start, for check.options.
command.SCHEMA = {
  cwd = "string",
  env = "table",
  clean_env = "boolean",
  user = "string",
  scope = "any",
  tag = "string",
  stdin = "any",
  stdout = "string",
  stderr = "string",
  pty = "table",
  detached = "boolean",
  time_limit = "timeout",
  shell = "string",
  login = "boolean",
  timeout = "timeout",
}

command.SIZE = { cols = "!number", rows = "!number" }

-- SCHEMA and what one call adds to it.
function command.schema(extra)
  local out = {}
  for key, kind in pairs(command.SCHEMA) do
    out[key] = kind
  end
  for key, kind in pairs(extra) do
    out[key] = kind
  end
  return out
end

-- Can it be an argument? True, or nil and why not.
local function check_text(text, said)
  if text:find("%z") then
    return invalid("cmd", said .. " contains a zero byte")
  end
  if #text > MAX_STRING then
    return nil, errors.new {
      kind = "LimitExceeded",
      code = "E2BIG",
      limit = "argument",
      message = ("%s has %d bytes; one argument may have at most %d (use stdin or a file)"):format(said, #text,
        MAX_STRING),
    }
  end
  return true
end

local function check_vector(argv, what)
  if #argv == 0 then
    return invalid("cmd", what .. ": the argument vector is empty")
  end
  local out = {}
  for i, arg in ipairs(argv) do
    if type(arg) == "number" then
      arg = tostring(arg)
    end
    local ok, err = check_text(arg, ("%s: argument %d"):format(what, i))
    if not ok then
      return nil, err
    end
    out[i] = arg
  end
  for key in pairs(argv) do
    if out[key] == nil then
      return invalid("cmd", ("%s: the list has %s"):format(what, type(key) == "string"
        and ("a key %s; options are the next argument"):format(errors.quoted(key)) or "a hole"))
    end
  end
  if out[1] == "" then
    return invalid("cmd", what .. ": the name of the program is empty")
  end
  return out
end

local function check_arguments(fname, argv)
  for i, arg in ipairs(argv) do
    local kind = type(arg)
    if kind ~= "string" and kind ~= "number" then
      check.fail(fname, 1, ("element %d: string expected, got %s"):format(i, check.type_name(arg)), 3)
    end
  end
end

-- Raises at the caller of the method that calls this for what can be no command and no environment.
function command.shape(fname, cmd, opts)
  if type(cmd) ~= "table" then
    check.arg(fname, 1, cmd, "string|list", 2)
  elseif type(cmd[1]) ~= "table" then
    check_arguments(fname, cmd)
  else
    for i, part in ipairs(cmd) do
      if type(part) ~= "table" then
        check.fail(fname, 1, ("element %d: table expected, got %s"):format(i, type(part)), 2)
      end
      check_arguments(fname, part)
    end
  end
  if opts.env then
    check.map(fname, 2, "env", opts.env, "secret", 2)
  end
  if opts.pty then
    check.options(fname, 2, opts.pty, command.SIZE, 2)
  end
end

-- Columns and rows of a terminal, or nil and an error.
function command.size(size, name)
  for _, side in ipairs { "cols", "rows" } do
    local n = size[side]
    if n % 1 ~= 0 or n < 1 or n > MAX_SIDE then
      return invalid(name, ("%s: %s must be a whole number from 1 to %d, and is %s"):format(
        name, side, MAX_SIDE, tostring(n)))
    end
  end
  return { cols = size.cols, rows = size.rows }
end

-- The stages of a pipeline; one for a plain command.
local function stages_of(cmd, opts)
  if type(cmd) == "string" then
    local argv = { opts.shell or SHELL, "-c", cmd }
    if opts.login then
      table.insert(argv, 2, "-l")
    end
    local vector
    local ok, err = check_text(cmd, "cmd: the shell line")
    if ok then
      vector, err = check_vector(argv, "cmd")
    end
    return vector and { vector }, err
  end
  if opts.shell or opts.login then
    return invalid("shell", "shell and login belong to a command given as one string")
  end
  if type(cmd[1]) ~= "table" then
    local vector, err = check_vector(cmd, "cmd")
    return vector and { vector }, err
  end
  if check.holed(cmd) then
    return invalid("cmd", "cmd: the pipeline has a hole")
  end
  local stages = {}
  for i, stage in ipairs(cmd) do
    local vector, err = check_vector(stage, "cmd: stage " .. i)
    if not vector then
      return nil, err
    end
    stages[i] = vector
  end
  return stages
end

local OUTPUT_MODES = { pipe = IO_PIPE, ignore = IO_NULL, tail = IO_TAIL, spool = IO_SPOOL }

local function output_mode(name, value, allow_tail)
  if value == nil then
    return IO_PIPE
  end
  if value == "stdout" and name == "stderr" then
    return IO_MERGE
  end
  if value == "inherit" then
    return unsupported(name, name .. ": a process in a sandbox cannot have the host's streams")
  end
  local mode = OUTPUT_MODES[value]
  if (mode == IO_TAIL or mode == IO_SPOOL) and not allow_tail then
    return unsupported(name, ("%s = %q is for start; exec waits for its output and gives it back"):format(name, value))
  end
  if not mode then
    return invalid(name, ("%s: %q is none of \"pipe\", \"ignore\"%s%s"):format(name, value,
      allow_tail and ", \"tail\", \"spool\"" or "", name == "stderr" and ", \"stdout\"" or ""))
  end
  return mode
end

-- A function that gives the next piece of input, or nil and the whole as a string, or neither.
function command.source(stdin, fname)
  local kind = type(stdin)
  if stdin == nil or stdin == "pipe" then
    return nil, nil
  elseif kind == "string" then
    return nil, stdin
  elseif kind == "function" then
    return stdin, nil
  elseif io.type(stdin) == "closed file" then
    error(("bad option 'stdin' to '%s' (closed file)"):format(fname), 3)
  elseif check.readable(stdin) then
    return function()
      return stdin:read(65536)
    end, nil
  end
  error(("bad option 'stdin' to '%s' (%sstring, function or file expected, got %s)"):format(
    fname, fname == "start" and "\"pipe\", " or "", check.type_name(stdin)), 3)
end

-- A positive time in ms; nil for false and nothing.
local function time_limit(value)
  if value == nil or value == false then
    return nil
  end
  local seconds, err = duration.parse(value, "time_limit")
  if not seconds then
    return nil, err
  end
  if seconds <= 0 or seconds > 3155760000 then
    return invalid("time_limit", ("time_limit: %s s is not a positive time below a hundred years"
      ):format(tostring(seconds)))
  end
  return math.max(math.ceil(seconds * 1000), 1)
end

-- Puts a terminal into the request. It has one stream each way.
local function on_terminal(f, opts, stages)
  if stages > 1 then
    return invalid("pty", "pty: a pipeline has no terminal; give it as one string to a shell that has one")
  elseif opts.stdout == "ignore" then
    return invalid("stdout", "stdout = \"ignore\": the output of a terminal is read or kept as a tail")
  elseif opts.stderr ~= nil and opts.stderr ~= "stdout" then
    return invalid("stderr", ("stderr = %q: on a terminal it comes together with stdout"):format(opts.stderr))
  end
  local size, err = command.size(opts.pty, "pty")
  if not size then
    return nil, err
  end
  f.err_mode, f.cols, f.rows = IO_TERMINAL, size.cols, size.rows
  return true
end

-- `cmd` and `opts` checked by SCHEMA and shape -> the request's fields, or nil and an error.
-- `capture`: exec, where "tail" makes no sense.
function command.fields(cmd, opts, limits, capture)
  local stages, err = stages_of(cmd, opts)
  if not stages then
    return nil, err
  end
  if opts.cwd or opts.user or opts.tag then
    for _, name in ipairs { "cwd", "user", "tag" } do
      local value = opts[name]
      if value == "" then
        return invalid(name, name .. " is empty")
      end
      if value and value:find("%z") then
        return invalid(name, name .. " contains a zero byte")
      end
    end
  end
  local f = {
    cwd = opts.cwd,
    user = opts.user,
    tag = opts.tag,
    clean_env = opts.clean_env and 1 or nil,
    detached = opts.detached and 1 or nil,
  }
  if opts.env then
    for name, value in pairs(opts.env) do
      if type(name) == "string" and type(value) == "string"
        and #name + #value + 1 > MAX_STRING then
        return nil, errors.new {
          kind = "LimitExceeded",
          code = "E2BIG",
          limit = "argument",
          message = ("env: %s has %d bytes; NAME=value may have at most %d"):format(
            name:sub(1, 64), #name + #value + 1, MAX_STRING),
        }
      end
    end
    f.env, err = values.check_env(opts.env, limits.max_env or MAX_ENV)
    if err then
      return nil, err
    end
  end
  f.out_mode, err = output_mode("stdout", opts.stdout, not capture)
  if err then
    return nil, err
  end
  f.err_mode, err = output_mode("stderr", opts.stderr, not capture)
  if err then
    return nil, err
  end
  if opts.pty then
    local ok
    ok, err = on_terminal(f, opts, #stages)
    if not ok then
      return nil, err
    end
  end
  f.in_mode = opts.stdin ~= nil and IO_PIPE or IO_NULL
  f.time_limit_ms, err = time_limit(opts.time_limit)
  if err then
    return nil, err
  end
  if #stages == 1 then
    f.arg = stages[1]
  else
    f.stages = stages
  end
  return f
end

return command
