-- The release journal: what a program that is killed had created for itself is destroyed by the next one. open {
-- journal } names a directory; each process writes a file of its own there, locked as long as it lives. Lines:
--
--   i <token> <time> <id>   before a create is sent, on the disk; s: the snapshot of a fork; a: an API key
--   k <token>               it is nobody's from now on, on the disk before anybody hears of it
--   d <token>               nothing of it is there
--
-- A file that nobody holds the lock of is another's who has ended. Whoever takes its lock looks up what is neither
-- kept nor done by the tokens, which no two creates share, destroys it, and removes the file. What was just sent and
-- is not to be seen may still come: such a file stays for later.

local address = require "sandbar.e2b.address"
local audit = require "sandbar.audit"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local finding = require "sandbar.e2b.finding"
local hosttree = require "sandbar.hosttree"
local identity = require "sandbar.e2b.identity"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local record = require "sandbar.e2b.record"
local wait = require "sandbar.wait"

local copies, keys = lazy "sandbar.e2b.copies", lazy "sandbar.e2b.keys"
local http, turns = lazy "sandbar.http", lazy "sandbar.turns"

local journal = {}

local Journal = {}
Journal.__index = Journal

local OP = "journal"
-- What a line is about; seconds after which what is not to be seen will not come any more.
local LETTERS = { sandbox = "i", snapshot = "s", ["API key"] = "a" }
local COMING = { i = 120, s = 900, a = 120 }
local CHUNK = 1048576
local UNDO = 30

--- `path`: a directory that is there. No I/O.
function journal.new(path, client)
  if path:sub(1, 1) ~= "/" or path:find("%z") then
    return nil, errors.new { kind = "InvalidArgument", op = "open", clause = "journal",
      message = "journal: the absolute path of a directory is needed" }
  end
  return setmetatable({ path = (path:gsub("(.)/+$", "%1")), client = client }, Journal)
end

-- Files of one account and server only: the tokens of another's are not to be found here.
function Journal:prefix()
  if not self.account then
    local client = self.client
    self.account = http.sha256(client.api_key:prefixed(client.origin .. client.prefix .. "\n")):sub(1, 8):gsub(".",
      function(c)
        return ("%02x"):format(c:byte())
      end)
  end
  return self.account .. "-"
end

-- The file of this process, or nil: there is none yet.
function Journal:current()
  local own = self.file and self.generation == core.generation() and not core.collected(self.file)
  return own and self.file or nil
end

-- It has its name only when it is locked. A process that was forked meanwhile makes another: this one is its parent's.
function Journal:make(deadline, timeout)
  local generation, name = core.generation(), self:prefix() .. core.uuid()
  local file, err = hosttree.at(OP, "create", self.path, name .. ".new", nil, 384)
  if not file then
    return nil, err
  end
  local locked
  locked, err = file:lock()
  local ok = locked
  if ok then
    ok, err = hosttree.at(OP, "rename", self.path, name .. ".new", name .. ".log")
  end
  if ok then -- else a machine that goes down may have the line, and no name that leads to it
    ok, err = hosttree.at(OP, "sync", self.path, name .. ".log")
  end
  if not ok or deadline and link.left(deadline) == 0 then
    file:close()
    return nil, err and errors.from(err, OP) or wait.timed_out(OP, "timeout", timeout)
  end
  self.file, self.generation, self.name, self.at = file, generation, name .. ".log", 0
  return file
end

-- The file, made at the first line. Of several who come first one makes it: another file would lose its lock with the
-- next one, and who takes that destroys what its lines are about.
function Journal:open(timeout)
  if self:current() then
    return self.file
  end
  local deadline = link.deadline(timeout)
  local file, err = turns.run(self, "opening", deadline, OP, function()
    local current = self:current()
    if current then
      return current
    end
    return self:make(deadline, timeout)
  end)
  return file, link.told(err, timeout)
end

function Journal:write(line, durable, timeout)
  local file, err = self:open(timeout)
  if not file then
    return nil, err
  end
  local at = self.at
  self.at = at + #line
  local _
  _, err = wait.op(file:write(at, line), timeout, OP)
  if not err and durable then
    _, err = wait.op(file:sync(), timeout, OP)
  end
  if err then
    return nil, errors.from(err, OP, { path = self.path })
  end
  return true
end

