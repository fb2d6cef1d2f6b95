-- Moments as the protocol writes them: RFC 3339 in UTC.

local stamp = {}

-- Days from 1970-01-01 to a date of the Gregorian calendar.
local function days(year, month, day)
  local y = month > 2 and year or year - 1
  local m = month > 2 and month - 3 or month + 9
  return 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400) + math.floor((153 * m + 2) / 5) + day
    - 719469
end

--- Of seconds since 1970, to the microsecond.
function stamp.text(seconds)
  local micros = math.floor(seconds * 1000000 + 0.5)
  local whole = math.floor(micros / 1000000)
  return os.date("!%Y-%m-%dT%H:%M:%S", whole) .. (".%06dZ"):format(micros - whole * 1000000)
end

--- Seconds since 1970 of such a text (with any offset), or nil.
function stamp.seconds(text)
  local y, mo, d, h, mi, s, fraction, zone = text:match(
    "^(%d%d%d%d)%-(%d%d)%-(%d%d)[Tt](%d%d):(%d%d):(%d%d)(%.?%d*)([Zz+-].*)$")
  if not y then
    return nil
  end
  y, mo, d, h, mi, s = tonumber(y), tonumber(mo), tonumber(d), tonumber(h), tonumber(mi), tonumber(s)
  if mo < 1 or mo > 12 or d < 1 or d > 31 or h > 23 or mi > 59 or s > 60 or fraction == "." then
    return nil
  end
  local offset = 0
  if zone:upper() ~= "Z" then
    local sign, oh, om = zone:match("^([+-])(%d%d):(%d%d)$")
    if not sign then
      return nil
    end
    offset = (tonumber(oh) * 60 + tonumber(om)) * 60 * (sign == "-" and -1 or 1)
  end
  local part = fraction ~= "" and tonumber("0" .. fraction) or 0
  return days(y, mo, d) * 86400 + h * 3600 + mi * 60 + s + part - offset
end

return stamp
