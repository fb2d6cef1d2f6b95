-- The page for people at `/`: HTML, CSS and JavaScript from the files in page/, put into one document. Nothing of it is
-- secret: it asks for a key and then calls what everybody else calls.
--
-- Whatever a sandbox has named or written is shown in it as text. The policy that goes with it is there for the day
-- that somebody gets that wrong: no script and no style but these very ones, no HTML out of strings, nothing from or to
-- other origins, no frame around it.

local errors = require "sandbar.errors"
local http = require "sandbar.http"
local reply = require "sandbar.server.reply"

local page = {}

-- Parts of one script, in this order.
local SCRIPTS = {
  "dom", "api", "charts", "row", "screen", "glass", "keyboard", "terminal", "processes", "files", "box", "list",
  "dialogs", "main",
}

local _, given = ...

-- Lua 5.1 tells a module its name only.
local DIRECTORY = (given or debug.getinfo(1, "S").source:sub(2)):gsub("%.lua$", "") .. "/"

local function read(name)
  local file, why = io.open(DIRECTORY .. name, "rb")
  if not file then
    return nil, errors.new { kind = "NotFound", op = "serve", message = "the page's files: " .. why }
  end
  local text = file:read("*a")
  file:close()
  return text
end

local function policy(script, style)
  local function hash(text)
    return ("'sha256-%s'"):format(http.base64(http.sha256(text)))
  end
  return table.concat({
    "default-src 'none'", "script-src " .. hash(script), "style-src " .. hash(style), "connect-src 'self'",
    "img-src data: blob:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",
  }, "; ")
end

--- Puts the page together: { html, headers }, or nil and an error.
function page.load()
  local html, err = read("page.html")
  local style = html and read("style.css")
  local scripts = {}
  for i, name in ipairs(SCRIPTS) do
    scripts[i], err = read(name .. ".js")
    if not scripts[i] then
      return nil, err
    end
  end
  if not style then
    return nil, err
  end
  local parts = { STYLE = style, SCRIPT = table.concat(scripts, "\n") }
  return {
    html = html:gsub("%%(%u+)%%", parts),
    headers = {
      ["content-type"] = "text/html; charset=utf-8", ["content-security-policy"] = policy(parts.SCRIPT, parts.STYLE),
      ["x-content-type-options"] = "nosniff", ["x-frame-options"] = "DENY", ["referrer-policy"] = "no-referrer",
      ["cross-origin-opener-policy"] = "same-origin", ["cross-origin-resource-policy"] = "same-origin",
      ["cache-control"] = "no-store",
    },
  }
end

--- Is it the page that is asked for? It is for everybody who may ask at all.
function page.is_asked(request, target)
  return target.path == "/" and (request.method == "GET" or request.method == "HEAD")
end

function page.serve(server, request)
  local loaded = server.page
  if not loaded then
    return reply.failed(request, reply.refusal(404, "the page's files are not installed"))
  end
  return request:respond(200, loaded.headers, loaded.html)
end

return page
