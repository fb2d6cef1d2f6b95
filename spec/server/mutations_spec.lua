-- check: no asan
-- check: no user
-- The server's parsers in Lua with what nobody would send by mistake: valid inputs, changed at random. `make fuzz` does it
-- for longer (SPEC_FUZZ_SECONDS). What fails is told with its seed.

local helper = require "spec.helper"
helper.guard()

local body = require "sandbar.server.body"
local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local multipart = require "sandbar.server.multipart"
local network = require "sandbar.server.network"
local recipe = require "sandbar.server.control.recipe"
local router = require "sandbar.server.router"
local signature = require "sandbar.server.signature"
local stamp = require "sandbar.server.stamp"

local ROUNDS = 150
local SECONDS = tonumber(os.getenv("SPEC_FUZZ_SECONDS") or "")
local TARGETS = 9

-- A generator of our own: the same numbers in every Lua.
local state

local function random(n)
  state = (state * 16807) % 2147483647
  return state % n + 1
end

local ODD = { "\0", "%", "%00", "%2", "/", "..", "\r\n", "\r\n\r\n", "--", "\"", "\\", "{", "}", "[", "]", ":", ",", "&", "=",
  "\255", "\128", "\194", "-1", "1e309", "99999999999999999999", "null", "true", "*", "?", "#", "@", "~", " ", "+", ";", "\27" }

