-- What the vendor's answers mean: one table from HTTP statuses, codes of Connect and refusals of the port proxy to the
-- kinds of the contract. Texts of the other side are shortened here, and redacted by errors.new.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local json = require "sandbar.json"
local time = require "sandbar.e2b.time"

local answers = {}

local LONGEST, EXCERPT = 500, 300

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

local MONTHS = {
  Jan = 1, Feb = 2, Mar = 3, Apr = 4, May = 5, Jun = 6, Jul = 7, Aug = 8, Sep = 9, Oct = 10, Nov = 11, Dec = 12,
}

-- Seconds since 1970 of a date as HTTP has it, or nil.
local function http_date(text)
  local day, month, year, clock = text:match("^%a+, (%d%d) (%a%a%a) (%d%d%d%d) (%d%d:%d%d:%d%d) GMT$")
  return day and MONTHS[month] and time.of(("%s-%02d-%sT%sZ"):format(year, MONTHS[month], day, clock))
end

--- The seconds of a Retry-After header, a number or a date; nil for nonsense.
function answers.retry_after(headers)
  local text = headers and headers["retry-after"]
  if not text then
    return nil
  end
  local seconds = tonumber(text:match("^%s*(%d+)%s*$"))
  local at = not seconds and http_date(text)
  if at then
    seconds = math.max(at - (http_date(headers.date or "") or core.wall()), 0)
  end
  return seconds and seconds <= 2147483 and seconds or nil
end

-- The beginning of a text, in one line. Secrets go first: of one that is cut in the middle a part would be left.
local function shown(text, most)
  most = most or LONGEST
  text = core.redact(text:sub(1, most + errors.LONGEST_SECRET)):gsub("[%c%s]+", " "):gsub("^ ", ""):gsub(" $", "")
  return #text > most and text:sub(1, most) .. " ..." or text
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

--- What the other side calls the request, for whoever asks it.
function answers.request_id(headers)
  return headers["x-request-id"] or headers["x-e2b-trace-id"]
end

local function excerpt(text)
  return shown(text, EXCERPT)
end

--- The error of a success that cannot be read.
function answers.of_nonsense(answer, op, extra)
  local spec = { kind = "Protocol", op = op, status = answer.status, content_type = answer.headers["content-type"],
    request_id = answers.request_id(answer.headers), excerpt = excerpt(answer.body),
    message = "the answer is not the JSON that was due; is api_url that of a control plane?" }
  for key, value in pairs(extra or {}) do
    spec[key] = value
  end
  return errors.new(spec)
end

--- The error of an answer that is no success; `foreign` in it: the vendor's program did not write it, something on the
--- way did: its own repeats the status. A foreign 404 says of nothing that it is not there. `extra`: further fields;
--- `kinds`: kinds by status that this call knows better.
function answers.of_answer(answer, op, extra, kinds)
  local text, code, value = told(answer)
  local status = answer.status
  local foreign = value == nil or value.code ~= status
  local spec = {
    kind = kinds and kinds[status] or foreign and status == 404 and "Protocol" or answers.kind_of_status(status),
    op = op, status = status, foreign = foreign or nil, vendor_code = code,
    retry_after = answers.retry_after(answer.headers),
    content_type = answer.headers["content-type"], request_id = answers.request_id(answer.headers),
    excerpt = value == nil and answer.body and answer.body ~= "" and excerpt(answer.body) or nil,
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
