-- What has happened to sandboxes and in them, for their logs: as long as this server runs, and the last of it only. No
-- arguments of commands and no output: both may hold secrets.

local core = require "sandbar.core"

local MOST = 1000 -- entries of a sandbox
local SANDBOXES = 1000

local Journal = {}
Journal.__index = Journal

local journal = {}

-- The one that has been silent longest goes.
local function make_room(self)
  local oldest, at
  for id, list in pairs(self.lists) do
    if not at or list.last < at then
      oldest, at = id, list.last
    end
  end
  self.lists[oldest], self.count = nil, self.count - 1
end

--- Notes something. `fields`: { name = text }; `level`: "info" unless said.
function Journal:note(id, message, fields, level)
  local list = self.lists[id]
  if not list then
    if self.count == SANDBOXES then
      make_room(self)
    end
    list = { first = 1, n = 0 }
    self.lists[id], self.count = list, self.count + 1
  end
  list.n, list.last = list.n + 1, core.wall()
  list[list.n] = { at = list.last, message = message, fields = fields or {}, level = level or "info" }
  if list.n - list.first >= MOST then
    list[list.first], list.first = nil, list.first + 1
  end
end

--- The entries of a sandbox, the oldest first.
function Journal:of(id)
  local list, out = self.lists[id], {}
  for i = list and list.first or 1, list and list.n or 0 do
    out[#out + 1] = list[i]
  end
  return out
end

--- The sandbox is gone, and nobody may ask for it.
function Journal:forget(id)
  if self.lists[id] then
    self.lists[id], self.count = nil, self.count - 1
  end
end

function journal.new()
  return setmetatable({ lists = {}, count = 0 }, Journal)
end

return journal
