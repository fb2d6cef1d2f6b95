-- The bytes of files on their way out of and into a hosted sandbox, over HTTP and as they are, in constant memory.

local address = require "sandbar.e2b.address"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local link_of = require "sandbar.link"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local rpc = require "sandbar.e2b.rpc"

local carried = {}

local PATIENCE = 120 -- seconds without a byte after which a transfer counts as cut
local MAX_TOLD = 65536 -- bytes of what a refusal says
local PIECE = 1048576
local TRIES, PAUSE = 3, 0.1
local ERRNOS = { [404] = 2, [507] = 28 } -- ENOENT, ENOSPC

local function target(calls, path, user)
  return calls:target("/files" .. address.query { { "path", path }, user and { "username", user } or nil })
end

-- What an answer that is no success means.
local function refusal(answer, op, path)
  local err = rpc.refusal(answer, op)
  return errors.from(err, op, { path = path, errno = ERRNOS[answer.status] })
end

-- The error of a wait for `patience` that was not the caller's.
local function silent(err, timeout, op)
  if err and err.kind == "Timeout" and err.clock == "timeout" and (not timeout or timeout > PATIENCE) then
    return errors.new { kind = "Timeout", op = op, clock = "silence", limit = PATIENCE,
      message = ("nothing has moved for %d s"):format(PATIENCE) }
  end
  return err
end

local function patience(timeout)
  return timeout and math.min(timeout, PATIENCE) or PATIENCE
end

-- As it is, or it is none.
local function check_identity(answer, op)
  local coding = answer.headers["content-encoding"]
  if coding and coding:lower() ~= "identity" then
    return nil, errors.new { kind = "Protocol", op = op, status = answer.status,
      message = ("the file came as %q, and was asked for as it is"):format(coding) }
  end
  return answer
end

