-- Lengths of time: seconds as a number, or a text with its unit ("90s", "10 minutes", "1h"). Nothing is
-- clamped or guessed: what has no stated meaning is refused, and the refusal names the parameter.

local errors = require "sandbar.errors"

local duration = {}

local UNITS = {
  ms = 0.001, millisecond = 0.001, milliseconds = 0.001,
  s = 1, sec = 1, second = 1, seconds = 1,
  m = 60, min = 60, minute = 60, minutes = 60,
  h = 3600, hour = 3600, hours = 3600,
  d = 86400, day = 86400, days = 86400,
}

local UNKNOWN =
  "has an unknown unit (known are ms, s, sec, m, min, h, d, and millisecond, second, "
  .. "minute, hour, day, also with s)"

--- Beyond this (292 years) a deadline no longer fits 64 bits of nanoseconds: it is as good as none.
duration.FOREVER = 2 ^ 63 / 1e9

local function refuse(what, v, why)
  local shown = type(v) == "string" and ("'%s'"):format(v) or v ~= v and "nan" or tostring(v)
  return nil, errors.new {
    kind = "InvalidArgument", message = ("%s: %s %s"):format(what or "duration", shown, why),
  }
end

--- Seconds of `v`, zero or more. `what` names the parameter in a refusal.
function duration.parse(v, what)
  local seconds = v
  if type(v) == "string" then
    local number, unit = v:match("^%s*(%d*%.?%d+)%s*(%a+)%s*$")
    if not number then
      return refuse(what, v, "is not a duration (a number of seconds, or a text like '90s', '10 minutes', '1h')")
    end
    if not UNITS[unit] then
      return refuse(what, v, UNKNOWN)
    end
    seconds = tonumber(number) * UNITS[unit]
  elseif type(v) ~= "number" then
    return refuse(what, v, "is not a duration (a number of seconds, or a text like '90s')")
  end
  if seconds ~= seconds then
    return refuse(what, seconds, "is not a number of seconds")
  end
  if seconds == math.huge or seconds == -math.huge then
    return refuse(what, seconds, "is not a number of seconds")
  end
  if seconds < 0 then
    return refuse(what, v, "is negative (seconds are expected)")
  end
  return seconds
end

--- The same for clocks that must run, like a lifetime: above zero.
function duration.positive(v, what)
  local seconds, err = duration.parse(v, what)
  if seconds == 0 then
    return refuse(what, v, "is not positive (seconds are expected)")
  end
  return seconds, err
end

--- The deadline of a call: false for none (nil or false given), 0 for "do not wait", else seconds.
function duration.timeout(v, what)
  if v == nil or v == false then
    return false
  end
  local seconds, err = duration.parse(v, what or "timeout")
  if seconds and seconds >= duration.FOREVER then
    return false
  end
  return seconds, err
end

return duration
