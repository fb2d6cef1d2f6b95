-- Answers in the form of the control plane and of the plain endpoints in sandboxes: JSON, and for every failure
-- { code, message } with the status as code.

local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local pace = require "sandbar.server.pace"

local reply = {}

local JSON = "application/json; charset=utf-8"

-- What a failed call of the contract is in HTTP. Anything else is 500.
local STATUS = {
  InvalidArgument = 400, Unsupported = 400, Unauthenticated = 401, PermissionDenied = 403, NotFound = 404,
  AlreadyExists = 409, Busy = 409, NotRunning = 409, WrongOwner = 403, LimitExceeded = 429, RateLimited = 429,
  Unavailable = 503, NoSpace = 507, Timeout = 504,
}

-- What went wrong with the request's own body, which these calls take: the client's doing.
local TAKES_BODY = { read = true, read_all = true, pump_in = true, take_part = true }
local BODY_STATUS = { Protocol = 400, Closed = 400, Timeout = 408 }

--- A refusal, for handlers to return as second value.
function reply.refusal(status, message, more)
  return { status = status, message = message, more = more }
end

--- Of a refusal, or of what the contract gave as error: status, message.
function reply.of(failure)
  if errors.is(failure) then
    local of_body = TAKES_BODY[failure.op or ""] and BODY_STATUS[failure.kind]
    return of_body or STATUS[failure.kind] or 500, failure.message
  end
  return failure.status, failure.message
end

--- Answers with a value as JSON. `headers`: { name = value } beside.
function reply.json(request, status, value, headers)
  local all = { ["content-type"] = JSON, ["x-content-type-options"] = "nosniff" }
  for name, text in pairs(headers or {}) do
    all[name] = text
  end
  return request:respond(status, all, encode.value(value, pace.new()))
end

--- Answers without a body: clients take an answer that says neither "204" nor a length of 0 for broken JSON.
function reply.empty(request, status, headers)
  return request:respond(status, headers or {}, "")
end

function reply.text(request, status, text, headers)
  local all = { ["content-type"] = "text/plain; charset=utf-8", ["x-content-type-options"] = "nosniff" }
  for name, value in pairs(headers or {}) do
    all[name] = value
  end
  return request:respond(status, all, text)
end

--- Answers a browser that asks what it may send.
function reply.preflight(request)
  return reply.empty(request, 204, {
    ["access-control-allow-origin"] = "*", ["access-control-allow-methods"] = "HEAD, GET, POST, PUT, PATCH, DELETE",
    ["access-control-allow-headers"] = request.headers:get("access-control-request-headers") or "*",
    ["access-control-max-age"] = "7200",
  })
end

--- Answers with a failure: a refusal or an error of the contract.
function reply.failed(request, failure)
  local status, message = reply.of(failure)
  local body = { code = status, message = message }
  for name, value in pairs(failure.more or {}) do
    body[name] = value
  end
  return reply.json(request, status, body)
end

return reply
