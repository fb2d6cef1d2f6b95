-- Watches: the contract's events as the protocol has them, given to a stream as they come or kept for those who poll.

local connect = require "sandbar.server.connect"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local task = require "sandbar.task"
local tree = require "sandbar.server.envd.tree"

local MOST = 100000 -- events kept for one who does not ask for them

local watching = {}

local TYPES = {
  create = "EVENT_TYPE_CREATE", write = "EVENT_TYPE_WRITE", remove = "EVENT_TYPE_REMOVE", rename = "EVENT_TYPE_RENAME",
  chmod = "EVENT_TYPE_CHMOD",
}
local WITH_ENTRY = { create = true, write = true, chmod = true }

local function event_of(box, base, event, with)
  local out = { name = encode.text(event.path), type = TYPES[event.type] }
  if with and WITH_ENTRY[event.type] then
    out.entry = tree.entry(box, event.path == "." and base or base .. "/" .. event.path)
  end
  return out
end

--- Hands events to `give` until it gives nil or the watch is at its end; then `ended(err)` is called, err nil at a
--- plain end.
function watching.begin(box, watch, base, with, give, ended)
  base = base == "/" and "" or base
  task.spawn(function()
    while true do
      local event, err = watch:next()
      if not event then
        return ended(err)
      elseif event.type == "overflow" then
        return ended(connect.failure("resource_exhausted", "changes came faster than they were read"))
      elseif not give(event_of(box, base, event, with)) then
        return nil
      end
    end
  end)
end

local function unknown(id)
  return nil, connect.failure("not_found", ("watcher with id %s not found"):format(encode.text(id)))
end

--- A watcher for polling: its id.
function watching.create(entry, box, watch, base, with)
  local id = ids.watcher()
  local watcher = { watch = watch, events = {} }
  entry.watchers[id] = watcher
  watching.begin(box, watch, base, with, function(event)
    if #watcher.events >= MOST then
      watcher.err = connect.failure("resource_exhausted", ("more than %d events were not asked for"):format(MOST))
      watch:close()
      return nil
    end
    watcher.events[#watcher.events + 1] = event
    return true
  end, function(err)
    watcher.err = err
  end)
  return id
end

function watching.drain(entry, id)
  local watcher = entry.watchers[id]
  if not watcher then
    return unknown(id)
  elseif watcher.err and #watcher.events == 0 then
    return nil, watcher.err
  end
  local events = watcher.events
  watcher.events = {}
  return events
end

function watching.remove(entry, id)
  local watcher = entry.watchers[id]
  if not watcher then
    return unknown(id)
  end
  entry.watchers[id] = nil
  watcher.watch:close()
  return true
end

return watching
