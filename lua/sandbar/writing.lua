-- files:write and write_many: whole strings in one operation, functions and files piece by piece. What is
-- atomic shows up as a whole or not at all.

local check = require "sandbar.check"
local copied = require "sandbar.copied"
local errors = require "sandbar.errors"
local filecall = require "sandbar.filecall"
local link_of = require "sandbar.link"
local nested = require "sandbar.nested"
local openfile = require "sandbar.openfile"
local record = require "sandbar.record"
local wait = require "sandbar.wait"

local CHUNK = 262144
local O_WRONLY, O_CREAT, O_EXCL, O_TRUNC, O_APPEND = 1, 64, 128, 512, 1024

local OP, methods = filecall.OP, filecall.methods
local begin, call, request = filecall.begin, filecall.call, filecall.request
local check_path, invalid = filecall.check_path, filecall.invalid
local mode_bits, schema = filecall.mode_bits, filecall.schema

local writing = {}

local flag, readable = filecall.flag, check.readable

local WRITE_OPTIONS = schema {
  mode = "string|integer",
  flag = "string",
  atomic = "boolean",
  owner = "string",
  xattrs = "table",
}

local FLAGS = { w = {}, wx = { exclusive = true }, a = { append = true }, ax = { append = true, exclusive = true } }

-- The next piece of a function's or a file's data; nil at the end, or nil and why.
local function next_piece(source)
  local piece, err, errno
  if type(source) == "function" then
    piece, err, errno = source()
  else
    piece, err, errno = source:read(CHUNK)
  end
  if piece ~= nil and type(piece) ~= "string" then
    error(("the source of a write gave a %s instead of a string"):format(type(piece)), 0)
  end
  if piece == nil and err ~= nil then
    return nil, errors.reported("files:write", err, errno)
  end
  return piece
end

-- `link` is looked at after each piece: the file alone would not tell that its sandbox has been closed.
local function copy_from(source, native, link, deadline)
  local offset = 0
  while true do
    local piece, err = next_piece(source)
    if link.closed or link.gone then
      return link:native(0, "files:write")
    elseif deadline and link_of.left(deadline) == 0 then
      return nil, wait.timed_out("files:write", "timeout", 0) -- the caller is told the whole
    end
    if piece == nil then
      if err then
        return nil, err
      end
      return offset
    end
    if piece ~= "" then
      local written
      written, err = openfile.write(native, offset, piece, link_of.left(deadline), "files:write")
      if not written then
        return nil, err
      end
      offset = offset + #piece
    end
  end
end

-- From a source of pieces into a file that shows up, whole, at the end; nothing is left if that fails.
local function write_atomic(state, fields, source, deadline)
  local r, err = call(state, "write", link_of.left(deadline), "begin", fields)
  if not r then
    return nil, err
  end
  local native = r.object
  local token = { token = r.fields.token, path = r.fields.path, user = fields.user }
  local called, written, why = nested.pcall(copy_from, source, native, state._link, deadline)
  if not called or not written then
    request(state, "write", filecall.UNDO_LIMIT, OP.ABORT, token)
    native:close()
    if not called then
      error(written, 0)
    end
    return nil, why
  end
  token.mode = fields.mode
  r, err = call(state, "write", link_of.left(deadline), "commit", native, token)
  native:close()
  if not r then
    token.mode = nil
    request(state, "write", filecall.UNDO_LIMIT, OP.ABORT, token)
    return nil, err
  end
  return r
end

local function write_in_place(state, fields, source, how, deadline)
  fields.oflags = O_WRONLY + O_CREAT + (how.append and O_APPEND or O_TRUNC)
    + (how.exclusive and O_EXCL or 0)
  local owner = fields.owner
  fields.owner, fields.exclusive, fields.append, fields.atomic = nil, nil, nil, nil
  local r, err = call(state, "write", link_of.left(deadline), "open", fields)
  if not r then
    return nil, err
  end
  local native = r.object
  local called, written, why = nested.pcall(copy_from, source, native, state._link, deadline)
  native:close()
  if not called then
    error(written, 0)
  end
  if not written then
    return nil, why
  end
  if owner then
    r, err = request(state, "write", link_of.left(deadline), OP.CHOWN,
      { path = fields.path, owner = owner, user = fields.user })
  end
  if r and fields.mode then
    r, err = request(state, "write", link_of.left(deadline), OP.CHMOD,
      { path = fields.path, mode = fields.mode, user = fields.user })
  end
  if not r then
    return nil, err
  end
  return request(state, "write", link_of.left(deadline), OP.STAT, { path = fields.path, user = fields.user })
end

-- What the kernel knows; all but the first are for root.
local NAMESPACES = { user = true, security = true, trusted = true, system = true }

