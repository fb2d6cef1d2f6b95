-- The steps of the protocol's builds as steps of the contract's. Several of ours may come of one of theirs: `origin[i]`
-- is the step that the i-th came of, as the protocol names it ("base", "1", ..., "finalize").

local reply = require "sandbar.server.reply"

local HOME = "/home/user"
local READY_LIMIT = 600 -- seconds
local ARCHIVE = "/var/tmp/.sandbar-copy.tar"

-- Makes $1, and gives to $2 what was not there.
local MAKE_DIR = [[p=$1 top=
while [ ! -e "$p" ]; do top=$p; p=$(dirname "$p"); done
mkdir -p "$1" && { [ -z "$top" ] || chown -R "$2:" "$top"; }]]

local MAKE_USER = [[id -u "$1" >/dev/null 2>&1 || useradd -m -s /bin/bash "$1"]]

-- Puts $2 (of the archive $1, "." for all of it) to $3, owned by $4, with mode $5.
local UNPACK = [[set -e
d=$1.d; rm -rf "$d"; mkdir "$d"; tar -xf "$1" -C "$d" --no-same-owner; rm -f "$1"
e=$d/$2
[ -e "$e" ] || [ -L "$e" ] || { echo "$2: not in the uploaded files" >&2; exit 1; }
chown -hR "$4" "$e"
if [ -n "$5" ] && [ ! -L "$e" ]; then chmod -R "$5" "$e"; fi
if [ -d "$e" ] && [ ! -L "$e" ]; then
  mkdir -p "$3"
  tar -C "$e" -cf - . | tar -C "$3" -xpf - --no-overwrite-dir
else
  case $3 in */) mkdir -p "$3"; to=$3$(basename "$e") ;; *) mkdir -p "$(dirname "$3")"; to=$3 ;; esac
  mv -f "$e" "$to"
fi
rm -rf "$d"]]

local recipe = {}

local Recipe = {}
Recipe.__index = Recipe

local function put(self, step)
  self.steps[#self.steps + 1] = step
  self.origin[#self.steps] = self.at
end

-- A script run as root, whoever the steps are at.
local function as_root(self, script, ...)
  put(self, { user = "root" })
  put(self, { run = { "/bin/sh", "-c", script, "sh", ... } })
  put(self, { user = self.user })
end

local function resolve(self, path)
  if path == "~" or path:sub(1, 2) == "~/" then
    return HOME .. path:sub(2)
  elseif path:sub(1, 1) == "/" then
    return path
  end
  return ((self.workdir .. "/" .. path):gsub("//+", "/"))
end

-- $NAME and ${NAME} by what the steps before have set; nothing else of a shell.
local function expand(self, text)
  text = text:gsub("%${([%w_]+)}", function(name)
    return self.env[name] or ""
  end)
  return (text:gsub("%$([%a_][%w_]*)", function(name)
    return self.env[name] or ""
  end))
end

-- What of a source path has no pattern in it.
local function plain_part(path)
  local parts = {}
  for part in path:gmatch("[^/]+") do
    if part:find("[*?%[{]") then
      break
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return parts[1] and table.concat(parts, "/") or "."
end

local does = {}

function does.USER(self, args)
  local name = args[1]
  if not name or not name:match("^[%w_][%w_.-]*$") then
    return nil, "USER: a name is needed"
  end
  self.user = name
  as_root(self, MAKE_USER, name)
  return true
end

function does.WORKDIR(self, args)
  if not args[1] or args[1] == "" then
    return nil, "WORKDIR: a path is needed"
  end
  self.workdir = resolve(self, args[1])
  as_root(self, MAKE_DIR, self.workdir, self.user)
  put(self, { workdir = self.workdir })
  return true
end

function does.RUN(self, args)
  if not args[1] or args[1] == "" then
    return nil, "RUN: a command is needed"
  end
  local other = args[2] and args[2] ~= "" and args[2] ~= self.user
  if other then
    put(self, { user = args[2] })
  end
  put(self, { run = { "/bin/bash", "-l", "-c", args[1] } })
  if other then
    put(self, { user = self.user })
  end
  return true
end

function does.ENV(self, args)
  if #args == 0 or #args % 2 ~= 0 then
    return nil, "ENV: names and values are needed"
  end
  local env = {}
  for i = 1, #args, 2 do
    local name = args[i]
    if name == "" or name:find("[=%z]") then
      return nil, ("ENV: '%s' is no name"):format(name)
    end
    env[name] = expand(self, args[i + 1])
    self.env[name] = env[name]
  end
  put(self, { env = env })
  return true
end

function does.COPY(self, args, step, file_of)
  local src, dest = args[1], args[2]
  local path = step.filesHash and file_of(step.filesHash)
  if not src or not dest then
    return nil, "COPY: a source and a destination are needed"
  elseif not path then
    return nil, "COPY: its files were not uploaded"
  elseif (args[4] or "") ~= "" and not args[4]:match("^[0-7]+$") then
    return nil, "COPY: the mode is not octal"
  elseif ("/" .. src .. "/"):find("/../", 1, true) then
    return nil, "COPY: the source leads out of the files"
  end
  local owner = (args[3] or "") ~= "" and args[3] or self.user
  if not owner:find(":", 1, true) then
    owner = owner .. ":" .. owner
  end
  put(self, { user = "root" })
  put(self, { copy = path, to = ARCHIVE })
  local to = resolve(self, dest)
  put(self, { run = { "/bin/sh", "-c", UNPACK, "sh", ARCHIVE, plain_part(src), to, owner, args[4] or "" } })
  put(self, { user = self.user })
  return true
end

does.ADD, does.ARG = does.COPY, does.ENV

local function is_strings(list)
  for _, one in ipairs(list) do
    if type(one) ~= "string" or one:find("%z") then
      return false
    end
  end
  return true
end

--- The recipe of a build's start request: { steps, origin }, or nil and a refusal. `file_of(hash)` is the path of an
--- uploaded archive, nil where there is none. `old`: the steps begin as root, and what is built is for "user" all the
--- same.
function recipe.of(given, file_of, old)
  local user = old and "root" or "user"
  local self = setmetatable({ steps = {}, origin = {}, at = "base", user = user, workdir = HOME, env = {
    HOME = HOME, USER = "user", PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  } }, Recipe)
  put(self, { user = self.user })
  if given.fromImage then
    put(self, { workdir = HOME })
  end
  for i, step in ipairs(given.steps or {}) do
    self.at = ("%d"):format(i)
    local args = type(step) == "table" and step.args or {}
    local run = type(step) == "table" and does[step.type]
    if not run or type(args) ~= "table" or not is_strings(args) then
      return nil, reply.refusal(400, ("step %d is of no known type"):format(i))
    end
    local ok, why = run(self, args, step, file_of)
    if not ok then
      return nil, reply.refusal(400, ("step %d: %s"):format(i, why))
    end
  end
  self.at = "finalize"
  if old then
    put(self, { user = "user" })
  end
  if given.startCmd and given.startCmd ~= "" then
    put(self, { start = { "/bin/bash", "-l", "-c", given.startCmd } })
  end
  if given.readyCmd and given.readyCmd ~= "" then
    put(self, { ready = { "/bin/bash", "-l", "-c", given.readyCmd }, timeout = READY_LIMIT })
  end
  return self
end

return recipe
