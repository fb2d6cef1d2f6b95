-- The host of nginx with Lua (OpenResty). Each wait parks its light thread on a semaphore; one pump per
-- worker, a light thread of a zero-delay timer, is connected to the core by a unix socket and posts the
-- semaphores of those whose operations are done. No polling, no blocked worker.
--
-- The pump lives while operations are pending, and a few seconds longer. Waiters are held weakly: when a
-- request dies, its light thread's stack was their only owner, and what it waited for is cancelled.

-- luacheck: globals ngx

local context = require "sandbar.context"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local inside_c = require "sandbar.host.inside_c"

local ngx = ngx

local openresty = { name = "openresty", waits = setmetatable({}, { __mode = "v" }) }

local waits = openresty.waits
local leashes = {} -- operation id -> what to do when the request has ended

local IDLE_SECONDS = 5 -- the pump leaves after that long without work
local WATCH_SECONDS = 60 -- how long one timer of the exit watcher stands
local BROKEN_SECONDS = 1 -- how long to poll before the pump is tried again
local POLL_MIN, POLL_MAX = 0.001, 0.01
local DAY = 86400
local FOREVER_MS = 2 ^ 31 - 1
local SPARES = 64

-- Where nginx lets a light thread sleep.
local CAN_WAIT = {
  rewrite = true, server_rewrite = true, access = true, content = true, timer = true, preread = true,
  ssl_cert = true, ssl_client_hello = true, ssl_session_fetch = true,
}

local pump_state = "none" -- none, starting, running
local exiting, watching, idle_armed = false, false, false
local broken_until, last_work = 0, 0
local semaphore -- ngx.semaphore, loaded at the first wait
local spares, spare_count = {}, 0

function openresty.report(message)
  ngx.log(ngx.ERR, "sandbar: ", core.redact(message))
end

-- Of an error that is no text nginx says "unknown reason". So it is logged here, unless there is a protected call
-- around it that it may end in.
function errors.raised(err)
  if type(err) ~= "table" then
    return
  end
  local level = 2
  local frame = debug.getinfo(level, "f")
  while frame do
    if frame.func == pcall or frame.func == xpcall then
      return
    end
    level = level + 1
    frame = debug.getinfo(level, "f")
  end
  local where = rawget(err, "where")
  openresty.report(("nobody caught %s%s"):format(where and where .. ": " or "", tostring(err)))
end

-- ---- who waits ----

local CONTEXTS = setmetatable({}, { __tostring = function() return "sandbar contexts" end })

-- The contexts of this request by light thread. Kept with the request, because nginx uses the coroutines
-- of ended requests again.
local function contexts()
  local store = ngx.ctx[CONTEXTS]
  if not store then
    store = {}
    ngx.ctx[CONTEXTS] = store
  end
  return store
end

function openresty.context()
  if not CAN_WAIT[ngx.get_phase()] then
    return context.new()
  end
  local store, co = contexts(), coroutine.running()
  local ctx = store[co]
  if not ctx then
    ctx = context.new()
    store[co] = ctx
  end
  return ctx
end

local INSIDE_C = "a wait cannot leave the C function it is inside of (table.sort, string.gsub, require); do the "
  .. "waiting outside of it"

function openresty.can_wait()
  local phase = ngx.get_phase()
  if CAN_WAIT[phase] then
    if inside_c() then
      return nil, INSIDE_C
    end
    return true
  end
  return nil, ("nginx allows no waiting in its %s phase; do it in ngx.timer.at(0, fn)"):format(phase)
end

function openresty.in_task()
  return true
end

-- ---- the pump ----

local start_pump

local function wake_all()
  for id, w in pairs(waits) do
    waits[id] = nil
    openresty.unpark(w)
  end
end

-- Takes in what has happened. Runs in whatever light thread asks: it must only post and start timers.
local function turn()
  local done = {}
  core.mailbox():drain(done)
  for i = 1, #done do
    local w = waits[done[i]]
    local leash = leashes[done[i]]
    if w then
      waits[done[i]] = nil
      openresty.unpark(w)
    elseif leash then
      leashes[done[i]] = nil
      leash()
    end
  end
  local states = core.abandoned()
  if states then
    for _, state in ipairs(states) do
      state._abandoned(state)
    end
  end
end

-- Asks the pump to leave once there has been nothing to do for a while.
local function arm_idle()
  if idle_armed then
    return
  end
  idle_armed = ngx.timer.at(IDLE_SECONDS, function(premature)
    idle_armed = false
    if premature or pump_state ~= "running" then
      return
    end
    if core.mailbox():pending() == 0 and ngx.now() - last_work >= IDLE_SECONDS then
      core.mailbox():nudge("i")
    else
      arm_idle()
    end
  end) and true or false
end

-- Connects to the core: the socket, or nil and why not.
local function connect()
  local path, e = core.mailbox():listen()
  if not path then
    return nil, e.message
  end
  local socket = ngx.socket.tcp()
  socket:settimeouts(1000, 1000, FOREVER_MS)
  local ok, err = socket:connect("unix:" .. path)
  if not ok then
    return nil, err
  end
  return socket
end

