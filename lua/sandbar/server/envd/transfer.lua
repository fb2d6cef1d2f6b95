-- GET and POST /files: whole files out of and into a sandbox, streamed.

local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local gunzip = require "sandbar.server.envd.gunzip"
local multipart = require "sandbar.server.multipart"
local reply = require "sandbar.server.reply"
local tree = require "sandbar.server.envd.tree"
local users = require "sandbar.server.envd.users"

local CHUNK = 262144
local IDLE = 600 -- seconds a client may be silent within a body
local MAX_PARTS = 10000
local MAX_KEY, MAX_METADATA = 246, 4096

local transfer = {}

local TYPES = {
  txt = "text/plain; charset=utf-8", md = "text/markdown; charset=utf-8", html = "text/html; charset=utf-8",
  htm = "text/html; charset=utf-8", css = "text/css; charset=utf-8", js = "text/javascript; charset=utf-8",
  json = "application/json", csv = "text/csv; charset=utf-8", xml = "text/xml; charset=utf-8", png = "image/png",
  jpg = "image/jpeg", jpeg = "image/jpeg", gif = "image/gif", svg = "image/svg+xml", pdf = "application/pdf",
  zip = "application/zip", gz = "application/gzip", wasm = "application/wasm",
}

-- The user and the path of a request, or nil and a refusal.
local function place(context, name)
  local user, err = users.find(context.box, name)
  if not user then
    if err.connect then
      return nil, reply.refusal(401, ("error looking up user '%s': %s"):format(name, err.message))
    end
    return nil, err
  end
  return user
end

local function absolute(context, path, user)
  local full, err = users.path(path, user, context.workdir)
  if not full then
    return nil, reply.refusal(400, err.message)
  end
  return full
end

-- ---- out ----

-- May the file be sent as it is? What is asked for in another form only is not there.
local function acceptable(headers)
  local given = headers:get("accept-encoding")
  if not given then
    return true
  end
  for name, rest in given:lower():gmatch("([%w*%-]+)%s*([^,]*)") do
    if name == "identity" then
      return not rest:match("q%s*=%s*0%.?0*%s*$")
    end
  end
  return true
end

-- A range of a request over a file of `size`, last changed at `changed`: first, last (inclusive); nil when the whole is
-- meant, as when the client has the beginning of another version (If-Range); false when it cannot be.
local function range(headers, size, changed)
  if (headers:get("if-range") or changed) ~= changed then
    return nil
  end
  local from, to = (headers:get("range") or ""):match("^bytes=(%d*)%-(%d*)$")
  if not from or from == "" and to == "" then
    return nil
  end
  local first, last = tonumber(from), tonumber(to)
  if not first then
    first, last = math.max(size - last, 0), size - 1
  end
  last = math.min(last or size - 1, size - 1)
  if first > last then
    return false
  end
  return first, last
end

local MONTHS = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" }
local DAYS = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" }

local function http_date(seconds)
  local t = os.date("!*t", math.floor(seconds))
  return ("%s, %02d %s %04d %02d:%02d:%02d GMT"):format(DAYS[t.wday], t.day, MONTHS[t.month], t.year, t.hour, t.min,
    t.sec)
end

local function headers_of(path, entry)
  local name = path:match("[^/]*$")
  return {
    ["content-type"] = TYPES[(name:match("%.(%w+)$") or ""):lower()] or "application/octet-stream",
    ["content-disposition"] = ('inline; filename="%s"'):format((name:gsub('[%c"\\]', "_"))),
    ["last-modified"] = http_date(entry.mtime), ["accept-ranges"] = "bytes", vary = "Accept-Encoding",
    ["x-content-type-options"] = "nosniff",
    -- A browser that follows a signed link may be on the origin of our own page: no script of the file's runs there.
    ["content-security-policy"] = "sandbox",
  }
end

