-- The server's sandboxes: which local ones are its own, whose they are, handles to them, and the exchanges that end
-- with them. What must survive a restart of the server is in labels whose names begin with PREFIX.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local journal = require "sandbar.server.journal"
local signature = require "sandbar.server.signature"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local PREFIX = "sandbar.serve/"
local LOOK_AFTER = 0.2 -- seconds after the end of a lifetime when we look whether it came

local boxes = { PREFIX = PREFIX }

local Boxes = {}
Boxes.__index = Boxes

--- Labels of a sandbox, apart: { metadata }, { what the server put by }.
function boxes.split(labels)
  local metadata, own = {}, {}
  for name, value in pairs(labels) do
    if name:sub(1, #PREFIX) == PREFIX then
      own[name:sub(#PREFIX + 1)] = value
    else
      metadata[name] = value
    end
  end
  return metadata, own
end

--- The token of the daemon in a sandbox, and the one of private traffic.
function Boxes:token(id)
  return signature.token(self.seed, "envd:" .. id)
end

function Boxes:traffic_token(id)
  return signature.token(self.seed, "traffic:" .. id)
end

--- What is known of a sandbox of ours, asked anew: provider:info with metadata and own beside. `team`: only one of that
--- team. Nil without an error when there is none.
function Boxes:info(id, team)
  local info, err = self.provider:info(id)
  if not info then
    if err.kind == "NotFound" or err.kind == "InvalidArgument" then
      return nil
    end
    return nil, err
  end
  info.metadata, info.own = boxes.split(info.labels)
  if not info.own.team or team and info.own.team ~= team or info.state == "gone" or self.dying[id] then
    return nil
  end
  return info
end

-- Lets go of those whose time is over: nobody may ask for them again.
local function sweep(self)
  local late, now = {}, core.wall()
  for _, entry in pairs(self.entries) do
    if (entry.info.ends_at or 0) + LOOK_AFTER < now and not next(entry.streams) then
      late[#late + 1] = entry
    end
  end
  for _, entry in ipairs(late) do
    local info, err = self:info(entry.id)
    if info then
      entry.info = info
    elseif not err then
      self:forget(entry.id)
    end
  end
end

--- The entry of one that runs: { id, info, box, streams, processes, watchers, note(message, fields, level) }. Nil
--- without an error when it does not run. `info`: what info() has just said of it.
function Boxes:running(id, info)
  local err
  if not info then
    info, err = self:info(id)
  end
  if not info and not err then
    self:forget(id)
  end
  if not info or info.state ~= "running" then
    return nil, err
  end
  local entry = self.entries[id]
  if entry and entry.info.boot_id ~= info.boot_id then -- started anew from its disk: nothing of before is left
    self:forget(id)
    entry = nil
  end
  if not entry then
    sweep(self)
    local box
    box, err = self.provider:connect(id)
    if not box then
      return nil, err.kind ~= "NotFound" and err or nil
    end
    entry = self.entries[id] -- another task may have been faster
    if entry then
      box:close()
    else
      entry = { id = id, box = box, streams = {}, processes = { list = {} }, watchers = {} }
      function entry.note(...)
        if not entry.gone then
          self.journal:note(id, ...)
        end
      end
      self.entries[id] = entry
    end
  end
  entry.info, entry.fresh = info, true
  return entry
end

-- ---- what ends with a sandbox ----

-- Ends what is open into it, without a last word: clients ask /health then.
local function cut(entry)
  for stream in pairs(entry.streams) do
    entry.streams[stream] = nil
    stream:cut()
  end
end

--- Cuts what is open into a sandbox: it was paused.
function Boxes:cut(id)
  local entry = self.entries[id]
  if entry then
    cut(entry)
  end
end

--- Lets go of a sandbox: what is open into it is cut, its handle closed.
function Boxes:forget(id)
  local entry = self.entries[id]
  if entry then
    self.entries[id] = nil
    cut(entry)
    entry.gone = true
    for _, process in pairs(entry.processes.list) do
      if process.handle then
        process.handle:close() -- who reads it, reads to no end otherwise
      end
    end
    entry.box:close()
  end
end

-- Looks after the end of its lifetime what has become of it, as long as something is open into it.
local function look_after(self, entry)
  local known = entry.fresh and entry.info -- of the request that has opened it
  while next(entry.streams) and not entry.gone do
    local info, err = known, nil
    if not info then
      info, err = self:info(entry.id)
    end
    known = nil
    if not info and not err then
      self:forget(entry.id)
    elseif info and info.state ~= "running" then
      cut(entry)
    else
      local left = info and info.ends_at and info.ends_at - core.wall() or 1
      entry.change = wait.signal()
      wait.on(entry.change, math.max(left, 0) + LOOK_AFTER, "serve")
    end
  end
  entry.looking = nil
end

--- Something is open into it from now on: `stream` has a method cut().
function Boxes:open(entry, stream)
  entry.streams[stream] = true
  if not entry.looking then
    entry.looking = true
    task.spawn(look_after, self, entry)
  end
end

function Boxes:close(entry, stream)
  entry.streams[stream] = nil
  if not next(entry.streams) and entry.change then
    wait.fire(entry.change)
  end
end

--- Its lifetime has been changed, or something else that shows when it ends.
function Boxes:changed(id)
  local entry = self.entries[id]
  if entry then
    entry.fresh = false
  end
  if entry and entry.change then
    wait.fire(entry.change)
  end
end

--- Destroys one. From the first moment on nobody finds it any more, then its connections end, then it.
function Boxes:destroy(id)
  self.dying[id] = true
  self:forget(id)
  local ok, err = self.provider:destroy(id)
  self.dying[id] = nil
  if ok then
    self.journal:forget(id)
  end
  return ok, err
end

--- Lets go of all handles. The sandboxes go on.
function Boxes:shut()
  while next(self.entries) do
    self:forget((next(self.entries)))
  end
end

--- One of a team's has been started.
function Boxes:count(team)
  self.starts[team] = (self.starts[team] or 0) + 1
end

function boxes.new(provider, seed)
  return setmetatable({
    provider = provider, seed = seed, entries = {}, dying = {}, journal = journal.new(),
    began = core.wall(), starts = {}, -- of each team, since then
  }, Boxes)
end

--- Is it about the sandbox as a whole: gone, or not running?
function Boxes.is_away(err, id)
  return errors.is(err) and (err.kind == "NotRunning" or err.kind == "NotFound" and err.id == id)
end

--- The same of what has failed with an entry: everything does whose handle has been closed meanwhile.
function Boxes.is_lost(entry, err)
  return entry.gone or Boxes.is_away(err, entry.id)
end

return boxes
