-- A `sandbar serve` of its own, as a separate process on the spec's state root.

local busted = require "busted"
local helper = require "spec.helper"

local http = require "sandbar.http"
local json = require "sandbar.json"

local serve = {}

local LIFE = 3600 -- s; no file of specs has longer

local KEYS = { "e2b_" .. ("a1"):rep(20), "e2b_" .. ("b2"):rep(20) }

--- Whether, within some seconds, no process in the hosted sandbox has a command line that fits the pattern.
function serve.has_ended(box, pattern)
  return helper.eventually(function()
    return box:exec({ "pgrep", "-f", pattern }).stdout == ""
  end) or false
end

--- Starts one: { url, set (the variables with addresses that its screen tells), key, other_key (of another team),
--- stop() }. `args`: more of its command line.
function serve.start(args)
  local keys = helper.write_file(helper.scratch() .. "/keys", table.concat(KEYS, "\n") .. "\n")
  local line = { "serve", "--root", helper.root(), "--listen", "127.0.0.1:0", "--api-key-file", keys }
  for _, arg in ipairs(args or {}) do
    line[#line + 1] = arg
  end
  local child = helper.start_lua(nil, { file = "src/main/sandbar.lua", args = line, timeout = LIFE })
  local url, set = nil, {}
  repeat
    local text = child:line()
    if not text then
      error("sandbar serve did not start: " .. child:wait().stderr, 0)
    end
    url = url or text:match("E2B_API_URL=(%S+)")
    set[#set + 1] = text:match("export (E2B_[%u_]+_URL=%S+)")
  until text:match("^Ctrl%-C")
  local server = { url = url, set = table.concat(set, " "), key = KEYS[1], other_key = KEYS[2], pid = child.pid }
  -- Ends it as if by accident: its sandboxes stay.
  function server.kill()
    child:signal("KILL")
    return child:wait()
  end
  -- Tells it to end, and the record of that: its sandboxes stay.
  function server.terminate()
    child:signal("TERM")
  end
  function server.wait()
    return child:wait()
  end
  -- Ends it: the record of its end. What it had made is destroyed.
  function server.stop()
    child:signal("TERM")
    local record = child:wait()
    os.remove(keys)
    local sandboxes = helper.open()
    for _, info in ipairs(assert(sandboxes:list())) do
      assert(sandboxes:destroy(info.id))
    end
    sandboxes:close()
    return record
  end
  return server
end

--- Requests to one, without a client library: { port, ask(), create(), with() }.
function serve.client(server)
  local client = { port = http.port { port = tonumber(server.url:match(":(%d+)$")) } }

  --- One request: status, body, headers. `headers` by name; false takes one of the usual away.
  function client.ask(method, path, body, headers)
    local all = { ["x-api-key"] = server.key, host = server.url:match("//(.*)") }
    for name, value in pairs(headers or {}) do
      all[name] = value or nil
    end
    local r = assert(http.request(client.port, { method = method, path = path, body = body, headers = all }, 20, "ask"))
    return r.status, r.body, r.headers
  end

  --- The same; its answer has to have this status. Its body, out of JSON where there is one.
  function client.get(status, method, path, body, headers)
    local got, answer, hs = client.ask(method, path, body, headers)
    if got ~= status then
      error(("%s %s: %d instead of %d: %s"):format(method, path, got, status, answer), 2)
    end
    return answer ~= "" and json.decode(answer) or answer, hs
  end

  --- A sandbox: its id and the headers for its daemon.
  function client.create(fields)
    local made = client.get(201, "POST", "/v2/sandboxes", fields or '{"templateID":"base"}')
    return made.sandboxID, {
      ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-access-token"] = made.envdAccessToken,
    }
  end

  --- Both tables of headers in one.
  function client.with(headers, more)
    local out = {}
    for _, list in ipairs { headers, more } do
      for name, value in pairs(list) do
        out[name] = value
      end
    end
    return out
  end

  return client
end

--- For a file of specs, in its describe(): a server from the first test to the last, and a client of it, which `take` is
--- given at each start. What starts another one, when that has ended.
function serve.suite(take)
  local server, client

  busted.teardown(function()
    client.port:close()
    server.stop()
  end)
  helper.guard { each = false }

  local function start()
    server = serve.start()
    client = serve.client(server)
    take(server, client)
  end

  busted.setup(start)
  return start
end

return serve
