-- A secret that has another value, or is gone, on its way to the sandboxes whose rules name it. Each has a task of its
-- own meanwhile, so that one that cannot take it at the moment holds no other one up, and is asked again until it has
-- it. One that sleeps gets it when it wakes.

local errors = require "sandbar.errors"
local nested = require "sandbar.nested"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local RETRY = 1 -- seconds

local Spread = {}
Spread.__index = Spread

local spread = {}

-- Has a sandbox use what its secrets are now. True, also where there is no need to any more; nil and a failure.
local function renew(self, id)
  local entry, err = self.boxes:running(id)
  if not entry then
    return not err or nil, err
  end
  return self.rules:apply(id, entry.box)
end

-- Until it has it, and everything that came since.
local function follow(self, id)
  local one = self.under_way[id]
  while one.asked do
    local asked = one.asked
    one.asked = nil
    local called, ok, err = nested.pcall(renew, self, id)
    if not called then
      ok, err = nil, errors.from(ok, "serve")
    end
    asked.err = err
    wait.fire(asked.tried)
    if not ok then
      one.asked = one.asked or { tried = wait.signal() }
      if not wait.sleep(self.retry) then
        break
      end
    end
  end
  self.under_way[id] = nil
  if one.asked then
    wait.fire(one.asked.tried)
  end
end

-- Begins it: what is known of the next try.
local function begin(self, id)
  local one = self.under_way[id]
  if not one then
    one = { asked = { tried = wait.signal() } }
    self.under_way[id] = one
    local asked, started, err = one.asked, task.spawn(follow, self, id)
    one.task = started
    if not started then
      self.under_way[id], asked.err = nil, err
      wait.fire(asked.tried)
    end
    return asked
  end
  one.asked = one.asked or { tried = wait.signal() }
  return one.asked
end

--- Has these sandboxes use what their secrets are now, and waits until each has been asked. True, or nil and the first
--- failure: that one is asked again, until it has it.
function Spread:to(ids)
  local asked, first = {}, nil
  for i, id in ipairs(ids) do
    asked[i] = begin(self, id)
  end
  for i, id in ipairs(ids) do
    local ok, err = wait.on(asked[i].tried, nil, "serve")
    err = not ok and err or asked[i].err
    if err and not self.boxes.is_away(err, id) then
      first = first or err
    end
  end
  return not first or nil, first
end

--- All sandboxes whose rules name secrets: a server before may have ended on the way.
function Spread:begin()
  for _, id in ipairs(self.rules:naming()) do
    begin(self, id)
  end
end

--- Ends it. What is not done then is the next server's.
function Spread:shut()
  for _, one in pairs(self.under_way) do
    one.task:cancel "the server ends"
  end
end

--- `retry`: seconds until one that failed is asked again.
function spread.new(rules, boxes, retry)
  return setmetatable({ rules = rules, boxes = boxes, retry = retry or RETRY, under_way = {} }, Spread)
end

return spread
