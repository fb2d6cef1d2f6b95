-- What a hosted sandbox has used, and what its vendor has logged of it.

local errors = require "sandbar.errors"
local fields = require "sandbar.e2b.record"

local measured = {}

local LEVELS = { debug = true, info = true, warn = true, error = true }
local DIRECTIONS = { forward = true, backward = true }
local MOST_LOGS, MOST_SEARCH = 1000, 256

local function sample(value)
  return {
    at = tonumber(value.timestampUnix) or fields.time(value.timestamp),
    cpu_percent = tonumber(value.cpuUsedPct),
    cpus = tonumber(value.cpuCount),
    memory = tonumber(value.memUsed),
    memory_total = tonumber(value.memTotal),
    disk = tonumber(value.diskUsed),
    disk_total = tonumber(value.diskTotal),
  }
end

local function invalid(op, id, message)
  return nil, errors.new { kind = "InvalidArgument", op = op, id = id, message = message }
end

--- The last sample, or with start or end (seconds since 1970) an array of them, oldest first. nil without any: the
--- vendor takes one every few seconds.
function measured.metrics(about, driver, id, opts, timeout)
  local query = {}
  for _, name in ipairs { "start", "end" } do
    local at = opts[name]
    if at and not (at >= 0 and at < 1e12) then
      return invalid("metrics", id, ("%s: %s is no time, in seconds since 1970"):format(name, tostring(at)))
    elseif at then
      query[#query + 1] = { name, ("%.0f"):format(at) }
    end
  end
  local value, err = about(driver, id, {
    op = "metrics", method = "GET", path = "/metrics", query = query, timeout = timeout, repeatable = true,
    array = true,
  })
  if not value then
    return nil, err
  end
  local out = {}
  for i, item in ipairs(value) do
    out[i] = sample(item)
  end
  if opts.start or opts["end"] then
    return out
  elseif not out[1] then
    return nil, errors.new { kind = "Unavailable", op = "metrics", id = id, message = "there is no sample yet" }
  end
  return out[#out]
end

--- Lines of the vendor's log: { at, level, message, fields }. start (seconds since 1970), limit, direction, level (at
--- least), search.
function measured.logs(about, driver, id, opts, timeout)
  local limit = opts.limit or MOST_LOGS
  if limit < 0 or limit > MOST_LOGS then
    return invalid("logs", id, ("limit: not between 0 and %d"):format(MOST_LOGS))
  elseif opts.level and not LEVELS[opts.level] then
    return invalid("logs", id, ("level: %q is none of debug, info, warn, error"):format(opts.level))
  elseif opts.direction and not DIRECTIONS[opts.direction] then
    return invalid("logs", id, ("direction: %q is neither forward nor backward"):format(opts.direction))
  elseif opts.search and #opts.search > MOST_SEARCH then
    return invalid("logs", id, ("search: longer than %d bytes"):format(MOST_SEARCH))
  elseif opts.start and not (opts.start >= 0 and opts.start < 1e12) then
    return invalid("logs", id, ("start: %s is no time, in seconds since 1970"):format(tostring(opts.start)))
  end
  local query = { { "limit", limit } }
  for _, pair in ipairs {
    { "cursor", opts.start and ("%.0f"):format(opts.start * 1000) }, { "direction", opts.direction },
    { "level", opts.level }, { "search", opts.search },
  } do
    query[#query + 1] = pair[2] and pair or nil
  end
  local value, err = about(driver, id, {
    op = "logs", method = "GET", path = "/logs", query = query, timeout = timeout, repeatable = true, prefix = "/v2",
  })
  if not value then
    return nil, err
  end
  local lines = value ~= true and fields.list(value.logs, "table")
  if not lines then
    return nil, errors.new { kind = "Protocol", op = "logs", id = id, message = "the answer has no log" }
  end
  local out = {}
  for i, item in ipairs(lines) do
    out[i] = { at = fields.time(item.timestamp), level = item.level, message = item.message,
      fields = type(item.fields) == "table" and item.fields or {} }
  end
  return out
end

return measured
