-- Lists of sandboxes: filtered, in order, by pages; and what sandboxes use.

local boxes = require "sandbar.server.boxes"
local described = require "sandbar.server.control.described"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local machine = require "sandbar.server.machine"
local reply = require "sandbar.server.reply"
local router = require "sandbar.server.router"
local sandboxes = require "sandbar.server.control.sandboxes"
local stamp = require "sandbar.server.stamp"

local MOST = 100 -- of a page
local MICRO = 1000000

local listing = {}

local refusal = reply.refusal

-- ---- filters ----

-- The metadata that is asked for: a form in a form, each name and value escaped once more.
local function metadata_of(text)
  local out = {}
  if text == nil or text == "" then
    return out
  end
  local plain = router.unescape((text:gsub("+", " ")))
  if not plain then
    return nil
  end
  for pair in plain:gmatch("[^&]+") do
    local name, value = pair:match("^([^=]*)=([^=]*)$")
    name = name and router.unescape((name:gsub("+", " ")))
    value = value and router.unescape((value:gsub("+", " ")))
    if not name or not value then
      return nil
    end
    out[name] = value
  end
  return out
end

listing.metadata_of = metadata_of

local function states_of(text)
  local out = {}
  for state in (text or "running,paused"):gmatch("[^,]+") do
    if state ~= "running" and state ~= "paused" then
      return nil
    end
    out[state] = true
  end
  return out
end

