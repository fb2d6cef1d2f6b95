-- The body of a request whose pieces come from an operation each, such as reads of a body that is passed on: its sender
-- waits for the next one only as long as who the body is for is there.

local wait = require "sandbar.wait"

local Source = {}
Source.__index = Source

local source = {}

--- begin() begins the wait for the next piece, take(op) gives it, nil at the end, or nil and an error.
function source.new(begin, take)
  return setmetatable({ begin = begin, take = take }, Source)
end

function source.is(v)
  return getmetatable(v) == Source
end

function Source:read()
  return self.take(self.begin())
end

--- The next piece, or nothing more once the request `under_way`, an operation, has failed.
function Source:next(under_way, timeout, opname)
  local op = self.begin()
  local ok, err = wait.any({ op, under_way }, timeout, opname)
  if not op:done() and (not ok or under_way:failed()) then
    op:cancel()
    return nil, err
  end
  return self.take(op)
end

return source
