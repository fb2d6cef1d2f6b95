-- check: only 5.4
-- check: no asan
-- What clients other than the official ones may send: both codecs, both kinds of calls, requests that are refused. And a
-- server that is started again.

local commands = require "spec.support.commands"
local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"

local SERVER = (os.getenv("SPEC_BUILD") or "build") .. "/spec/http_server"

describe("sandbar serve on the wire", function()
  local server, wire, port

  local start = serve.suite(function(...)
    server, wire = ...
    port = wire.port
  end)

  local function ask(...)
    return wire.ask(...)
  end

  local function create(fields)
    return wire.create(fields)
  end

  local function with(headers, more)
    return wire.with(headers, more)
  end

  -- The events of a stream and its last payload.
  local function events_of(type_name, body, codec)
    local parser, events, last = message.parser(), {}, nil
    parser:feed(body)
    for flags, payload in function() return parser:next() end do
      if flags == message.END then
        last = payload
      else
        events[#events + 1] = assert(message.decode(type_name, payload, codec))
      end
    end
    return events, last
  end

  it("streams a command in both codecs", function()
    local _, headers = create()
    for _, codec in ipairs { "json", "proto" } do
      local request = { process = { cmd = "/bin/sh", args = { "-c", "printf 'a\\0b'; exit 3" } }, stdin = false }
      local body = message.envelope(0, assert(message.encode("process.StartRequest", request, codec)))
      local status, answer, hs = ask("POST", "/process.Process/Start", body,
        with(headers, { ["content-type"] = "application/connect+" .. codec }))
      assert.equal(200, status)
      assert.equal("application/connect+" .. codec, hs["content-type"])
      local events, last = events_of("process.StartResponse", answer, codec)
      assert.is_true(events[1].event.start.pid > 0)
      assert.same({ stdout = "a\0b" }, events[2].event.data)
      assert.same({ exitCode = 3, exited = true, status = "exit status 3", error = "exit status 3" },
        events[3].event["end"])
      assert.equal("{}", last)
    end
  end)

  it("answers unary calls in both codecs, errors in JSON", function()
    local _, headers = create()
    for _, codec in ipairs { "json", "proto" } do
      local kind = { ["content-type"] = "application/" .. codec }
      local body = assert(message.encode("filesystem.StatRequest", { path = "/etc/passwd" }, codec))
      local status, answer, hs = ask("POST", "/filesystem.Filesystem/Stat", body, with(headers, kind))
      assert.equal(200, status)
      assert.equal("application/" .. codec, hs["content-type"])
      local entry = assert(message.decode("filesystem.StatResponse", answer, codec)).entry
      assert.equal("FILE_TYPE_FILE", entry.type)
      body = assert(message.encode("filesystem.StatRequest", { path = "/nope" }, codec))
      status, answer, hs = ask("POST", "/filesystem.Filesystem/Stat", body, with(headers, kind))
      assert.equal(404, status)
      assert.equal("application/json", hs["content-type"])
      assert.equal("not_found", json.decode(answer).code)
    end
  end)

  it("refuses calls of the wrong form", function()
    local _, headers = create()
    local function call(method, path, body, kind)
      return ask(method, path, body, with(headers, { ["content-type"] = kind }))
    end
    local status, _, hs = call("GET", "/process.Process/List", nil, "application/json")
    assert.equal(405, status)
    assert.equal("POST", hs.allow)
    status, _, hs = call("POST", "/process.Process/List", "{}", "application/connect+json")
    assert.equal(415, status)
    assert.equal("application/json, application/proto", hs["accept-post"])
    assert.equal(415, (call("POST", "/process.Process/Start", "{}", "application/json")))
    assert.equal(404, (call("POST", "/process.Process/Nope", "{}", "application/json")))
    local answer
    status, answer = call("POST", "/process.Process/List", "{", "application/json")
    assert.equal(400, status)
    assert.equal("invalid_argument", json.decode(answer).code)
    for _, body in ipairs { "", "\0\0\0\0\9{}", "\0\0\0\0\2{", "\0\0\0\0\1{" } do
      status, answer = call("POST", "/process.Process/Start", body, "application/connect+json")
      assert.equal(200, status)
      local events, last = events_of("process.StartResponse", answer, "json")
      assert.equal(0, #events)
      assert.equal("invalid_argument", json.decode(last).error.code)
    end
  end)

  it("takes a stream of input for a process", function()
    local _, headers = create()
    for _, codec in ipairs { "json", "proto" } do
      local kind = { ["content-type"] = "application/connect+" .. codec, host = "localhost" }
      local request = { process = { cmd = "/bin/sh", args = { "-c", "cat; echo end" } }, tag = "reader-" .. codec }
      local answer = assert(http.request(port, { method = "POST", path = "/process.Process/Start", stream = true,
        body = message.envelope(0, assert(message.encode("process.StartRequest", request, codec))),
        headers = with(headers, kind) }, 20, "ask"))
      local text = assert(require("sandbar.stream").some(answer.body, 20))
      local function send(list)
        for i, one in ipairs(list) do
          list[i] = message.envelope(0, assert(message.encode("process.StreamInputRequest", one, codec)))
        end
        local status, body = ask("POST", "/process.Process/StreamInput", table.concat(list), with(headers, kind))
        assert.equal(200, status)
        local events, last = events_of("process.StreamInputResponse", body, codec)
        return #events, json.decode(last).error
      end
      local selector = { tag = "reader-" .. codec }
      local count, err = send { { start = { process = selector } }, { data = { input = { stdin = "a\0" } } }, { keepalive = {} },
        { data = { input = { stdin = "b\n" } } } }
      assert.is_nil(err)
      assert.equal(1, count)
      for code, list in pairs {
        invalid_argument = { { data = { input = { stdin = "x" } } } },
        not_found = { { start = { process = { tag = "nobody" } } } },
        unimplemented = { { start = { process = selector } }, { data = {} } },
      } do
        count, err = send(list)
        assert.equal(0, count)
        assert.equal(code, err.code)
      end
      local close = assert(message.encode("process.CloseStdinRequest", { process = selector }, codec))
      assert.equal(200, (ask("POST", "/process.Process/CloseStdin", close, with(headers, { ["content-type"] = "application/" .. codec }))))
      repeat
        local piece = require("sandbar.stream").some(answer.body, 20)
        text = text .. (piece or "")
      until not piece
      answer.body:close()
      local out = ""
      for _, event in ipairs((events_of("process.StartResponse", text, codec))) do
        out = out .. (event.event.data and event.event.data.stdout or "")
      end
      assert.equal("a\0b\nend\n", out)
    end
  end)

  it("keeps envd's internal paths from outside, and others to who has the token", function()
    local id, headers = create()
    local status, body = ask("POST", "/init", "{}", headers)
    assert.equal(404, status)
    assert.same({ message = "not found", path = "/init", code = 404 }, json.decode(body))
    assert.equal(401, (ask("GET", "/envs", nil, with(headers, { ["x-access-token"] = "wrong" }))))
    assert.equal(204, (ask("GET", "/health", nil, with(headers, { ["x-access-token"] = false }))))
    local other = create()
    assert.equal(401, (ask("GET", "/envs", nil, with(headers, { ["e2b-sandbox-id"] = other }))))
    status, body = ask("GET", "/envs", nil, headers)
    assert.equal(200, status)
    assert.equal(id, json.decode(body).E2B_SANDBOX_ID)
  end)

  it("says what is wrong with a request for a sandbox's port", function()
    local id = create()
    assert.equal(400, (ask("GET", "/x", nil, { ["e2b-sandbox-id"] = id })))
    local status, body = ask("GET", "/x", nil, { host = "3000-" .. id .. ".localhost" })
    assert.equal(502, status)
    assert.equal(3000, json.decode(body).port)
    status, body = ask("GET", "/x", nil, { host = "3000-inothere.localhost", ["user-agent"] = "Mozilla/5.0" })
    assert.equal(502, status)
    assert.truthy(body:find("<!doctype html>", 1, true))
    assert.truthy(body:find("inothere", 1, true))
  end)

  it("keeps no connection to a server inside that has them one after the other", function()
    local client = commands.client(server)
    assert.equal(200, client:ask("POST", "/files?path=server", helper.read_file(SERVER),
      { ["content-type"] = "application/octet-stream" }).status)
    local events = client:start("cd && chmod 755 server && exec ./server 3000")
    for _ = 1, 2 do
      local answer
      assert(helper.eventually(function() -- it is just starting
        answer = client:ask("GET", "/raw", nil, { ["e2b-sandbox-port"] = "3000", connection = "x-mine", ["x-mine"] = "1" })
        return answer.status == 200
      end))
      assert.truthy(answer.body:lower():find("\r\nconnection: close\r\n", 1, true), answer.body)
      assert.is_nil(answer.body:lower():find("x-mine", 1, true))
    end
    events:close()
    client:close()
  end)

  it("is not for pages of other sites", function()
    local id = create()
    assert.equal(403, (ask("GET", "/sandboxes/" .. id, nil, { host = "evil.test" })))
    assert.equal(403, (ask("GET", "/sandboxes/" .. id, nil, { origin = "http://evil.test" })))
    assert.equal(403, (ask("DELETE", "/sandboxes/" .. id, nil, { origin = "null" })))
    assert.equal(200, (ask("GET", "/sandboxes/" .. id, nil, { origin = server.url })))
  end)

  it("takes a segment with a slash for one", function()
    local id = create()
    local status, body = ask("POST", "/sandboxes/" .. id .. "/snapshots", '{"name":"snap:v2"}')
    assert.equal(201, status, body)
    local snapshot = json.decode(body).snapshotID
    assert.truthy(snapshot:match("/snap:v2$"))
    local path = "/templates/" .. snapshot:gsub("/", "%%2F"):gsub(":", "%%3A")
    assert.equal(204, (ask("DELETE", path)))
    assert.equal(404, (ask("DELETE", path)))
  end)

  it("has the endpoints of the older clients, with their own defaults", function()
    local id = create()
    local status, body = ask("POST", "/sandboxes", '{"templateID":"base","secure":true,"metadata":{}}')
    assert.equal(201, status)
    local old = json.decode(body).sandboxID
    local _
    _, body = ask("GET", "/sandboxes/" .. old)
    local detail = json.decode(body)
    assert.equal(15, require("sandbar.server.stamp").seconds(detail.endAt)
      - require("sandbar.server.stamp").seconds(detail.startedAt))
    assert.equal(400, (ask("POST", "/sandboxes/" .. id .. "/connect", "{}")))
    assert.equal(200, (ask("POST", "/sandboxes/" .. id .. "/connect", '{"timeout":10}')))
    assert.equal(200, (ask("POST", "/v2/sandboxes/" .. id .. "/connect", "")))
    status, body = ask("POST", "/sandboxes/" .. id .. "-6532622b/resume", "{}")
    assert.equal(409, status)
    assert.equal(409, json.decode(body).code)
    assert.equal(204, (ask("POST", "/sandboxes/" .. id .. "/refreshes", '{"duration":60}')))
    for _, path in ipairs { "/templates", "/v2/templates", "/templates/x", "/templates/x/builds/y" } do
      status, body = ask("POST", path, '{"dockerfile":"FROM x"}')
      assert.equal(501, status)
      assert.truthy(json.decode(body).message:find("registry", 1, true))
    end
  end)

  it("puts files together", function()
    local _, headers = create()
    local octets = with(headers, { ["content-type"] = "application/octet-stream" })
    for name, data in pairs { a = "one ", b = "two" } do
      assert.equal(200, (ask("POST", "/files?path=" .. name, data, octets)))
    end
    local function compose(sources, to)
      return ask("POST", "/files/compose", ('{"source_paths":[%s],"destination":"%s"}'):format(sources, to), headers)
    end
    assert.equal(400, (compose("", "c")))
    assert.equal(400, (compose('"a"', "a")))
    assert.equal(404, (compose('"a","nope"', "c")))
    assert.equal(400, (compose('"a","/tmp"', "c")))
    local status, body = compose('"a","b"', "deep/c")
    assert.equal(200, status)
    assert.same({ path = "/home/user/deep/c", name = "c", type = "file" }, json.decode(body))
    status, body = ask("GET", "/files?path=deep/c", nil, headers)
    assert.equal(200, status)
    assert.equal("one two", body)
    assert.equal(404, (ask("GET", "/files?path=a", nil, headers)))
  end)

  it("takes files of any bytes as parts of a form", function()
    local _, headers = create()
    local begin = "\r\n--xyzzy-xyzzy"
    local parts = {
      ("0123456789abcdef"):rep(40000), "", "small", begin .. "x" .. begin:sub(1, -2) .. begin .. "-x" .. ("\r\n"):rep(50000),
      (begin:sub(1, -2)):rep(60000), ("y"):rep(262144 * 2 - 7) .. begin .. "!" .. ("\r\n--xyzzy"):rep(30000), "\r\n",
      begin:sub(1, -2),
    }
    local function send(body, chunked)
      local at = 1
      return ask("POST", "/files", not chunked and body or function()
        local piece = body:sub(at, at + 99990)
        at = at + 99991
        return piece ~= "" and piece or nil
      end, with(headers, { ["content-type"] = "multipart/form-data; boundary=xyzzy-xyzzy" }))
    end
    for _, chunked in ipairs { false, true } do
      local form = {}
      for i, data in ipairs(parts) do
        form[i] = ('%s--xyzzy-xyzzy\r\nContent-Disposition: form-data; name="file"; filename="part%d"\r\n\r\n%s'):format(
          i == 1 and "" or "\r\n", i, data)
      end
      local status, body = send(table.concat(form) .. begin .. "--\r\n", chunked)
      assert.equal(200, status, body)
      assert.equal(#parts, #json.decode(body))
      for i, data in ipairs(parts) do
        assert.is_true(data == select(2, ask("GET", "/files?path=part" .. i, nil, headers)), i)
      end
      status, body = send(table.concat(form), chunked)
      assert.equal(400, status, body)
    end
  end)

  it("sends parts of files, and none that has not changed", function()
    local _, headers = create()
    assert.equal(200, (ask("POST", "/files?path=x", "0123456789",
      with(headers, { ["content-type"] = "application/octet-stream" }))))
    local status, body, hs = ask("GET", "/files?path=x", nil, with(headers, { range = "bytes=2-4" }))
    assert.equal(206, status)
    assert.equal("234", body)
    assert.equal("bytes 2-4/10", hs["content-range"])
    assert.equal("89", (select(2, ask("GET", "/files?path=x", nil, with(headers, { range = "bytes=-2" })))))
    assert.equal(416, (ask("GET", "/files?path=x", nil, with(headers, { range = "bytes=10-" }))))
    local changed = hs["last-modified"]
    local function part(of) -- was one of a file that had changed behind what the client had
      return (select(2, ask("GET", "/files?path=x", nil, with(headers, { range = "bytes=2-4", ["if-range"] = of }))))
    end
    assert.same({ "234", "0123456789" }, { part(changed), part("Thu, 01 Jan 1970 00:00:00 GMT") })
    assert.equal(304, (ask("GET", "/files?path=x", nil, with(headers, { ["if-modified-since"] = changed }))))
    assert.equal(406, (ask("GET", "/files?path=x", nil, with(headers, { ["accept-encoding"] = "identity;q=0" }))))
    assert.truthy(select(2, ask("GET", "/files?path=/proc/version", nil, headers)):find("Linux", 1, true))
  end)

  it("lets pages use a sandbox whose token they have", function()
    local _, headers = create()
    local page = with(headers, { origin = "http://page.test", ["access-control-request-headers"] = "x-access-token" })
    local status, _, hs = ask("OPTIONS", "/files", nil, page)
    assert.equal(204, status)
    assert.equal("*", hs["access-control-allow-origin"])
    assert.equal("x-access-token", hs["access-control-allow-headers"])
    status, _, hs = ask("OPTIONS", "/files?path=x&signature=v1_x", nil, { origin = "http://page.test" })
    assert.same({ 204, "*" }, { status, hs["access-control-allow-origin"] }) -- a link that names no sandbox
    status, _, hs = ask("POST", "/files?path=x&signature=v1_x", "", { origin = "http://page.test" })
    assert.same({ 401, "*" }, { status, hs["access-control-allow-origin"] })
    for _, kind in ipairs { "application/json", "text/plain" } do
      _, _, hs = ask("POST", "/process.Process/List", "{}", with(page, { ["content-type"] = kind }))
      assert.equal("*", hs["access-control-allow-origin"])
    end
  end)

  it("mints and withdraws keys", function()
    local status, body = ask("POST", "/api-keys", '{"name":"ci"}')
    assert.equal(201, status)
    local made = json.decode(body)
    assert.truthy(made.key:match("^e2b_%x+$"))
    assert.equal(200, (ask("GET", "/v2/sandboxes", nil, { ["x-api-key"] = made.key })))
    local _
    _, body = ask("GET", "/api-keys")
    assert.is_nil(body:find(made.key, 1, true))
    assert.equal(404, (ask("DELETE", "/api-keys/" .. made.id, nil, { ["x-api-key"] = server.other_key })))
    assert.equal(204, (ask("DELETE", "/api-keys/" .. made.id)))
    assert.equal(401, (ask("GET", "/v2/sandboxes", nil, { ["x-api-key"] = made.key })))
  end)

  it("finds its sandboxes, tokens and processes again after it was killed", function()
    local id, headers = create()
    local octets = with(headers, { ["content-type"] = "application/octet-stream" })
    assert.equal(200, (ask("POST", "/files?path=kept", "yes", octets)))
    local request = '{"process":{"cmd":"/bin/sh","args":["-c","exec sleep 600 </dev/null >/dev/null 2>&1"]},"tag":"kept"}'
    local answer = assert(http.request(port, { method = "POST", path = "/process.Process/Start", stream = true,
      body = message.envelope(0, request), headers = with(headers, { ["content-type"] = "application/connect+json", host = "localhost" }) }, 20, "ask"))
    local first = assert(require("sandbar.stream").some(answer.body, 20))
    assert.truthy(first:find('"start"', 1, true))
    answer.body:close()
    server.kill()
    port:close()
    start()
    local status, body = ask("GET", "/files?path=kept", nil, headers)
    assert.equal(200, status)
    assert.equal("yes", body)
    status, body = ask("POST", "/process.Process/List", "{}", with(headers, { ["content-type"] = "application/json" }))
    assert.equal(200, status)
    local list = json.decode(body).processes
    assert.equal(1, #list)
    assert.equal("kept", list[1].tag)
    assert.equal(204, (ask("DELETE", "/sandboxes/" .. id)))
  end)
end)
