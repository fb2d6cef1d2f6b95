-- Scope states and how they close: newest entry first, each one run whatever became of the others, all with
-- the same exit, shielded from cancellation and bounded by close_timeout. scope.lua is the handle around it.
--
-- Entries: { run = function(exit) -> true | nil, err, or raises; native = failures are the runtime's to
-- report; flatten = an Aggregate it fails with stands for its reasons; handle = kept alive by the entry; child =,
-- task = what it is for }.

local context = require "sandbar.context"
local errors = require "sandbar.errors"
local exit = require "sandbar.exit"
local host_of = require "sandbar.host.select"
local nested = require "sandbar.nested"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local closing = {}

local TRIES = 3 -- how often the closing goes on after an interrupt of the program hit between two finalizers

local last_id = 0

function closing.new(parallel, close_timeout)
  last_id = last_id + 1
  return {
    id = last_id, _status = "open", _entries = {}, _top = 0, _failed = {},
    _parallel = parallel, _close_timeout = close_timeout or context.close_timeout, _closed = wait.signal(),
    _abandoned = closing.abandoned,
  }
end

-- ---- entries ----

--- Adds an entry on top. The caller has made sure that the scope is open.
function closing.add(s, entry)
  local at = s._top + 1
  entry.scope, entry.at = s, at
  s._entries[at] = entry
  s._top = at
  local leash = s._leash
  if leash then
    s._leash = nil
    s._unleash = leash(s, closing.abandoned)
  end
  return entry
end

--- Takes an entry out; false if it is not there any more.
function closing.remove(s, entry)
  if entry.scope ~= s or s._entries[entry.at] ~= entry then
    return false
  end
  s._entries[entry.at] = nil
  while s._top > 0 and s._entries[s._top] == nil do
    s._top = s._top - 1
  end
  return true
end

--- How many there are.
function closing.count(s)
  local n = 0
  for at = 1, s._top do
    if s._entries[at] then
      n = n + 1
    end
  end
  return n
end

-- ---- running them ----

-- Takes the newest entry out. It is noted down until it is started: an interrupt of the program may raise in
-- between, and must not lose it.
local function take_newest(s)
  if s._taken and s._taken.begun then
    s._taken = nil
  end
  while not s._taken and s._top > 0 do
    local newest = s._entries[s._top]
    s._taken = newest
    if not newest then
      s._top = s._top - 1
    end
  end
  local entry = s._taken
  if entry then
    closing.remove(s, entry)
  end
  return entry
end

local function start_entry(entry, how)
  if entry.begun then
    return true
  end
  entry.begun = true
  return entry.run(how)
end

-- Runs one entry and gathers what went wrong.
local function run_entry(entry, how, reasons)
  local r = nested.try(start_entry, entry, how)
  if not entry.native then
    local ended = exit.of(r)
    if not ended.ok then
      local first = ended.reasons[1]
      local parts = entry.flatten and errors.is(first.error, "Aggregate") and first.error.reasons
      exit.merge(reasons, parts or ended.reasons)
    end
  elseif not r.ok then
    host_of.current().report("a release failed: " .. tostring(r.error) .. (r.traceback or ""))
  end
end

local function run_sequential(s, reasons)
  local entry = take_newest(s)
  while entry do
    run_entry(entry, s._exit, reasons)
    entry = take_newest(s)
  end
end

