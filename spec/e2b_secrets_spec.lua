-- check: only 5.4
-- check: no asan
-- check: no user
-- P-42 P-43 B-04: a whole program with trace, audit and journal on, against the project's own server: none of what it
-- writes anywhere, nor what it could print, has a key, a token or a secret in it, in none of the usual encodings.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local sandbar = require "sandbar"

-- What it does does not have to succeed: what fails has texts as well. `dir` is all the room it has on this machine.
local PROGRAM = [==[
local dir, url = ...
local function read(name)
  local file = assert(io.open(dir .. "/../given/" .. name))
  local text = file:read("a")
  file:close()
  return text
end
local sandbar = require "sandbar"
local assert = sandbar.assert
sandbar.audit { fd = 2 }

-- Everything that can be seen of a value, metatables' texts included.
local seen = {}
local function show(value, depth)
  if type(value) == "table" and not seen[value] and depth < 8 then
    seen[value] = true
    for k, v in next, value do
      io.stdout:write(("  "):rep(depth), tostring(k), ":\n")
      show(v, depth + 1)
    end
    if rawget(value, "kind") and rawget(value, "message") then
      io.stdout:write("error: " .. value, "\n")
    end
  end
  io.stdout:write(tostring(value), "\n")
end
local steps = 0
local function try(fn, ...)
  local r = table.pack(pcall(fn, ...))
  steps = steps + 1
  for i = 2, r.n do
    show(r[i], 0)
  end
  return r[1] and r[2] or nil
end
local function journal()
  for line in io.popen("cat " .. dir .. "/journal/* 2>&1"):lines() do
    print(line)
  end
end

local key, hidden = read "key", read "secret"
local function open(more)
  local options = { provider = "e2b", api_key = key, api_url = url, sandbox_url = url, journal = dir .. "/journal",
    headers = { ["X-Hidden"] = sandbar.secret(hidden) } }
  for name, value in pairs(more or {}) do
    options[name] = value
  end
  return try(sandbar.open, options)
end
local boxes = open()
show(sandbar.secret(hidden), 0)
try(boxes.explain, boxes, { env = { KEY = sandbar.secret(hidden) }, network = { allow = { "example.com" },
  inject = { { host = "example.com", set_headers = { Authorization = sandbar.secret(hidden) } } } } })
sandbar.scope(function(scope)
  local box = try(boxes.create_scoped, boxes, { id = "secretive", lifetime = 120, labels = { a = "1" },
    env = { KEY = sandbar.secret(hidden) } }, scope)
  journal()
  try(box.exec, box, "test -n \"$KEY\"; exit 3", { env = { OTHER = sandbar.secret(hidden) } })
  try(box.exec, box, "exit 3", { check = true })
  try(box.exec, box, "sleep 20", { timeout = 0.2, env = { OTHER = sandbar.secret(hidden) } })
  try(box.exec, box, { "no-such-program" })
  try(box.exec, box, "true", { cwd = "/no/such", user = "nobody-here" })
  local p = try(box.start, box, "cat", { stdin = "pipe", env = { OTHER = sandbar.secret(hidden) } })
  try(p.reference, p)
  try(p.kill, p)
  local kept = try(box.start, box, "echo $OTHER | wc -c; exit 3", { stdout = "spool",
    env = { OTHER = sandbar.secret(hidden) } })
  try(function() return kept.stdout:read "a" end)
  try(kept.wait, kept)
  local typed = try(box.start, box, "read a; stty size", { pty = { cols = 80, rows = 24 } })
  try(function() return typed.stdin:write "x\n" end)
  try(typed.wait, typed, { output = true })
  try(box.attach, box, typed.pid)
  try(box.processes, box)
  local port = try(box.port, box, 3000)
  show(port.headers, 0)
  show(port.url, 0)
  try(port.fetch, port, { headers = { Authorization = sandbar.secret(hidden) } })
  try(port.websocket, port, "/", { headers = { Authorization = sandbar.secret(hidden) } })
  try(port.wait, port, { timeout = 0.1 })
  try(port.upstream, port)
  try(port.expose, port)
  try(box.ports, box)
  try(function() return box.files:write("/tmp/x", "y") end)
  try(function() return box.files:download_url("/tmp/x") end)
  try(function() return box.files:upload_url("/tmp/x", { expires = false }) end)
  try(function() return box.files:read("/no/such") end)
  try(function() return box.files:write("/tmp/long", ("x"):rep(300000)) end)
  try(function() return box.files:open("/tmp/x", "r"):close() end)
  try(function() return box.files:watch("/tmp"):close() end)
  try(function() return box.files:watch("/no/such") end)
  try(box.fork, box, 1)
  try(box.metrics, box)
  try(boxes.logs, boxes, "secretive")
  try(box.snapshot, box, "secret-snapshot")
  try(boxes.snapshots.list, boxes.snapshots)
  try(boxes.snapshots.delete, boxes.snapshots, "secret-snapshot")
  try(box.update_network, box, { allow = { "example.com" },
    inject = { { host = "example.com", set_headers = { Authorization = sandbar.secret(hidden) } } } })
  try(box.pause, box)
  try(box.exec, box, "true")
  try(box.resume, box)
  try(box.info, box)
  try(boxes.create, boxes, { id = "secretive" })
  try(boxes.create, boxes, { template = key })
  try(boxes.connect, boxes, "nobody")
  try(boxes.connect, boxes, "secretive", { expect_labels = { a = "2" } })
  try(boxes.list, boxes)
  show(box, 0)
  show(boxes, 0)
end)
try(boxes.templates.build, boxes.templates, { name = "fails-here", steps = { { run = "exit 3" } } })
try(function() return boxes.keys:create "name" end)
local refused = open { api_key = read "wrong" }
try(refused.list, refused)
local account = open { access_token = read "wrong", team = "no such team" }
try(function() return account.keys:create { name = "mine" } end)
try(function() return account.keys:create_scoped { name = "mine" } end)
try(function() return account.keys:list() end)
local nowhere = open { api_url = "http://127.0.0.1:1", proxy = "http://user:" .. hidden .. "@127.0.0.1:1", retries = 0 }
try(nowhere.list, nowhere)
try(sandbar.open, { provider = "e2b", api_key = key, api_url = "ftp://" .. key })
try(sandbar.open, { provider = "e2b", api_key = key, no_such = key })
journal()
local kept = try(boxes.create, boxes, { id = "kept", lifetime = 120 })
left = try(boxes.create_scoped, boxes, { lifetime = 120 })
print("steps", steps)
error(select(2, boxes:connect("nobody")))
]==]

