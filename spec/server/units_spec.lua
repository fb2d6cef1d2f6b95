-- check: no asan
-- check: no user
-- What of the server needs no sandbox: targets and hosts, ids, signatures, multipart bodies, network settings, JSON.

local helper = require "spec.helper"
helper.guard()

local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local json = require "sandbar.json"
local multipart = require "sandbar.server.multipart"
local network = require "sandbar.server.network"
local process = require "sandbar.server.envd.process"
local router = require "sandbar.server.router"
local port = require "sandbar.port"
local sandbar = require "sandbar"
local signature = require "sandbar.server.signature"
local stamp = require "sandbar.server.stamp"
local store = require "sandbar.server.store"
local upgrade = require "sandbar.server.upgrade"
local wait = require "sandbar.wait"

local function headers(t)
  return {
    get = function(_, name)
      return t[name]
    end,
  }
end

describe("router.target", function()
  it("splits the path before it unescapes it", function()
    local target = router.target("/templates/my-team%2Fmy-snap%3Av2?limit=1&a=b+c%2B")
    assert.same({ "templates", "my-team/my-snap:v2" }, target.segments)
    assert.same({ limit = "1", a = "b c+" }, target.query)
    assert.equal("/templates/my-team%2Fmy-snap%3Av2", target.path)
  end)

  it("takes a slash at the end for nothing", function()
    assert.same({ "a" }, router.target("/a/").segments)
    assert.same({}, router.target("/").segments)
  end)

  it("refuses what is no path, broken escapes and zero bytes", function()
    for _, raw in ipairs { "http://host/a", "*", "", "/a%2", "/%zz", "/a%00", "/a?b=%", "/a?b=%00" } do
      assert.is_nil(router.target(raw), raw)
    end
  end)
end)

describe("router.place", function()
  local function place(host, hs, raw, domain)
    return router.place(host, headers(hs or {}), router.target(raw or "/"), domain)
  end

  it("knows a sandbox by its host name", function()
    assert.same({ to = "sandbox", id = "iabc", port = 3000 }, place("3000-iabc.localhost:3000"))
    assert.same({ to = "sandbox", id = "iabc", port = 49983 }, place("49983-iabc-6532622b.my.test", nil, "/", "my.test"))
  end)

  it("knows it by headers on addresses, localhost and the shared host", function()
    local hs = { ["e2b-sandbox-id"] = "iabc", ["e2b-sandbox-port"] = "49983" }
    for _, host in ipairs { "127.0.0.1:3000", "[::1]:3000", "localhost", "sandbox.localhost" } do
      assert.same({ to = "sandbox", id = "iabc", port = 49983 }, place(host, hs))
    end
    assert.equal("sandbox", place("my.test:3000", hs, "/", "my.test").to) -- where the page is, it is its own way
    assert.equal("control", place("api.localhost", hs).to)
    assert.equal("missing header", place("127.0.0.1", { ["e2b-sandbox-id"] = "iabc" }).text)
  end)

  it("takes the daemon's paths without a name for a mistake, and /files with a signature for a link", function()
    assert.equal(400, place("127.0.0.1", nil, "/process.Process/List").status)
    assert.equal(400, place("127.0.0.1", nil, "/files?path=x").status)
    assert.equal("signed", place("127.0.0.1", nil, "/files?path=x&signature=v1_x").to)
    assert.equal("control", place("127.0.0.1", nil, "/health").to)
    assert.equal("control", place("127.0.0.1", nil, "/filesystem").to)
  end)

  it("refuses names that are not ours: a page's own, made to lead here", function()
    for _, host in ipairs { "evil.test", "3000-iabc.evil.test", "localhost.evil.test", "evillocalhost", "" } do
      assert.equal(403, place(host, nil, "/", "my.test").status, host)
    end
  end)

  it("refuses ids and ports that are none", function()
    assert.equal("Invalid sandbox ID", place("3000-i_c.localhost").text)
    assert.equal("Invalid sandbox port", place("70000-iabc.localhost").text)
    local hs = { ["e2b-sandbox-id"] = "../x", ["e2b-sandbox-port"] = "49983" }
    assert.equal("Invalid sandbox ID", place("127.0.0.1", hs).text)
  end)
end)

