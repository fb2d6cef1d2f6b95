-- A command as the daemon is asked for it, made of the fields of the engine's request (see command.lua). The shell that
-- starts it puts it into a session of its own, so that a signal reaches all of it; nothing of the program's is part of
-- the text that it reads.

local compat = require "sandbar.compat"
local core = require "sandbar.core"
local errors = require "sandbar.errors"

local IGNORE, TAIL, MERGED, TERMINAL, SPOOL = 0, 2, 3, 4, 5 -- modes of an output
local OWN_TAG = "sandbar:" -- of those that the program has not given one

-- The fifth field of the line is the process group: who leads one already is in a session of its own, and setsid would
-- have to fork. What the last line runs has this process's number.
local SESSION = [[read -r _sb1 _sb2 _sb3 _sb4 _sbg _sb6 </proc/self/stat && [ "$_sbg" != $$ ] ]]
  .. [[&& command -v setsid >/dev/null && ]]

local request = {}

local function unsupported(what)
  return nil, errors.new { kind = "Unsupported", clause = what,
    message = what .. ": not there yet for hosted sandboxes" }
end

--- The tag as the program knows it.
function request.tag(tag)
  if tag == nil or tag == "" or tag:sub(1, #OWN_TAG) == OWN_TAG then
    return nil
  end
  return tag
end

-- A pipeline as the text of a shell that names its arguments by number, and all of them.
local function pipeline(stages)
  local text, all = {}, {}
  for i, stage in ipairs(stages) do
    local words = {}
    for k, arg in ipairs(stage) do
      all[#all + 1] = arg
      words[k] = ('"${%d}"'):format(#all)
    end
    text[i] = table.concat(words, " ")
  end
  return table.concat(text, " | "), all
end

-- "NAME=value" and { "NAME=", secret } to a table.
local function environment(list)
  local out
  for _, item in ipairs(list or {}) do
    out = out or {}
    if type(item) == "table" then
      out[item[1]:sub(1, -2)] = item[2]
    else
      local name, value = item:match "^([^=]+)=(.*)$"
      out[name] = value
    end
  end
  return out
end

local function wrapped(f)
  local redirect = (f.out_mode == IGNORE and " >/dev/null" or "")
    .. (f.err_mode == MERGED and " 2>&1" or f.err_mode == IGNORE and " 2>/dev/null" or "")
  local args
  if f.stages then
    local text, all = pipeline(f.stages)
    local inner = ("exec%s; %s"):format(redirect, text)
    args = { "-c", SESSION .. 'exec setsid /bin/sh -c "$0" sh "$@"; exec /bin/sh -c "$0" sh "$@"',
      redirect == "" and text or inner }
    for _, arg in ipairs(all) do
      args[#args + 1] = arg
    end
    return args
  end
  args = { "-c", ('%sexec setsid "$@"%s; exec "$@"%s'):format(SESSION, redirect, redirect), "sh" }
  for _, arg in ipairs(f.arg) do
    args[#args + 1] = arg
  end
  return args
end

--- A StartRequest, or nil and Unsupported.
function request.start(f)
  if f.clean_env then
    return unsupported "clean_env"
  end
  for _, mode in ipairs { f.out_mode, f.err_mode } do
    if mode == TAIL or mode == SPOOL then
      return unsupported(mode == TAIL and "\"tail\"" or "\"spool\"")
    end
  end
  local out = {
    process = { cwd = f.cwd, envs = environment(f.env) },
    tag = f.tag or OWN_TAG .. core.uuid(),
    stdin = f.in_mode ~= 0,
  }
  if f.err_mode == TERMINAL then
    out.pty, out.stdin = { size = { cols = f.cols, rows = f.rows } }, nil
    out.process.cmd, out.process.args = f.arg[1], { compat.unpack(f.arg, 2) }
  else
    out.process.cmd, out.process.args = "/bin/sh", wrapped(f)
  end
  return out
end

--- The argument vector that was asked for, of the one that was sent.
function request.argv(args)
  if args[1] ~= "/bin/sh" or args[2] ~= "-c" or (args[3] or ""):sub(1, #SESSION) ~= SESSION or args[4] ~= "sh" then
    return args
  end
  return { compat.unpack(args, 5) }
end

-- What sends signals: $1 its number, $2 the process, $3 how long the group may take, in tenths of a second.
local SEND = [[kill "-$1" "$2" 2>/dev/null]]
local SEND_GROUP = [[kill "-$1" "-$2" 2>/dev/null || kill "-$1" "$2" 2>/dev/null]]
local END_GROUP = SEND_GROUP .. [[ || exit 1
n=$3
while [ "$n" -gt 0 ] && kill -0 "-$2" 2>/dev/null; do sleep 0.1; n=$((n-1)); done
kill -9 "-$2" 2>/dev/null
exit 0]]

local function helper(text, ...)
  return { process = { cmd = "/bin/sh", args = { "-c", text, "sh", ... } }, stdin = false, tag = OWN_TAG .. "helper" }
end

--- The helper command that sends a signal to a process, or to all of its group.
function request.signal(number, pid, group)
  return helper(group and SEND_GROUP or SEND, ("%d"):format(number), ("%d"):format(pid))
end

--- The one that ends a group: with the signal, and after the grace (ms) without mercy.
function request.kill(number, pid, grace_ms)
  return helper(END_GROUP, ("%d"):format(number), ("%d"):format(pid), ("%d"):format(math.ceil(grace_ms / 100)))
end

return request
