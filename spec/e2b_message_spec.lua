local helper = require "spec.helper"
local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"

helper.guard()

local function bytes(hex)
  return (hex:gsub("%s", ""):gsub("%x%x", function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

local function hex(text)
  return (text:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

-- Both codecs give back what was put in.
local function assert_kept(type_name, value)
  for _, codec in ipairs { "proto", "json" } do
    local text = assert(message.encode(type_name, value, codec))
    assert.same(value, assert(message.decode(type_name, text, codec)))
  end
end

local function assert_invalid(part, value, err)
  assert.is_nil(value)
  assert.equal("InvalidArgument", err.kind)
  assert.truthy(err.message:find(part, 1, true), err.message)
end

describe("message.encode and message.decode", function()
  it("write what the protocol has, byte for byte", function()
    helper.each_of({
      { "process.StartRequest", { process = { cmd = "ls", args = { "-l", "" } }, stdin = false },
        "0a0a 0a026c73 12022d6c 1200 2000", '{"process":{"args":["-l",""],"cmd":"ls"},"stdin":false}' },
      { "process.StartRequest", { process = { envs = { A = "1" }, cwd = "" }, pty = { size = { cols = 80, rows = 300 } } },
        "0a0a 1a06 0a0141 120131 2200 1207 0a05 0850 10ac02",
        '{"process":{"cwd":"","envs":{"A":"1"}},"pty":{"size":{"cols":80,"rows":300}}}' },
      { "process.StartResponse", { event = { start = { pid = 5 } } }, "0a04 0a020805", '{"event":{"start":{"pid":5}}}' },
      { "process.StartResponse", { event = { data = { stdout = "hi\n" } } }, "0a07 1205 0a0368690a",
        '{"event":{"data":{"stdout":"aGkK"}}}' },
      { "process.StartResponse", { event = { ["end"] = { exitCode = -1, status = "signal: killed" } } },
        "0a14 1a12 0801 1a0e7369676e616c3a206b696c6c6564", '{"event":{"end":{"exitCode":-1,"status":"signal: killed"}}}' },
      { "process.StartResponse", { event = { keepalive = {} } }, "0a02 2200", '{"event":{"keepalive":{}}}' },
      { "process.SendSignalRequest", { process = { pid = 7 }, signal = "SIGNAL_SIGKILL" }, "0a020807 1009",
        '{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}' },
      { "filesystem.StatResponse", { entry = { size = 4, mode = 420, modifiedTime = { seconds = 1788256800, nanos = 250000000 } } },
        "0a14 2004 28a403 4a0d 08a0b4d9d406 108 0e59a77" },
    }, function(type_name, value, wire, text)
      local packed = assert(message.encode(type_name, value, "proto"))
      assert.same(value, assert(message.decode(type_name, packed, "proto")))
      if text then
        assert.equal((wire:gsub("%s", "")), hex(packed))
        assert.equal(text, assert(message.encode(type_name, value, "json")))
      end
      assert_kept(type_name, value)
    end)
  end)

  it("keep every kind of field", function()
    assert_kept("filesystem.ListDirResponse", {
      entries = {
        { name = "a", type = "FILE_TYPE_FILE", path = "/a", size = 9007199254740992, mode = 4294967295, owner = "é",
          modifiedTime = { seconds = -1 }, symlinkTarget = "", metadata = { k = "v", [""] = "" } },
        { name = "0", type = "FILE_TYPE_SYMLINK", size = -3, modifiedTime = {} },
        {},
      },
    })
    assert_kept("process.SendInputRequest", { process = { tag = "" }, input = { stdin = "\0\255\n\128" } })
    assert_kept("process.SendInputRequest", { input = { pty = "" } })
    assert_kept("filesystem.WatchDirResponse", { filesystem = { name = "x/y", type = "EVENT_TYPE_RENAME" } })
    assert_kept("process.ListRequest", {})
    assert_kept("process.StreamInputRequest", { data = { input = { stdin = "x" } } })
  end)

  it("an empty list of messages was written as an object", function()
    for _, codec in ipairs { "json", "proto" } do
      local text = assert(message.encode("filesystem.ListDirResponse", { entries = {} }, codec))
      assert.equal(codec == "json" and "{}" or "", text)
    end
  end)

  it("leave out default values, but not members of a oneof", function()
    local value = { process = { cmd = "", args = {}, envs = {}, cwd = "" }, stdin = false, tag = "" }
    for _, codec in ipairs { "proto", "json" } do
      local packed = assert(message.encode("process.StartRequest", value, codec))
      assert.same({ process = { cwd = "" }, stdin = false, tag = "" },
        assert(message.decode("process.StartRequest", packed, codec)))
    end
    assert.same({ entry = {} }, assert(message.decode("filesystem.StatResponse",
      '{"entry":{"size":"0","mode":0,"type":"FILE_TYPE_UNSPECIFIED","name":"","metadata":{},"owner":null}}', "json")))
    assert.same({ entry = {} }, assert(message.decode("filesystem.StatResponse", bytes "0a08 0a00 1000 2000 2800", "proto")))
  end)

  it("refuse what the type does not have, by name", function()
    local start = "process.StartRequest"
    helper.each_of({
      { "comand: there is no such field", start, { process = { comand = "ls" } } },
      { "cmd: not a string", start, { process = { cmd = 1 } } },
      { "cmd: not UTF-8", start, { process = { cmd = "\255" } } },
      { "args: not a list", start, { process = { args = { "a", nil, "c" } } } },
      { "args: not a list", start, { process = { args = { x = "a" } } } },
      { "args: not a", start, { process = { args = "a" } } },
      { "envs: not a string", start, { process = { envs = { A = true } } } },
      { "process: not a table", start, { process = "ls" } },
      { "stdin: not a boolean", start, { stdin = 1 } },
      { "excludes it", "process.SendInputRequest", { input = { stdin = "", pty = "" } } },
      { "pid: ", "process.ConnectRequest", { process = { pid = 4294967296 } } },
      { "pid: ", "process.ConnectRequest", { process = { pid = -1 } } },
      { "pid: ", "process.ConnectRequest", { process = { pid = 1.5 } } },
      { "pid: ", "process.ConnectRequest", { process = { pid = "1" } } },
      { "signal: ", "process.SendSignalRequest", { signal = "SIGHUP" } },
      { "size: ", "filesystem.StatResponse", { entry = { size = 2 ^ 64 } } },
    }, function(part, type_name, value)
      for _, codec in ipairs { "proto", "json" } do
        assert_invalid(part, message.encode(type_name, value, codec))
      end
    end)
  end)

  it("take fields that are not known, and enums by number", function()
    assert.same({ process = { cmd = "ls" } }, assert(message.decode("process.StartRequest",
      bytes "0a04 0a026c73 a80601 fa3f026869 f53f01020304 f13f0102030405060708", "proto")))
    assert.same({ process = { cmd = "ls", cwd = "/" } }, assert(message.decode("process.StartRequest",
      '{"process":{"cmd":"ls","cwd":"\\/","x":[{}]},"later":{"a":null}}', "json")))
    assert.same({ signal = "SIGNAL_SIGTERM" }, assert(message.decode("process.SendSignalRequest", '{"signal":15}', "json")))
    assert.same({ signal = 3 }, assert(message.decode("process.SendSignalRequest", '{"signal":3}', "json")))
    assert.same({ signal = 3 }, assert(message.decode("process.SendSignalRequest", bytes "1003", "proto")))
    assert_kept("process.SendSignalRequest", { signal = 3 })
  end)

  it("take JSON as lenient peers write it", function()
    assert.same({ path = "/x", includeEntry = true }, assert(message.decode("filesystem.WatchDirRequest",
      '{"path":"/x","include_entry":true,"recursive":false}', "json")))
    for _, text in ipairs { "-_8=", "-_8", "+/8=", "+/8" } do
      assert.same({ input = { stdin = "\251\255" } }, assert(message.decode("process.SendInputRequest",
        ('{"input":{"stdin":"%s"}}'):format(text), "json")))
    end
    for _, size in ipairs { "4", '"4"', "4.0" } do
      assert.equal(4, assert(message.decode("filesystem.StatResponse", ('{"entry":{"size":%s}}'):format(size), "json")).entry.size)
    end
  end)

  it("read times with any offset and fraction", function()
    local function seconds(text)
      local got, err = message.decode("filesystem.StatResponse", json.encode { entry = { modifiedTime = text } }, "json")
      return got and got.entry.modifiedTime, err
    end
    assert.same({ seconds = 1788256800, nanos = 250000000 }, seconds "2026-09-01T10:00:00.250Z")
    assert.same({ seconds = 1788256800 }, seconds "2026-09-01T12:30:00+02:30")
    assert.same({ seconds = 951782400, nanos = 1 }, seconds "2000-02-29T00:00:00.000000001Z")
    assert.same({ seconds = -1 }, seconds "1969-12-31T23:59:59Z")
    assert.same({}, seconds "1970-01-01t00:00:00z")
    for _, wrong in ipairs { "now", "2026-09-01", "2026-09-01T10:00:00", "2026-09-01T10:00:00+0200", "2026-09-01T10:00:00.Z" } do
      assert_invalid("modifiedTime: not a time", seconds(wrong))
    end
    assert.equal('{"entry":{"modifiedTime":"2026-09-01T10:00:00.250Z"}}', assert(message.encode("filesystem.StatResponse",
      { entry = { modifiedTime = { seconds = 1788256800, nanos = 250000000 } } }, "json")))
  end)

  it("refuse damaged bytes and never raise", function()
    helper.each_of({
      { "0a" }, { "0a05 0a02" }, { "0a04 0a036c73" }, { "08" }, { "0b" }, { "00 00" }, { "ffffffffffffffffffff01" },
      { "0801" }, { "0a020801" }, { "0a020aff" }, { "0a03 0a01ff" }, { "0afeffffffffffffffff01" }, { "2001 ff" },
    }, function(wire)
      local value, err = message.decode("process.StartRequest", bytes(wire), "proto")
      assert_invalid("process.StartRequest: ", value, err)
    end)
    helper.each_of({
      { "" }, { "null" }, { "[]x" }, { "[1]" }, { "1" }, { '{"process":1}' }, { '{"process":[1]}' }, { '{"stdin":"no"}' },
      { '{"process":{"args":{"a":1}}}' }, { '{"process":{"args":[1]}}' }, { '{"process":{"envs":{"A":1}}}' },
    }, function(text)
      assert_invalid("process.StartRequest: ", message.decode("process.StartRequest", text, "json"))
    end)
    assert_invalid("stdin: not base64", message.decode("process.SendInputRequest", '{"input":{"stdin":"a"}}', "json"))
    assert_invalid("excludes", message.decode("process.SendInputRequest", '{"input":{"stdin":"","pty":""}}', "json"))
  end)

  it("join what a sender has split: the last of a oneof counts, messages are merged", function()
    assert.same({ input = { pty = "b" } }, assert(message.decode("process.SendInputRequest",
      bytes "1203 0a0161 1203 120162", "proto")))
    assert.same({ process = { cmd = "ls", args = { "a", "b" } } }, assert(message.decode("process.StartRequest",
      bytes "0a07 0a026c73 120161 0a03 120162", "proto")))
  end)

  it("hold 64-bit sizes exactly, or refuse them", function()
    local wide = bytes "0a0a 20ffffffffffffffff7f" -- 2^63 - 1
    if math.type then
      assert.equal(math.maxinteger, assert(message.decode("filesystem.StatResponse", wide, "proto")).entry.size)
      assert.equal('{"entry":{"size":"9223372036854775807"}}',
        assert(message.encode("filesystem.StatResponse", { entry = { size = math.maxinteger } }, "json")))
      assert_kept("filesystem.StatResponse", { entry = { size = math.mininteger } })
    else
      assert_invalid("too large for this Lua", message.decode("filesystem.StatResponse", wide, "proto"))
      assert_invalid("too large for this Lua",
        message.decode("filesystem.StatResponse", '{"entry":{"size":"9223372036854775807"}}', "json"))
    end
    assert_invalid("size", message.decode("filesystem.StatResponse", '{"entry":{"size":"9223372036854775808"}}', "json"))
  end)

  it("take secrets as strings of the binary form", function()
    local secret = require("sandbar").secret "s3cret-value"
    local packed = assert(message.encode("process.StartRequest", { process = { envs = { KEY = secret } } }, "proto"))
    assert.same({ process = { envs = { KEY = "s3cret-value" } } }, assert(message.decode("process.StartRequest", packed, "proto")))
  end)

  it("know only the messages of the protocol", function()
    assert.has_error(function()
      message.encode("process.Nothing", {}, "proto")
    end)
  end)
end)

describe("message.envelope and message.parser", function()
  it("are each other's inverse, whatever the pieces", function()
    local big = ("x"):rep(3000)
    local stream = message.envelope(0, '{"event":{"start":{"pid":5}}}') .. message.envelope(0, "") .. message.envelope(1, big)
      .. message.envelope(message.END, "{}")
    assert.equal("000000001d", hex(stream:sub(1, 5)))
    assert.equal("02000000027b7d", hex(stream:sub(-7)))
    for _, size in ipairs { 1, 3, 512, #stream } do
      local parser, got = message.parser(), {}
      for at = 1, #stream, size do
        parser:feed(stream:sub(at, at + size - 1))
        for flags, payload in function() return parser:next() end do
          got[#got + 1] = flags .. " " .. payload
        end
      end
      assert.equal(0, parser:left())
      assert.same({ '0 {"event":{"start":{"pid":5}}}', "0 ", "1 " .. big, "2 {}" }, got)
    end
  end)

  it("show what is cut, and refuse what is too long before it is there", function()
    local parser = message.parser(10)
    parser:feed(message.envelope(0, "0123456789"):sub(1, 8))
    assert.is_nil(parser:next())
    assert.equal(8, parser:left())
    parser = message.parser(10)
    parser:feed "\0\0\0\0\11"
    local flags, err = parser:next()
    assert.is_nil(flags)
    assert.equal("LimitExceeded", err.kind)
  end)
end)

describe("base64", function()
  it("is written with padding and read without", function()
    for _, text in ipairs { "", "f", "fo", "foo", "foob", "fooba", "\0\255\254" } do
      local coded = http.base64(text)
      assert.equal(0, #coded % 4)
      assert.equal(text, http.unbase64(coded))
      assert.equal(text, http.unbase64((coded:gsub("=", ""))))
    end
    assert.equal("Zm9vYg==", http.base64 "foob")
    for _, wrong in ipairs { "a", "abc*", "ab=c", "=", "ab=", "abc==", "abcde" } do
      assert.is_nil(http.unbase64(wrong))
    end
  end)
end)

describe("json.encode", function()
  it("writes what json.decode reads", function()
    local value = { a = { 1, 2.5, -3, { b = json.null } }, t = true, s = "\"\\\n\1é", big = 123456789012345, f = 0.1 }
    assert.same(value, assert(json.decode(assert(json.encode(value)))))
    assert.equal('{"a":[],"b":{},"c":[1,null,"x"]}', json.encode { a = json.array {}, b = {}, c = { 1, json.null, "x" } })
    assert.equal("9007199254740992", json.encode(2 ^ 53))
    assert.equal('"\\u0000\\u001f"', json.encode "\0\31")
  end)

  it("refuses what JSON has no form for", function()
    local deep = {}
    for _ = 1, 200 do
      deep = { deep }
    end
    for _, wrong in ipairs { { 1, 2, x = 3 }, { [3] = 1 }, 0 / 0, 1 / 0, print, { f = print }, deep } do
      local text, why = json.encode(wrong)
      assert.is_nil(text)
      assert.equal("string", type(why))
    end
  end)
end)