describe("secrets of a program with hosted sandboxes", function()
  local server, dir

  setup(function()
    server = serve.start()
    dir = helper.dir("whole")
  end)

  teardown(function()
    collectgarbage()
    server.stop()
    helper.remove(dir)
  end)

  helper.guard { each = false, growth = 24 }

  local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

  local function base64(bytes)
    local bits, out = 0, {}
    local count = 0
    for i = 1, #bytes do
      bits, count = bits * 256 + bytes:byte(i), count + 8
      while count >= 6 do
        count = count - 6
        local at = math.floor(bits / 2 ^ count)
        out[#out + 1] = ALPHABET:sub(at + 1, at + 1)
        bits = bits % 2 ^ count
      end
    end
    return table.concat(out)
  end

  -- A text as it may be hidden in another one. Of base64, what does not depend on the neighbours.
  local function spellings(text)
    local out = { plain = text, reversed = text:reverse() }
    out.hex = text:gsub(".", function(c)
      return ("%02x"):format(c:byte())
    end)
    out.escaped = text:gsub(".", function(c)
      return ("%%%02X"):format(c:byte())
    end)
    for shift = 0, 2 do
      out["base64 " .. shift] = base64(("x"):rep(shift) .. text):sub(shift + 3, -3)
    end
    return out
  end

  -- The tokens that the server gave for a sandbox, asked for beside the library.
  local function tokens(id)
    local http = require "sandbar.http"
    local client = assert(http.client { url = server.url })
    local boxes = sandbar.assert(sandbar.open { provider = "e2b", api_key = server.key, api_url = server.url })
    local vendor_id = sandbar.assert(boxes:info(id)).provider_id
    local answer = sandbar.assert(http.request(client, { method = "POST", body = "{}",
      path = "/v2/sandboxes/" .. vendor_id .. "/connect", headers = { ["X-API-Key"] = server.key } }, 20, "connect"))
    client:close()
    return { daemon = assert(answer.body:match('"envdAccessToken":%s*"([^"]+)"')),
      traffic = assert(answer.body:match('"trafficAccessToken":%s*"([^"]+)"')) }
  end

  it("show nowhere: not in its output, its files, its errors, its journal, its trace", function()
    local hidden, wrong = "Hidden+" .. ("7f3/"):rep(6) .. "=end", "e2b_" .. ("0d"):rep(20)
    helper.shell(("mkdir -p %s/given %s/room/journal %s/room/tmp %s/room/home"):format(dir, dir, dir, dir))
    for name, text in pairs { key = server.key, secret = hidden, wrong = wrong } do
      helper.write_file(dir .. "/given/" .. name, text)
    end
    local room = dir .. "/room"
    local child = helper.run_lua(PROGRAM, { args = { room, server.url }, timeout = 60,
      env = { SANDBAR_TRACE = "1", TMPDIR = room .. "/tmp", HOME = room .. "/home" } })
    helper.write_file(room .. "/stdout", child.stdout)
    helper.write_file(room .. "/stderr", child.stderr)
    local steps = tonumber(child.stdout:match("\nsteps\t(%d+)"))
    assert.is_true(steps ~= nil and steps > 55, child.stdout:sub(-2000) .. child.stderr:sub(-2000))
    for _, word in ipairs { "acquire", "release", "secretive" } do -- audit and trace have been there
      assert.truthy(child.stderr:find(word, 1, true), word)
    end
    assert.is_true(#child.stdout > 5000 and #child.stderr > 2000)
    local journal = helper.shell(("cat %s/journal/*"):format(room))
    assert.is_true(#journal > 100, journal)

    local found = tokens "kept"
    found.key, found.hidden, found.wrong = server.key, hidden, wrong
    local everything = helper.shell(("find %s -type f -exec cat {} +; find %s"):format(room, room))
    assert.is_true(#everything > #child.stdout + #child.stderr)
    for name, text in pairs(found) do
      for how, spelling in pairs(spellings(text)) do
        assert.is_true(#spelling >= 16, name)
        local at = everything:find(spelling, 1, true) or everything:lower():find(spelling:lower(), 1, true)
        assert.is_nil(at, at and ("%s (%s) in: %s"):format(name, how, everything:sub(math.max(at - 200, 1), at + 40)))
      end
    end
    -- What would be found is found.
    assert.truthy(("a" .. base64("xx" .. hidden .. "y")):find(spellings(hidden)["base64 2"], 1, true))
  end)
end)
