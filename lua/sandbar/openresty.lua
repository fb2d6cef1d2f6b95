-- For OpenResty: the current request, forwarded to a port of a sandbox. Bodies stream both ways; requests
-- to upgrade (WebSocket and others) become a pipe of bytes.

local errors = require "sandbar.errors"
local headers_of = require "sandbar.headers"
local lazy = require "sandbar.lazy"
local port_module = require "sandbar.port"
local stream = require "sandbar.stream"

local refused = lazy "sandbar.e2b.refused"

local CHUNK = 65536
local MAX_HEAD = 65536

local openresty = {}

-- Headers that are about one connection and not about the message.
local HOP = {
  connection = true, ["keep-alive"] = true, ["proxy-authenticate"] = true,
  ["proxy-authorization"] = true, ["proxy-connection"] = true, te = true, trailer = true,
  ["transfer-encoding"] = true, upgrade = true, host = true, expect = true,
}

-- Those and the ones the Connection header names. `reserved`: others that do not go on, as a set.
local function dropped(list, reserved)
  local out = setmetatable({}, { __index = HOP })
  for name in pairs(reserved or {}) do
    out[name] = true
  end
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

-- ---- answers ----

-- Status and headers to the visitor.
local function send_head(ngx, status, list)
  ngx.status = status
  local drop, seen = dropped(list), {}
  for _, pair in ipairs(list) do
    local name = pair[1]:lower()
    if not drop[name] then
      seen[name] = seen[name] or {}
      table.insert(seen[name], pair[2])
      ngx.header[pair[1]] = #seen[name] > 1 and seen[name] or pair[2]
    end
  end
  ngx.send_headers()
end

-- The body, piece by piece as next_piece() gives it. True, or nil and what ended it too early.
local function send_body(ngx, next_piece)
  while true do
    local data, err = next_piece()
    if not data then
      return not err or nil, err
    end
    if not ngx.print(data) or not ngx.flush(true) then
      return true -- the visitor has left
    end
  end
end

-- ---- upgrades ----

-- Does the visitor ask for another protocol on this connection? Only then is there more than one message.
local function wants_upgrade(list)
  if not find(list, "upgrade") or find(list, "transfer-encoding")
    or (tonumber(find(list, "content-length")) or 0) > 0 then
    return false
  end
  for _, pair in ipairs(list) do
    if pair[1]:lower() == "connection" then
      for name in pair[2]:gmatch("[^%s,]+") do
        if name:lower() == "upgrade" then
          return true
        end
      end
    end
  end
  return false
end

