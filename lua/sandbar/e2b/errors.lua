-- What the vendor's answers mean: one table from HTTP statuses, codes of Connect and refusals of the port proxy to the
-- kinds of the contract. Texts of the other side are shortened here, and redacted by errors.new.

local errors = require "sandbar.errors"
local json = require "sandbar.json"

local answers = {}

local LONGEST = 500

-- Of the control plane and of plain HTTP into a sandbox.
local STATUS = {
  [400] = "InvalidArgument", [401] = "Unauthenticated", [403] = "PermissionDenied", [404] = "NotFound",
  [405] = "Unsupported", [408] = "Unavailable", [409] = "Busy", [410] = "Unsupported", [411] = "Protocol",
  [413] = "LimitExceeded", [415] = "Unsupported", [422] = "InvalidArgument", [423] = "Busy", [425] = "Unavailable",
  [429] = "RateLimited", [501] = "Unsupported", [507] = "NoSpace",
}

-- Of the Connect protocol.
local CODE = {
  canceled = "Cancelled", unknown = "Platform", invalid_argument = "InvalidArgument", deadline_exceeded = "Timeout",
  not_found = "NotFound", already_exists = "AlreadyExists", permission_denied = "PermissionDenied",
  resource_exhausted = "RateLimited", failed_precondition = "InvalidArgument", aborted = "Busy",
  out_of_range = "InvalidArgument", unimplemented = "Unsupported", internal = "Platform", unavailable = "Unavailable",
  data_loss = "Protocol", unauthenticated = "Unauthenticated",
}

--- The kind of an HTTP status that is no success.
function answers.kind_of_status(status)
  return STATUS[status] or (status >= 500 and "Unavailable" or status >= 400 and "InvalidArgument" or "Protocol")
end

--- The kind of a code of Connect.
function answers.kind_of_code(code)
  return CODE[code] or "Protocol"
end

--- The whole seconds of a Retry-After header, which may be a date or nonsense: then nil.
function answers.retry_after(headers)
  local text = headers and headers["retry-after"]
  local seconds = text and text:match("^%s*(%d+)%s*$")
  seconds = seconds and tonumber(seconds)
  return seconds and seconds <= 2147483 and seconds or nil
end

local function shown(text)
  text = text:gsub("[%c%s]+", " "):gsub("^ ", ""):gsub(" $", "")
  return #text > LONGEST and text:sub(1, LONGEST) .. " ..." or text
end

-- What an error's body says: its message and its codes. A page for people is not passed on.
local function told(answer)
  local body = answer.body or ""
  local value = body:find("^%s*{") and json.decode(body)
  if type(value) == "table" then
    local text = type(value.message) == "string" and value.message ~= "" and value.message or nil
    return text and shown(text), type(value.error_code) == "string" and value.error_code or nil, value
  end
  local kind = (answer.headers["content-type"] or ""):lower()
  if body == "" or kind:find("html", 1, true) or body:find("^%s*<") then
    return nil
  end
  return shown(body)
end

--- The error of an answer that is no success; `foreign` in it: the vendor's program did not write it, something on the
--- way did. `extra`: further fields; `kinds`: kinds by status that this call knows
--- better.
function answers.of_answer(answer, op, extra, kinds)
  local text, code, value = told(answer)
  local status = answer.status
  local spec = {
    kind = kinds and kinds[status] or answers.kind_of_status(status), op = op, status = status,
    foreign = value == nil or nil, vendor_code = code, retry_after = answers.retry_after(answer.headers),
    message = text or ("the answer is %d%s"):format(status, answer.reason ~= "" and " " .. answer.reason or ""),
  }
  if status >= 300 and status < 400 then
    spec.message = ("the answer is %d, a redirect, and none is followed"):format(status)
  end
  for key, more in pairs(extra or {}) do
    spec[key] = more
  end
  return errors.new(spec)
end

--- The error of a code and a message of Connect.
function answers.of_code(code, message, op, extra)
  local spec = { kind = answers.kind_of_code(code), op = op, vendor_code = code,
    message = type(message) == "string" and message ~= "" and shown(message) or tostring(code) }
  for key, value in pairs(extra or {}) do
    spec[key] = value
  end
  return errors.new(spec)
end

--- What the proxy in front of a sandbox's ports says instead of the program behind them: "port" (nothing listens),
--- "gone" (no such sandbox, or it does not run), "token" (the traffic token), "busy", "limit"; nil for an answer of the
--- program's own.
function answers.of_proxy(answer)
  local status = answer.status
  if status ~= 502 and status ~= 403 and status ~= 409 and status ~= 429 then
    return nil
  end
  local _, _, value = told(answer)
  if type(value) ~= "table" or type(value.sandboxId) ~= "string" or value.code ~= status then
    return nil
  end
  if status == 502 then
    return type(value.message) == "string" and value.message:find("port is not open", 1, true) and "port" or "gone"
  end
  return status == 403 and "token" or status == 409 and "busy" or "limit"
end

return answers
