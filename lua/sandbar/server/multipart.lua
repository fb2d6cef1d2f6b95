-- Bodies of the type multipart/form-data, part by part, in constant memory.
--
--   local parts = multipart.new(read, boundary)          -- read() gives pieces of the body; nil at its end, nil, err
--   parts:next() -> { name, filename } | nil at the end | nil, err
--   parts:read() -> a piece of that part | nil at its end | nil, err
--   parts:store(request, file) -> true: all of it is in the open file | nil, err

local errors = require "sandbar.errors"

local MAX_HEAD = 16384 -- bytes of a part's headers
local PIECE = 65536

local Multipart = {}
Multipart.__index = Multipart

local multipart = {}

local function broken(why)
  return nil, errors.new { kind = "InvalidArgument", message = "multipart: " .. why }
end

--- The boundary of a content type, or nil where it has none.
function multipart.boundary(content_type)
  local value = content_type:match('[;%s][Bb][Oo][Uu][Nn][Dd][Aa][Rr][Yy]="([^"]+)"')
    or content_type:match("[;%s][Bb][Oo][Uu][Nn][Dd][Aa][Rr][Yy]=([^;%s]+)")
  return value and #value <= 200 and value or nil
end

-- More bytes into the buffer. True, false at the end of the body, nil and an error.
local function more(self)
  local piece, err = self.read_body()
  if piece then
    self.buffer = self.buffer .. piece
    return true
  elseif err then
    return nil, err
  end
  return false
end

-- The parameters of a header's value. What a browser has escaped stays as it is: a file's name is taken word for word.
local function parameters(value)
  local out = {}
  for name, quoted in value:gmatch(';%s*([%w_%-]+)="([^"]*)"') do
    out[name:lower()] = quoted
  end
  for name, plain in value:gmatch(';%s*([%w_%-]+)=([^";%s]+)') do
    out[name:lower()] = out[name:lower()] or plain
  end
  return out
end

local function head_of(text)
  for line in text:gmatch("[^\r\n]+") do
    local name, value = line:match("^([^:%s]+):%s*(.*)$")
    if name and name:lower() == "content-disposition" then
      local given = parameters(value)
      return { name = given.name, filename = given.filename }
    end
  end
  return {}
end

--- The next part; what was not read of the one before is passed over.
function Multipart:next()
  if self.inside then
    while true do
      local piece, err = self:read()
      if err then
        return nil, err
      elseif not piece then
        break
      end
    end
  end
  if self.over then
    return nil
  end
  if self.buffer:sub(1, 2) == "--" then -- behind a delimiter; an end of line begins a part
    self.over = true
    return nil
  end
  while true do
    local stop, after = self.buffer:find("\r\n\r\n", 1, true)
    if stop then
      local head = head_of(self.buffer:sub(3, stop - 1))
      self.buffer, self.inside = self.buffer:sub(after + 1), true
      return head
    elseif #self.buffer > MAX_HEAD then
      return broken("the headers of a part are too long")
    end
    local ok, err = more(self)
    if not ok then
      return broken(err and err.message or "the body ends within a part's headers")
    end
  end
end

--- A piece of the part's data; nil at its end; nil and an error.
function Multipart:read()
  if not self.inside then
    return nil
  end
  while true do
    local at, last = self.buffer:find(self.delimiter, 1, true)
    local follows = at == 1 and self.buffer:sub(last + 1, last + 2) or ""
    if follows == "--" or follows == "\r\n" then
      self.buffer, self.inside = self.buffer:sub(last + 1), false
      return nil
    elseif #follows == 2 then -- it only begins like one
      self.buffer = self.buffer:sub(last + 1)
      return self.delimiter
    elseif at and at > 1 then
      local piece = self.buffer:sub(1, at - 1)
      self.buffer = self.buffer:sub(at)
      return piece
    elseif not at and #self.buffer > PIECE then
      local keep = #self.delimiter - 1 -- the beginning of a delimiter may be there
      local piece = self.buffer:sub(1, -keep - 1)
      self.buffer = self.buffer:sub(-keep)
      return piece
    end
    local ok, err = more(self)
    if ok == nil then
      return nil, err
    elseif not ok then
      return broken("the body ends within a part")
    end
  end
end

--- Writes the rest of the part into an open file, without a look of Lua's at most of it: `request` is where read_body
--- reads. True, or nil and an error.
function Multipart:store(request, file)
  while self.inside do
    local piece, err
    if not self.buffer:find(self.delimiter, 1, true) then
      local moved
      moved, err = request:take_part(file, self.delimiter, self.buffer)
      if not moved then
        return nil, err
      end
      self.buffer = ""
    end
    piece, err = self:read()
    if piece then
      err = select(2, file:write(piece))
    end
    if err then
      return nil, err
    end
  end
  return true
end

--- Begins: what stands before the first delimiter is passed over.
function multipart.new(read, boundary)
  -- The first delimiter has no end of line before it, so the body gets one.
  local delimiter = "\r\n--" .. boundary
  return setmetatable({ read_body = read, delimiter = delimiter, buffer = "\r\n", inside = true }, Multipart)
end

return multipart