-- `count` bytes of the file from where it is (nil: to its end) as the answer's body. True, or nil when it was cut.
local function send(request, file, count)
  local n = request:send_file(file, count)
  if not n or count and n < count then
    request:abort() -- it has become shorter since its length was told
    return nil
  end
  return request:finish()
end

-- The kernel's own files have no size; what they hold is found by reading.
local function send_unsized(request, file, headers)
  local data = file:read(CHUNK)
  if not data then
    return request:respond(200, headers, "")
  end
  request:begin(200, headers)
  if not request:write(data, IDLE) then
    return nil
  end
  return send(request, file)
end

function transfer.get(context, request, query)
  local name = query.username ~= "" and query.username or users.DEFAULT
  local user, err = place(context, name)
  local path = user
  if user then
    path, err = absolute(context, query.path or "", user)
  end
  if not path then
    return nil, err
  elseif not acceptable(request.headers) then
    return nil, reply.refusal(406, "no acceptable encoding: the file is sent as it is")
  end
  local entry
  entry, err = context.box.files:stat(path, tree.ROOT)
  if not entry then
    if err.kind == "NotFound" and err.path then
      err = reply.refusal(404, ("path '%s' does not exist"):format(path))
    end
    return nil, err
  elseif entry.type == "directory" then
    return nil, reply.refusal(400, ("path '%s' is a directory"):format(path))
  elseif entry.type ~= "file" then
    return nil, reply.refusal(400, ("path '%s' is not a regular file"):format(path))
  end
  local headers = headers_of(path, entry)
  if request.headers:get("if-modified-since") == headers["last-modified"] then
    return request:respond(304, headers, "")
  end
  local file
  file, err = context.box.files:open(path, "r", tree.ROOT)
  if not file then
    return nil, err
  end
  local size = entry.size
  local first, last = range(request.headers, size, headers["last-modified"])
  if first == false then
    file:close()
    return nil, reply.refusal(416, ("the file has %d bytes"):format(size))
  end
  if request.method == "HEAD" then
    headers["content-length"] = ("%.0f"):format(size)
    request:begin(200, headers)
    request:finish()
  elseif first then
    headers["content-range"] = ("bytes %.0f-%.0f/%.0f"):format(first, last, size)
    headers["content-length"] = ("%.0f"):format(last - first + 1)
    file:seek("set", first)
    request:begin(206, headers)
    send(request, file, last - first + 1)
  elseif size == 0 then
    send_unsized(request, file, headers)
  else
    headers["content-length"] = ("%.0f"):format(size)
    request:begin(200, headers)
    send(request, file, size)
  end
  file:close()
  return true
end

-- ---- in ----

-- The metadata in a request's headers as extended attributes, or nil and a refusal.
local function metadata(headers)
  local out, total = {}, 0
  for _, pair in ipairs(headers) do
    local key = pair[1]:lower():match("^x%-metadata%-(.+)$")
    if key then
      total = total + #key + #pair[2] + 9
      if #key > MAX_KEY or total > MAX_METADATA or (key .. pair[2]):find("[^ -~]") then
        return nil, reply.refusal(400, ("invalid metadata '%s'"):format(encode.text(key)))
      end
      out[tree.PREFIX .. key] = pair[2]
    end
  end
  return out
end

-- Writes a file by pieces of `source`. True, or nil, an error and whether that is the source's.
local function write_pieces(box, path, user, source)
  local broken
  local written, err = box.files:write(path, function()
    local piece, why = source()
    broken = why
    return piece, why
  end, { user = "root", owner = ("%d:%d"):format(user.uid, user.gid), atomic = false })
  return written and true, broken or err, broken ~= nil
end

-- The same by a function that moves what is to be written into an open file without a look of Lua's at it.
local function write_moved(box, path, user, move)
  local file, err = box.files:open(path, "w", tree.ROOT)
  if not file then
    return nil, err
  end
  local n
  n, err = move(file)
  file:close()
  if not n then
    return nil, err
  end
  return tree.own(box, path, user)
end