describe("router.is_foreign", function()
  it("is true for pages of other origins only", function()
    assert.is_false(router.is_foreign("127.0.0.1:3000", headers {}))
    assert.is_false(router.is_foreign("127.0.0.1:3000", headers { origin = "http://127.0.0.1:3000" }))
    assert.is_true(router.is_foreign("127.0.0.1:3000", headers { origin = "http://evil.test" }))
    assert.is_true(router.is_foreign("127.0.0.1:3000", headers { origin = "null" }))
  end)
end)

describe("a table of routes", function()
  local routes = router.new { ["GET /a/metrics"] = 1, ["GET /a/{id}"] = 2, ["DELETE /a/{id}"] = 3, ["POST /a/{id}/b"] = 4 }

  it("prefers what is spelled out", function()
    assert.equal(1, (routes:find("GET", { "a", "metrics" })))
    local handler, params = routes:find("GET", { "a", "x/y" })
    assert.equal(2, handler)
    assert.same({ id = "x/y" }, params)
  end)

  it("tells a wrong method from a wrong path", function()
    local handler, allowed = routes:find("PUT", { "a", "x" })
    assert.is_false(handler)
    assert.equal("DELETE, GET", allowed)
    assert.is_nil((routes:find("GET", { "a" })))
    assert.is_nil((routes:find("GET", { "a", "" })))
    assert.is_nil((routes:find("GET", { "a", "x", "b", "c" })))
  end)
end)

