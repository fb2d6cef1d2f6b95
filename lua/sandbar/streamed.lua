-- exec with on_output or a source of input: on the streams of a started process.

local copied = require "sandbar.copied"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local exec = require "sandbar.exec"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local own = require "sandbar.own"
local record = require "sandbar.record"
local wait = require "sandbar.wait"

local GRACE = exec.GRACE
local CHUNK = 65536
local KILL_LIMIT = 2 -- seconds for the end of a command that has been killed
local SLACK = 1048576 -- how much more than the tail is held between two cuts

local streamed = {}

-- ---- capped text ----

local function sink(max, keep_tail)
  return { max = max, size = 0, dropped = 0, first = 1, last = 0, tail = keep_tail }
end

local function cut(s)
  while s.size > s.max do
    local chunk, over = s[s.first], s.size - s.max
    if #chunk <= over then
      s[s.first] = nil
      s.first = s.first + 1
      over = #chunk
    else
      s[s.first] = chunk:sub(over + 1)
    end
    s.size = s.size - over
    s.dropped = s.dropped + over
  end
end

local function put(s, data)
  if not s.tail then
    local room = s.max - s.size
    if #data > room then
      s.dropped = s.dropped + #data - room
      data = data:sub(1, room)
    end
  end
  s.last = s.last + 1
  s[s.last] = data
  s.size = s.size + #data
  if s.tail and s.size > s.max + SLACK then
    cut(s)
  end
end

local function text(s)
  cut(s)
  return table.concat(s, "", s.first, s.last)
end

-- ---- the run ----

-- The state of one run: `out` and `err` are { native, sink, fd, op, ended }, `fields` is what the engine said of the
-- start.
local Run = {}
Run.__index = Run

-- Takes what is there on one stream. True when there was something.
function Run:poll(s)
  if s.ended then
    return false
  end
  local done, data, e
  if s.op then
    done = s.op:done()
    if done then
      data, e = s.op:bytes()
      s.op = nil
    end
  else
    done, data, e = s.native:try_read("some", CHUNK)
  end
  if not done then
    s.op = s.op or s.native:read("some", CHUNK)
    return false
  end
  if e or data == nil then
    s.ended = true
    return false
  end
  put(s.sink, data)
  if self.on_output and not self.killed then
    if self.on_output(data, s.fd) == false then
      self:kill()
    end
  end
  return true
end

-- It gets no more: what it would make of half its input is nobody's wish.
function Run:half_fed(err)
  self.input_error = err
  self:kill()
  self.stdin:close_write()
  self.stdin = nil
end

-- Gives the command more of its input. The source may wait; it is not asked once the command has ended. True when it
-- gave an empty piece and is to be asked again.
function Run:feed()
  local stdin = self.stdin
  if not stdin then
    return
  end
  if self.write_op then
    if not self.write_op:done() then
      return
    end
    local ok, why = self.write_op:result()
    self.write_op = nil
    if not ok and why.kind ~= "Closed" and not self.exit_op:done() then
      return self:half_fed(errors.from(why, "exec"))
    elseif not ok then -- the command no longer reads: its business
      stdin:close()
      self.stdin = nil
      return
    end
  end
  if self.exit_op:done() then
    return
  end
  local chunk, err, errno = self.source()
  if chunk == nil and err ~= nil then
    self:half_fed(errors.reported("exec", err, errno))
  elseif chunk == nil then
    stdin:close_write()
    self.stdin = nil
  elseif type(chunk) ~= "string" then
    error(("the stdin function gave a %s instead of a string"):format(type(chunk)), 0)
  elseif chunk == "" then
    return true
  else
    self.write_op = stdin:write(chunk)
  end
end

-- Kills the whole tree, once. The rest of the loop sees the exit.
function Run:kill()
  if not self.killed then
    self.killed = core.now()
    self.kill_op = self.box:request("kill", { serial = self.process:serial(), signal = 9, grace_ms = 0 })
  end
end

