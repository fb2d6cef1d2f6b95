-- Listing sandboxes: filters, and one iterator over all pages.

local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local record = require "sandbar.record"
local values = require "sandbar.local.values"

local PAGE = 100
local STATES = { running = true, paused = true, gone = true, failed = true }

local listing = {}

-- `opts` of each and list -> what the engine filters by.
local function filter_of(opts, op)
  local labels, err = values.check_labels(opts.labels or {}, "labels")
  if not labels then
    return nil, errors.from(err, op)
  end
  local states = opts.state
  if type(states) == "string" then
    states = { states }
  end
  for _, name in ipairs(states or {}) do
    if not STATES[name] then
      return nil, errors.new {
        kind = "InvalidArgument", op = op,
        message = ("state: %q is none of running, paused, gone, failed"):format(tostring(name)),
      }
    end
  end
  local size = opts.page_size or PAGE
  if size < 1 or size > 1000 then
    return nil, errors.new {
      kind = "InvalidArgument", op = op, message = "page_size: not between 1 and 1000",
    }
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
  local it = { at = 1, page = {}, more = true }
  return iterator.new(function()
    while it.at > #it.page do
      if not it.more then
        return nil
      end
      local page, after = driver:page(filter, it.after, deadline and link.left(deadline) or timeout)
      if not page then
        return nil, link.told(after, timeout)
      end
      it.page, it.at, it.after, it.more = page, 1, after, after ~= nil
    end
    it.at = it.at + 1
    return record.sandbox(it.page[it.at - 1])
  end, it)
end

return listing