local function xattr_list(op, path, xattrs)
  for name, value in pairs(xattrs) do
    if type(name) ~= "string" or type(value) ~= "string" or name:find("%z") then
      return invalid(op, path, "xattrs: names and values are strings, names without zero bytes")
    end
    if not NAMESPACES[name:match("^(%l+)%..")] then
      return invalid(op, path, ("xattrs: the name %q does not begin with \"user.\""):format(name))
    end
  end
  return record.list(xattrs)
end

local function write(self, path, data, opts)
  local how = FLAGS[opts.flag or "w"]
  if not how then
    return invalid("write", path, ("flag %q is none of \"w\", \"wx\", \"a\""):format(opts.flag))
  end
  local state, fields, timeout = begin(self, "write", opts, path)
  if not state then
    return nil, fields
  end
  local bits, err = mode_bits("write", path, opts.mode)
  if err then
    return nil, err
  end
  local attributes
  if opts.xattrs then
    attributes, err = xattr_list("write", path, opts.xattrs)
    if err then
      return nil, err
    end
  end
  fields.mode, fields.owner, fields.parents = bits, opts.owner, 1
  fields.exclusive, fields.append = flag(how.exclusive), flag(how.append)
  fields.atomic = flag(opts.atomic ~= false and not how.append)
  local r
  local deadline = link_of.deadline(timeout)
  if type(data) == "string" then
    r, err = call(state, "write", timeout, "write_all", fields, data)
  elseif fields.atomic == 1 or state._link.carries then
    if not state._link.carries then
      fields.append, fields.atomic = nil, nil
    end
    r, err = write_atomic(state, fields, data, deadline)
  else
    r, err = write_in_place(state, fields, data, how, deadline)
  end
  if r and attributes then
    local entry = r
    r, err = request(state, "write", link_of.left(deadline), OP.SETXATTR,
      { path = path, xattr = attributes, user = fields.user })
    r = r and entry
  end
  if not r then
    return nil, errors.from(link_of.told(err, timeout), "files:write", { path = path })
  end
  local entry = record.entry(r.fields)
  entry.xattrs = entry.xattrs or attributes and record.pairs(attributes)
  return entry
end

local function check_source(fname, index, data, level)
  if type(data) == "string" or type(data) == "function" then
    return
  end
  if readable(data) then
    return
  end
  check.fail(fname, index, ("string, function or file expected, got %s"):format(check.type_name(data)), level + 1)
end

function methods:write(path, data, opts)
  check_source("write", 2, data, 1)
  opts = check.options("write", 3, opts, WRITE_OPTIONS)
  local ok, err = check_path("write", 1, path)
  if not ok then
    return nil, err
  end
  return write(self, path, data, opts)
end

-- A list of { path =, data =, and options of write }, or a table path = data.
local function items_of(list)
  if list[1] ~= nil or next(list) == nil then
    check.list("write_many", 1, list, "table", 2)
    return list
  end
  local items = {}
  for path, data in pairs(list) do
    check.arg("write_many", 1, path, "string", 2)
    items[#items + 1] = { path = path, data = data }
  end
  table.sort(items, function(a, b)
    return a.path < b.path
  end)
  return items
end

-- All are tried: the array of entries, or nil and an Aggregate whose `result` has { path, entry } or
-- { path, error } for each, in their order.
function methods:write_many(list, opts)
  check.arg("write_many", 1, list, "table")
  local items = items_of(list)
  opts = check.options("write_many", 2, opts, WRITE_OPTIONS)
  local timeout, bad = check.timeout(opts, "files:write_many")
  if bad then
    return nil, bad
  end
  local deadline = link_of.deadline(timeout) -- of the call, not of each file
  local entries, results, reasons = {}, {}, {}
  for i, item in ipairs(items) do
    local own = copied(opts)
    for key, value in pairs(item) do
      if key ~= "path" and key ~= "data" then
        own[key] = value
      end
    end
    if item.timeout == nil then
      own.timeout = link_of.left(deadline)
    end
    check.options("write_many", 1, own, WRITE_OPTIONS)
    check_source("write_many", 1, item.data, 1)
    local ok, err = check_path("write_many", 1, item.path)
    local entry
    if ok then
      entry, err = write(self, item.path, item.data, own)
      err = item.timeout == nil and link_of.told(err, timeout) or err
    end
    entries[i] = entry
    results[i] = { path = item.path, entry = entry, error = err }
    if err then
      reasons[#reasons + 1] = { type = "failure", error = err }
    end
  end
  if #reasons > 0 then
    local err = errors.aggregate(reasons, "files:write_many")
    err.result = results
    return nil, err
  end
  return entries
end

return writing