-- Those of a team that fit: infos with metadata and own. Nil and an error.
local function matching(server, team, want)
  local labels = { [boxes.PREFIX .. "team"] = team }
  for name, value in pairs(want.metadata) do
    if name:sub(1, #boxes.PREFIX) == boxes.PREFIX then -- no metadata has such a name, and the team is one of them
      return {}
    end
    labels[name] = value
  end
  local list, err = server.provider:list { labels = labels }
  if not list then
    return nil, err
  end
  local out = {}
  for _, info in ipairs(list) do
    local state = info.state == "running" and "running" or "paused"
    info.metadata, info.own = boxes.split(info.labels)
    local template = want.template
    if want.states[state] and info.state ~= "gone" and info.state ~= "failed" and not server.boxes.dying[info.id]
      and (not want.after or math.floor((info.started_at or 0) * MICRO + 0.5) >= want.after)
      and (not template or info.own.template == template or info.own.alias == template) then
      out[#out + 1] = info
    end
  end
  return out
end

-- ---- order and pages ----

-- When one began, as a whole number of microseconds: cursors are exact.
local function began(info)
  return math.floor((info.started_at or 0) * MICRO + 0.5)
end

local function sorted(list, ascending)
  table.sort(list, function(a, b)
    local x, y = began(a), began(b)
    if x ~= y then
      return (x < y) == ascending
    end
    return a.id < b.id
  end)
  return list
end

local function cursor_of(info, ascending)
  return ("%.0f.%s%s"):format(began(info), info.id, ascending and ".asc" or "")
end

-- { at, id } of a cursor, or nil.
local function parse_cursor(text, ascending)
  local at, id, rest = text:match("^(%d+)%.([a-z0-9]+)(.*)$")
  if not at or (rest == ".asc") ~= ascending or rest ~= "" and rest ~= ".asc" then
    return nil
  end
  return { at = tonumber(at), id = id }
end

local function is_behind(info, cursor, ascending)
  local at = began(info)
  if at ~= cursor.at then
    return (at > cursor.at) == ascending
  end
  return info.id > cursor.id
end

-- What the query asks for, or nil and a failure.
local function wanted(query)
  local metadata, states = metadata_of(query.metadata), states_of(query.state)
  local limit = query.limit and (query.limit:match("^%d+$") and tonumber(query.limit) or 0) or MOST
  if not metadata then
    return nil, refusal(400, "validation error: metadata is not encoded as a form")
  elseif not states then
    return nil, refusal(400, "validation error: state is neither running nor paused")
  elseif limit < 1 or limit > MOST then
    return nil, refusal(400, "validation error: limit is not between 1 and 100")
  elseif query.order and query.order ~= "asc" and query.order ~= "desc" then
    return nil, refusal(400, "validation error: order is neither asc nor desc")
  end
  local want = { metadata = metadata, states = states, limit = limit, ascending = query.order == "asc" }
  if query.startedAfter then
    local at = stamp.seconds(query.startedAfter)
    if not at then
      return nil, refusal(400, "validation error: startedAfter is no time")
    end
    want.after = math.floor(at * MICRO + 0.5)
  end
  if query.template and query.template ~= "" then
    local ref, why = ids.reference(query.template)
    if not ref or ref.tag then
      return nil, refusal(400, why or "validation error: template has a tag")
    end
    want.template = ref.name
  end
  if query.nextToken and query.nextToken ~= "" then
    want.cursor = parse_cursor(query.nextToken, want.ascending)
    if not want.cursor then
      return nil, refusal(400, "Invalid next token")
    end
  end
  return want
end

local function list(ctx)
  local want, err = wanted(ctx.query)
  local found
  if want then
    found, err = matching(ctx.server, ctx.team, want)
  end
  if not found then
    return nil, err
  end
  sorted(found, want.ascending)
  local out, headers, last, running, more = encode.array {}, {}, nil, 0, false
  for _, info in ipairs(found) do
    running = running + (info.state == "running" and 1 or 0)
    if not want.cursor or is_behind(info, want.cursor, want.ascending) then
      if #out < want.limit then
        out[#out + 1], last = described.listed(info), info
      else
        more = true
      end
    end
  end
  headers["access-control-expose-headers"] = "X-Next-Token, X-Total-Running"
  headers["x-next-token"] = more and cursor_of(last, want.ascending) or nil
  headers["x-total-running"] = want.states.running and ("%d"):format(running) or nil
  return 200, out, headers
end

local function list_old(ctx)
  local metadata = metadata_of(ctx.query.metadata)
  if not metadata then
    return nil, refusal(400, "validation error: metadata is not encoded as a form")
  end
  local found, err = matching(ctx.server, ctx.team, { metadata = metadata, states = { running = true } })
  if not found then
    return nil, err
  end
  local out = encode.array {}
  for i, info in ipairs(sorted(found, false)) do
    out[i] = described.listed(info)
  end
  return 200, out
end

-- ---- what they use ----

local function sample(info, m)
  local cpus, memory, disk = machine.of(info)
  local percent = math.max(math.min((m.cpu_percent or 0) / cpus, 100), 0)
  return {
    timestamp = stamp.text(m.at), timestampUnix = math.floor(m.at), cpuCount = cpus,
    cpuUsedPct = math.floor(percent * 100 + 0.5) / 100, memUsed = m.memory or 0, memTotal = memory, memCache = 0,
    diskUsed = m.disk or 0, diskTotal = disk,
  }
end

local function time_of(text)
  return text and text:match("^%d+$") and tonumber(text) or nil
end

local function metrics(ctx)
  local info, err = sandboxes.find(ctx)
  if not info then
    return nil, err
  end
  local entry
  entry, err = ctx.server.boxes:running(info.id)
  if not entry then
    if err then
      return nil, err
    end
    return 200, encode.array {}
  end
  local series
  series, err = entry.box:metrics { start = time_of(ctx.query.start) or 0, ["end"] = time_of(ctx.query["end"]) }
  if not series then
    return nil, err
  end
  local out = encode.array {}
  for i, m in ipairs(series) do
    out[i] = sample(info, m)
  end
  return 200, out
end

local function metrics_of_many(ctx)
  local out, count = {}, 0
  for id in (ctx.query.sandbox_ids or ""):gmatch("[^,]+") do
    count = count + 1
    if count > MOST then
      return nil, refusal(400, "validation error: more than 100 sandbox_ids")
    end
    local info = ctx.server.boxes:info(ids.sandbox_of(id) or "", ctx.team)
    local entry = info and ctx.server.boxes:running(info.id)
    local m = entry and entry.box:metrics()
    if m then
      out[info.id] = sample(info, m)
    end
  end
  if count == 0 then
    return nil, refusal(400, "validation error: sandbox_ids is missing")
  end
  return 200, { sandboxes = out }
end

listing.routes = {
  ["GET /v2/sandboxes"] = list,
  ["GET /sandboxes"] = list_old,
  ["GET /sandboxes/metrics"] = metrics_of_many,
  ["GET /sandboxes/{id}/metrics"] = metrics,
}

return listing
