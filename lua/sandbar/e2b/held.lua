-- An open file of a hosted sandbox: a worker inside holds it, and is asked for its bytes one request after the other.
-- So it stays the same file whatever becomes of its name.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local link_of = require "sandbar.link"
local own = require "sandbar.own"
local process = require "sandbar.e2b.process"
local turns = require "sandbar.turns"
local wait = require "sandbar.wait"
local work = require "sandbar.e2b.work"

local MOST = 1048576 -- bytes of one answer
local PIECE = 196608 -- bytes of one write: with them it is one call, which arrives as a whole or not at all
local ASK = 5 -- seconds to learn why a worker has ended, or that it has let go of its file
local ACCESS = 4 -- the open flags modulo this are 0 for one that only reads (open(2))

local held = {}

local Held = { remote = true }
Held.__index = Held

-- It has ended, and why.
local function lost(self, op)
  local r, err = wait.op(self.run:wait(), ASK, op)
  if r then
    err = work.ended(r.fields.status or 0, nil, op)
      or errors.new { kind = "OutcomeUnknown", op = op, message = "what held the file in the sandbox has ended" }
  end
  return self.link:judge(errors.from(err, op))
end

local function exactly(self, n, timeout, op)
  local data, err = wait.bytes(self.out:read("exact", n), timeout, op)
  if data and #data == n then
    return data
  elseif err and (err.kind == "Timeout" or err.kind == "Cancelled" or err.kind == "CannotWait") then
    return nil, err
  end
  self.broken = err and self.link:judge(errors.from(err, op)) or lost(self, op)
  return nil, self.broken
end

-- The next answer. A wait that ends early takes nothing of it.
local function answer(self, deadline, op)
  if not self.due then
    local head, err = exactly(self, 4, link_of.left(deadline), op)
    if not head then
      return nil, err
    end
    local a, b, c, d = head:byte(1, 4)
    self.due = ((a * 256 + b) * 256 + c) * 256 + d
    if self.due > MOST + 65536 or self.due == 0 then
      self.broken = work.nonsense(op)
      return nil, self.broken
    end
  end
  local text, err = exactly(self, self.due, link_of.left(deadline), op)
  if text then
    self.due = nil
  end
  return text, err
end

-- What answers request number `id`, or nil, an error and whether it is the answer. Before it may come what answers
-- those that nobody waited for any more.
local function reply(self, id, deadline, op)
  while true do
    local text, err = answer(self, deadline, op)
    if not text then
      return nil, err
    end
    local number, rest = text:match("^(%d+) ([+-].*)$")
    if not number then
      self.broken = work.nonsense(op)
      return nil, self.broken
    elseif tonumber(number) == id then
      if rest:sub(1, 1) ~= "+" then
        return nil, work.failed(rest, op), true
      end
      return rest:sub(2)
    end
  end
end

local function exchange(self, what, pos, n, data, deadline, op)
  self.last = self.last + 1
  local id = self.last
  local text = ("%d %s %.0f %.0f\n"):format(id, what, pos, n) .. data
  local r, err = wait.op(self.input:write(text), link_of.left(deadline), op)
  if not r then
    if err.kind ~= "Timeout" and err.kind ~= "Cancelled" and err.kind ~= "CannotWait" then
      self.broken = err.kind == "Closed" and lost(self, op) or self.link:judge(errors.from(err, op))
      err = self.broken
    end
    return nil, err
  end
  return reply(self, id, deadline, op)
end

-- One request and its answer; one at a time.
local function ask(self, what, pos, n, data, timeout, op)
  if timeout == 0 then
    return nil, wait.not_now(op)
  end
  local deadline = link_of.deadline(timeout)
  local told, err = turns.run(self, "busy", deadline, op, function()
    if self.closed or self.link:is_closed() then
      return nil, errors.new { kind = "Closed", op = op, message = "the file is closed" }
    elseif self.broken then
      return nil, errors.from(self.broken, op)
    end
    return exchange(self, what, pos, n, data, deadline, op)
  end)
  return told, link_of.told(err, timeout)
end

--- Up to `n` bytes from `pos`, "" at the end; or nil and an error.
function Held:read(pos, n, timeout, op)
  return ask(self, "r", pos, math.min(n, MOST), "", timeout, op)
end

--- How many bytes were written: all, or nil and an error.
function Held:write(pos, data, timeout, op)
  local deadline, done = link_of.deadline(timeout), 0
  while done < #data do
    local piece = data:sub(done + 1, done + PIECE)
    local told, err = ask(self, "w", pos + done, #piece, piece, link_of.left(deadline), op)
    if not told then
      return nil, link_of.told(err, timeout)
    end
    done = done + #piece
  end
  return done
end

function Held:size(timeout, op)
  local told, err = ask(self, "s", 0, 0, "", timeout, op)
  return told and tonumber(told), err
end

-- Is it known that nothing more will come from it? The end of its input is not told any more then.
local function is_cut(self)
  local done, data = self.out:try_read("some", 1)
  return self.broken ~= nil or done and data == nil
end

--- The worker ends with its input, or is ended where it was cut off. One that may write lets go of the file before this
--- returns, as far as can be learned in time: what somebody has open for writing cannot be executed.
function Held:close()
  if self.closed then
    return
  elseif self.writes then
    ask(self, "c", 0, 0, "", ASK, "close")
  end
  self.closed = true
  if core.collected(self.input) then
    return
  elseif is_cut(self) then
    self.release:fire()
  else
    self.input:close_write()
    self.release:cancel()
  end
  self.run:close()
end

--- Of link:close(): what is still open is ended for good.
function Held:drop()
  if not self.closed then
    self.closed = true
    self.release:fire()
  end
end

--- One that is open, or nil and an error. `fields`: of the engine's request.
function held.open(self, op, timeout, fields)
  local deadline = link_of.deadline(timeout)
  local r, err = work.start(self, op, timeout, "hold",
    { path = fields.path, oflags = fields.oflags, mode = fields.mode, parents = fields.parents == 1 and 1 or nil },
    fields.user, nil, true)
  if not r then
    return nil, errors.from(self:judge(err), op)
  end
  local native, release = process.new(self, r.object, { in_mode = 1, who = r.fields.who }), r.release
  local file = setmetatable({
    link = self, run = r.object, native = native, input = native:stdin(), out = native:stdout(), last = 0,
    release = release, guard = own.guard(release), writes = fields.oflags % ACCESS ~= 0,
  }, Held)
  self.held = self.held or setmetatable({}, { __mode = "k" })
  local told, is_answer
  told, err, is_answer = reply(file, 0, deadline, op)
  if told then
    self.held[file] = true
    return file
  elseif is_answer then -- it has said so and ended
    file.closed = true
    release:cancel()
  else
    file:drop()
  end
  return nil, errors.from(link_of.told(err, timeout), op)
end

return held
