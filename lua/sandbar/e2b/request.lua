-- A command as the daemon is asked for it, made of the fields of the engine's request (see command.lua), and what of
-- that is to be seen in the daemon's list. The shell that starts it puts it into a session of its own, so that a signal
-- reaches all of it; nothing of the program's is part of the text that it reads. At the end of that text is a token of
-- this one command behind a "#", by which it is found (see e2b/killer.h).

local compat = require "sandbar.compat"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"

local spool = lazy "sandbar.e2b.spool"

local IGNORE, TAIL, MERGED, TERMINAL, SPOOL = 0, 2, 3, 4, 5 -- modes of an output
local STDOUT, STDERR = 1, 2 -- bits

-- The fifth field of the line is the process group: who leads one already is in a session of its own, and setsid would
-- have to fork. What the last line runs has this process's number.
local SESSION = [[read -r _sb1 _sb2 _sb3 _sb4 _sbg _sb6 </proc/self/stat && [ "$_sbg" != $$ ] ]]
  .. [[&& command -v setsid >/dev/null && ]]

-- A name that begins with "-" is no option. Not every shell knows exec --.
local RUN = [[case $1 in -*) exec env -- "$@";; esac; exec "$@"]]
local PTY = " #pty #" -- and the token
-- For what is more than one command: $0 is the text of a shell that runs it, in the session.
local INNER = SESSION .. [[exec setsid /bin/sh -c "$0" sh "$@"; exec /bin/sh -c "$0" sh "$@"]]

-- Only the variables that $1 names, between colons, remain. Of a value with line ends some lines look like variables:
-- to unset what is none does no harm. Programs are looked for where they would have been before.
local CLEAN = [[_sbk=$1 _sbp=$PATH; shift 1; for _sbn in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do ]]
  .. [[case $_sbk in *:$_sbn:*) ;; *) unset "$_sbn";; esac; done; ]]
  .. [[_sbw() { case $1 in */*) ;; *) IFS=:; for _sbn in $_sbp; do ]]
  .. [[[ -f "$_sbn/$1" ] && [ -x "$_sbn/$1" ] && { echo "$_sbn/$1"; return; }; done;; esac; echo "$1"; }; ]]
local FOUND = [[_sbn=$(_sbw "$1"); shift; exec "$_sbn" "$@"]]

local request = {}

-- A pipeline as the text of a shell that names its arguments by number, and all of them. Each stage becomes its
-- program: the shell's own commands of that name are not meant.
local function pipeline(stages, clean)
  local text, all = {}, {}
  for i, stage in ipairs(stages) do
    local words = {}
    for k, arg in ipairs(stage) do
      all[#all + 1] = arg
      words[k] = ('"${%d}"'):format(#all)
    end
    if clean then
      words[1] = ('"$(_sbw %s)"'):format(words[1])
    end
    text[i] = (stage[1]:sub(1, 1) == "-" and not clean and "exec env -- " or "exec ") .. table.concat(words, " ")
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

local function names(env)
  local out = {}
  for name in pairs(env or {}) do
    out[#out + 1] = name
  end
  table.sort(out)
  return ":" .. table.concat(out, ":") .. ":"
end

-- The bits of those outputs that are kept in the sandbox.
local function kept_of(f)
  return (f.out_mode == SPOOL and STDOUT or 0) + (f.err_mode == SPOOL and STDERR or 0)
end

--- Is any output kept in the sandbox?
function request.keeps(f)
  return kept_of(f) > 0
end

-- The arguments of /bin/sh.
local function wrapped(f, env, token)
  local redirect = (f.out_mode == IGNORE and " >/dev/null" or "")
    .. (f.err_mode == MERGED and " 2>&1" or f.err_mode == IGNORE and " 2>/dev/null" or "")
  local kept = kept_of(f)
  if not f.stages and not f.clean_env and kept == 0 then
    local text = redirect == "" and SESSION .. [[exec setsid -- "$@"; ]] .. RUN
      or ([[%sexec setsid -- "$@"%s; case $1 in -*) exec env -- "$@"%s;; esac; exec "$@"%s]]):format(
        SESSION, redirect, redirect, redirect)
    return { "-c", text .. " #" .. token, "sh", compat.unpack(f.arg) }
  end
  local args, inner = { "-c", INNER .. " #" .. token, "" }, ""
  if kept > 0 then
    inner = spool.text(kept)
    args[#args + 1] = token
    args[#args + 1] = spool.about(f, kept)
  end
  if f.clean_env then
    inner = inner .. CLEAN
    args[#args + 1] = names(env)
  end
  local text, all = f.clean_env and FOUND or RUN, f.arg
  if f.stages then
    text, all = pipeline(f.stages, f.clean_env)
  end
  args[3] = inner .. (redirect ~= "" and "exec" .. redirect .. "; " or "") .. text
  for _, arg in ipairs(all) do
    args[#args + 1] = arg
  end
  return args
end

--- A StartRequest and its token.
function request.start(f)
  local token = core.uuid()
  local env = environment(f.env)
  local out = { process = { cwd = f.cwd, envs = env, cmd = "/bin/sh" }, tag = f.tag }
  if f.err_mode ~= TERMINAL then
    out.stdin = f.in_mode ~= 0
    out.process.args = wrapped(f, env, token)
    return out, token
  elseif f.out_mode == SPOOL then
    return nil, errors.new { kind = "Unsupported", clause = "stdout",
      message = "stdout = \"spool\": what a terminal shows is not kept in hosted sandboxes" }
  end
  out.pty = { size = { cols = f.cols, rows = f.rows } }
  out.process.args = f.clean_env
    and { "-c", CLEAN .. FOUND .. PTY .. token, "sh", names(env), compat.unpack(f.arg) }
    or { "-c", RUN .. PTY .. token, "sh", compat.unpack(f.arg) }
  return out, token
end

--- The bits of those outputs that nobody reads off the stream.
function request.unread(f)
  local function bit(mode, value)
    return (mode == IGNORE or mode == TAIL or mode == SPOOL) and value or 0
  end
  return bit(f.out_mode, STDOUT) + bit(f.err_mode, STDERR)
end

local function begins(text, with)
  return text:sub(1, #with) == with
end

--- What is known of a process in the daemon's list: args (the vector that was asked for), token, pty (it has a
--- terminal), kept (bits).
function request.read(config)
  local args = config.args or {}
  local text, inner = args[2] or "", args[3] or ""
  local pty = text:find(PTY .. "[%x-]+$") and true or false
  local ours = config.cmd == "/bin/sh" and args[1] == "-c" and (pty or begins(text, SESSION))
  if not ours then
    return { args = { config.cmd or "", compat.unpack(args) }, kept = 0 }
  end
  local shifted = 0
  for n in (pty and text or inner):gmatch "shift (%d+);" do
    shifted = shifted + tonumber(n)
  end
  return { args = { compat.unpack(args, 4 + shifted) }, pty = pty, token = text:match "([%x-]+)$",
    kept = not pty and spool.bits(inner) or 0 }
end

return request
