-- Bodies in JSON with secrets in them, which Lua cannot read: the text of such a body is a secret itself.

local core = require "sandbar.core"
local json = require "sandbar.json"

local body = {}

--- Makes a table one that is written as an array.
body.list = json.array

-- A copy of `value` with each secret replaced by a string of its own.
local function without_secrets(value, mark, secrets)
  if core.is_secret(value) then
    secrets[#secrets + 1] = value
    return mark .. #secrets
  elseif type(value) ~= "table" then
    return value
  end
  local out = setmetatable({}, getmetatable(value))
  for key, item in pairs(value) do
    out[key] = without_secrets(item, mark, secrets)
  end
  return out
end

--- The text of a value: string, or secret if there is one in it.
function body.encode(value)
  local secrets, mark = {}, core.uuid() .. ":"
  local text = assert(json.encode(without_secrets(value, mark, secrets)))
  if #secrets == 0 then
    return text
  end
  local pattern = '^(.*)"' .. mark:gsub("%-", "%%-") .. '(%d+)"(.*)$'
  local rest, whole = text, nil
  while true do -- from the end, since a secret takes what stands before it
    local before, number, after = rest:match(pattern)
    if not before then
      return whole:prefixed(rest)
    end
    if whole then
      whole = whole:prefixed(after)
    else
      whole = core.secret(after)
    end
    whole, rest = whole:prefixed(secrets[tonumber(number)]:json()), before
  end
end

return body
