-- Which ports of a hosted sandbox are exposed: an empty file for each, named after its number, in a directory of root's
-- on the sandbox's disk. So every program that reaches the sandbox sees the same, and any pause keeps them.

local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local markers = {}

local DIRECTORY = "/var/lib/sandbar/ports"
local ADD = [[mkdir -p "$1" && : >"$1/$2"]]
local REMOVE = [[rm -f "$1/$2"]]
local LIST = [[[ ! -d "$1" ] || ls "$1"]]
local MOST = 1048576 -- bytes of a list: all numbers there are, and more

-- What a command of root's with these arguments has written, or nil and an error.
local function run(to, op, timeout, text, ...)
  local native, err = to:native(timeout, op)
  local running
  if native then
    running, err = to.rpc:stream("process.Process/Start", "process.StartRequest", {
      process = { cmd = "/bin/sh", args = { "-c", text, "sh", DIRECTORY, ... } }, stdin = false,
      tag = "sandbar:ports",
    }, { user = "root", max = MOST })
  end
  if not running then
    return nil, errors.from(err, op)
  end
  local r, partial
  r, err, partial = wait.op(running, timeout, op)
  if not r then
    return to:ended(err, partial)
  elseif r.fields.status ~= 0 then
    local said = (r.bytes2 or ""):match("^[^\n]*")
    return nil, errors.new { kind = "Platform", op = op, id = to.id,
      message = ("the record of exposed ports cannot be %s: %s"):format(text == LIST and "read" or "written", said) }
  end
  return r.bytes or ""
end

--- True, or nil and an error.
function markers.set(to, number, on, timeout)
  local out, err = run(to, on and "expose" or "unexpose", timeout, on and ADD or REMOVE, ("%d"):format(number))
  return out and true, err
end

--- The numbers in order, or nil and an error.
function markers.list(to, timeout)
  local out, err = run(to, "ports", timeout, LIST)
  if not out then
    return nil, err
  end
  local numbers = {}
  for name in out:gmatch("[^\n]+") do
    local number = name:find("^[1-9]%d*$") and tonumber(name)
    if number and number <= 65535 then
      numbers[#numbers + 1] = number
    end
  end
  table.sort(numbers)
  return numbers
end

return markers