--- Before a create is sent of `what`: "sandbox", "snapshot", "API key". True, or nil and an error: then it must not be.
function Journal:intent(what, token, id, timeout)
  return self:write(("%s %s %.0f %s\n"):format(LETTERS[what], token, core.wall(), id), true, timeout)
end

--- It is kept: no later program destroys it.
function Journal:kept(token, timeout)
  return self:write(("k %s\n"):format(token), true, timeout)
end

--- Nothing of it is there.
function Journal:done(token)
  return self:write(("d %s\n"):format(token), false, false)
end

-- ---- what others have left ----

local function read_all(file)
  local parts, offset = {}, 0
  while true do
    local data, err = wait.bytes(file:read(offset, CHUNK), false, OP)
    if err then
      return nil, err
    elseif not data or data == "" then
      return table.concat(parts)
    end
    parts[#parts + 1] = data
    offset = offset + #data
  end
end

-- { token = { what, at } } of what is neither kept nor done. A last line that was cut says nothing; what a failed write
-- has left between two lines neither.
local function outstanding(text)
  local open = {}
  for line in text:gmatch("([^\n]*)\n") do
    local what, token, at = line:match("^%z*([iskad]) ([%x-]+) ?(%d*)")
    if COMING[what] then
      open[token] = { what = what, at = tonumber(at) or 0 }
    elseif what then
      open[token] = nil
    end
  end
  return open
end

-- What one create has made, by its token: how many there were, gone now; nil: that cannot be told; nil and an error.
local settle = {}

function settle.i(client, token, deadline)
  local found, err = finding.all(client, identity.filter { token = token }, link.left(deadline), OP)
  if not found then
    return nil, err
  end
  for _, entry in ipairs(found) do
    local ok
    ok, err = client:call {
      op = OP, method = "DELETE", path = "/sandboxes/" .. address.escape(record.vendor_id(entry.sandboxID)),
      timeout = link.left(deadline), repeatable = true,
    }
    if not ok and err.kind ~= "NotFound" then
      return nil, err
    end
  end
  return #found
end

function settle.s(client, token, deadline)
  return copies.forget(client, token, link.left(deadline), OP)
end

function settle.a(client, token, deadline)
  return keys.forget(client, token, link.left(deadline), OP)
end

-- True when nothing of it is there and nothing will come, and how many there were.
function Journal:settle(token, line, deadline)
  local count, err = settle[line.what](self.client, token, deadline)
  if err then
    return nil, err
  end
  return count ~= nil and (count > 0 or core.wall() - line.at > COMING[line.what]), count or 0
end

function Journal:replay_file(name, deadline)
  local file, err = hosttree.at(OP, "read", self.path, name)
  if not file then
    return err.kind == "NotFound" and 0 or nil, err -- another one has been here
  end
  local mine, why = file:lock()
  local text
  if mine then
    text, why = read_all(file)
  end
  if not text then
    file:close()
    return not mine and not why and 0 or nil, why
  end
  local settled, count, failed = true, 0, nil
  for token, line in pairs(outstanding(text)) do -- one that cannot be settled keeps no other
    local ok, n = self:settle(token, line, deadline)
    if ok == nil then
      failed = failed or n
    else
      count = count + n
    end
    settled = settled and ok
  end
  if settled then
    hosttree.at(OP, "remove", self.path, name)
  end
  file:close()
  return count, failed
end

--- Destroys what ended programs have left. How many things there were, or nil and an error.
function Journal:replay(timeout)
  self.replayed = true
  local deadline = link.deadline(timeout or UNDO)
  local entries, err = hosttree.list(self.path, OP, link.left(deadline))
  if not entries then
    return nil, err
  end
  local count, failed = 0, nil
  for _, entry in ipairs(entries) do
    local name = entry.path
    if entry.type == "file" and name ~= self.name and name:sub(1, #self:prefix()) == self:prefix()
      and name:find("%.log$") then
      local n, why = self:replay_file(name, deadline)
      count, failed = count + (n or 0), failed or why
    end
  end
  if failed then
    return nil, errors.from(failed, OP)
  end
  return count
end

--- The same before anything is made here, once. That it fails is told; what is made does not fail of it.
function Journal:replay_once()
  if not self.replayed then
    local count, err = self:replay()
    if err or count > 0 then
      audit.emit("release", { what = "journal", op = "replay", id = self.path, count = count, error = err })
    end
  end
end

return journal
