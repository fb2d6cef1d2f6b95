-- pool: sandboxes that wait, ready to be taken, refilled by tasks in the background. What waits ends with the pool or
-- its process; what was taken belongs to the taker.

local check = require "sandbar.check"
local common = require "sandbar.policy.common"
local core = require "sandbar.core"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local own = require "sandbar.own"
local wait = require "sandbar.wait"

local pool = {}

local class
local methods = {}

local OPTIONS = { provider = "any", spec = "table", size = "!integer" }
local GET = { scope = "any", timeout = "timeout" }
local TIMEOUT = { timeout = "timeout" }
local MOST = 1000
local DEFAULT_LIFETIME = 3600

-- One more sandbox. A failure is the next taker's to see: he makes his own then.
local function make(state)
  local ok, box = nested.pcall(state.provider.create_scoped, state.provider, state.spec)
  box = ok and box
  if box and state.closed then
    box:close()
  elseif box then
    state.ready[#state.ready + 1] = box
  end
  state.making = state.making - 1 -- not before it has been let go of: close() waits for that
  if state.making == 0 then
    local idle = state.idle
    state.idle = wait.signal()
    wait.fire(idle)
  end
end

-- Starts as many tasks as sandboxes are missing. Where none can be started (nginx's init phase), a later call does.
local function fill(state)
  while not state.closed and #state.ready + state.making < state.size do
    state.making = state.making + 1
    if not own.background(nil, function()
      make(state)
    end) then
      state.making = state.making - 1
      return
    end
  end
end

-- The one that has waited longest and is still there, with its whole lifetime before it.
local function take(state, deadline)
  while state.ready[1] do
    local box = table.remove(state.ready, 1)
    local ok, err = box:set_lifetime(state.lifetime, { timeout = link.left(deadline) })
    if ok then
      return box
    end
    box:close()
    if err.kind == "Cancelled" or err.kind == "Timeout" then
      return nil, err
    end
  end
end

--- A sandbox that belongs to the caller, or to `scope`: one that waited, or else a new one.
function methods:get(opts)
  local state = core.state(self, class)
  opts = check.options("get", 1, opts, GET)
  local timeout, err = check.timeout(opts, "get")
  if not err and opts.scope ~= nil then
    local _
    _, err = own.check("get", opts.scope)
  end
  if err then
    return nil, err
  end
  if state.closed then
    return common.closed("get")
  end
  local deadline = link.deadline(timeout)
  local box
  box, err = take(state, deadline)
  if box and opts.scope then
    local ok
    ok, err = opts.scope:adopt(box)
    if not ok then
      box:close()
      return nil, err
    end
  elseif not box and not err then
    box, err = state.provider:create_scoped(state.spec, opts.scope, { timeout = link.left(deadline) })
  end
  fill(state)
  return box, link.told(err, timeout)
end

--- Destroys what waits. True once it is gone.
function methods:close(opts)
  local state = core.state(self, class)
  opts = check.options("close", 1, opts, TIMEOUT)
  local timeout, err = own.close_timeout(opts)
  if err then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  state.closed = true
  local first
  while state.ready[1] do
    local ok, why = table.remove(state.ready):close { timeout = link.left(deadline) }
    first = first or not ok and why or nil
  end
  if state.making > 0 then -- they see that it is closed
    local ok, why = wait.on(state.idle, link.left(deadline), "close")
    first = first or not ok and why or nil
  end
  return not first or nil, link.told(first, timeout)
end

class = core.class("Pool", methods, {
  getters = {
    ready = function(state)
      return #state.ready
    end,
  },
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    return ("sandbar.Pool %d of %d (%s)"):format(#state.ready, state.size, state.closed and "closed" or "open")
  end,
})

function pool.new(opts)
  opts = common.options("pool", opts, OPTIONS, 2)
  if opts.size < 1 or opts.size > MOST then
    return common.invalid("pool", ("size: %d is not from 1 to %d"):format(opts.size, MOST))
  end
  local spec, err = common.spec("pool", opts.provider, opts.spec, { "id" }, {}, 2)
  if not spec then
    return nil, err
  end
  local state = {
    provider = opts.provider, spec = spec, size = opts.size, lifetime = spec.lifetime or DEFAULT_LIFETIME,
    ready = {}, making = 0, idle = wait.signal(),
  }
  fill(state)
  return core.handle(class, state)
end

return pool
