-- sandbar.serve and `sandbar serve`: the server from its start to its end.

local app = require "sandbar.server.app"
local boxes = require "sandbar.server.boxes"
local catalog = require "sandbar.server.catalog"
local check = require "sandbar.check"
local core = require "sandbar.core"
local ending = require "sandbar.server.ending"
local errors = require "sandbar.errors"
local keys = require "sandbar.server.keys"
local rules = require "sandbar.server.rules"
local secrets = require "sandbar.server.secrets"
local spread = require "sandbar.server.spread"
local root_of = require "sandbar.local.root"
local lifecycle = require "sandbar.server.control.lifecycle"
local page = require "sandbar.server.page"
local store = require "sandbar.server.store"
local volumes = require "sandbar.server.volumes"
local task = require "sandbar.task"
local uploads = require "sandbar.server.control.uploads"

local DEFAULT_LISTEN = "127.0.0.1:3000"
local CONNECTIONS = 4096

local serve = {}

serve.OPTIONS = {
  listen = "string", root = "string", api_key_file = "string", domain = "string", tls_cert = "string",
  tls_key = "string",
}

local function invalid(message)
  return nil, errors.new { kind = "InvalidArgument", op = "serve", message = message }
end

-- "address:port", "[address]:port" or ":port" in two.
local function address_of(text)
  local address, port = text:match("^(%b[]):(%d+)$")
  if not address then
    address, port = text:match("^([^:]*):(%d+)$")
  end
  if not port or tonumber(port) > 65535 then
    return invalid(("listen: %q is not an address and a port"):format(text))
  end
  address = address:gsub("^%[(.*)%]$", "%1")
  return address == "" and "127.0.0.1" or address, tonumber(port)
end

-- A domain in lower case and its name without a port, or nil and an error. With an empty one every name that ends with
-- a dot would be ours.
local function domain_of(text)
  local domain = text:lower()
  local name = domain:gsub(":%d+$", "")
  if not name:find("^%w[%w._-]*$") or name:find("..", 1, true) or name:sub(-1) == "." or #name > 253 then
    return invalid(("domain: %q is no name, with a port behind it where it has one"):format(text))
  end
  return domain, name
end

local function is_loopback(address)
  return address:match("^127%.%d+%.%d+%.%d+$") ~= nil or address == "::1" or address == "localhost"
end

-- What the handlers work with, out of the store. True, or nil and an error.
local function fill(server, opts)
  local kept, provider = server.store, server.provider
  local ok, err = uploads.clear(kept)
  if not ok then
    return nil, err
  end
  server.boxes = boxes.new(provider, kept.seed)
  server.keys, err = keys.open(kept, opts.api_key_file)
  if not server.keys then
    return nil, err
  end
  server.catalog, err = catalog.open(kept, provider)
  if not server.catalog then
    return nil, err
  end
  server.secrets, err = secrets.open(kept)
  if not server.secrets then
    return nil, err
  end
  server.rules, err = rules.open(kept, provider, server.secrets)
  if not server.rules then
    return nil, err
  end
  server.spread = spread.new(server.rules, server.boxes)
  server.volumes, err = volumes.open(kept, provider)
  return server.volumes and true, err
end

-- What a server that listens on every address is called on its own machine.
local OWN = { ["0.0.0.0"] = "127.0.0.1", ["::"] = "::1" }

-- What is reached under its address. True, or nil and an error.
local function listen(server, opts, address, port)
  local http = require "sandbar.server.http"
  local listener, err = http.listen { address = address, port = port, max_connections = CONNECTIONS,
    tls_cert = opts.tls_cert, tls_key = opts.tls_key }
  if not listener then
    if err.kind == "Busy" then
      err = errors.new { kind = "Busy", op = err.op, message = err.message .. "; port 0 takes a free one" }
    end
    return nil, err
  end
  server.listener, server.port = listener, listener:address().port
  server.domain = server.domain or ("localhost:%d"):format(server.port)
  server.scheme, server.everywhere = opts.tls_cert and "https" or "http", OWN[address] ~= nil
  address = OWN[address] or address
  server.url = ("%s://%s:%d"):format(server.scheme, address:find(":", 1, true) and "[" .. address .. "]" or address,
    server.port)
  return true
