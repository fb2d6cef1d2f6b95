-- What a sandbox uses: a sample of now, or the samples that were taken in a time.

local errors = require "sandbar.errors"

local metrics = {}

metrics.SCHEMA = { start = "number", ["end"] = "number", timeout = "timeout" }

-- `before`: an earlier sample, for what was used since.
local function sample(fields, before)
  local at, cpu = fields.ms / 1000, fields.cpu_us and fields.cpu_us / 1e6
  local percent
  -- A sandbox that was started anew counts anew.
  if cpu and before and before.cpu and at > before.at and cpu >= before.cpu then
    percent = (cpu - before.cpu) / (at - before.at) * 100
  end
  return {
    at = at,
    cpu = cpu,
    cpu_percent = percent,
    memory = fields.memory,
    disk = fields.size,
    processes = fields.count,
    network = { sent = fields.sent, received = fields.received },
  }
end

local function milliseconds(what, value, otherwise)
  if value == nil then
    return otherwise
  end
  if not (value >= 0 and value < 1e12) then
    return nil, errors.new {
      kind = "InvalidArgument", op = "metrics", clause = what,
      message = ("%s: %s is no time, in seconds since 1970"):format(what, tostring(value)),
    }
  end
  return math.floor(value * 1000)
end

-- `state`: a table to remember the last sample in. Without start and end a sample, else an array of them.
function metrics.get(driver, id, opts, timeout, state)
  if driver.metrics then -- samples of its own making
    return driver:metrics(id, opts, timeout)
  end
  if opts.start == nil and opts["end"] == nil then
    local r, err = driver:request("metrics", timeout, "metrics", { id = id })
    if not r then
      return nil, err
    end
    state.sample = sample(r.fields, state.sample)
    return state.sample
  end
  local from, err = milliseconds("start", opts.start, 0)
  local to
  if from then
    to, err = milliseconds("end", opts["end"], 1e15)
  end
  if not to then
    return nil, err
  end
  local r
  r, err = driver:request("metrics", timeout, "metrics", { id = id, started_ms = from, ends_ms = to })
  if not r then
    return nil, err
  end
  local out = {}
  for i, fields in ipairs(r.parts or {}) do
    out[i] = sample(fields, out[i - 1])
  end
  return out
end

return metrics
