-- What the proxy in front of a sandbox's ports answers instead of the program behind them: told from the program's own
-- answers, and made an error of the contract.

local answers = require "sandbar.e2b.errors"
local errors = require "sandbar.errors"

local refused = {}

local MOST = 65536 -- bytes of a refusal
local INFO = 5
local STATUS = { [502] = true, [403] = true, [409] = true, [429] = true }

-- Who asks like this gets a page for people, and no word of what it means.
local BROWSERS = { "mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie" }

local function is_browser(headers)
  for name, value in pairs(headers) do
    if type(name) == "number" then
      name, value = value[1], value[2]
    end
    name = name:lower()
    if name == "sec-fetch-mode" and value == "navigate" then
      return true
    elseif name == "user-agent" and type(value) == "string" then
      value = value:lower()
      for _, browser in ipairs(BROWSERS) do
        if value:find(browser, 1, true) then
          return true
        end
      end
    end
  end
  return false
end

--- Can this answer be one? "yes": its body tells; "ask": somebody who is no browser has to ask again; nil: it is the
--- program's own. `headers`: of the request.
function refused.may_be(answer, headers)
  if not STATUS[answer.status] then
    return nil
  end
  local kind = (answer.headers["content-type"] or ""):lower()
  local length = tonumber(answer.headers["content-length"] or "")
  if length and length > MOST then
    return nil
  elseif kind:find("json", 1, true) then
    return "yes"
  end
  return kind:find("html", 1, true) and is_browser(headers) and "ask" or nil
end

--- The longest body that is worth reading.
refused.MOST = MOST

-- A body as it was on the wire, without the marks of its chunks.
local function unchunked(text)
  local out, at = {}, 1
  while true do
    local from, to, size = text:find("^(%x+)[^\r\n]*\r?\n", at)
    size = from and tonumber(size, 16)
    if not size or size == 0 then
      return table.concat(out)
    end
    out[#out + 1] = text:sub(to + 1, to + size)
    at = to + size + 1
    at = (text:match("^\r?\n()", at)) or at
  end
end

--- The same answer, its body without what belongs to the connection.
function refused.plain(answer)
  if (answer.headers["transfer-encoding"] or ""):lower():find("chunked", 1, true) then
    answer.body = unchunked(answer.body)
  end
  return answer
end

--- The error that an answer with its body stands for, or nil: it is the program's own. `to`: the sandbox's link.
function refused.of(to, number, answer, op)
  local what = answers.of_proxy(answer)
  if not what then
    return nil
  end
  local function fail(kind, message, code)
    return errors.new { kind = kind, op = op, id = to.id, status = answer.status, code = code, message = message }
  end
  if what == "port" then
    return fail("Unavailable", ("nothing listens on port %d"):format(number), "ECONNREFUSED")
  elseif what == "token" then
    return fail("PermissionDenied", "the traffic token of the sandbox is missing or wrong; resume() tells it")
  elseif what == "busy" then
    return fail("Busy", "the sandbox is being paused or resumed")
  elseif what == "limit" then
    return fail("RateLimited", "the sandbox has too many connections")
  end
  local r, err = to.driver:info(to.id, INFO)
  if not r then
    return errors.from(to:heard(err), op)
  elseif r.fields.state[1] ~= "running" then
    return errors.from(select(2, to:not_running(r.fields.state[1])), op)
  end
  return fail("Unavailable", "the vendor's proxy does not know the sandbox, which runs")
end

return refused
