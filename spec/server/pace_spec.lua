-- check: no asan
-- check: no user
-- Long work on the loop's thread: others get their turn while a large directory, a long list or a large message is gone
-- through, and what comes out is the same. The clock does not decide: it is moved on, or the steps are counted.

local helper = require "spec.helper"
helper.guard()

local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local filesystem = require "sandbar.server.envd.filesystem"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local pace = require "sandbar.server.pace"
local process = require "sandbar.server.envd.process"
local reply = require "sandbar.server.reply"
local sandbar = require "sandbar"
local tree = require "sandbar.server.envd.tree"
local users = require "sandbar.server.envd.users"

-- How many steps fn() takes, and what it gives.
local function steps_of(fn)
  local steps, new = 0, pace.new
  pace.new = function()
    return function()
      steps = steps + 1
    end
  end
  local ok, result = pcall(fn)
  pace.new = new
  assert(ok, result)
  return steps, result
end

-- What connect.serve answers to a body: status, body.
local function answer(call, codec, body)
  local status, text
  connect.serve({
    method = "POST",
    headers = {
      get = function(_, name)
        return name == "content-type" and "application/" .. codec or nil
      end,
    },
    read_all = function(_, most)
      if #body > most then
        return nil, errors.new { kind = "LimitExceeded", message = "the body is too long" }
      end
      return body
    end,
    attend = function(_, _, run, ...)
      return true, run(...)
    end,
    respond = function(_, given, _, bytes)
      status, text = given, bytes
      return true
    end,
  }, call, {})
  return status, text
end