-- Starts all of them as tasks, newest first, and waits for all. Reasons keep the order of starting.
local function run_parallel(s, reasons, frame)
  local running = s._running or {}
  s._running = running
  local entry = take_newest(s)
  while entry do
    local this, found = entry, {}
    local t = task.new(function()
      run_entry(this, s._exit, found)
      return true
    end, { n = 0 }, frame)
    running[#running + 1] = { task = t, reasons = found }
    if task.start(t) then
      s._taken = nil
    else
      run_entry(this, s._exit, found)
    end
    entry = take_newest(s)
  end
  for _, one in ipairs(running) do
    if one.task._started then
      local ok, err = wait.on(one.task._ended, nil, "close")
      if not ok then
        exit.merge(reasons, { exit.reason("failure", err) })
      end
    end
    exit.merge(reasons, one.reasons)
  end
end

-- Failures of tasks that had ended before and whose result nobody asked for.
local function failed_tasks(s, reasons)
  for _, t in ipairs(s._failed) do
    if not t._observed then
      t._observed = true
      exit.merge(reasons, exit.from_task(t))
    end
  end
  s._failed = {}
end

-- The closing proper, in a context that can wait.
local function close_in(s, ctx)
  local reasons = {}
  s._closer = ctx
  failed_tasks(s, reasons)
  local frame = context.enter(ctx, s._close_timeout, s)
  for _ = 1, TRIES do
    local r = nested.try(s._parallel and run_parallel or run_sequential, s, reasons, frame)
    if r.ok then
      break
    end
    exit.merge(reasons, { exit.reason("defect", r.error, r.traceback) })
  end
  context.leave(ctx, frame)
  failed_tasks(s, reasons)
  if s._unleash then
    s._unleash()
  end
  s._reasons, s._closer = reasons, nil
  s._status = "closed"
  if s._link then
    closing.remove(s._link.scope, s._link)
    s._link = nil
  end
  wait.fire(s._closed)
end

-- Is `inner` the scope itself or somewhere below it, by forks?
local function within(inner, s)
  while inner do
    if inner == s then
      return true
    end
    inner = inner._link and inner._link.scope
  end
  return false
end

-- In a task of its own, for those who cannot wait. Up to its first wait it runs at once.
local function close_apart(s)
  s._apart = true
  local t = task.new(function()
    close_in(s, host_of.current().context())
  end, { n = 0 })
  if not task.start(t, true, true) then
    close_in(s, host_of.current().context())
  end
end

--- Closes with this exit. The reasons its finalizers failed for (an empty list: none), or nil and an error.
--- Where one cannot wait the closing goes on by itself: an empty list, and the state stays "closing".
function closing.close(s, how)
  if s._status == "closed" then
    return s._reasons
  end
  local host = host_of.current()
  local ctx = host.context()
  if context.in_finalizer(ctx, function(inner) return within(inner, s) end) then
    return nil, errors.new {
      kind = "Busy", op = "close", message = "a finalizer cannot close the scope it belongs to",
    }
  end
  if s._status == "closing" then
    local ok, err = wait.on(s._closed, nil, "close")
    if not ok then
      return nil, err
    end
    return s._reasons
  end
  s._status, s._exit = "closing", how
  if host.can_wait() then
    close_in(s, ctx)
  else
    close_apart(s)
  end
  return s._reasons or {}
end

-- Tasks whose threads ended with their request: nobody would ever hear of them.
local function bury_tasks(s)
  for at = 1, s._top do
    local entry = s._entries[at]
    if entry and entry.task then
      task.bury(entry.task, "its request has ended")
    elseif entry and entry.child then
      bury_tasks(entry.child)
    end
  end
end

--- The handle was collected while it was open, or the request it belonged to has ended: it is closed in a
--- task of its own. One whose closer went with the request is closed for the rest.
function closing.abandoned(s)
  local host = host_of.current()
  local orphaned = host.tasks_die and s._status == "closing" and not s._apart
  if s._status ~= "open" and not orphaned then
    return
  end
  if host.tasks_die then
    bury_tasks(s)
  end
  local err = errors.new { kind = "Closed", op = "close", message = "the scope was lost without being closed" }
  local t = task.new(function()
    s._apart = true
    local reasons
    if orphaned then
      close_in(s, host.context())
      reasons = s._reasons
    else
      reasons = closing.close(s, { ok = false, reasons = { exit.reason("interrupted", err) } })
    end
    if reasons and #reasons > 0 then
      local failure = errors.aggregate(reasons)
      if not exit.interrupted(reasons) then -- else it is raised
        host.report("closing a lost scope: " .. tostring(failure))
      end
      return nil, failure
    end
  end, { n = 0 })
  t._observed = true -- it has said what there is to say
  task.start(t, true)
end

-- ---- kinds of entries ----

--- A child scope, closed with its parent. The handles hold each other: keeping one keeps both.
function closing.fork(s, parent_handle, child, child_handle)
  child._leash = nil -- the parent's is enough
  child._parent_handle = parent_handle
  child._link = closing.add(s, {
    child = child, handle = child_handle, flatten = true,
    run = function(how)
      local reasons, err = closing.close(child, how)
      if reasons and #reasons > 0 then
        return nil, errors.aggregate(reasons, "close")
      end
      return reasons ~= nil or nil, err
    end,
  })
end

-- Asks the task to stop and waits for it, unless it is the one that closes the scope.
local function stop_task(t)
  local ctx = host_of.current().context()
  local own = t._ctx == ctx or context.in_finalizer(ctx, function(inner) return inner._closer == t._ctx end)
  if own then
    return true
  end
  if not t._started then -- an interrupt of the program hit before that
    task.bury(t, "its scope was closed")
    return true
  end
  task.cancel(t, "its scope was closed")
  local ok, err = task.join(t, nil, "close")
  if not ok then
    return nil, err
  end
  if t._status == "failed" and not t._observed then
    t._observed = true
    return nil, errors.aggregate(exit.from_task(t), "spawn")
  end
  return true
end

--- A task that ends with the scope at the latest. It takes itself out when it ends by itself.
function closing.spawn(s, fn, args)
  if s._status ~= "open" then
    return task.stillborn("its scope is closed")
  end
  local t = task.new(fn, args)
  local entry
  t._on_end = function()
    if closing.remove(s, entry) and t._status == "failed" then
      s._failed[#s._failed + 1] = t
    end
  end
  t._on_observed = function()
    for i = #s._failed, 1, -1 do
      if s._failed[i] == t then
        table.remove(s._failed, i)
      end
    end
  end
  entry = closing.add(s, {
    task = t, flatten = true,
    run = function()
      return stop_task(t)
    end,
  })
  local ok, err = task.start(t)
  if not ok then
    closing.remove(s, entry)
    return nil, err
  end
  return t
end

--- Runs a late finalizer at once, with the exit the scope was closed with; what it raises is the caller's.
function closing.run_late(s, run)
  local ctx = host_of.current().context()
  local frame = context.enter(ctx, s._close_timeout)
  local r = nested.try(run, s._exit)
  context.leave(ctx, frame)
  return exit.pass_on(r)
end

return closing
