-- Who a process of a hosted sandbox is. Its number is somebody else's once it has ended, after a new boot at the
-- latest. What this library has started has a token (request.lua); anybody else is known by the run of the sandbox and
-- when it began. `to` is a link.

local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"

local listed = lazy "sandbar.e2b.listed"

local who = {}

--- Which run of the sandbox this is, or nil and an error: asked once, until it is known to have changed. What was
--- started in a later one than that counts as ended by then, as far as only its number would tell.
function who.run(to, timeout)
  local deadline = link.deadline(timeout)
  while not to.run do
    local asked = to.forgotten
    local run, err = listed.identify(to.rpc, 1, link.left(deadline), "start")
    if err and not run then
      return nil, err
    elseif to.forgotten == asked then -- else it is of a run that may be over
      to.run = run or "?"
    end
  end
  return to.run
end

--- It may be another one now.
function who.forget(to)
  to.run, to.forgotten = nil, (to.forgotten or 0) + 1
end

--- What tells a process from others, shared by all who know it. `one`: pid, token (nil: it has none), run ("": not
--- known) and ticks (when it began); its `serial` stands for it in requests.
function who.know(to, one)
  local serial = one.token or ("%d.%s.%s"):format(one.pid, one.run, one.ticks)
  local known = to.known[serial]
  if not known then
    known = one
    known.serial = serial
    to.known[serial] = known
  end
  return known
end

--- See listed.is_there.
function who.is_there(to, one, timeout, op)
  local there, err = listed.is_there(to.rpc, one, timeout, op)
  if there == nil then
    return nil, errors.from(to:judge(err), op)
  end
  return there
end

--- A release that ends it and its group.
function who.release(to, one)
  if one.token then
    return to.rpc:killer(one.run):release(one.token, one.pid)
  end
  return to.rpc:killer(one.run, one.ticks):release(nil, one.pid)
end

--- The same as helper.lua takes it, by the serial: with a token it is looked for now. Nil and an error.
function who.meant(to, serial, timeout, op)
  local one = to.known[serial]
  local pid = ("%d"):format(one.pid)
  if not one.token then
    return { pid = pid, run = one.run, ticks = one.ticks }
  end
  local listed_as, err = listed.pid_of(to.rpc, one.token, timeout, op)
  if err then
    return nil, err
  elseif listed_as then
    return { pid = ("%d"):format(listed_as) }
  end
  return { pid = pid, run = one.run, ticks = "-" }
end

return who
