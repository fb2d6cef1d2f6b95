-- Times as the vendor writes them.

local time = {}

--- Seconds since 1970 of an RFC 3339 time in UTC, or nil.
function time.of(text)
  local y, mo, d, h, mi, s = tostring(text):match("^(%d+)-(%d+)-(%d+)[Tt](%d+):(%d+):(%d+%.?%d*)[Zz]$")
  if not y then
    return nil
  end
  y, mo, d = tonumber(y), tonumber(mo), tonumber(d)
  if mo <= 2 then -- days of the civil calendar, years beginning in March
    y, mo = y - 1, mo + 12
  end
  local days = 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400)
    + math.floor((153 * (mo - 3) + 2) / 5) + d - 719469
  return ((days * 24 + tonumber(h)) * 60 + tonumber(mi)) * 60 + tonumber(s)
end

return time
