-- box.files: everything is done inside the sandbox, by a process with the rights of `user` (default: the
-- sandbox's). Paths are bytes; `~` and relative ones start at that user's home.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local file = require "sandbar.file"
local filecall = require "sandbar.filecall"
local iterator = require "sandbar.iterator"
local record = require "sandbar.record"
require "sandbar.glob"
require "sandbar.transfer" -- upload and download
require "sandbar.watch"
require "sandbar.writing" -- write and write_many

local EXPIRES = 3600 -- seconds, of a signed link that says nothing else
local WHOLE = 268435456 -- bytes that read() takes unless max says how many

-- open(2)'s flags, the same on every machine the engine runs on.
local O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND = 1, 2, 64, 128, 512, 1024

local OP, COMMON, methods = filecall.OP, filecall.COMMON, filecall.methods
local begin, call, request = filecall.begin, filecall.call, filecall.request
local check_path, invalid = filecall.check_path, filecall.invalid
local mode_bits, schema = filecall.mode_bits, filecall.schema

local flag = filecall.flag

-- ---- reading ----

local READ = schema { max = "size" }

function methods:read(path, opts)
  opts = check.options("read", 2, opts, READ)
  local ok, err = check_path("read", 1, path)
  if not ok then
    return nil, err
  end
  local state, fields, timeout = begin(self, "read", opts, path)
  if not state then
    return nil, fields
  end
  local r
  local max = opts.max or WHOLE
  if not (max >= 0) then
    return invalid("read", path, ("max: %s is no number of bytes"):format(tostring(max)))
  end
  r, err = call(state, "read", timeout, "read_all", fields, max)
  if not r then
    return nil, err.kind == "LimitExceeded" and errors.from(err, nil, { limit = max, path = path }) or err
  end
  return r.bytes or ""
end

local OPEN_MODES = {
  r = 0,
  ["r+"] = O_RDWR,
  w = O_WRONLY + O_CREAT + O_TRUNC,
  ["w+"] = O_RDWR + O_CREAT + O_TRUNC,
  a = O_WRONLY + O_CREAT + O_APPEND,
  ["a+"] = O_RDWR + O_CREAT + O_APPEND,
  wx = O_WRONLY + O_CREAT + O_EXCL,
  ["w+x"] = O_RDWR + O_CREAT + O_EXCL,
}

local OPEN = schema { mode = "string|integer" }

local function open(self, op, path, mode, opts)
  local flags = OPEN_MODES[mode]
  if not flags then
    return invalid(op, path, ("mode %q is none of r, r+, w, w+, a, a+, wx"):format(mode))
  end
  local state, fields, timeout = begin(self, op, opts, path)
  if not state then
    return nil, fields
  end
  local err
  fields.mode, err = mode_bits(op, path, opts.mode)
  if err then
    return nil, err
  end
  fields.oflags = flags
  fields.parents = flag(mode:sub(1, 1) ~= "r")
  local r
  r, err = call(state, op, timeout, "open", fields)
  if not r then
    return nil, err
  end
  return file.new {
    native = r.object,
    path = path,
    append = mode:sub(1, 1) == "a",
    sandbox = state._link.handle,
  }
end

function methods:open(path, mode, opts)
  check.arg("open", 2, mode, "string?")
  opts = check.options("open", 3, opts, OPEN)
  local ok, err = check_path("open", 1, path)
  if not ok then
    return nil, err
  end
  return open(self, "open", path, ((mode or "r"):gsub("b", "")), opts)
end

-- The last argument may be a table of options; what comes before are formats, as of io.lines.
function methods:lines(path, ...)
  local formats = compat.pack(...)
  local opts
  if type(formats[formats.n]) == "table" then
    opts = check.options("lines", formats.n + 1, formats[formats.n], COMMON)
    formats.n = formats.n - 1
  end
  local ok, err = check_path("lines", 1, path)
  if not ok then
    return iterator.failed(err)
  end
  file.check_formats("lines", 2, compat.unpack(formats, 1, formats.n))
  local handle
  handle, err = open(self, "lines", path, "r", opts or {})
  if not handle then
    return iterator.failed(err)
  end
  return file.lines(handle, compat.unpack(formats, 1, formats.n))
end

-- ---- the rest of the tree ----

-- A method of one path: `fill(fields, opts)` adds to the request, `take(r)` makes the result. Returns its body, for
-- methods made from it: `as` is their name, and they are one level further out.
local function simple(name, number, options, fill, take)
  options = schema(options)
  local function body(self, path, opts, as, level)
    opts = check.options(as, 2, opts, options, level)
    local ok, err = check_path(as, 1, path, level)
    if not ok then
      return nil, err
    end
    local state, fields, timeout = begin(self, as, opts, path)
    if not state then
      return nil, fields
    end
    if fill then
      ok, err = fill(fields, opts, path)
      if not ok then
        return nil, err
      end
    end
    local r
    r, err = request(state, as, timeout, number, fields)
    if not r then
      return nil, err
    end
    return take(r, state, fields, timeout)
  end
  methods[name] = function(self, path, opts)
    local result, err = body(self, path, opts, name, 2) -- no tail call: it would hide the caller
    return result, err
  end
  return body
end

local function done()
  return true
end

local function entry_of(r)
  return record.entry(r.fields)
end

simple("list", OP.LIST, { depth = "integer|false" }, function(fields, opts, path)
  local depth = opts.depth
  if depth ~= nil and depth ~= false and (depth < 1 or depth % 1 ~= 0) then
    return invalid("list", path, "depth is a positive whole number, or false for all")
  end
  fields.depth = depth == nil and 1 or depth or 0
  return true
end, function(r)
  local out = {}
  for i, part in ipairs(r.parts or {}) do
    out[i] = record.entry(part)
  end
  return out
end)

local stat = simple("stat", OP.STAT, { nofollow = "boolean", xattrs = "boolean" }, function(fields, opts)
  fields.nofollow = opts.nofollow and 1 or nil
  return true
end, entry_of)

function methods:stat(path, opts)
  local entry, err = stat(self, path, opts, "stat", 2)
  if entry and opts and opts.xattrs then
    local state, fields, timeout = begin(self, "stat", opts, path)
    local r
    r, err = request(state, "stat", timeout, OP.GETXATTR, fields)
    if not r then
      return nil, err
    end
    entry.xattrs = record.pairs(r.fields and r.fields.xattr)
  end
  return entry, err
end

function methods:exists(path, opts)
  local entry, err = stat(self, path, opts, "exists", 2)
  if entry then
    return true
  end
  if err.kind == "NotFound" and err.code == "ENOENT" then
    return false
  end
  return nil, err
end

simple("mkdir", OP.MKDIR, { mode = "string|integer", parents = "boolean" }, function(fields, opts, path)
  local err
  fields.mode, err = mode_bits("mkdir", path, opts.mode)
  fields.parents = flag(opts.parents ~= false)
  return not err, err
end, function(r)
  return r.fields == nil or r.fields.created ~= 0
end)

local remove = simple("remove", OP.REMOVE, { recursive = "boolean" }, function(fields, opts)
  fields.recursive = flag(opts.recursive)
  return true
end, done)

function methods:remove(path, opts)
  local ok, err = remove(self, path, opts, "remove", 2)
  if err and err.code == "ENOTEMPTY" and not (opts and opts.recursive) then
    err.message = err.message .. "; recursive = true removes what is in it as well"
  end
  return ok, err
end

simple("readlink", OP.READLINK, {}, nil, function(r)
  return r.fields.target
end)

function methods:chmod(path, mode, opts)
  check.arg("chmod", 2, mode, "string|integer")
  opts = check.options("chmod", 3, opts, COMMON)
  local ok, err = check_path("chmod", 1, path)
  local bits
  if ok then
    bits, err = mode_bits("chmod", path, mode)
  end
  if err then
    return nil, err
  end
  local state, fields, timeout = begin(self, "chmod", opts, path)
  if not state then
    return nil, fields
  end
  fields.mode = bits
  local r
  r, err = request(state, "chmod", timeout, OP.CHMOD, fields)
  return r and true, err
end

-- Two paths: from and to, or a link's target and the link.
local function pair(name, number, set)
  methods[name] = function(self, first, second, opts)
    opts = check.options(name, 3, opts, COMMON)
    local ok, err = check_path(name, 1, first)
    if ok then
      ok, err = check_path(name, 2, second)
    end
    if not ok then
      return nil, err
    end
    local state, fields, timeout = begin(self, name, opts)
    if not state then
      return nil, fields
    end
    set(fields, first, second)
    local r
    r, err = request(state, name, timeout, number, fields)
    return r and true, err
  end
end

local function from_to(fields, from, to)
  fields.path, fields.path2 = from, to
end

pair("move", OP.MOVE, from_to)
pair("copy", OP.COPY, from_to)
pair("symlink", OP.SYMLINK, function(fields, target, path)
  fields.target, fields.path = target, path
end)

function methods:temp_dir(opts)
  opts = check.options("temp_dir", 1, opts, schema { dir = "string", mode = "string|integer" })
  local ok, err = check_path("temp_dir", 1, opts.dir or "/tmp")
  local bits
  if ok then
    bits, err = mode_bits("temp_dir", opts.dir, opts.mode)
  end
  if err then
    return nil, err
  end
  local state, fields, timeout = begin(self, "temp_dir", opts, opts.dir)
  if not state then
    return nil, fields
  end
  fields.mode = bits
  local r
  r, err = request(state, "temp_dir", timeout, OP.TEMPDIR, fields)
  return r and r.fields.path, err
end

-- Links that others write or read the file by, without being a client. `op`: what they may do.
for name, op in pairs { upload_url = "write", download_url = "read" } do
  methods[name] = function(self, path, opts)
    opts = check.options(name, 2, opts, { user = "string", expires = "timeout" })
    local ok, err = check_path(name, 1, path)
    if not ok then
      return nil, err
    end
    local expires
    expires, err = duration.timeout(opts.expires == nil and EXPIRES or opts.expires)
    local state
    if not err then
      state, ok = begin(self, name, opts, path)
    end
    if err or not state then
      return nil, errors.from(err or ok, "files:" .. name)
    end
    local to = state._link
    if to.file_url then
      return to:file_url("files:" .. name, op, ok, expires)
    end
    return nil, errors.new { kind = "Unsupported", op = "files:" .. name, clause = name,
      message = "signed links need a server that answers them, and the local engine has none" }
  end
end

return { new = filecall.new }