-- Writes the request's head. `how`: of a hosted port, whose own lines may hold a secret.
local function send_request(ngx, connection, list, host, how)
  local drop = dropped(list, how and how.reserved)
  local lines = {
    ("%s %s%s HTTP/1.1"):format(ngx.req.get_method(), how and how.prefix or "", ngx.var.request_uri), "Host: " .. host,
    "Connection: Upgrade", "Upgrade: " .. find(list, "upgrade"),
  }
  for _, pair in ipairs(list) do
    if not drop[pair[1]:lower()] then
      lines[#lines + 1] = pair[1] .. ": " .. pair[2]
    end
  end
  local head = table.concat(lines, "\r\n") .. "\r\n"
  for _, line in ipairs(how and how.lines or {}) do
    if type(line[2]) == "string" then
      head = head .. line[1] .. ": " .. line[2] .. "\r\n"
    else
      local ok, err = port_module.send(connection, line[2]:prefixed(head .. line[1] .. ": "))
      if not ok then
        return nil, err
      end
      head = "\r\n"
    end
  end
  return connection:write(head .. "\r\n")
end

local function broken(what)
  return nil, errors.new { kind = "Protocol", op = "proxy", message = "the application's answer: " .. what }
end

-- The head of the final answer: its status and headers, and its text as it came; or nil and an error.
local function answer_head(connection)
  while true do
    local line, err = connection:read("l", { max = MAX_HEAD })
    local status = line and tonumber(line:match("^HTTP/1%.[01] (%d%d%d)"))
    if not status then
      return nil, err or select(2, broken("it does not begin as one"))
    end
    local list, text, size = {}, { (line:gsub("\r$", "")) }, #line
    repeat
      line, err = connection:read("l", { max = MAX_HEAD })
      if not line then
        return nil, err or select(2, broken("it ends in its head"))
      end
      line = line:gsub("\r$", "")
      size = size + #line
      if size > MAX_HEAD then
        return broken("its head is too long")
      end
      local name, value = line:match("^([^:%s]+):%s*(.-)%s*$")
      if name then
        list[#list + 1] = { name, value }
        text[#text + 1] = name .. ": " .. value
      end
    until line == ""
    if status == 101 or status >= 200 then
      return status, list, table.concat(text, "\r\n") .. "\r\n\r\n"
    end
  end
end

-- A function that gives the body of an answer that is no upgrade.
local function answer_body(connection, method, status, list)
  if method == "HEAD" or status == 204 or status == 304 then
    return function() end
  end
  local coding = find(list, "transfer-encoding")
  local left = not coding and tonumber(find(list, "content-length"))
  if not coding and not left then
    return function()
      return port_module.some(connection)
    end
  end
  local done = false
  return function()
    if coding and not done and (left or 0) == 0 then
      local line, err = connection:read("l", { max = 4096 })
      if line and left then -- behind the last chunk
        line, err = connection:read("l", { max = 4096 })
      end
      left = line and tonumber(line:match("^%x+"), 16)
      if not left then
        return nil, err or select(2, broken("it ends in its body"))
      end
      done = left == 0
    end
    if left == 0 then
      return nil
    end
    local data, err = connection:read(math.min(left, CHUNK))
    if not data then
      return nil, err or select(2, broken("it ends in its body"))
    end
    left = left - #data
    return data
  end
end

-- Both directions until one of them ends.
local function pipe(ngx, connection, head)
  local socket, why = ngx.req.socket(true)
  if not socket then
    return nil, errors.new { kind = "Platform", op = "proxy", message = "the client's socket: " .. tostring(why) }
  end
  if not socket:send(head) then
    return true
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
  ngx.thread.kill(up)
  return true
end

-- The error that an answer of a hosted port's proxy stands for, or nil; and the body as far as it was read for that.
local function refusal(how, status, headers, next_piece)
  local answer = { status = status, reason = "", headers = headers_of.new(headers) }
  if not refused.may_be(answer, {}) then
    return nil
  end
  local pieces, size = {}, 0
  while size < refused.MOST do
    local piece = next_piece()
    if not piece then
      break
    end
    pieces[#pieces + 1], size = piece, size + #piece
  end
  answer.body = table.concat(pieces)
  return how.refused(answer), answer.body
end

-- Asks for the other protocol. Bytes go through only once the application has said 101; any other answer is an
-- answer like every other one.
local function upgrade(ngx, connection, list, host, how)
  local ok, err = send_request(ngx, connection, list, host, how)
  if not ok then
    return nil, err
  end
  local status, headers, head = answer_head(connection)
  if not status then
    return nil, headers
  end
  if status == 101 then
    return pipe(ngx, connection, head)
  end
  local next_piece, read = answer_body(connection, ngx.req.get_method(), status, headers), nil
  if how then
    err, read = refusal(how, status, headers, next_piece)
    if err then
      return nil, err
    end
  end
  send_head(ngx, status, headers)
  return send_body(ngx, function()
    local data = read
    read = nil
    if data and data ~= "" then
      return data
    end
    return next_piece()
  end)
end

-- ---- plain requests ----

local function forward(ngx, port, list, host)
  local drop = dropped(list, port_module.reserved(port))
  local headers = { host and { "Host", host } or nil }
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
  send_head(ngx, answer.status, answer.headers)
  local ok
  ok, err = send_body(ngx, function()
    return stream.some(answer.body)
  end)
  answer.body:close()
  return ok, err
end

-- Answers the current request with what the port says. True, or nil and an error: when nothing has been
-- sent yet, the caller decides what the visitor sees. `host`: what the application sees as Host.
function openresty.proxy(port, opts)
  local ngx = rawget(_G, "ngx")
  if not ngx or not ngx.req then
    error("sandbar.openresty.proxy works in a request of OpenResty only", 2)
  end
  local list = request_headers(ngx)
  local host, hosted = opts and opts.host, port_module.reserved(port) ~= nil
  if host and hosted then
    return nil, errors.new { kind = "Unsupported", op = "proxy", clause = "host",
      message = "host: the vendor finds the sandbox by Host, so none can be given" }
  elseif not hosted then
    host = host or ("localhost:%d"):format(port.number)
  end
  if not wants_upgrade(list) then
    return forward(ngx, port, list, host)
  end
  local connection, how = port_module.dial(port, "proxy")
  if not connection then
    return nil, how
  end
  local ok, err = upgrade(ngx, connection, list, how and how.host or host, how)
  connection:close()
  return ok, err
end

return openresty
