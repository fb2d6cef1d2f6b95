-- Metrics of teams: how many of its sandboxes run, and how many are started a second. Samples begin with the first
-- question, and go on until nobody has asked for an hour.

local boxes = require "sandbar.server.boxes"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local reply = require "sandbar.server.reply"
local stamp = require "sandbar.server.stamp"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local PERIOD = 15 -- seconds between two samples
local MOST = 2000 -- samples of a team
local UNASKED = 3600 -- seconds
local FIELDS = { concurrent_sandboxes = "concurrentSandboxes", sandbox_start_rate = "sandboxStartRate" }

local teams = {}

local refusal = reply.refusal

-- ---- samples ----

-- Adds one. True, or nil and an error.
local function sample(server, team, history)
  local list, err = server.provider:list { state = "running", labels = { [boxes.PREFIX .. "team"] = team } }
  if not list then
    return nil, err
  end
  local now, starts = core.wall(), server.boxes.starts[team] or 0
  local rate = (starts - history.starts) / math.max(now - history.at, 1)
  history.at, history.starts = now, starts
  local samples = history.samples
  samples[#samples + 1] = {
    timestamp = stamp.text(now), timestampUnix = math.floor(now), concurrentSandboxes = #list, sandboxStartRate = rate,
  }
  if #samples > MOST then
    table.remove(samples, 1)
  end
  return true
end

-- Goes on with them until nobody asks, or the server ends.
local function watch(server, team, history)
  while wait.sleep(PERIOD) and core.now() - history.asked < UNASKED do
    sample(server, team, history)
  end
  server.histories[team] = nil
end

-- A team's samples, which have one of the last seconds. Nil and an error.
local function samples_of(server, team)
  server.histories = server.histories or {}
  local history = server.histories[team]
  if not history then
    history = { samples = {}, starts = 0, at = server.boxes.began, asked = core.now() }
    server.histories[team] = history
    local err
    history.task, err = task.spawn(watch, server, team, history)
    if not history.task then
      server.histories[team] = nil
      return nil, err
    end
  end
  history.asked = core.now()
  if not history.samples[1] then
    local ok, err = sample(server, team, history)
    if not ok then
      return nil, err
    end
  end
  return history.samples
end

--- No more of them.
function teams.stop(server)
  for _, history in pairs(server.histories or {}) do
    history.task:cancel("the server ends")
  end
end

-- ---- endpoints ----

-- The samples a request asks for, or nil and a failure.
local function wanted(ctx)
  if not ids.is_uuid(ctx.params.team) then
    return nil, refusal(400, "validation error: the id of a team is a UUID")
  elseif ctx.params.team:lower() ~= ctx.team_id then
    return nil, refusal(403, "this team is not yours")
  end
  local bounds = {}
  for _, name in ipairs { "start", "end" } do
    local text = ctx.query[name]
    bounds[name] = text and text:match("^%d+$") and tonumber(text)
    if text and not bounds[name] then
      return nil, refusal(400, ("validation error: %s is no number of seconds"):format(name))
    end
  end
  local samples, err = samples_of(ctx.server, ctx.team)
  if not samples then
    return nil, err
  end
  local out = encode.array {}
  for _, one in ipairs(samples) do
    if one.timestampUnix >= (bounds.start or 0) and one.timestampUnix <= (bounds["end"] or math.huge) then
      out[#out + 1] = one
    end
  end
  return out
end

local function metrics(ctx)
  local out, err = wanted(ctx)
  if not out then
    return nil, err
  end
  return 200, out
end

local function most(ctx)
  local field = FIELDS[ctx.query.metric or ""]
  if not field then
    return nil, refusal(400, "validation error: metric is neither concurrent_sandboxes nor sandbox_start_rate")
  end
  local all, err = wanted(ctx)
  if not all then
    return nil, err
  end
  local now = core.wall()
  local out = { timestamp = stamp.text(now), timestampUnix = math.floor(now), value = 0 }
  for i, one in ipairs(all) do
    if i == 1 or one[field] > out.value then
      out = { timestamp = one.timestamp, timestampUnix = one.timestampUnix, value = one[field] }
    end
  end
  return 200, out
end

teams.routes = {
  ["GET /teams/{team}/metrics"] = metrics,
  ["GET /teams/{team}/metrics/max"] = most,
}

return teams
