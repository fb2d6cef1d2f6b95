-- Calls of the daemon in a hosted sandbox, in its binary form: single ones, and commands as streams.

local answers = require "sandbar.e2b.errors"
local address = require "sandbar.e2b.address"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local headers = require "sandbar.headers"
local helper = require "sandbar.e2b.helper"
local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local wait = require "sandbar.wait"

local rpc = {}

local Rpc = {}
Rpc.__index = Rpc

local AGENT = "sandbar-lua/" .. core.VERSION
local CONNECT_TIMEOUT = 30
local PING = 50 -- seconds after which the daemon says that it is there ...
local SILENCE = 2 * PING + 20 -- ... and how long nothing may come at all
rpc.PING, rpc.SILENCE = PING, SILENCE
local MAX_ANSWER = 67108864

--- `options`: base (the daemon's URL), id and vendor_id (of the sandbox), token (a secret, or nil), proxy, ca_file. No
--- I/O.
function rpc.new(options)
  local origin, prefix = address.split(options.base, "sandbox_url")
  if not origin then
    return nil, prefix
  end
  return setmetatable({ origin = origin, prefix = prefix, options = options, kept = {} }, Rpc)
end

local function connect(self)
  return http.client {
    url = self.origin, proxy = self.options.proxy, ca_file = self.options.ca_file, connect_timeout = CONNECT_TIMEOUT,
  }
end

-- Each process generation has connections of its own.
function Rpc:port()
  local generation = core.generation()
  if self.generation ~= generation or core.collected(self.client) then
    local client, err = connect(self)
    if not client then
      return nil, err
    end
    self.client, self.generation, self.ending, self.killers = client, generation, nil, nil
  end
  return self.client
end

function Rpc:close()
  if self.client and self.generation == core.generation() then
    self.client:close()
  end
  self.client, self.ending, self.killers = nil, nil, nil
end

function Rpc:target(method)
  return self.prefix .. method
end

--- What every request to the daemon says of itself, as pairs.
function Rpc:identity()
  local out = {
    { "User-Agent", AGENT },
    { "E2b-Sandbox-Id", self.options.vendor_id }, { "E2b-Sandbox-Port", tostring(address.DAEMON_PORT) },
  }
  if self.options.token then
    out[#out + 1] = { "X-Access-Token", self.options.token }
  end
  return out
end

-- The headers of a call, as pairs. `user`: whose rights it has, nil for the sandbox's own.
function Rpc:headers(kind, user)
  local out = self:identity()
  out[#out + 1] = { "Content-Type", kind }
  out[#out + 1] = { "Connect-Protocol-Version", "1" }
  if user then
    out[#out + 1] = { "Authorization", "Basic " .. http.base64(user .. ":") }
  end
  return out
end

-- ---- what failures mean ----

--- The error of an answer of plain HTTP where one of the protocol was due.
function rpc.refusal(answer, op)
  local value = json.decode(answer.body or "")
  if type(value) == "table" and type(value.code) == "string" then
    return answers.of_code(value.code, value.message, op)
  end
  local who = answers.of_proxy(answer)
  if who == "gone" then
    return errors.new { kind = "NotRunning", op = op, status = answer.status,
      message = "the sandbox is paused, or about to be; resume() wakes it" }
  elseif who == "port" then
    return errors.new { kind = "Unavailable", op = op, status = answer.status,
      message = "the sandbox's daemon does not answer" }
  end
  return answers.of_answer(answer, op)
end

--- What the error of a stream means, which said `fields` by then (see src/e2b/run.h).
function rpc.broken(err, fields, op)
  if fields and fields.count and fields.count >= 300 then
    local told = rpc.refusal({ status = fields.count, reason = "", body = fields.data or "", headers = {} }, op)
    if told.foreign and (told.status >= 500 or told.kind == "Unavailable") then -- what it was told may have gone on
      return errors.new { kind = "OutcomeUnknown", op = op, status = told.status, cause = told, message = told.message }
    end
    return told
  end
  local value = fields and not fields.count and fields.data and json.decode(fields.data)
  local told = type(value) == "table" and value.error
  if type(told) == "table" and type(told.code) == "string" then
    return answers.of_code(told.code, told.message, op)
  end
  return errors.from(err, op)
end

-- ---- calls ----

--- One call: the answer's table, or nil and an error. `name`: "process.Process/List", of a request `request` of the
--- message type "process.List" .. "Request".
function Rpc:call(name, request, timeout, op, user)
  local port, err = self:port()
  if not port then
    return nil, errors.from(err, op)
  end
  local package, method = name:match "^(%l+)%.%a+/(%a+)$"
  local type_name = package .. "." .. method
  local body
  body, err = message.encode(type_name .. "Request", request, "proto")
  if not body then
    return nil, errors.from(err, op)
  end
  local answer
  answer, err = http.request(port, { method = "POST", path = self:target("/" .. name), body = body,
    headers = self:headers("application/proto", user), max_body = MAX_ANSWER }, timeout, op)
  if not answer then
    return nil, errors.from(err, op)
  elseif answer.status ~= 200 then
    return nil, rpc.refusal(answer, op)
  elseif not (answer.headers["content-type"] or ""):find "^application/proto" then
    return nil, errors.new { kind = "Protocol", op = op, message = "the answer is not of the daemon's protocol" }
  end
  local value
  value, err = message.decode(type_name .. "Response", answer.body, "proto")
  if not value then
    return nil, errors.new { kind = "Protocol", op = op, message = err.message }
  end
  return value
end

--- What ends commands, by their tokens and numbers: killer:release(token, pid). Nil and an error. Its connections are
--- its own: they are not closed with the handle's. `run`: also ends what one that has ended by itself has left of its
--- group, in that run of the sandbox ("": in any); `ticks`: ends what has no token, and began then in that run.
function Rpc:killer(run, ticks)
  local port, err = self:port()
  if not port then
    return nil, err
  elseif not self.ending then
    self.ending, err = connect(self)
    self.killers = {}
    if not self.ending then
      return nil, err
    end
  end
  local kept = not ticks and self.killers[run or 0]
  if kept then
    return kept
  end
  local body, at = helper.killer(ticks and run, ticks)
  local left, left_at
  if run and not ticks then
    left, left_at = helper.killer(run, "-")
  end
  local killer = http.killer(self.ending, self.options.id, self:target "/process.Process/List",
    headers.lines(self:headers("application/proto")), self:target "/process.Process/Start",
    headers.lines(self:headers("application/connect+proto", "root")), body, at, left, left_at)
  if not ticks then
    self.killers[run or 0] = killer
  end
  return killer
end

--- The result of a stream's operation, or nil and what its failure means.
function Rpc.wait(_, op, timeout, opname)
  local r, err, partial = wait.op(op, timeout, opname)
  if r then
    return r
  end
  return nil, rpc.broken(err, partial and partial.fields, opname)
end

--- A command as a stream: its operation (see http.run), or nil and an error. `opts`: user, limit (ms, after which the
--- daemon kills it), max (keep its output up to so much, and be done at its end), token (it is killed when nobody waits
--- any more), run (of the sandbox, see Rpc:killer), tails (bits of outputs that nobody reads).
function Rpc:stream(name, type_name, request, opts)
  local port, err = self:port()
  if not port then
    return nil, err
  end
  local all = self:headers("application/connect+proto", opts.user)
  all[#all + 1] = { "Keepalive-Ping-Interval", tostring(PING) }
  if opts.limit then
    all[#all + 1] = { "Connect-Timeout-Ms", ("%d"):format(opts.limit) }
  end
  local killer
  if opts.token then
    killer, err = self:killer(opts.run)
    if not killer then
      return nil, err
    end
  end
  local op, why = http.run(port, self:target("/" .. name), headers.lines(all), type_name, request, SILENCE, opts.max,
    killer, opts.token, opts.tails)
  if not op then
    return nil, errors.new { kind = "InvalidArgument", message = why }
  end
  return op
end

return rpc
