-- Files of hosted sandboxes: what a link of the local engine asks the file worker of pid 1 is done by one that is run
-- with the user's own rights (worker.lua); long contents go over HTTP (carried.lua). Answers have the engine's shape.

local carried = require "sandbar.e2b.carried"
local compat = require "sandbar.compat"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local filecall = require "sandbar.filecall"
local lazy = require "sandbar.lazy"
local held = require "sandbar.e2b.held"
local link_of = require "sandbar.link"
local wait = require "sandbar.wait"
local work = require "sandbar.e2b.work"

local task = lazy "sandbar.task"

local OP = filecall.OP

local INLINE = 1048576 -- bytes of a file that come with the answer
local SHORT = 131072 -- bytes that go with one call of a worker's input
local UNSIZED = 67108864 -- of one that tells no size, and is read before it is handed out

local files = {}

-- ---- answers ----

local ENTRY = ("(%Z*)%z"):rep(11)

local function entry(name, path, kind, size, mode, uid, gid, owner, group, mtime, target)
  return {
    name = name, path = path, ftype = kind, size = tonumber(size), mode = tonumber(mode), uid = tonumber(uid),
    gid = tonumber(gid), owner = owner, owner_group = group, mtime_ns = tonumber(mtime), target = target,
  }
end

local function as_entry(text, op)
  local first, last = text:find("^" .. ENTRY)
  if not first or last ~= #text then
    return nil, work.nonsense(op)
  end
  return { fields = entry(text:match(ENTRY)) }
end

local function nothing()
  return { fields = {} }
end

local takes = { stat = as_entry, mkdir = function(text)
  return { fields = { created = tonumber(text) } }
end, readlink = function(text)
  return { fields = { target = text } }
end, tempdir = function(text)
  return { fields = { path = text } }
end }

