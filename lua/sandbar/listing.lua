-- Listing sandboxes: filters, and one iterator over all pages.

local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local record = require "sandbar.record"
local values = require "sandbar.values"

local PAGE = 100
local STATES = { running = true, paused = true, gone = true, failed = true }

local listing = {}

-- Why `states` is no list of states, or nil. One that says nothing would match everything.
local function flaw(states)
  local n = 0
  for _, name in pairs(states) do
    if not STATES[name] then
      return ("state: %s is none of running, paused, gone, failed"):format(errors.quoted(tostring(name)))
    end
    n = n + 1
  end
  return (n == 0 or n ~= #states) and "state: not a list with something in it" or nil
end

-- `opts` of each and list -> what the engine filters by.
local function filter_of(opts, op)
  local labels, err = values.check_labels(opts.labels or {}, "labels")
  if not labels then
    return nil, errors.from(err, op)
  end
  local function refused(message)
    return nil, errors.new { kind = "InvalidArgument", op = op, message = message }
  end
  local states = opts.state
  if type(states) == "string" then
    states = { states }
  end
  local why = states and flaw(states)
  if why then
    return refused(why)
  end
  local size = opts.page_size or PAGE
  if size < 1 or size > 1000 then
    return refused "page_size: not between 1 and 1000"
  end
  if opts.limit and opts.limit < 1 then
    return refused "limit: not at least 1"
  end
  return { label = labels, state = states, page_size = size }
end

-- Every sandbox that matches; a page is asked for when the one before has been used up. `deadline`: of all pages, for
-- list; without it each step has `timeout` for itself.
function listing.each(driver, opts, op, timeout, deadline)
  local filter, err = filter_of(opts, op)
  if not filter then
    return nil, err
  end
  local it, been = { at = 1, page = {}, more = true }, {}
  return iterator.new(function()
    while it.at > #it.page do
      if not it.more then
        return nil
      end
      local page, after = driver:page(filter, it.after, deadline and link.left(deadline) or timeout)
      if not page then
        return nil, link.told(after, timeout)
      end
      if after then
        if been[after] then
          return nil, errors.new { kind = "Protocol", op = op, message = "the supervisor's list goes round in circles" }
        end
        been[after] = true
      end
      it.page, it.at, it.after, it.more = page, 1, after, after ~= nil
    end
    it.at = it.at + 1
    return record.sandbox(it.page[it.at - 1])
  end, it)
end

--- What an iterator still has, up to `limit`, as an array; nil and an error.
function listing.take(it, limit)
  local out = {}
  while #out < (limit or math.huge) do
    local info, err = it:next()
    if err then
      return nil, err
    elseif not info then
      break
    end
    out[#out + 1] = info
  end
  return out
end

return listing