local function asked(calls, path)
  local lines = calls:identity()
  lines[#lines + 1] = { "Accept-Encoding", "identity" }
  return { path = target(calls, path), headers = lines }
end

-- ---- out ----

local Out = { remote = true }
Out.__index = Out

--- The next bytes: what it is asked for is always what follows.
function Out:read(_, n, timeout, op)
  if self.text then
    local data = self.text
    self.text = nil
    return data
  end
  if not self.body then
    return nil
  end
  local done, data, e = self.body:try_read("some", n)
  if done then
    return data, e and errors.from(e, op)
  end
  local err
  data, err = wait.bytes(self.body:read("some", n), patience(timeout), op)
  return data, silent(err, timeout, op)
end

function Out:close()
  if self.body then
    self.body:close()
  end
  self.body, self.text, self.handle = nil, nil, nil
end

--- A file whose bytes are there already.
function carried.of_text(text)
  return setmetatable({ text = text ~= "" and text or nil }, Out)
end

-- Has no answer come, or no whole one? Or one by which the other side could not just now.
local function again(err)
  return err.kind == "OutcomeUnknown" or err.kind == "Unavailable" or err.kind == "Protocol" and not err.status
end

-- `fn(left)`, which may be done twice, until its answer has come, in time: what it gives, or nil and an error.
local function tried(timeout, fn)
  local deadline, value, err = link_of.deadline(timeout), nil, nil
  for try = 1, TRIES do
    value, err = fn(link_of.left(deadline))
    if value or try == TRIES or not again(err)
      or deadline and link_of.left(deadline) <= PAUSE * try or not wait.sleep(PAUSE * try) then
      break
    end
  end
  return value, link_of.told(err, timeout)
end

-- One try of what follows.
local function asked_once(calls, path, timeout, op)
  local port, err = calls:port()
  if not port then
    return nil, errors.from(err, op)
  end
  local deadline = link_of.deadline(timeout)
  local request = asked(calls, path)
  request.stream = true
  local answer
  answer, err = http.request(port, request, patience(timeout), op)
  if not answer then
    return nil, silent(err, timeout, op)
  end
  if answer.status ~= 200 then
    answer.body = answer.body:read("a", { timeout = patience(link_of.left(deadline)), max = MAX_TOLD }) or ""
    return nil, refusal(answer, op, path)
  end
  local ok
  ok, err = check_identity(answer, op)
  if not ok then
    answer.body:close()
    return nil, err
  end
  return setmetatable({ handle = answer.body, body = stream.state(answer.body)._native }, Out)
end

--- A file to be read once, from its start to its end. Nil and an error.
function carried.out(calls, path, timeout, op)
  return tried(timeout, function(left)
    return asked_once(calls, path, left, op)
  end)
end

local function whole_once(calls, path, max, timeout, op)
  local deadline = link_of.deadline(timeout)
  local out, err = asked_once(calls, path, timeout, op)
  if not out then
    return nil, err
  end
  local parts, size = {}, 0
  repeat
    local data
    data, err = out:read(size, PIECE, link_of.left(deadline), op)
    parts[#parts + 1] = data
    size = size + #(data or "")
    if size > max then
      err = errors.new { kind = "LimitExceeded", op = op, limit = max, path = path,
        message = ("the file is longer than %.0f bytes"):format(max) }
    end
  until not data or err
  out:close()
  if err then
    return nil, errors.from(err, op, { path = path })
  end
  return table.concat(parts)
end

--- All of a file of up to `max` bytes, or nil and an error: of one that was cut nothing was handed out, and it is asked
--- for again.
function carried.whole(calls, path, max, timeout, op)
  return tried(timeout, function(left)
    return whole_once(calls, path, max, left, op)
  end)
end

-- ---- in ----

local In = { remote = true }
In.__index = In

local function sent_as(calls, path, user)
  local lines = calls:identity()
  lines[#lines + 1] = { "Content-Type", "application/octet-stream" }
  return { method = "POST", path = target(calls, path, user), headers = lines }
end

-- True, or nil and why the file is not there.
local function judge(answer, op, path)
  if answer.status == 200 then
    return true
  end
  return nil, refusal(answer, op, path)
end

local function in_pieces()
end

--- A file to be written once, from its start to its end, and finished. `named`: what errors call it; `size`: if it is
--- known. Nil and an error.
function carried.into(calls, path, named, user, op, size)
  local port, err = calls:port()
  if not port then
    return nil, errors.from(err, op)
  end
  local request = sent_as(calls, path, user)
  request.body = in_pieces
  if size then
    table.insert(request.headers, { "Content-Length", ("%.0f"):format(size) })
  end
  local fetch, upload = http.fetch(port, request)
  if not fetch then
    return nil, errors.from(upload, op)
  end
  return setmetatable({ fetch = fetch, upload = upload, sent = 0, path = named }, In)
end

-- The answer's meaning.
local function outcome(self, timeout, op)
  local r, early = wait.finish(self.fetch, patience(timeout), op)
  if not r then
    return nil, silent(early, timeout, op)
  end
  local answer = http.answer(self.fetch)
  if not answer then
    local _, err = wait.outcome(self.fetch, early, op)
    return nil, errors.from(err, op, { path = self.path })
  end
  return judge(answer, op, self.path)
end

function In:write(_, data, timeout, op)
  local r, err = wait.op(self.upload:write(data), patience(timeout), op)
  if not r then
    if err.kind == "Closed" then -- the other side has had enough, and says why
      local ok, why = outcome(self, timeout, op)
      err = not ok and why or err
    end
    return nil, silent(err, timeout, op)
  end
  self.sent = self.sent + #data
  return #data
end

--- The end: true once the other side has all of it.
function In:finish(timeout, op)
  self.upload:finish()
  self.finished = true
  return outcome(self, timeout, op)
end

function In:close()
  if not self.finished then
    self.upload:close()
    self.fetch:cancel()
    self.finished = true
  end
end

-- One try: true, or nil and an error.
local function put_once(calls, path, named, user, data, timeout, op)
  local deadline = link_of.deadline(timeout)
  local into, err = carried.into(calls, path, named, user, op, #data)
  local ok = into ~= nil
  for at = 1, ok and #data or 0, PIECE do
    ok, err = into:write(at - 1, data:sub(at, at + PIECE - 1), link_of.left(deadline), op)
    if not ok then
      break
    end
  end
  if ok then
    ok, err = into:finish(link_of.left(deadline), op)
  end
  if into and not ok then
    into:close()
  end
  return ok and true or nil, err
end

--- Puts all bytes into a file of nobody else's, which may be done twice. `named`: as above. True, or nil and an error.
function carried.put(calls, path, named, user, data, timeout, op)
  local ok, err = tried(timeout, function(left)
    return put_once(calls, path, named, user, data, left, op)
  end)
  return ok, err and errors.from(err, op, { path = named })
end

return carried
