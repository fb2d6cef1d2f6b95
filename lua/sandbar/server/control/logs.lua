-- Logs of sandboxes, of both generations: what the journal has.

local encode = require "sandbar.server.encode"
local paging = require "sandbar.server.paging"
local reply = require "sandbar.server.reply"
local sandboxes = require "sandbar.server.control.sandboxes"
local stamp = require "sandbar.server.stamp"

local MOST = 1000
local MAX_SEARCH = 256
local LEVELS = { debug = 1, info = 2, warn = 3, error = 4 }

local logs = {}

local refusal = reply.refusal

local function limit_of(query)
  local limit, err = paging.number(query, "limit", MOST)
  if limit and limit > MOST then
    return nil, refusal(400, ("validation error: limit is above %d"):format(MOST))
  end
  return limit, err
end

local function described(entry)
  return {
    timestamp = stamp.text(entry.at), message = encode.text(entry.message), level = entry.level, fields = entry.fields,
  }
end

-- The form the first generation has beside: clients take the text for an object, and show its fields.
local function line_of(entry)
  local out = { level = entry.level, logger = "sandbar", message = entry.message }
  for name, value in pairs(entry.fields) do
    out[name] = value
  end
  return { timestamp = stamp.text(entry.at), line = encode.value(out) }
end

local function at(entry)
  return math.floor(entry.at * 1000)
end

local function old(ctx)
  local start, err = paging.number(ctx.query, "start", 0)
  local limit
  if start then
    limit, err = limit_of(ctx.query)
  end
  local info
  if limit then
    info, err = sandboxes.find(ctx)
  end
  if not info then
    return nil, err
  end
  local lines, entries = encode.array {}, encode.array {}
  for _, entry in ipairs(ctx.server.boxes.journal:of(info.id)) do
    if at(entry) >= start and #lines < limit then
      lines[#lines + 1], entries[#entries + 1] = line_of(entry), described(entry)
    end
  end
  return 200, { logs = lines, logEntries = entries }
end

-- What a query asks for: { limit, backward, cursor, least, search }, or nil and a refusal.
local function wanted(query)
  local limit, err = limit_of(query)
  local direction, search = query.direction or "backward", query.search or ""
  local least = LEVELS[query.level or "debug"]
  if not limit then
    return nil, err
  elseif direction ~= "forward" and direction ~= "backward" then
    return nil, refusal(400, "validation error: direction is neither forward nor backward")
  elseif not least then
    return nil, refusal(400, "validation error: there is no such level")
  elseif #search > MAX_SEARCH then
    return nil, refusal(400, "validation error: search is too long")
  end
  local backward = direction == "backward"
  local cursor
  cursor, err = paging.number(query, "cursor", backward and math.huge or 0)
  if not cursor then
    return nil, err
  end
  return { limit = limit, backward = backward, cursor = cursor, least = least, search = search }
end

local function list(ctx)
  local want, err = wanted(ctx.query)
  local info
  if want then
    info, err = sandboxes.find(ctx)
  end
  if not info then
    return nil, err
  end
  local every, out = ctx.server.boxes.journal:of(info.id), encode.array {}
  for i = 1, #every do
    local entry = every[want.backward and #every - i + 1 or i]
    local near = at(entry) >= want.cursor
    if want.backward then
      near = at(entry) <= want.cursor
    end
    if near and #out < want.limit and LEVELS[entry.level] >= want.least
      and entry.message:find(want.search, 1, true) then
      out[#out + 1] = described(entry)
    end
  end
  return 200, { logs = out }
end

logs.routes = {
  ["GET /sandboxes/{id}/logs"] = old,
  ["GET /v2/sandboxes/{id}/logs"] = list,
}

return logs
