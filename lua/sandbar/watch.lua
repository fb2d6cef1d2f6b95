-- files:watch: what changes in a directory, told line by line by a worker inside (enum sb_watch_line of the engine).

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local filecall = require "sandbar.filecall"
local link_of = require "sandbar.link"
local own = require "sandbar.own"
local wait = require "sandbar.wait"

local MAX_LINE = 70000 -- no honest worker writes a longer one
local ASK = 5 -- seconds to find out why a watch has ended

local OP, methods = filecall.OP, filecall.methods

local TYPES = { c = "create", w = "write", d = "remove", r = "rename", a = "chmod", o = "overflow" }
local ESCAPES = { n = "\n" }

-- Ends of a watch that are none of the sandbox's. The first two come behind a last event that tells them.
local ENDS = {
  removed = { kind = "NotFound", message = "the watched directory was removed" },
  moved = { kind = "NotFound", message = "the watched directory, or one above it, was moved" },
  limit = {
    kind = "LimitExceeded",
    message = "there are more directories than can be watched: a sandbox may watch 16384, fewer where the machine's "
      .. "fs.inotify limits are used up",
  },
}

local class
local watch = {}

local function failure(state, kind, message)
  return errors.new { kind = kind, op = "files:watch", path = state.path, message = message }
end

-- It has ended, and says so once.
local function ended(state, err)
  state._ended, state.reason = true, err
  own.let_go(state)
  state._native:close()
  return nil, err
end

-- Why there are no more lines.
local function lost(state)
  local link = state._link
  if link:is_closed() then
    return failure(state, "Closed", ("the handle of sandbox %s is closed"):format(link.id))
  end
  local r, err = wait.op(state._box:request("ping", {}), ASK, "files:watch")
  if r then
    return failure(state, "OutcomeUnknown", "the watch was ended from inside the sandbox")
  elseif err.kind == "CannotWait" or err.kind == "Cancelled" then
    return err
  end
  local why
  r, why = link.driver:info(link.id, ASK)
  if r then
    if link.seen then
      link.seen(r.fields)
    end
    local now = (r.fields.state or {})[1]
    if now ~= "running" then
      local _
      _, err = link:not_running(now)
    elseif r.fields.boot ~= state._box:boot() then
      err = failure(state, "NotRunning", "the sandbox has been started anew since the watch began")
    end
  elseif link:heard(why).kind == "NotFound" then
    link.gone = true
    local _
    _, err = link:not_running("gone")
  end
  return errors.from(err, "files:watch", { path = state.path })
end

-- One line, without its newline: an event, or nil and why it was the last.
local function parse(state, line)
  local kind, rest = TYPES[line:sub(1, 1)], line:sub(2)
  if kind then
    local path = rest:gsub("\\(.)", function(c)
      return ESCAPES[c] or c
    end)
    return { type = kind, path = path }
  elseif line:sub(1, 1) ~= "e" then
    return ended(state, failure(state, "Protocol", "the sandbox's watch does not make sense"))
  end
  local how = ENDS[rest]
  if how then
    local _, err = ended(state, failure(state, how.kind, how.message))
    if how.kind == "NotFound" then
      return nil
    end
    return nil, err
  end
  return ended(state, errors.from_errno(tonumber(rest:match("^%d%d?%d?$") or 5), "files:watch", state.path))
end

-- The same of a watch in a hosted sandbox, which knows by itself why it has ended.
local function more_from_afar(state, deadline)
  local text, err = state._native:more(link_of.left(deadline), "files:watch")
  if text then
    state._text, state._at = state._text:sub(state._at) .. text, 1
    return true
  elseif state._closed then
    return false
  elseif state._link:is_closed() then
    err = failure(state, "Closed", ("the handle of sandbox %s is closed"):format(state._link.id))
  end
  if err and (err.kind == "Timeout" or err.kind == "CannotWait" or err.kind == "Cancelled" or err.kind == "Busy") then
    return nil, err
  end
  return nil, select(2, ended(state, err and errors.from(err, "files:watch", { path = state.path })))
end

-- More bytes: true; false when there are none any more; nil and an error.
local function more(state, deadline)
  if state._native.remote then
    return more_from_afar(state, deadline)
  end
  local done, data, e = state._native:try_read("some", 65536)
  local err = e and errors.from(e, "files:watch")
  local left = link_of.left(deadline)
  if not done and left == 0 then
    return nil, wait.not_now("files:watch")
  elseif not done then
    data, err = wait.bytes(state._native:read("some", 65536), left, "files:watch")
  end
  if data then
    state._text, state._at = state._text:sub(state._at) .. data, 1
    return true
  elseif err and err.kind ~= "Closed" then
    return nil, err
  end
  return false
end

local function next_event(state, timeout)
  local deadline = link_of.deadline(timeout)
  while not state._closed and not state._ended do
    local stop = state._text:find("\n", state._at, true)
    if stop then
      local line = state._text:sub(state._at, stop - 1)
      state._at = stop + 1
      return parse(state, line)
    elseif #state._text - state._at >= MAX_LINE then
      return ended(state, failure(state, "Protocol", "the sandbox's watch does not make sense"))
    end
    local ok, err = more(state, deadline)
    if ok == nil then
      return nil, link_of.told(err, timeout)
    elseif not ok and not state._closed then
      err = lost(state)
      if err.kind == "CannotWait" or err.kind == "Cancelled" then
        return nil, err -- and the next call asks again
      end
      return ended(state, err)
    end
  end
  return nil
end

-- ---- the handle ----

local own_methods = {}

function own_methods:next(opts)
  local state = core.state(self, class)
  opts = check.options("next", 1, opts, check.TIMEOUT)
  local timeout, err = check.timeout(opts, "files:watch")
  if err then
    return nil, err
  end
  return next_event(state, timeout)
end

function own_methods:close()
  local state = core.state(self, class)
  if not state._closed then
    state._closed = true
    own.let_go(state)
    state._native:close()
  end
  return true
end

class = core.class("Watch", own_methods, {
  call = function(self)
    local event, err = next_event(core.state(self, class), false)
    if err then
      error(err, 0)
    end
    return event
  end,
  tostring = function(state)
    return ("sandbar.Watch %s (%s)"):format(state.path,
      (state._closed or state._link:is_closed()) and "closed" or state._ended and "ended" or "open")
  end,
})

local function finalize(handle)
  return handle:close()
end

local function adopt(_, state)
  if state._closed or state._ended then
    return nil, failure(state, "Closed", "the watch has ended")
  end
  return true
end

local WATCH = filecall.schema { recursive = "boolean" }

function methods:watch(path, opts)
  opts = check.options("watch", 2, opts, WATCH)
  local ok, err = filecall.check_path("watch", 1, path)
  if not ok then
    return nil, err
  end
  local state, fields, timeout = filecall.begin(self, "watch", opts, path)
  if not state then
    return nil, fields
  end
  local link = state._link
  fields.file_op, fields.recursive = OP.WATCH, filecall.flag(opts.recursive)
  local r
  r, err = filecall.call(state, "watch", timeout, "watch", fields)
  if not r then
    return nil, err
  end
  link.watches = link.watches or setmetatable({}, { __mode = "k" })
  link.watches[r.object] = true
  local handle = core.handle(class, {
    path = r.fields.path,
    recursive = opts.recursive or false,
    _native = r.object,
    _box = link.box,
    _link = link,
    _sandbox = link.handle,
    _text = r.fields.data or "",
    _at = 1,
    _finalize = finalize,
    _adopt = adopt,
  })
  return handle, nil, nil, handle -- for a `for`, which closes it on 5.4
end

return watch