function takes.list(text)
  local parts = {}
  for name, path, kind, size, mode, uid, gid, owner, group, mtime, target in text:gmatch(ENTRY) do
    parts[#parts + 1] = entry(name, path, kind, size, mode, uid, gid, owner, group, mtime, target)
  end
  return { parts = parts }
end

function takes.glob(text)
  local match = {}
  for path in text:gmatch("(%Z*)%z") do
    match[#match + 1] = path
  end
  return { parts = { { match = match } } }
end

-- Each a length of four bytes and a text: name, value.
function takes.getxattr(text)
  local out, at = {}, 1
  local function next_text()
    local a, b, c, d = text:byte(at, at + 3)
    if not d then
      return nil
    end
    local length = ((a * 256 + b) * 256 + c) * 256 + d
    at = at + 4 + length
    return text:sub(at - length, at - 1)
  end
  for name in next_text do
    out[#out + 1] = name .. "\0" .. (next_text() or "")
  end
  return { fields = { xattr = out } }
end

local function given(fields, ...)
  local out = {}
  for _, name in ipairs { ... } do
    out[name] = fields[name]
  end
  return out
end

-- Of the engine's number: the worker's name for it and the fields it takes.
local NAMED = {
  [OP.STAT] = { "stat", "path", "nofollow" },
  [OP.LIST] = { "list", "path", "depth" },
  [OP.MKDIR] = { "mkdir", "path", "mode", "parents" },
  [OP.MOVE] = { "move", "path", "path2" },
  [OP.COPY] = { "copy", "path", "path2" },
  [OP.REMOVE] = { "remove", "path", "recursive" },
  [OP.CHMOD] = { "chmod", "path", "mode" },
  [OP.CHOWN] = { "chown", "path", "owner" },
  [OP.SYMLINK] = { "symlink", "path", "target" },
  [OP.READLINK] = { "readlink", "path" },
  [OP.TEMPDIR] = { "tempdir", "path", "mode" },
  [OP.SETXATTR] = { "setxattr", "path", "xattr" },
  [OP.GETXATTR] = { "getxattr", "path" },
  [OP.GLOB] = { "glob", "pattern" },
}

-- Takes back what a write has begun, whatever the caller's waits may do.
local function abort(self, op, timeout, fields)
  local write = fields.token
  if write.into then
    write.into:close()
  end
  local asked = write.temp and { temp = write.temp } or { path = fields.path, name = write.name }
  return task.shield(function()
    local text, err = work.run(self, op, timeout, "abort", asked, fields.user)
    return text and nothing(), err
  end)
end

--- An operation on paths, by its number.
function files.request(self, op, timeout, fields)
  if fields.file_op == OP.ABORT then
    return abort(self, op, timeout, fields)
  end
  local named = NAMED[fields.file_op]
  local asked = given(fields, compat.unpack(named, 2))
  local text, err = work.run(self, op, timeout, named[1], asked, fields.user)
  if not text then
    return nil, err
  end
  return (takes[named[1]] or nothing)(text, op)
end

-- ---- reading ----

function files.read_all(self, op, timeout, fields, max)
  local deadline = link_of.deadline(timeout)
  local asked = { path = fields.path, max = ("%.0f"):format(max), inline = INLINE }
  local text, err = work.run(self, op, timeout, "read", asked, fields.user, max + INLINE)
  if not text then
    return nil, err
  elseif text:sub(1, 1) == "d" then
    return { fields = {}, bytes = text:sub(2) }
  end
  text, err = carried.whole(self.rpc, text:sub(2), max, link_of.left(deadline), op)
  if not text then
    return nil, errors.from(self:judge(link_of.told(err, timeout)), op)
  end
  return { fields = {}, bytes = text }
end

function files.open(self, op, timeout, fields)
  if op == "files:open" then
    local file, why = held.open(self, op, timeout, fields)
    return file and { fields = {}, object = file }, why
  end
  local deadline = link_of.deadline(timeout)
  local text, err = work.run(self, op, timeout, "gate", { path = fields.path }, fields.user)
  if not text then
    return nil, err
  end
  local out
  if text:sub(1, 1) == "u" then -- it tells no size: the vendor would send nothing
    local r
    r, err = files.read_all(self, op, link_of.left(deadline), fields, UNSIZED)
    out = r and carried.of_text(r.bytes)
  else
    out, err = carried.out(self.rpc, text:sub(2), link_of.left(deadline), op)
  end
  if not out then
    return nil, errors.from(self:judge(link_of.told(err, timeout)), op)
  end
  return { fields = {}, object = out }
end

-- ---- writing ----

-- What the worker is told of a write.
local function asked_of(fields)
  local asked = given(fields, "path", "owner", "parents")
  asked.exclusive = fields.exclusive == 1 and 1 or nil
  asked.in_place = (fields.append == 1 or fields.atomic == 0) and 1 or nil
  asked.name = ".sb-" .. core.uuid():gsub("-", ""):sub(1, 20)
  return asked
end

-- After a failure with `err`: what may be there all the same goes, once what may make it has come to its end (`worker`
-- ends it). Without time nothing was sent.
local function take_back(self, op, timeout, err, asked, fields, worker)
  if timeout == 0 or not (worker or work.may_have_begun(err)) then
    return
  end
  task.shield(function()
    if worker then
      wait.op(worker:op(), filecall.UNDO_LIMIT, op)
    end
    abort(self, op, filecall.UNDO_LIMIT, { token = { name = asked.name }, path = fields.path, user = fields.user })
  end)
end

-- Where the bytes of a write go: { kind, temp, real, path, fields }; nil and an error.
local function begin(self, op, timeout, fields)
  local asked = asked_of(fields)
  local text, err, worker = work.run(self, op, timeout, "begin", asked, fields.user)
  local kind, temp, real, path = (text or ""):match("^(%a)%z(%Z+)%z(%Z+)%z(%Z+)%z$")
  if not kind then
    err = err or work.nonsense(op)
    take_back(self, op, timeout, err, asked, fields, worker)
    return nil, err
  end
  return { kind = kind, temp = temp, real = real, path = path, fields = fields }
end

local function commit(self, op, timeout, write, size, mode)
  local fields = write.fields
  local text, err = work.run(self, op, timeout, "commit", {
    kind = write.kind, temp = write.temp, real = write.real, path = write.path, size = ("%.0f"):format(size),
    mode = mode, owner = fields.owner, exclusive = fields.exclusive == 1 and 1 or nil,
    append = fields.append == 1 and 1 or nil,
  }, fields.user)
  if not text then
    return nil, err
  end
  return as_entry(text, op)
end

local function undo(self, op, write, user)
  abort(self, op, filecall.UNDO_LIMIT, { token = write, user = user })
end

-- What is short goes through the input of one worker, which does all of it.
local function write_short(self, op, timeout, fields, data)
  local asked = asked_of(fields)
  asked.size, asked.mode = ("%d"):format(#data), fields.mode
  asked.append = fields.append == 1 and 1 or nil
  local text, err, worker = work.feed(self, op, timeout, "write", asked, fields.user, data)
  if not text then
    take_back(self, op, timeout, err, asked, fields, worker)
    return nil, errors.from(err, op, { path = fields.path })
  end
  return as_entry(text, op)
end

function files.write_all(self, op, timeout, fields, data)
  if #data <= SHORT then
    return write_short(self, op, timeout, fields, data)
  end
  local deadline = link_of.deadline(timeout)
  local write, err = begin(self, op, timeout, fields)
  if not write then
    return nil, err
  end
  local r
  r, err = carried.put(self.rpc, write.temp, write.path, fields.user, data, link_of.left(deadline), op)
  if r then
    r, err = commit(self, op, link_of.left(deadline), write, #data, fields.mode)
  else
    err = self:judge(err)
  end
  if not r then
    undo(self, op, write, fields.user)
    return nil, errors.from(link_of.told(err, timeout), op, { path = fields.path })
  end
  return r
end

function files.begin(self, op, timeout, fields)
  local write, err = begin(self, op, timeout, fields)
  if not write then
    return nil, err
  end
  write.into, err = carried.into(self.rpc, write.temp, write.path, fields.user, op)
  if not write.into then
    undo(self, op, write, fields.user)
    return nil, err
  end
  return { fields = { token = write, path = write.path }, object = write.into }
end

function files.commit(self, op, timeout, into, fields)
  local deadline = link_of.deadline(timeout)
  local ok, err = into:finish(timeout, op)
  if not ok then
    return nil, errors.from(self:judge(link_of.told(err, timeout)), op)
  end
  return commit(self, op, link_of.left(deadline), fields.token, into.sent, fields.mode)
end

return files