describe("ids", function()
  it("have the protocol's forms", function()
    local id = ids.sandbox()
    assert.truthy(id:match("^i[a-z0-9]+$"))
    assert.equal(21, #id)
    assert.not_equal(id, ids.sandbox())
    assert.equal("iabc", ids.sandbox_of("iabc-6532622b"))
    for _, text in ipairs { "", "-x", "iABC", "i_a", "../x", "i/x" } do
      assert.is_nil(ids.sandbox_of(text), text)
    end
  end)

  it("take references to templates apart", function()
    assert.same({ namespace = "my-team", name = "snap_a", tag = "v1.2" }, ids.reference(" My-Team/snap_a:v1.2 "))
    assert.same({ name = "base" }, ids.reference("base"))
    for _, text in ipairs { "", "a b", "a/b/c", "a:", "a:b c", "a:123e4567-e89b-12d3-a456-426614174000", "/x", "a:b:c" } do
      assert.is_nil((ids.reference(text)), text)
    end
  end)
end)

describe("signatures", function()
  it("are those of the protocol's vectors", function()
    assert.equal("v1_OcXY7wC5zngKY3IskpOeMMsGzkIG+Zji0rFY2EEuBX8",
      signature.of("/home/user/a.txt", "read", "", "tok_abc"))
    assert.equal("v1_p907s2OY6yw6Q5SzzCvMSrcj6BffdS86Luot+sUl7vs",
      signature.of("/home/user/a.txt", "write", "root", "tok_abc", "1700000000"))
    assert.equal("v1_pL05Pckvw4Ryy8uHWv9pBpAhgPnV1u2OClwD4N0yMh8",
      signature.of("notes/été.txt", "read", "user", "tok_abc"))
  end)

  it("are checked in the protocol's order", function()
    local token = "tok_abc"
    local function check(query, given, now)
      return signature.check(query, "read", given, token, now or 100)
    end
    local right = signature.of("a", "read", "", token, "100")
    assert.is_true(check({}, token))
    assert.is_true(signature.check({}, "read", nil, nil, 0))
    assert.is_true(check { path = "a", signature = right, signature_expiration = "100" })
    local _, why = check({ path = "a", signature = right, signature_expiration = "100" }, "other")
    assert.equal("access token present in header but does not match", why)
    _, why = check {}
    assert.equal("missing signature query parameter", why)
    _, why = check { path = "b", signature = right, signature_expiration = "100" }
    assert.equal("invalid signature", why)
    _, why = check({ path = "a", signature = right, signature_expiration = "100" }, nil, 101)
    assert.equal("signature is already expired", why)
  end)

  it("compare whole texts", function()
    assert.is_true(signature.equal("abc", "abc"))
    assert.is_false(signature.equal("abc", "abd"))
    assert.is_false(signature.equal("abc", "abcd"))
    assert.is_false(signature.equal(nil, "abc"))
  end)

  it("make tokens that differ by what they are for", function()
    assert.not_equal(signature.token("seed", "envd:a"), signature.token("seed", "envd:b"))
    assert.not_equal(signature.token("seed", "envd:a"), signature.token("other", "envd:a"))
    assert.equal(64, #signature.token("seed", "envd:a"))
  end)
end)

describe("multipart bodies", function()
  local BODY = "ignored\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a/b.txt\"\r\n"
    .. "Content-Type: text/plain\r\n\r\none\r\n--Bo\r\n\r\n--B\r\ncontent-disposition: form-data; name=other\r\n\r\n\r\n--B--\r\n"

  local function parts_of(text, step, boundary)
    local at = 1
    local parts = multipart.new(function()
      if at <= #text then
        at = at + step
        return text:sub(at - step, at - 1)
      end
    end, boundary or "B")
    local out = {}
    while true do
      local part, err = parts:next()
      if not part then
        return out, err
      end
      local data = ""
      while true do
        local piece, why = parts:read()
        if not piece then
          if why then
            return nil, why
          end
          break
        end
        data = data .. piece
      end
      out[#out + 1] = { part.name, part.filename, data }
    end
  end

  it("are the same however they arrive", function()
    for _, step in ipairs { 1, 2, 3, 7, 50, 1000 } do
      assert.same({ { "file", "a/b.txt", "one\r\n--Bo\r\n" }, { "other", nil, "" } }, parts_of(BODY, step, "B"))
    end
  end)

  it("may be large, and may hold what looks like a delimiter", function()
    local data = ("\r\n--\r\n-"):rep(40000)
    local body = "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n" .. data .. "\r\n--B--"
    local parts = parts_of(body, 10007)
    assert.equal(1, #parts)
    assert.is_true(parts[1][3] == data)
  end)

  it("that are cut anywhere are an error", function()
    for n = 1, #BODY - 4 do
      local parts, err = parts_of(BODY:sub(1, n), 5)
      assert.is_true(not parts or err ~= nil, n)
    end
  end)

  it("tell their boundary", function()
    assert.equal("a b", multipart.boundary('multipart/form-data; boundary="a b"'))
    assert.equal("x-1", multipart.boundary("multipart/form-data; charset=utf-8; Boundary=x-1"))
    assert.is_nil(multipart.boundary("multipart/form-data"))
  end)
end)

describe("network settings", function()
  local function refused(config, internet)
    local policy, refusal = network.policy(config, internet)
    assert.is_nil(policy)
    return refusal.status
  end

  it("become the contract's policies", function()
    assert.equal("allow", network.policy(nil, nil))
    assert.equal("allow", network.policy({ allowOut = { "1.1.1.1" } }, true))
    assert.equal("deny", network.policy(nil, false))
    assert.equal("deny", network.policy { denyOut = { "0.0.0.0/0" } })
    assert.same({ allow = { "example.com", "1.1.1.1" } },
      network.policy { allowOut = { "Example.com", "1.1.1.1" }, denyOut = { "0.0.0.0/0", "10.0.0.0/8" } })
    assert.same({ allow = { "1.1.1.1" } }, network.policy({ allowOut = { "1.1.1.1" } }, false))
    assert.same({ allow = { "0.0.0.0/0", "::/0" }, deny = { "10.0.0.0/8" } }, network.policy { denyOut = { "10.0.0.0/8" } })
  end)

  it("that would mean something else are refused", function()
    assert.equal(400, refused { denyOut = { "example.com" } })
    assert.equal(400, refused { allowOut = { "example.com" } })
    assert.equal(400, refused { allowOut = { "1.1.1.256" }, denyOut = { "0.0.0.0/0" } })
    assert.equal(400, refused { allowOut = { "10.1.0.0/16" }, denyOut = { "10.0.0.0/8" } })
    assert.equal(400, refused { httpsPorts = { 3000 } })
    assert.equal(403, refused { egressProxy = { address = "a:1" } })
    assert.equal(400, refused { rules = { ["a.test"] = { { transform = { headers = { x = "${e2b.secrets.k}" } } } } } })
    assert.equal("allow", network.policy({ allowOut = { "11.0.0.1" }, denyOut = {} }))
  end)

  it("carry the headers of rules", function()
    local policy = network.policy { rules = { ["A.test"] = { { transform = { headers = { ["X-K"] = "v" } } } } } }
    assert.same({ { host = "a.test", set_headers = { ["X-K"] = "v" } } }, policy.inject)
  end)
end)

describe("JSON that is written", function()
  it("has its names in order, and arrays that are marked", function()
    assert.equal('{"a":[],"b":{},"c":[1,2.5,"x"],"d":null,"e":true}',
      encode.value { e = true, b = {}, a = encode.array {}, c = { 1, 2.5, "x" }, d = json.null })
    assert.equal("1796034558695000", encode.value(1796034558695000))
  end)

  it("is valid whatever the bytes are", function()
    assert.equal('"a\239\191\189é\\u0000\\n\\"\\\\"', encode.value('a\255é\0\n"\\'))
    assert.equal("\239\191\189\239\191\189", encode.text("\192\175"))
    assert.equal(("\239\191\189"):rep(3), encode.text("\237\160\128")) -- a surrogate
  end)
end)

describe("the store", function()
  it("kept an older text, when two tasks saved the same file", function()
    local dir = helper.dir()
    local kept = sandbar.assert(store.open(dir))
    for round = 1, 10 do
      local list, tasks = {}, {}
      for i = 1, 8 do
        tasks[i] = function()
          list[i] = round * i
          return kept:save("list", list)
        end
      end
      sandbar.assert(sandbar.all(tasks))
      assert.same(list, kept:load("list"))
    end
    assert.equal("list\nlock\nseed\n", helper.sh("ls " .. dir .. "/serve"))
    kept:close()
    helper.remove(dir)
  end)

  it("kept for ever what a server had half written that was killed", function()
    local dir = helper.dir()
    sandbar.assert(store.open(dir)):close()
    helper.sh(("cd %s/serve && touch api-key.0f3a3e12-9273-4a80-8c5b-898799e30a6b keys.json secrets.json.d"):format(dir))
    sandbar.assert(store.open(dir)):close()
    assert.equal("keys.json\nlock\nsecrets.json.d\nseed\n", helper.sh(("ls %s/serve"):format(dir)))
    helper.remove(dir)
  end)

  it("says why a file could not be written, and writes the next one", function()
    local dir = helper.dir()
    local kept = sandbar.assert(store.open(dir))
    sandbar.assert(kept:save("list", { 1 }))
    helper.sh(("mv %s/serve %s/away"):format(dir, dir))
    local none, err = kept:save("list", { 2 })
    assert.is_nil(none)
    assert.equal("NotFound", err.kind)
    helper.sh(("mv %s/away %s/serve"):format(dir, dir))
    sandbar.assert(kept:save("list", { 3 }))
    assert.same({ 3 }, kept:load("list"))
    kept:close()
    helper.remove(dir)
  end)
end)

describe("stamps", function()
  it("go both ways to the microsecond", function()
    assert.equal("2026-09-01T10:00:00.123456Z", stamp.text(1788256800.123456))
    assert.equal(1788256800.25, stamp.seconds("2026-09-01T10:00:00.250Z"))
    assert.equal(1788256800, stamp.seconds("2026-09-01T12:00:00+02:00"))
    assert.equal(951782400, stamp.seconds("2000-02-29T00:00:00Z"))
    for _, text in ipairs { "", "2026", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z" } do
      assert.is_nil(stamp.seconds(text), text)
    end
  end)
end)

describe("Connect to a process", function()
  it("listens before it tells the start: what came right behind it was lost", function()
    local found, sent = { pid = 5, listeners = {} }, {}
    local sink = {}
    function sink:send(message)
      sent[#sent + 1] = { message.event, found.listeners[self] }
      return true
    end
    function sink:attend()
      return found.listeners[self]
    end
    local nothing = function() end
    local context = { entry = { processes = { known = true, list = { [5] = found } } },
      boxes = { open = nothing, close = nothing } }
    assert.is_true(process.calls.Connect.run(context, { process = { pid = 5 } }, sink))
    assert.same({ { { start = { pid = 5 } }, true } }, sent)
    assert.is_nil(next(found.listeners))
  end)
end)

describe("a command", function()
  it("was taken for one of before by who asked for the list while it was on its way", function()
    local box, there = {}, false
    local entry = { box = box, processes = { list = {} }, note = function() end }
    local context = { entry = entry, box = box, headers = headers {} }
    function box.processes()
      return there and { { pid = 5, running = true, args = { "/bin/sh" } } } or {}
    end
    function box.attach()
      error "it is none of before"
    end
    function box.start()
      there = true
      assert.same({}, process.calls.List.run(context))
      return { pid = 5, output = function() return { next = function() end } end,
        wait = function() return { exit_code = 0 } end, close = function() end }
    end
    local sink = { send = function() end } -- its client has gone
    assert.is_true(process.calls.Start.run(context, { process = { cmd = "true" } }, sink))
    assert.equal("true", entry.processes.list[5].config.cmd)
    sandbar.assert(wait.on(entry.processes.list[5].done, 10, "spec"))
  end)
end)

describe("an answer that is no upgrade", function()
  local some = port.some

  after_each(function()
    port.some = some
  end)

  -- What becomes of one whose body comes all at once, in chunks unless told: what was passed on, and how it ended.
  local function passed(text, how)
    local lines = { "HTTP/1.1 200 OK", how or "Transfer-Encoding: chunked", "" }
    local connection = { write = function() return true end, close = function() end,
      read = function() return table.remove(lines, 1) end }
    port.some = function()
      local piece = text
      text = nil
      return piece
    end
    local out, last = {}, nil
    local request = { method = "GET", target = "/", headers = headers { upgrade = "echo" } }
    function request.attend(_, _, fn, ...)
      return true, fn(...)
    end
    function request.begin() end
    function request.write(_, piece)
      assert.is_true(#out < 10, "more than there is")
      out[#out + 1] = piece
      return true
    end
    function request.abort() last = "cut" end
    function request.finish() last = "whole" end
    upgrade.serve(request, connection, {}, function(list) return list end)
    return table.concat(out), last
  end

  it("had no end, or a wrong one, where a length was larger than numbers are", function()
    assert.same({ "abc", "whole" }, { passed "000000000000000000003\r\nabc\r\n0\r\n\r\n" })
    for _, size in ipairs { "ffffffffffffffff", "8000000000000000", "10000000000000000", ("f"):rep(1000) } do
      assert.same({ "abc", "cut" }, { passed("3\r\nabc\r\n" .. size .. "\r\nabc") }, size)
    end
    assert.same({ "abcabc", "cut" }, { passed "3\r\nabc\r\n80000000\r\nabc" })
    for _, digits in ipairs { 10, 20, 1000 } do
      assert.same({ "abc", "cut" }, { passed("abc", "Content-Length: " .. ("9"):rep(digits)) })
    end
  end)
end)