-- What is written at `path` by `source`, a function that gives pieces, or by `move` (write_moved); its record, or nil
-- and a refusal or error.
local function put(context, path, user, xattrs, source, move)
  local made, err = tree.make(context.box, tree.parent(path), user)
  if made == nil then
    return nil, err
  end
  local written, broken
  if move then
    written, err = write_moved(context.box, path, user, move)
  else
    written, err, broken = write_pieces(context.box, path, user, source)
  end
  if written then
    written, err = tree.mark(context.box, path, xattrs)
  end
  if not written then
    if not broken and err.code == "EISDIR" then
      return nil, reply.refusal(400, ("path is a directory: %s"):format(path))
    elseif not broken and err.code == "ENXIO" then
      return nil, reply.refusal(400, ("path '%s' is not a regular file"):format(path))
    end
    return nil, err
  end
  return {
    path = encode.text(path), name = encode.text(path:match("[^/]*$")), type = "file", metadata = tree.metadata(xattrs),
  }
end

local function post_parts(context, request, query, user, xattrs, read, plain)
  local boundary = multipart.boundary(request.headers:get("content-type"))
  if not boundary then
    return nil, reply.refusal(400, "error parsing multipart form: no boundary")
  end
  local parts = multipart.new(read, boundary)
  local out, seen = encode.array {}, {}
  local part, err
  repeat
    part, err = parts:next()
    if part and part.name == "file" then
      local path = query.path
      if (path or "") == "" then
        path = part.filename or ""
      end
      path, err = absolute(context, path, user)
      if path and (seen[path] or #out >= MAX_PARTS) then
        path, err = nil, reply.refusal(400, ("you cannot upload multiple files to the same path '%s'"):format(path))
      end
      local record
      if path then
        seen[path] = true
        record, err = put(context, path, user, xattrs, function()
          return parts:read()
        end, plain and function(file)
          return parts:store(request, file)
        end)
      end
      out[#out + 1] = record
    end
  until not part or err
  if err then
    return nil, err
  end
  return out
end

-- What gives the pieces of a request's body, unpacked, and what ends that (or nil). Nil and a refusal or error.
local function reader(context, request)
  local function read()
    return request:read(CHUNK, IDLE)
  end
  local encoding = (request.headers:get("content-encoding") or "identity"):lower()
  if encoding == "identity" then
    return read
  elseif encoding == "gzip" then
    return gunzip.reader(context.box, read)
  end
  return nil, reply.refusal(400, ("unsupported content encoding: %s"):format(encoding))
end

function transfer.post(context, request, query)
  local name = query.username ~= "" and query.username or users.DEFAULT
  local user, err = place(context, name or users.DEFAULT)
  local xattrs
  if user then
    xattrs, err = metadata(request.headers)
  end
  if not xattrs then
    return nil, err
  end
  local kind = (request.headers:get("content-type") or ""):lower():match("^%s*([^;%s]*)")
  if kind ~= "multipart/form-data" and kind ~= "application/octet-stream" then
    return nil, reply.refusal(400, ("unsupported content type: %s"):format(kind or ""))
  elseif kind == "application/octet-stream" and (query.path or "") == "" then
    return nil, reply.refusal(400, "path is required")
  end
  local plain = (request.headers:get("content-encoding") or "identity"):lower() == "identity"
  local read, done = reader(context, request)
  if not read then
    return nil, done
  end
  local out
  if kind == "multipart/form-data" then
    out, err = post_parts(context, request, query, user, xattrs, read, plain)
  else
    local path, record
    path, err = absolute(context, query.path, user)
    if path then
      record, err = put(context, path, user, xattrs, read, plain and function(file)
        return request:pump_in(file)
      end)
    end
    out = record and encode.array { record }
  end
  if done then
    done()
  end
  if not out then
    if errors.is(err, "LimitExceeded") then
      err = reply.refusal(413, err.message)
    end
    return nil, err
  end
  return reply.json(request, 200, out)
end

transfer.http_date, transfer.range = http_date, range

return transfer
