-- Requests for another protocol on the connection (WebSockets): asked of the server inside, and the connection is made
-- one to it only once it has said 101. Any other answer is answered like every other one: what comes behind it on a
-- kept connection is for us again.

local headers_of = require "sandbar.headers"
local port = require "sandbar.port"

local MAX_HEAD = 65536
local TIMEOUT = 60 -- seconds for the answer's head
local IDLE = 620 -- seconds without a byte of an answer that is no upgrade
local BROKEN = "the answer ends too early"
local MOST_DIGITS = 13 -- of a chunk's size: what a number holds exactly

local upgrade = {}

--- Does the request ask for one? Only one without a body can. Who would rather have HTTP/2, and says so by the way, is
--- content with an ordinary answer.
function upgrade.is_asked(request)
  local headers = request.headers
  local protocol = headers:get("upgrade")
  if not protocol or protocol:lower():match("^%s*h2c%s*$") or headers:get("transfer-encoding")
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

-- At most so many bytes of the text, a number that may be larger than string.sub takes.
local function first_of(text, most)
  return #text > most and text:sub(1, most) or text
end

-- Pieces of `some()` without the chunks they come in; nil at the end, nil and an error.
local function unchunked(some)
  local buffer, left, head = "", 0, "^(%x+)[^\r\n]*\r\n()"
  return function()
    while left == 0 or buffer == "" do
      local size, at
      if left == 0 then
        size, at = buffer:match(head)
      end
      if size and #size:gsub("^0+", "") > MOST_DIGITS then
        return nil, "a chunk of the answer is too large"
      elseif size then
        left, buffer, head = tonumber(size, 16), buffer:sub(at), "^\r\n(%x+)[^\r\n]*\r\n()"
        if left == 0 then
          return nil
        end
      else
        local piece, err = some()
        if not piece or #buffer > MAX_HEAD then
          return nil, err or BROKEN
        end
        buffer = buffer .. piece
      end
    end
    local piece = first_of(buffer, left)
    buffer, left = buffer:sub(#piece + 1), left - #piece
    return piece
  end
end

-- Pieces of `some()`, as many bytes as there have to be.
local function counted(some, left)
  return function()
    if left == 0 then
      return nil
    end
    local piece, err = some()
    if not piece then
      return nil, err or BROKEN
    end
    piece = first_of(piece, left)
    left = left - #piece
    return piece
  end
end

-- What gives the body behind the head of an answer that is no upgrade.
local function body_of(request, connection, status, headers)
  local length = headers:get("content-length") or ""
  local function some()
    return port.some(connection, IDLE)
  end
  if request.method == "HEAD" or status == 204 or status == 304 then
    return counted(some, 0)
  elseif (headers:get("transfer-encoding") or ""):lower():find("chunked", 1, true) then
    return unchunked(some)
  elseif length:match("^%d+$") then
    return counted(some, tonumber(length))
  end
  return some
end

-- An answer like every other one, as it comes.
local function pass(request, connection, status, headers, out)
  local next_piece = body_of(request, connection, status, headers)
  request:begin(status, out(headers))
  while true do
    local piece, err = next_piece()
    if err then
      return request:abort()
    elseif not piece then
      return request:finish()
    elseif not request:write(piece, IDLE) then
      return nil
    end
  end
end

-- Asks, and answers if that is no upgrade: the status, and the head of one that is.
local function ask(request, connection, list, out)
  local status, headers, head
  if connection:write(head_of(request, list)) then
    status, headers, head = answer_of(connection)
  end
  if status and status ~= 101 then
    pass(request, connection, status, headers, out)
  end
  return status, head
end

--- Asks the server behind `connection`, with the headers `list`, for as long as the client is there. False when it
--- gives no answer that makes sense; then nothing was answered. `out(list)` are the headers of an answer that go on.
function upgrade.serve(request, connection, list, out)
  local over, status, head = request:attend(nil, ask, request, connection, list, out)
  if over and status == 101 then
    request:upgrade(connection, head)
  end
  connection:close()
  return not over or status ~= nil
end

return upgrade