-- Until the command has ended and its output has been taken. True, or nil and an error.
function Run:loop()
  local exit_at
  while true do
    local more = self:poll(self.out)
    more = self:poll(self.err) or more
    more = self:feed() or more
    local now = core.now()
    if self.exit_op:done() then
      exit_at = exit_at or now
      if (self.out.ended and self.err.ended) or (not more and now >= exit_at + GRACE) then
        return true
      end
    elseif self.deadline and now >= self.deadline and not self.timed_out then
      self.timed_out = true
      self:kill()
    elseif self.killed and now >= self.killed + KILL_LIMIT then
      self.lost = true -- nobody says that it has ended; its release goes on
      return true
    end
    if not more then
      local ops = { not exit_at and self.exit_op or nil }
      ops[#ops + 1] = self.out.op
      ops[#ops + 1] = self.err.op
      ops[#ops + 1] = self.write_op
      local limit = exit_at and exit_at + GRACE or self.killed and self.killed + KILL_LIMIT or self.deadline
      local ok, err = wait.any(ops, link.left(limit), "exec")
      if not ok and err.kind ~= "Timeout" then
        return nil, err
      end
    end
  end
end

function Run:close()
  for _, s in ipairs { self.out, self.err } do
    if s.native then
      s.native:close()
    end
  end
  if self.stdin then
    self.stdin:close()
  end
  self.box, self.process = nil, nil
end

-- exec's result as far as it is known: `ended` is what the engine says of the end, nil when it has not.
function Run:result(ended)
  local out, err = self.out.sink, self.err.sink
  local all = copied(self.fields, ended)
  local stdout, stderr = text(out), text(err)
  all.dropped, all.dropped_err = out.dropped, err.dropped
  return record.result(all, stdout, stderr, core.now() - self.began)
end

-- What it came to: the result, or nil and an error.
local function conclude(run, to, release, timeout, opts)
  if run.lost then
    release:fire()
    local result = run:result()
    if run.timed_out then
      return exec.timed_out(result, timeout)
    end
    return nil, errors.new {
      kind = "Unavailable",
      op = "exec",
      message = "the sandbox does not tell that the killed command has ended",
      result = result,
      cause = run.input_error,
    }
  end
  local exited, ended = run.exit_op:result()
  if not exited then
    release:fire()
    return nil, to:judge(errors.from(ended, "exec"))
  end
  release:cancel()
  local result = run:result(ended.fields)
  if run.input_error then
    return nil, errors.from(run.input_error, "exec", { result = result })
  end
  if run.timed_out then
    return exec.timed_out(result, timeout)
  end
  return exec.finish(result, opts)
end

local function started(box, fields, deadline, held)
  local op = box:start(fields)
  if held then
    held.op = op
  end
  return wait.op(op, link.left(deadline), "exec")
end

--- What exec.run does with on_output, with `source` (a function that gives the input), or both. `held`, if there is
--- one, knows what is to be ended when a request ends.
function streamed.run(to, fields, source, stdin, timeout, opts, max, held)
  local began = core.now()
  local deadline = link.deadline(timeout)
  local box, err = to:native(timeout, "exec")
  if not box then
    return nil, errors.from(err, "exec")
  end
  local r
  r, err = started(box, fields, deadline, held)
  local again = not r and to:again(err, deadline, "exec")
  if again then
    box = again
    r, err = started(box, fields, deadline, held)
  end
  if not r then
    if err.kind == "Timeout" then
      return exec.timed_out(record.result({}, "", "", core.now() - began), timeout, err)
    end
    return nil, errors.from(to:judge(err), "exec")
  end
  if to.started then
    r = to:started(r, fields)
  end
  local process, release = r.object, r.release
  if held then
    held.release = release
  end
  if stdin then
    source = function()
      local whole = stdin
      stdin = nil
      return whole
    end
  end
  local run = setmetatable({
    box = box,
    process = process,
    guard = own.guard(release), -- whatever is raised from here on, the collector kills the command
    fields = r.fields,
    began = began,
    out = { native = process:stdout(), sink = sink(max, false), fd = 1 },
    err = { native = process:stderr(), sink = sink(max, true), fd = 2 },
    stdin = process:stdin(),
    source = source,
    on_output = opts.on_output,
    exit_op = process:wait(),
    deadline = deadline,
  }, Run)
  run.out.ended = run.out.native == nil
  run.err.ended = run.err.native == nil
  if held then
    held.run = run
  end
  local ran, over, why = nested.pcall(run.loop, run)
  run:close()
  if not ran then
    wait.op(release:op(), KILL_LIMIT, "exec")
    error(over, 0)
  end
  if not over then
    release:fire()
    return nil, errors.from(to:judge(why), "exec")
  end
  return conclude(run, to, release, timeout, opts)
end

return streamed