describe("long work", function()
  it("gives others a turn as often as the clock says", function()
    local turns, over = 0, false
    local other = sandbar.spawn(function()
      while not over do
        turns = turns + 1
        sandbar.sleep(0)
      end
    end)
    local long = sandbar.spawn(function()
      local step = pace.new()
      for _ = 1, 1000 do
        core.advance(0.001)
        step()
      end
      over = true
    end)
    long:wait()
    other:wait()
    assert.is_true(turns >= 20, turns)
  end)

  it("ends with its task", function()
    local steps = 0
    local long = sandbar.spawn(function()
      local step = pace.new()
      for _ = 1, 100000 do
        core.advance(0.001)
        steps = steps + 1
        step()
      end
    end)
    sandbar.sleep(0)
    assert.is_true(steps > 0)
    long:cancel()
    local done, err = long:wait()
    assert.is_nil(done)
    assert.equal("Cancelled", err.kind)
    assert.is_true(steps < 1000, steps)
  end)

  it("sorts as table.sort does, whatever the length", function()
    local function before(a, b)
      return a.key < b.key
    end
    for _, n in ipairs { 0, 1, 511, 512, 513, 1537, 4000 } do
      local list, keys = {}, {}
      for i = 1, n do
        list[i] = { key = (i * 7919) % 4001 }
        keys[i] = list[i].key
      end
      table.sort(keys)
      local got, steps = {}, 0
      for i, one in ipairs(pace.sorted(list, before, function() steps = steps + 1 end)) do
        got[i] = one.key
      end
      assert.same(keys, got)
      assert.is_true(steps >= n)
    end
  end)

  it("goes through entries and lists step by step", function()
    local list, paths = {}, {}
    for i = 1, 300 do
      list[i], paths[i] = { name = tostring(i), type = "file", mode = "644", owner = "user", group = "user" }, "/d/" .. i
    end
    local steps, entries = steps_of(function()
      return tree.entries({}, list, paths)
    end)
    assert.is_true(steps >= 300)
    local text
    steps = steps_of(function()
      return reply.json({ respond = function(_, _, _, body) text = body end }, 200, encode.array(entries))
    end)
    assert.is_true(steps >= 300)
    assert.equal(encode.value(encode.array(entries)), text)
  end)

  it("made all entries out of the engine's answer at once", function()
    local sandboxes = helper.open()
    local box = sandbar.assert(sandboxes:create {})
    sandbar.assert(box:exec "mkdir -p /tmp/d/e /tmp/none && touch /tmp/d/a /tmp/d/e/b")
    local made, part = 0, core.part
    core.part = function(...)
      made = made + 1
      return part(...)
    end
    local all = {}
    for _, path in ipairs { "/tmp/d", "/tmp/none" } do
      local steps = 0
      made = 0
      all[path] = sandbar.assert(tree.list(box, path, 2, function()
        steps = steps + 1
        assert.equal(steps, made)
      end))
      assert.equal(#all[path], steps)
    end
    core.part = part
    assert.same({}, all["/tmp/none"])
    assert.same(sandbar.assert(box.files:list("/tmp/d", { depth = 2 })), all["/tmp/d"])
    assert.equal(3, #all["/tmp/d"])
    local none, err = tree.list(box, "/tmp/d/a", 1)
    assert.is_nil(none)
    assert.equal("ENOTDIR", err.code)
    sandbar.assert(box:destroy())
    box:close()
    sandboxes:close()
  end)

  it("puts a long answer together to what it is as a whole", function()
    local entries = {}
    for i = 1, 250 do
      entries[i] = { name = "n" .. i, path = '/a "b"/' .. i, size = i, type = "FILE_TYPE_FILE" }
    end
    for _, n in ipairs { 0, 1, 100, 101, 250 } do
      local some = {}
      for i = 1, n do
        some[i] = entries[i]
      end
      local call = { input = "filesystem.ListDirRequest", output = "filesystem.ListDirResponse", list = "entries",
        run = function() return { entries = n > 0 and some or nil } end }
      assert.equal("entries", filesystem.calls.ListDir.list)
      for _, codec in ipairs { "json", "proto" } do
        local status, text
        local steps = steps_of(function()
          status, text = answer(call, codec, codec == "json" and "{}" or "")
        end)
        assert.equal(200, status)
        assert.equal(message.encode(call.output, { entries = n > 0 and some or nil }, codec), text)
        assert.is_true(steps >= n)
      end
    end
  end)

  it("reads a large message in pieces, and none with too much in it", function()
    local steps = 0
    local function count()
      steps = steps + 1
    end
    local long = ("QUFB"):rep(100000)
    assert.same({ a = long }, json.decode('{"a":"' .. long .. '"}', 10, count))
    assert.is_true(steps >= #long / 65536)
    steps = 0
    assert.equal(("\n"):rep(5000), json.decode('"' .. ("\\n"):rep(5000) .. '"', 10, count))
    assert.is_true(steps >= 5000)
    assert.same({ 1, { 2, 3 } }, json.decode("[1,[2,3]]", 5, count))
    local none, why = json.decode("[1,[2,3]]", 4, count)
    assert.is_nil(none)
    assert.truthy(why:find("too many values", 1, true))
    assert.is_nil((json.decode('"' .. long, 10, count)))
    assert.is_nil((json.decode('"' .. long .. '\n"', 10, count)))
    local text = ("x"):rep(65536) .. '"' -- ends with a piece
    assert.equal(text:sub(1, -2), json.decode('"' .. text, 10, count))

    local many = '{"process":{"args":[' .. ('"a",'):rep(pace.VALUES) .. '"a"]}}'
    assert.equal(400, (answer({ input = "process.StartRequest", run = error }, "json", many)))
    local input = '{"input":{"stdin":"' .. ("QUFB"):rep(1200000) .. '"}}'
    assert.equal(429, (answer({ input = "process.StartRequest", run = error }, "json", input)))
    local call = { input = "process.SendInputRequest", output = "process.SendInputResponse",
      bulk = process.calls.SendInput.bulk, run = function(_, m) return #m.input.stdin == 3600000 and {} end }
    assert.equal(200, (answer(call, "json", input)))
  end)
end)

describe("users.find", function()
  local function find(passwd, name)
    return users.find({ files = { read = function() return passwd end } }, name)
  end

  it("takes the first whole line of exactly that name", function()
    local passwd = "root:x:0:0:root:/root:/bin/sh\nuser\nuser:broken\nuser2:x:7:7::/2:/bin/sh\nxuser:x:8:8::/8:/bin/sh\n"
      .. "user:x:1000:1001::/home/user:/bin/bash\nuser:x:9:9::/9:/bin/sh\nlast:x:3:4::"
    assert.same({ name = "user", uid = 1000, gid = 1001, home = "/home/user" }, (find(passwd, "user")))
    assert.same({ name = "root", uid = 0, gid = 0, home = "/root" }, (find(passwd, "root")))
    assert.same({ name = "last", uid = 3, gid = 4, home = "/" }, (find(passwd, "last")))
    for _, name in ipairs { "use", "ser", "none", "root:x", "user\nuser2", "\nuser", "r%a+", "" } do
      local none, err = find(passwd, name)
      assert.is_nil(none, name)
      assert.equal("unauthenticated", err.connect)
    end
  end)
end)
