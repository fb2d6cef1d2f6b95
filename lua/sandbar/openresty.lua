-- For OpenResty: the current request, forwarded to a port of a sandbox. Bodies stream both ways; requests
-- to upgrade (WebSocket and others) become a pipe of bytes.

local errors = require "sandbar.errors"
local port_module = require "sandbar.port"
local stream = require "sandbar.stream"

local CHUNK = 65536

local openresty = {}

-- Headers that are about one connection and not about the message.
local HOP = {
  connection = true, ["keep-alive"] = true, ["proxy-authenticate"] = true,
  ["proxy-authorization"] = true, ["proxy-connection"] = true, te = true, trailer = true,
  ["transfer-encoding"] = true, upgrade = true, host = true, expect = true,
}

-- Those and the ones the Connection header names.
local function dropped(list)
  local out = setmetatable({}, { __index = HOP })
  for _, pair in ipairs(list) do
    if pair[1]:lower() == "connection" then
      for name in pair[2]:gmatch("[^%s,]+") do
        out[name:lower()] = true
      end
    end
  end
  return out
end

-- The request's headers in their order, repeats included.
local function request_headers(ngx)
  local list = {}
  for line in ngx.req.raw_header(true):gmatch("[^\r\n]+") do
    local name, value = line:match("^([^:%s]+):%s*(.-)%s*$")
    if name then
      list[#list + 1] = { name, value }
    end
  end
  return list
end

local function find(list, wanted)
  for _, pair in ipairs(list) do
    if pair[1]:lower() == wanted then
      return pair[2]
    end
  end
  return nil
end

-- The request's body: nil, or a function that gives it piece by piece (a chunked one is read first, nginx
-- has no other way).
local function request_body(ngx, list)
  local length = tonumber(find(list, "content-length"))
  if length and length > 0 then
    local socket, err = ngx.req.socket()
    if not socket then
      return nil, err
    end
    local left = length
    return function()
      if left <= 0 then
        return nil
      end
      local data, why, partial = socket:receive(math.min(left, CHUNK))
      data = data or partial
      if not data or data == "" then
        return nil, why
      end
      left = left - #data
      return data
    end
  end
  if find(list, "transfer-encoding") then
    ngx.req.read_body()
    local data = ngx.req.get_body_data()
    if data then
      return data
    end
    local name = ngx.req.get_body_file()
    local file = name and io.open(name, "rb")
    if file then
      return function()
        local piece = file:read(CHUNK)
        if not piece then
          file:close()
        end
        return piece
      end
    end
  end
  return nil
end

-- ---- upgrades ----

local function upgrade_head(ngx, list, host)
  local lines = { ("%s %s HTTP/1.1"):format(ngx.req.get_method(), ngx.var.request_uri), "Host: " .. host }
  for _, pair in ipairs(list) do
    if pair[1]:lower() ~= "host" then
      lines[#lines + 1] = pair[1] .. ": " .. pair[2]
    end
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

local function pipe(ngx, port, list, host)
  local connection, err = port:connect()
  if not connection then
    return nil, err
  end
  local socket, why = ngx.req.socket(true)
  if not socket then
    connection:close()
    return nil, errors.new { kind = "Platform", op = "proxy", message = "the client's socket: " .. tostring(why) }
  end
  local ok
  ok, err = connection:write(upgrade_head(ngx, list, host))
  if not ok then
    connection:close()
    return nil, err
  end
  local up = ngx.thread.spawn(function()
    while true do
      local data = socket:receiveany(CHUNK)
      if not data or not connection:write(data) then
        break
      end
    end
    connection:close_write()
  end)
  while true do
    local data = port_module.some(connection)
    if not data or not socket:send(data) then
      break
    end
  end
  connection:close()
  ngx.thread.kill(up)
  return true
end

-- ---- plain requests ----

local function forward(ngx, port, list, host)
  local drop = dropped(list)
  local headers = { { "Host", host } }
  for _, pair in ipairs(list) do
    if not drop[pair[1]:lower()] then
      headers[#headers + 1] = pair
    end
  end
  local body, why = request_body(ngx, list)
  if why then
    return nil, errors.new { kind = "Platform", op = "proxy", message = "the request's body: " .. tostring(why) }
  end
  local answer, err = port:fetch {
    method = ngx.req.get_method(),
    path = ngx.var.request_uri,
    headers = headers,
    body = body,
    stream = true,
  }
  if not answer then
    return nil, err
  end
  ngx.status = answer.status
  drop = dropped(answer.headers)
  local seen = {}
  for _, pair in ipairs(answer.headers) do
    local name = pair[1]:lower()
    if not drop[name] then
      seen[name] = seen[name] or {}
      table.insert(seen[name], pair[2])
      ngx.header[pair[1]] = #seen[name] > 1 and seen[name] or pair[2]
    end
  end
  ngx.send_headers()
  while true do
    local data
    data, err = stream.some(answer.body)
    if not data then
      break
    end
    if not ngx.print(data) or not ngx.flush(true) then
      break -- the visitor has left
    end
  end
  answer.body:close()
  if err then
    return nil, err
  end
  return true
end

-- Answers the current request with what the port says. True, or nil and an error: when nothing has been
-- sent yet, the caller decides what the visitor sees. `host`: what the application sees as Host.
function openresty.proxy(port, opts)
  local ngx = rawget(_G, "ngx")
  if not ngx or not ngx.req then
    error("sandbar.openresty.proxy works in a request of OpenResty only", 2)
  end
  local list = request_headers(ngx)
  local host = opts and opts.host or ("localhost:%d"):format(port.number)
  if find(list, "upgrade") then
    return pipe(ngx, port, list, host)
  end
  return forward(ngx, port, list, host)
end

return openresty
