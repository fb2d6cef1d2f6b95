-- sandbar: the public module. Loading it defines functions and nothing else: no thread, no global, no I/O. Scopes and
-- tasks are loaded at their first use: most of what a script of one command would load it never calls.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local context = require "sandbar.context"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local host_of = require "sandbar.host.select"
local lazy = require "sandbar.lazy"
local wait = require "sandbar.wait"

local sandbar = {
  version = core.VERSION,
  errors = errors.kinds,
  assert = errors.assert,
  audit = audit.configure,
}

local scope, task = lazy "sandbar.scope", lazy "sandbar.task"
local nested, run = lazy "sandbar.nested", lazy "sandbar.run"
local server = lazy "sandbar.server.serve"

-- What is found in these modules, by its name there.
local LATER = {
  scope = { scope, "run" },
  new_scope = { scope, "new" },
  spawn = { task, "spawn" },
  all = { task, "all" },
  shield = { task, "shield" },
  run = { run, "run" },
  step = { run, "step" },
  serve = { server, "serve" },
  -- coroutines of one's own inside tasks; pcall works with waits on every Lua
  wrap = { nested, "wrap" },
  resume = { nested, "resume" },
  pcall = { nested, "pcall" },
}

--- A provider: pure configuration, no I/O. sandbar.open() is this machine's kernel.
function sandbar.open(opts)
  if opts ~= nil and type(opts) ~= "table" then
    check.arg("open", 1, opts, "table?")
  end
  local provider, err = require("sandbar.provider").open(opts or {}) -- no tail call: it would hide the caller
  return provider, err
end

--- Waits that long; other tasks go on. True, or nil and an error.
function sandbar.sleep(time)
  check.arg("sleep", 1, time, "duration")
  local seconds, err = duration.parse(time, "sleep")
  if not seconds then
    return nil, errors.from(err, "sleep")
  end
  return wait.sleep(seconds)
end

--- A secret of a string: usable in header and env values, never readable again from Lua.
function sandbar.secret(value)
  check.arg("secret", 1, value, "string")
  return core.secret(value)
end

--- The descriptor that becomes readable when sandbar.step has something to do.
function sandbar.fd()
  return core.mailbox():fd()
end

--- How many operations are under way.
function sandbar.pending()
  return core.mailbox():pending()
end

--- Settings of this Lua state: host (a name), drain and close_timeout (times). True, or nil and an error;
--- then nothing has changed.
function sandbar.config(opts)
  opts = check.options("config", 1, opts, { host = "string", drain = "duration", close_timeout = "duration" })
  local drain, close_timeout, err
  if opts.drain ~= nil then
    drain, err = duration.parse(opts.drain, "drain")
    if not drain then
      return nil, errors.from(err, "config")
    end
  end
  if opts.close_timeout ~= nil then
    close_timeout, err = duration.positive(opts.close_timeout, "close_timeout")
    if not close_timeout then
      return nil, errors.from(err, "config")
    end
  end
  if opts.host ~= nil then
    local ok
    ok, err = host_of.use(opts.host)
    if not ok then
      return nil, err
    end
  end
  if drain then
    core.config { drain = drain }
  end
  context.close_timeout = close_timeout or context.close_timeout
  return true
end

local function later(_, name)
  local at = LATER[name]
  return at and at[1][at[2]]
end

local function with_later(self)
  local all = {}
  for name in pairs(LATER) do
    all[name] = later(self, name)
  end
  for name, value in next, self do
    all[name] = value
  end
  return next, all, nil
end

if _VERSION ~= "Lua 5.1" then
  return setmetatable(sandbar, { __index = later, __pairs = with_later })
end
-- pairs() could not show what is not there.
for name in pairs(LATER) do
  sandbar[name] = later(sandbar, name)
end
return sandbar
