-- Requests for another protocol on the connection (WebSockets): asked of the server inside, and the connection is made
-- one to it only once it has said 101. Any other answer is answered like every other one: what comes behind it on a
-- kept connection is for us again.

local headers_of = require "sandbar.headers"

local MAX_HEAD = 65536
local MAX_BODY = 1048576 -- of an answer that is no upgrade
local TIMEOUT = 60 -- seconds for the answer's head

local upgrade = {}

--- Does the request ask for one? Only one without a body can.
function upgrade.is_asked(request)
  local headers = request.headers
  if not headers:get("upgrade") or headers:get("transfer-encoding")
    or (headers:get("content-length") or "0") ~= "0" then
    return false
  end
  for _, value in ipairs(headers:all("connection")) do
    for name in value:gmatch("[^%s,]+") do
      if name:lower() == "upgrade" then
        return true
      end
    end
  end
  return false
end

-- A request's head with these headers: { name, value } in order.
local function head_of(request, list)
  local lines = { ("%s %s HTTP/1.1"):format(request.method, request.target), "Connection: Upgrade",
    "Upgrade: " .. request.headers:get("upgrade") }
  for _, pair in ipairs(list) do
    lines[#lines + 1] = pair[1] .. ": " .. pair[2]
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- The head of the final answer: status, headers, its text; or nil.
local function answer_of(connection)
  while true do
    local line = connection:read("l", { max = MAX_HEAD, timeout = TIMEOUT })
    local status = line and tonumber(line:match("^HTTP/1%.[01] (%d%d%d)"))
    if not status then
      return nil
    end
    local text, list, size = { (line:gsub("\r$", "")) }, setmetatable({}, headers_of.metatable), #line
    repeat
      line = connection:read("l", { max = MAX_HEAD, timeout = TIMEOUT })
      size = size + #(line or "")
      if not line or size > MAX_HEAD then
        return nil
      end
      line = line:gsub("\r$", "")
      local name, value = line:match("^([^:%s]+):%s*(.-)%s*$")
      if name then
        list[#list + 1], text[#text + 1] = { name, value }, line
      end
    until line == ""
    if status == 101 or status >= 200 then
      return status, list, table.concat(text, "\r\n") .. "\r\n\r\n"
    end
  end
end

-- What follows the head of an answer that is no upgrade: as long as it says, or all there is.
local function body_of(connection, list)
  local length = tonumber(list:get("content-length") or "")
  if length then
    return length > 0 and length <= MAX_BODY and connection:read(length, { timeout = TIMEOUT }) or ""
  end
  return list:get("transfer-encoding") == nil and connection:read("a", { max = MAX_BODY, timeout = TIMEOUT }) or ""
end

--- Asks the server behind `connection`, with the headers `list`. False when it gives no answer that makes sense; then
--- nothing was answered. `out(list)` are the headers of an answer that go on.
function upgrade.serve(request, connection, list, out)
  local status, headers, head
  if connection:write(head_of(request, list)) then
    status, headers, head = answer_of(connection)
  end
  if not status then
    connection:close()
    return false
  elseif status == 101 then
    request:upgrade(connection, head)
  else
    local kept = {}
    for _, pair in ipairs(out(headers)) do
      kept[#kept + 1] = pair[1]:lower() ~= "content-length" and pair or nil
    end
    request:respond(status, kept, body_of(connection, headers))
  end
  connection:close()
  return true
end

return upgrade
