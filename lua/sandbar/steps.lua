-- The steps of a build, as data: checked before anything is made, and put into one form.
--
-- A step is a table with one of the keys run, copy, env, workdir, user, start, ready, and what belongs to it.

local check = require "sandbar.check"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local values = require "sandbar.values"

local READY_TIMEOUT = 60
local MAX_ENV = 32768 -- what a template keeps of it

local steps = {}

-- What a step may hold, by the key that makes it one.
local SCHEMA = {
  run = { run = "string|table" },
  copy = { copy = "string", to = "!string", owner = "string", mode = "string|integer" },
  env = { env = "table" },
  workdir = { workdir = "string" },
  user = { user = "string" },
  start = { start = "string|table|false" },
  ready = { ready = "string|table|false", timeout = "timeout" },
}
local ORDER = { "run", "copy", "env", "workdir", "user", "start", "ready" }

local function invalid(at, message)
  return nil, errors.new {
    kind = "InvalidArgument", op = "templates:build", step = at, message = ("step %d: %s"):format(at, message),
  }
end

-- What a step has that is of no kind, for whoever misspelt it.
local function instead(step)
  local keys = {}
  for key in pairs(step) do
    keys[#keys + 1] = ("'%s'"):format(tostring(key))
    local near = type(key) == "string" and check.nearest(key, SCHEMA)
    if near then
      return ("unknown step '%s'; the nearest known one is '%s'"):format(key, near)
    end
  end
  table.sort(keys)
  return "none of run, copy, env, workdir, user, start, ready" ..
    (keys[1] and "; it has " .. table.concat(keys, ", ") or "")
end

local function kind_of(step)
  local found
  for _, kind in ipairs(ORDER) do
    if step[kind] ~= nil then
      if found then
        return nil, ("%s and %s in one"):format(found, kind)
      end
      found = kind
    end
  end
  if not found then
    return nil, instead(step)
  end
  return found
end

-- Raises for what no list of steps may look like, at the caller of the method that calls this.
function steps.shape(fname, list)
  for i, step in ipairs(list) do
    if type(step) ~= "table" then
      check.fail(fname, 1, ("option 'steps': element %d: table expected, got %s"):format(i, check.type_name(step)), 2)
    end
    local kind, why = kind_of(step)
    if not kind then
      check.fail(fname, 1, ("option 'steps': element %d: %s"):format(i, why), 2)
    end
    local said = ("option 'steps': element %d: "):format(i)
    check.options(fname, 1, step, SCHEMA[kind], 2, said)
    if kind == "env" then
      check.map(fname, 1, "env", step.env, "string", 2, said)
    end
  end
  for key in pairs(list) do
    if type(key) ~= "number" then
      check.fail(fname, 1, ("option 'steps': the list has a key '%s'"):format(tostring(key)), 2)
    end
  end
  if check.holed(list) then
    check.fail(fname, 1, "option 'steps': the list has a hole", 2)
  end
end

-- A command as a list of texts: "line" and the shell's line, or "argv" and the arguments. nil and why not.
function steps.command(cmd)
  if type(cmd) == "string" then
    if cmd == "" or cmd:find("%z") then
      return nil, "the command is empty or contains a zero byte"
    end
    return { "line", cmd }
  end
  local out = { "argv" }
  for i, arg in ipairs(cmd) do
    if type(arg) ~= "string" or arg:find("%z") then
      return nil, "an argument is not a string, or contains a zero byte"
    end
    out[i + 1] = arg
  end
  if #out == 1 or out[2] == "" then
    return nil, #out == 1 and "the argument vector is empty" or "the program's name is empty"
  end
  for key in pairs(cmd) do
    if type(key) ~= "number" or key > #out - 1 then
      return nil, "the list has a hole or a key"
    end
  end
  return out
end

-- The other way: what exec and start take.
function steps.runnable(list, from)
  if list[from] == "line" then
    return list[from + 1]
  end
  local out = {}
  for i = from + 1, #list do
    out[#out + 1] = list[i]
  end
  return out
end

local check_of = {}

function check_of.run(step)
  local cmd, why = steps.command(step.run)
  return cmd and { command = cmd, text = table.concat(cmd, " ", 2) }, why
end

function check_of.copy(step)
  if step.copy == "" or step.copy:find("%z") or step.to == "" or step.to:find("%z") then
    return nil, "copy and to are paths"
  end
  if step.owner and not step.owner:match("^[%w._-]+:?[%w._-]*$") then
    return nil, "owner is \"user\" or \"user:group\""
  end
  return { text = step.copy .. " " .. step.to }
end

function check_of.env(step)
  local list, err = values.check_env(step.env, MAX_ENV)
  if not list then
    return nil, err.message
  end
  return { text = table.concat(list, " "), list = list }
end

function check_of.workdir(step)
  if step.workdir == "" or step.workdir:find("%z") then
    return nil, "workdir is a path"
  end
  return { text = step.workdir }
end

function check_of.user(step)
  if step.user == "" or step.user:find("%z") then
    return nil, "user is a name"
  end
  return { text = step.user }
end

function check_of.start(step)
  if step.start == false then
    return { text = "nothing", list = {} }
  end
  local cmd, why = steps.command(step.start)
  return cmd and { text = table.concat(cmd, " ", 2), list = cmd }, why
end

function check_of.ready(step)
  local limit = READY_TIMEOUT
  if step.timeout ~= nil then
    local err
    limit, err = duration.positive(step.timeout, "timeout")
    if not limit then
      return nil, err.message
    end
  end
  local ready = step.ready
  if ready == false then
    return { text = "at once", list = {} }
  end
  if type(ready) == "table" and ready.port ~= nil then
    local port = ready.port
    if type(port) ~= "number" or port % 1 ~= 0 or port < 1 or port > 65535 or next(ready, next(ready)) then
      return nil, "ready = { port = number }, from 1 to 65535"
    end
    return { text = ("port %d"):format(port), list = { tostring(limit), "port", ("%d"):format(port) } }
  end
  local cmd, why = steps.command(ready)
  if not cmd then
    return nil, why
  end
  local list = { tostring(limit) }
  for _, part in ipairs(cmd) do
    list[#list + 1] = part
  end
  return { text = table.concat(cmd, " ", 2), list = list }
end

-- The steps in one form: kind, text (for people), and what the kind needs. nil and InvalidArgument.
function steps.parse(list)
  local out = {}
  for i, step in ipairs(list) do
    local kind = kind_of(step)
    local parsed, why = check_of[kind](step)
    if not parsed then
      return invalid(i, why)
    end
    parsed.kind, parsed.given, parsed.number = kind, step, i
    out[i] = parsed
  end
  return out
end

return steps
