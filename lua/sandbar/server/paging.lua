-- Pages of a list that is in memory: `limit` of the query, and where the next page begins as its token. And what other
-- calls are asked in numbers.

local encode = require "sandbar.server.encode"
local reply = require "sandbar.server.reply"

local MOST = 100
local MOST_EXACT = 2 ^ 53 -- of whole numbers

local paging = {}

--- The whole number of a query's parameter, `default` where it has none; nil and a refusal.
function paging.number(query, name, default)
  local text = query[name]
  local value = text == nil and default or text and text:match("^%d+$") and tonumber(text)
  if not value or text and value > MOST_EXACT then
    return nil, reply.refusal(400, ("validation error: %s is no number"):format(name))
  end
  return value
end

--- The page of `all` that a query asks for: an array and headers, or nil and a refusal.
function paging.page(all, query)
  local limit = tonumber(query.limit or MOST) or 0
  local from = tonumber(query.nextToken or 0)
  if limit < 1 or limit > MOST or limit % 1 ~= 0 then
    return nil, reply.refusal(400, ("validation error: limit is not between 1 and %d"):format(MOST))
  elseif not from or not (from >= 0 and from % 1 == 0) then
    return nil, reply.refusal(400, "Invalid next token")
  end
  local out = encode.array {}
  for i = from + 1, math.min(from + limit, #all) do
    out[#out + 1] = all[i]
  end
  local headers = { ["access-control-expose-headers"] = "X-Next-Token" }
  if from + limit < #all then
    headers["x-next-token"] = ("%d"):format(from + limit)
  end
  return out, headers
end

return paging
