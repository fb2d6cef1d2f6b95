-- What the way to a sandbox answers by itself: the sandbox is not there, its port is not open, the caller has no right
-- to it. Programs get JSON, people in a browser a page with the same status.

local reply = require "sandbar.server.reply"

local refuse = {}

local BROWSERS = { "mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie" }
local FETCHED = { cors = true, ["no-cors"] = true, ["same-origin"] = true, websocket = true }

-- Is it a person who looks at the answer?
local function in_browser(headers)
  local mode = headers:get("sec-fetch-mode")
  local accept = (headers:get("accept") or ""):lower()
  if mode == "navigate" then
    return true
  elseif FETCHED[mode or ""] or headers:get("x-requested-with")
    or accept:find("application/json", 1, true) and not accept:find("text/html", 1, true) then
    return false
  end
  local agent = (headers:get("user-agent") or ""):lower()
  for _, name in ipairs(BROWSERS) do
    if agent:find(name, 1, true) then
      return true
    end
  end
  return false
end

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

local function escape(text)
  return (text:gsub('[&<>"]', ENTITIES))
end

--- Answers with { sandboxId, message, code } and what `more` adds.
function refuse.with(request, status, id, message, more)
  if in_browser(request.headers) then
    local page = ("<!doctype html><meta charset=utf-8><title>%d</title><h1>%d</h1><p>%s</p><p>sandbox %s</p>\n"):format(
      status, status, escape(message), escape(id))
    return request:respond(status, {
      ["content-type"] = "text/html; charset=utf-8", ["x-content-type-options"] = "nosniff",
      ["content-security-policy"] = "default-src 'none'",
    }, page)
  end
  local body = { sandboxId = id, message = message, code = status }
  for name, value in pairs(more or {}) do
    body[name] = value
  end
  return reply.json(request, status, body)
end

--- Clients take this, and only this, for a sandbox that does not run.
function refuse.not_found(request, id)
  return refuse.with(request, 502, id, "The sandbox was not found")
end

local FAILURES = {
  Busy = { 409, "The sandbox is being paused or resumed" }, Timeout = { 409, "The sandbox is being paused or resumed" },
  LimitExceeded = { 429, "There is no room for another running sandbox" },
  RateLimited = { 429, "There is no room for another running sandbox" },
}

--- It could not be looked for, or not be woken: nil where there is none. Whoever asks has no right to know more of why.
function refuse.failed(request, id, err)
  if not err or err.kind == "NotFound" or err.kind == "NotRunning" then
    return refuse.not_found(request, id)
  end
  local known = FAILURES[err.kind] or { (reply.of(err)), "The sandbox could not be reached" }
  return refuse.with(request, known[1], id, known[2])
end

function refuse.closed(request, id, port)
  return refuse.with(request, 502, id, "The sandbox is running but port is not open", { port = port })
end

return refuse