local function serve(socket)
  local mailbox = core.mailbox()
  turn() -- what was done before the connection stood
  while not (exiting and mailbox:pending() == 0) do
    local bytes, err = socket:receiveany(4096)
    if not bytes then
      return err
    end
    turn()
    last_work = ngx.now()
    if bytes:find("i", 1, true) and mailbox:pending() == 0 then
      return nil
    end
    if mailbox:pending() == 0 then
      arm_idle()
    end
  end
end

local function pump()
  local socket, why = connect()
  if socket then
    pump_state = "running"
    local ok, err = pcall(serve, socket)
    why = not ok and err or nil
    socket:close()
  end
  pump_state = "none"
  if why then
    broken_until = ngx.now() + BROKEN_SECONDS
    openresty.report("the pump stopped: " .. tostring(why))
    wake_all()
  elseif core.mailbox():pending() > 0 then
    start_pump()
  end
end

-- When a worker begins to leave, nginx fires its timers early: the pump then leaves as soon as nothing is
-- pending. Without this the worker would hang in the pump's read.
local function watch_exit()
  if watching then
    return
  end
  watching = ngx.timer.at(WATCH_SECONDS, function(premature)
    watching = false
    if premature then
      exiting = true
      core.mailbox():nudge("l")
    elseif pump_state ~= "none" then
      watch_exit()
    end
  end) and true or false
end

-- True, or nil: there can be no pump now (too many timers, or it has just failed).
function start_pump()
  if pump_state ~= "none" then
    return true
  end
  if ngx.now() < broken_until then
    return nil
  end
  pump_state = "starting"
  if not ngx.timer.at(0, pump) then
    pump_state = "none"
    return nil
  end
  watch_exit()
  return true
end

-- ---- parking ----

function openresty.waiter(ctx)
  local sem = spares[spare_count]
  if sem then
    spares[spare_count] = nil
    spare_count = spare_count - 1
  else
    semaphore = semaphore or require "ngx.semaphore"
    sem = semaphore.new(0)
  end
  return { host = openresty, ctx = ctx, sem = sem, posted = false, backoff = POLL_MIN }
end

function openresty.unpark(w)
  if not w.posted then
    w.posted = true
    w.sem:post(1)
  end
end

--- Until unpark(w), or a spurious return; nil and why it cannot be.
function openresty.park(w)
  if not w.posted and not start_pump() then
    ngx.sleep(w.backoff)
    w.backoff = math.min(w.backoff * 2, POLL_MAX)
    turn()
    return true
  end
  local ok, err = w.sem:wait(DAY)
  if ok then
    w.posted = false
  elseif err ~= "timeout" then
    return nil, err
  end
  return true
end

function openresty.release(w)
  if w.posted then
    w.sem:wait(0)
  end
  if spare_count < SPARES then
    spare_count = spare_count + 1
    spares[spare_count] = w.sem
  end
  w.sem = nil
  w.posted = true -- a late unpark finds nothing to do
end

-- ---- tasks ----

local function run_job(ctx, job)
  local store, co = contexts(), coroutine.running()
  store[co] = ctx
  job.run(job)
  store[co] = nil
end

--- Runs job:run() as a light thread of this request, or (detached, or where a request cannot have one) in a
--- zero-delay timer. True, or nil and why not.
function openresty.start(ctx, job, detached)
  if not detached and CAN_WAIT[ngx.get_phase()] then
    ngx.thread.spawn(run_job, ctx, job)
    return true
  end
  local ok, err = ngx.timer.at(0, function()
    run_job(ctx, job)
  end)
  if not ok then
    return nil, "no timer to run it in: " .. tostring(err)
  end
  return true
end

-- A light thread lives no longer than its request; those of a lost scope are gone with it.
openresty.tasks_die = true

-- ---- the leash: a scope ends with the request it was opened in ----

local REQUEST = { rewrite = true, server_rewrite = true, access = true, content = true }
local LEASH = setmetatable({}, { __tostring = function() return "sandbar leash" end })

-- One connection a request, which nginx closes when the request ends, however it does; the core tells. What
-- the request's threads were waiting for is cancelled then, its scopes are lost. nil where there is none.
local function leash_of_request()
  local leash = ngx.ctx[LEASH]
  if leash then
    return leash
  end
  local op, path = core.leash()
  if not op or not start_pump() then
    return nil
  end
  leash = { op = op, scopes = {} }
  local store = contexts()
  leashes[op:id()] = function()
    for _, ctx in pairs(store) do
      if ctx.source then
        ctx.source:stop()
      end
    end
    for s, lost in pairs(leash.scopes) do
      lost(s)
    end
  end
  local socket = ngx.socket.tcp()
  socket:settimeouts(1000, 1000, FOREVER_MS)
  if not socket:connect("unix:" .. path) then
    leashes[op:id()] = nil
    op:cancel()
    return nil
  end
  leash.socket = socket -- a collected one is closed
  ngx.ctx[LEASH] = leash
  return leash
end

--- Ties a scope to the running request: lost(s) is called when that has ended. Returns a function that takes
--- the leash off, or nil where there is none.
function openresty.leash(s, lost)
  if not REQUEST[ngx.get_phase()] then
    return nil
  end
  local leash = leash_of_request()
  if not leash then
    return nil
  end
  leash.scopes[s] = lost
  return function()
    leash.scopes[s] = nil
  end
end

return openresty