local changes = {
  function(s) -- a byte becomes another
    local at = random(#s + 1)
    return s:sub(1, at - 1) .. string.char(random(256) - 1) .. s:sub(at + 1)
  end,
  function(s) -- something odd is put in
    local at = random(#s + 1)
    return s:sub(1, at - 1) .. ODD[random(#ODD)] .. s:sub(at)
  end,
  function(s) -- a piece is lost
    local at = random(#s + 1)
    return s:sub(1, at - 1) .. s:sub(at + random(8))
  end,
  function(s) -- a piece comes twice
    local at = random(#s + 1)
    return s:sub(1, at) .. s:sub(at - random(16)) .. s:sub(at + 1)
  end,
  function(s) -- the end is missing
    return s:sub(1, random(#s + 1) - 1)
  end,
  function(s, other) -- it goes on as another
    return s:sub(1, random(#s + 1) - 1) .. other:sub(random(#other + 1))
  end,
}

local function changed(samples)
  local text = samples[random(#samples)]
  for _ = 1, random(4) do
    text = changes[random(#changes)](text, samples[random(#samples)])
  end
  return text
end

-- Calls try(input) for changed samples, until there were enough.
local function each(samples, try)
  local seed = SECONDS and os.time() % 1000000 + 1 or 20261130
  local deadline = SECONDS and core.now() + SECONDS / TARGETS
  local n = 0
  state = seed
  for _, sample in ipairs(samples) do
    try(sample)
  end
  repeat
    n = n + 1
    local text = changed(samples)
    local ok, err = pcall(try, text)
    if not ok then
      error(("seed %d, round %d, %q: %s"):format(seed, n, text, tostring(err)), 0)
    end
  until deadline and core.now() >= deadline or not deadline and n == ROUNDS
end

local function headers(t)
  return {
    get = function(_, name)
      return t[name]
    end,
  }
end

describe("a changed", function()
  it("target has plain segments, or is none", function()
    each({ "/a/b%2Fc?x=1&y=b+c", "/files?path=a%20b&signature=v1_x", "/sandboxes/iabc/logs?limit=1", "/" }, function(raw)
      local target = router.target(raw)
      if target then
        for _, segment in ipairs(target.segments) do
          assert.is_nil(segment:find("%z"))
        end
        for name, value in pairs(target.query) do
          assert.is_nil((name .. value):find("%z"))
        end
      end
    end)
  end)

  it("host leads to a sandbox with an id and a port, to the control plane under our own names, or nowhere", function()
    local hosts = { "127.0.0.1:3000", "[::1]:3000", "localhost", "3000-iabc.localhost:3000", "49983-iabc-6532622b.my.test",
      "sandbox.my.test", "evil.test", "localhost.evil.test" }
    local target = router.target "/files?signature=x"
    each(hosts, function(host)
      for _, hs in ipairs { {}, { ["e2b-sandbox-id"] = host, ["e2b-sandbox-port"] = host },
        { ["e2b-sandbox-id"] = "iabc", ["e2b-sandbox-port"] = "3000", origin = "http://" .. host } } do
        local place = router.place(host, headers(hs), target, "my.test")
        if place.to == "sandbox" then
          assert.truthy(place.id:match("^[a-z0-9]+$"))
          assert.is_true(place.port >= 1 and place.port <= 65535)
        end
        if place.to then
          assert.is_true(router.is_ours(router.hostname(host), "my.test"))
          local name = router.hostname(host)
          assert.truthy(name:match("^[%d.]+$") or name:match("^%[") or name == "localhost" or name:match("%.localhost$")
            or name == "my.test" or name:match("%.my%.test$"), name)
        else
          assert.is_true(place.status >= 400)
        end
        assert.is_boolean(router.is_foreign(host, headers(hs)))
      end
    end)
  end)

  it("multipart body has the same parts in whatever pieces it comes", function()
    local function part(name, file, data)
      return ('--B\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'):format(name, file, data)
    end
    local samples = {
      part("file", "a/b.txt", "hello") .. part("file", "c", "x\r\n--Bx\r\n--") .. "--B--\r\n",
      part("other", "", "") .. part("file", "q \"x\"", ("z"):rep(300)) .. "--B--", "--B--\r\n", "preamble\r\n" .. part("file", "p", "1"),
    }
    local function parse(text, size)
      local at = 1
      local parts = multipart.new(function()
        local piece = text:sub(at, at + size() - 1)
        at = at + #piece
        return piece ~= "" and piece or nil
      end, "B")
      local out, count = {}, 0
      while true do
        local one, err = parts:next()
        if not one then
          out[#out + 1] = err and "broken" or "end"
          return table.concat(out, "|")
        end
        out[#out + 1] = (one.name or "") .. "," .. (one.filename or "")
        while true do
          local piece
          piece, err = parts:read()
          if not piece then
            break
          end
          out[#out], count = out[#out] .. (out[#out]:find("\n", 1, true) and "" or "\n") .. piece, count + #piece
          assert.is_true(count <= #text + 2)
        end
        if err then
          out[#out + 1] = "broken"
          return table.concat(out, "|")
        end
      end
    end
    each(samples, function(text)
      local whole = parse(text, function() return 1000000 end)
      assert.equal(whole, parse(text, function() return 1 end))
      assert.equal(whole, parse(text, function() return random(20) end))
    end)
    each({ "multipart/form-data; boundary=abc", 'multipart/form-data; boundary="a b"', "multipart/form-data" }, function(text)
      local boundary = multipart.boundary(text)
      assert.is_true(boundary == nil or #boundary > 0 and #boundary <= 200)
    end)
  end)

  it("signature, path, user or time is not the signed one", function()
    local token, now = "tok_abc", 1700000000
    local right = signature.of("a/b", "read", "user", token, "1700000100")
    local function check(query, op)
      return (signature.check(query, op or "read", nil, token, now))
    end
    local function link(sig, path, user, expiration)
      return { signature = sig, path = path, username = user, signature_expiration = expiration }
    end
    assert.is_true(check(link(right, "a/b", "user", "1700000100")))
    each({ right, "a/b", "user", "1700000100", "1700000100:", "tok_abc" }, function(text)
      assert.is_nil(check(link(text ~= right and text or "", "a/b", "user", "1700000100")))
      assert.is_nil(check(link(right, text ~= "a/b" and text or "", "user", "1700000100")))
      assert.is_nil(check(link(right, "a/b", text ~= "user" and text or "", "1700000100")))
      assert.is_nil(check(link(right, "a/b", "user", text ~= "1700000100" and text or "")))
      assert.is_nil(check(link(right, "a/b", "user", "1700000100"), "write"))
      assert.equal(text == token, signature.check({}, "read", text, token, now) == true)
    end)
  end)

  it("JSON text is a value that can be written again, or none", function()
    local samples = { '{"a":[1,2.5,-3e2,true,null,"\\u00e9\\n"],"b":{"c":{}}}', "[]", '"x"', "0", '{"templateID":"base"}' }
    each(samples, function(text)
      local value, err = json.decode(text)
      if value == nil then
        assert.truthy(err)
      else
        local once = encode.value(assert(json.decode(encode.value(value)))) -- bytes that are no UTF-8 are replaced by then
        assert.equal(once, encode.value(assert(json.decode(once))))
      end
    end)
  end)

  it("JSON body is as the schema says, or refused with 400", function()
    local schema = { templateID = "string!", timeout = "integer", metadata = "texts", tags = "strings", network = "object",
      steps = "array", secure = "boolean" }
    local samples = { '{"templateID":"base","timeout":60,"metadata":{"a":"b"},"tags":["x"],"secure":true}',
      '{"templateID":"x","network":{"allowOut":["1.1.1.1"],"rules":{"a.test":[{"transform":{"headers":{"a":"b"}}}]}}}',
      '{"templateID":"x","steps":[{"type":"RUN","args":["true"]},{"type":"ENV","args":["A","$B"]},'
        .. '{"type":"COPY","args":["a","/b","u","644"],"filesHash":"x"},{"type":"USER","args":["u"]}]}' }
    each(samples, function(text)
      local request = {
        read_all = function()
          return text
        end,
      }
      local given, refused = body.read(request, schema)
      if not given then
        assert.equal(400, refused.status)
        return
      end
      assert.is_string(given.templateID)
      local policy, why = network.policy(type(given.network) == "table" and given.network or nil)
      assert.is_true(policy ~= nil or why.status == 400 or why.status == 403)
      local plan
      plan, why = recipe.of({ steps = given.steps }, function() return "/x" end)
      assert.is_true(plan ~= nil or why.status == 400)
    end)
  end)

  it("stream request of a Connect call is answered with a last envelope, and no more than one", function()
    local request = message.envelope(0, '{"process":{"cmd":"/bin/sh","args":["-c","true"],"envs":{"A":"1"}},"stdin":false}')
    local proto = { process = { cmd = "/bin/sh", args = { "-c" } } }
    local samples = { request, message.envelope(0, assert(message.encode("process.StartRequest", proto, "proto"))) }
    each(samples, function(text)
      for _, codec in ipairs { "json", "proto" } do
        local out = ""
        local fake = {
          method = "POST", headers = headers { ["content-type"] = "application/connect+" .. codec },
          read_all = function() return text end,
        }
        local function add(bytes)
          out = out .. (bytes or "")
          return true
        end
        function fake.begin(_, _, _, bytes) return add(bytes) end
        function fake.write(_, bytes) return add(bytes) end
        function fake.finish(_, bytes) return add(bytes) end
        connect.serve(fake, { input = "process.StartRequest", output = "process.StartResponse", stream = true,
          run = function(_, m, sink)
            assert.is_table(m)
            return sink:send { event = { start = { pid = 1 } } }
          end }, {})
        local parser, last, count = message.parser(), nil, 0
        parser:feed(out)
        for flags, payload in function() return parser:next() end do
          assert.is_nil(last)
          count = count + 1
          last = flags == message.END and payload or nil
        end
        assert.is_table(json.decode(last))
        assert.is_true(count <= 2)
        assert.equal(0, parser:left())
      end
    end)
  end)

  it("envelope comes out the same in whatever pieces it comes", function()
    local samples = { message.envelope(0, "abc") .. message.envelope(2, "{}"), message.envelope(1, ("x"):rep(300)) }
    local function parse(text, size)
      local parser, out = message.parser(4096), {}
      local at = 1
      while at <= #text do
        local n = size()
        parser:feed(text:sub(at, at + n - 1))
        at = at + n
        while true do
          local flags, payload = parser:next()
          if not flags then
            if payload then
              return table.concat(out) .. payload.kind
            end
            break
          end
          out[#out + 1] = ("%d:%s;"):format(flags, payload)
        end
      end
      return table.concat(out)
    end
    each(samples, function(text)
      assert.equal(parse(text, function() return 1000000 end), parse(text, function() return random(7) end))
    end)
  end)

  it("name, moment or form is one, or none", function()
    each({ "my-team/snap_a:v1.2", "base", "iabc-6532622b", "2026-09-01T10:00:00.123456Z", "2026-09-01T10:00:00+02:00", "a=b&c=d",
      "01234567-89ab-cdef-0123-456789abcdef" }, function(text)
      local ref, why = ids.reference(text)
      assert.is_true(ref ~= nil or type(why) == "string")
      if ref then
        assert.truthy(ref.name:match("^[a-z0-9_-]+$"))
      end
      local id = ids.sandbox_of(text)
      assert.truthy(id == nil or id:match("^[a-z0-9]+$"))
      local at = stamp.seconds(text)
      assert.is_true(at == nil or at == at and math.abs(at) < 1e12)
      local form = router.form(text)
      assert.is_true(form == nil or type(form) == "table")
    end)
  end)
end)
