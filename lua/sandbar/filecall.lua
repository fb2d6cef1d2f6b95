-- What all methods of box.files share: their class, checked arguments, the request to the worker inside.

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"

-- enum sb_file_op of the engine.
local OP = {
  STAT = 1, OPEN = 2, WRITE = 3, BEGIN = 4, COMMIT = 5, ABORT = 6, LIST = 7, MKDIR = 8, MOVE = 9,
  COPY = 10, REMOVE = 11, CHMOD = 12, CHOWN = 13, SYMLINK = 14, READLINK = 15, TEMPDIR = 16,
  SETXATTR = 17, GETXATTR = 18, GLOB = 19, WATCH = 20,
}

local filecall = { UNDO_LIMIT = 5 } -- seconds for taking back what a failed call began

local methods = {} -- of the class: files.lua, writing.lua and transfer.lua add theirs
local class = core.class("Files", methods, {
  tostring = function(state)
    return ("sandbar.Files of %s"):format(state._link.id)
  end,
})

-- Options of every call.
local COMMON = { user = "string", timeout = "timeout" }

function filecall.schema(extra)
  local out = { user = COMMON.user, timeout = COMMON.timeout }
  for key, kind in pairs(extra) do
    out[key] = kind
  end
  return out
end

-- A yes or no as the engine has it.
function filecall.flag(value)
  return value and 1 or 0
end

function filecall.invalid(op, path, message)
  return nil, errors.new { kind = "InvalidArgument", op = "files:" .. op, path = path, message = message }
end

-- ---- arguments ----

-- Raises for what is no path (`level`: as check has it); a path no file can have is InvalidArgument.
function filecall.check_path(op, index, path, level)
  check.arg(op, index, path, "string", (level or 1) + 1)
  if path == "" then
    return filecall.invalid(op, path, "the path is empty")
  end
  if path:find("%z") then
    return filecall.invalid(op, nil, "the path contains a zero byte")
  end
  return path
end

-- Is it a number that looks like the text of a mode: 644, 755, 600? As bits such a one would be the sticky bit and
-- hardly any rights. Up to 511 ("777") both readings are usual, and the bits are meant.
local function looks_like_text(mode)
  return type(mode) == "number" and mode > 511 and mode <= 777 and mode % 1 == 0
    and ("%d"):format(mode):match("^[0-7]+$")
end

-- "644", "0644" or raw bits.
function filecall.mode_bits(op, path, mode)
  if mode == nil then
    return nil
  end
  if looks_like_text(mode) then
    local message = "mode: the number %d is the bits of \"%o\"; write \"%d\", or \"%o\" if you mean that"
    return filecall.invalid(op, path, message:format(mode, mode, mode, mode))
  end
  local bits = type(mode) == "string" and mode:match("^[0-7]+$") and tonumber(mode, 8) or mode
  if type(bits) ~= "number" or bits < 0 or bits > 4095 or bits % 1 ~= 0 then
    return filecall.invalid(op, path, ("mode: %s are no permission bits (like \"644\")"):format(tostring(mode)))
  end
  return bits
end

-- The state, the fields common to all operations and the timeout, or nil and an error.
function filecall.begin(self, op, opts, path, path2)
  local state = core.state(self, class)
  local timeout, err = check.timeout(opts, "files:" .. op)
  if err then
    return nil, err
  end
  local user = opts.user
  if user and (user == "" or user:find("%z")) then
    return filecall.invalid(op, path, "user is empty or contains a zero byte")
  end
  return state, { path = path, path2 = path2, user = user }, timeout
end

function filecall.call(state, op, timeout, method, ...)
  return state._link:call(method, "files:" .. op, timeout, ...)
end

-- `leave_parts`: the parts of the answer are for core.part.
function filecall.request(state, op, timeout, number, fields, leave_parts)
  fields.file_op = number
  return filecall.call(state, op, timeout, "request", "file", fields, leave_parts)
end

filecall.OP, filecall.COMMON, filecall.methods, filecall.class = OP, COMMON, methods, class

-- The files of a sandbox's link.
function filecall.new(to)
  return core.handle(class, { _link = to })
end

return filecall