end

-- What a person reads who has just started it.
local function screen(server)
  local key = server.keys.first
  return table.concat({
    ("sandbar serves the E2B protocol at %s"):format(server.url)
      .. (server.everywhere and "\n(for other machines: at its own address in the place of that)" or ""),
    "",
    "For the official SDKs and the CLI, in the shell of the program that uses them:",
    "",
    ("  export E2B_API_URL=%s"):format(server.url),
    ("  export E2B_SANDBOX_URL=%s"):format(server.url),
    ("  export E2B_VOLUME_API_URL=%s"):format(server.url),
    key and ("  export E2B_API_KEY=%s"):format(key) or "  export E2B_API_KEY=...        # one of your file of keys",
    "",
    ("In a browser: %s/"):format(server.url),
    ("Ports of sandboxes: %s://PORT-ID.%s/"):format(server.scheme, server.domain),
    "",
    "Ctrl-C ends the server; sandboxes go on, and the next one finds them.",
    "",
  }, "\n")
end

--- Starts a server: a table with url and screen, or nil and an error. Nothing is accepted before serve.run.
function serve.start(opts, level)
  opts = check.options("serve", 1, opts or {}, serve.OPTIONS, (level or 1) + 1)
  local address, port = address_of(opts.listen or DEFAULT_LISTEN)
  if not address then
    return nil, port
  elseif not is_loopback(address) and not opts.api_key_file then
    return invalid(("listen: %s can be reached from elsewhere; that needs an api_key_file"):format(address))
  end
  local domain, name
  if opts.domain then
    domain, name = domain_of(opts.domain)
    if not domain then
      return nil, name
    end
  end
  local provider, err = require("sandbar").open { root = opts.root }
  if not provider then
    return nil, err
  end
  local kept
  kept, err = store.open(opts.root or root_of.default())
  if not kept then
    return nil, err
  end
  local server = { provider = provider, store = kept, domain = domain, domain_name = name }
  local ok
  ok, err = fill(server, opts)
  if ok then
    ok, err = listen(server, opts, address, port)
  end
  if not ok then
    kept:close()
    return nil, err
  end
  server.report = function(text)
    io.stderr:write("sandbar serve: ", text, "\n")
  end
  server.resume = function(info, lifetime, timeout)
    return lifecycle.resume({ server = server }, info, lifetime, timeout)
  end
  server.screen = screen(server)
  server.page, err = page.load()
  if not server.page then
    server.report(err.message)
  end
  return server
end

--- Answers requests until the listener is closed, and those that came before to their end.
function serve.run(server)
  local http = require "sandbar.server.http"
  server.spread:begin()
  http.serve(server.listener, function(request)
    app.handle(server, request)
  end)
  ending.finish(server)
  return true
end

-- ---- sandbar.serve ----

local class
local methods = {}

--- Until it has ended. True, or nil and an error.
function methods:wait(opts)
  local state = core.state(self, class)
  opts = check.options("wait", 1, opts, check.TIMEOUT)
  local timeout, err = check.timeout(opts, "wait")
  if err then
    return nil, err
  end
  return task.join(state._task, timeout, "wait")
end

--- Accepts nothing more, and cuts what is open. The sandboxes go on.
function methods:close()
  local state = core.state(self, class)
  if not state._closed then
    state._closed = true
    state._server.listener:close()
    state._server.boxes:shut()
    state._server.listener:cut()
  end
  return true
end

class = core.class("Serving", methods, {
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    return ("sandbar.Serving %s (%s)"):format(state.url, state._closed and "closed" or "open")
  end,
})

--- Serves beside the program's own tasks, until it is closed.
function serve.serve(opts)
  local server, err = serve.start(opts, 2)
  if not server then
    return nil, errors.from(err, "serve")
  end
  local running = task.new(serve.run, { n = 1, server })
  local ok
  ok, err = task.start(running, true)
  if not ok then
    server.listener:close()
    server.store:close()
    return nil, err
  end
  return core.handle(class, { _server = server, _task = running, url = server.url, api_key = server.keys.first })
end

return serve
