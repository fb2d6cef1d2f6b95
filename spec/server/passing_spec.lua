-- check: only 5.4
-- check: no asan
-- Requests to servers in sandboxes of `sandbar serve`, and what becomes of them when one of both sides goes.

local commands = require "spec.support.commands"
local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local input = require "sandbar.input"
local sandbar = require "sandbar"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local SERVER = (os.getenv("SPEC_BUILD") or "build") .. "/spec/http_server"

describe("a request to a server in a sandbox", function()
  local server, client, origin, running

  teardown(function()
    running:close()
    origin:close()
    client:close()
    server.stop()
  end)
  helper.guard { each = false }

  -- Asks with more lines in the head: what the answer is read from, and what a body is written to.
  local function open(path, more, method, port)
    local native = sandbar.assert(wait.op(origin:dial(), 20, "dial")).object
    local head = { ("%s %s HTTP/1.1"):format(method or "GET", path), "e2b-sandbox-port: " .. (port or 3000), more }
    for name, value in pairs(client.headers) do
      if name ~= "e2b-sandbox-port" then
        head[#head + 1] = name .. ": " .. value
      end
    end
    local writer = input.new(native)
    sandbar.assert(writer:write(table.concat(head, "\r\n") .. "\r\n\r\n"))
    return stream.output("the answer", { native = native, mode = "pipe" }), writer
  end

  -- The head and the body of an answer, whose end is the connection's; nil and an error when it is cut.
  local function ask(path, more, method, port)
    local output = open(path, more or "Connection: close", method, port)
    local text, err = output:read("a", { timeout = 20 })
    output:close()
    if not text then
      return nil, err
    end
    return text:match("^(.-\r\n\r\n)(.*)$")
  end

  setup(function()
    server = serve.start()
    client = commands.client(server)
    origin = sandbar.assert(http.client { url = server.url })
    assert(client:ask("POST", "/files?path=server", helper.read_file(SERVER),
      { ["content-type"] = "application/octet-stream" }).status == 200)
    running = client:start("cd && chmod 755 server && exec ./server 3000")
    assert(running:output(1))
  end)

  local function held(port)
    return select(2, ask("/held", nil, nil, port)):match("%d+")
  end

  -- That so many requests are held inside; it has its own time.
  local function is_held(count, port)
    assert.is_true(helper.eventually(function()
      return held(port) == count
    end))
  end

  local UPGRADE = "Connection: Upgrade, close\r\nUpgrade: echo"

  it("went on when its client had gone", function()
    for _, path in ipairs { "/silent", "/endless" } do
      for _, more in ipairs { "Connection: close", UPGRADE } do
        local output = open(path, more)
        is_held "1"
        output:close()
        is_held "0"
      end
    end
  end)

  it("waited for more of its body when its server had gone", function()
    local other = client:start("cd && exec ./server 3001")
    assert(other:output(1))
    local output, writer = open("/silent", "Connection: close\r\nContent-Length: 100", "POST", 3001)
    sandbar.assert(writer:write("some of it"))
    is_held("1", 3001)
    client:run("kill -9 " .. other.pid)
    local text = sandbar.assert(output:read("a", { timeout = 20 }))
    assert.truthy(text:find("^HTTP/1.1 502 "), text)
    output:close()
    other:close()
  end)

  it("lost the answer's body when it offered another protocol and that was not taken", function()
    for _, how in ipairs { "", "/chunks", "/close" } do
      local head, text = ask("/big/3000000" .. how, UPGRADE)
      assert.truthy(head:find("^HTTP/1.1 200 "), head)
      assert.equal(3000000, select(2, text:gsub("x", "")), how) -- some of them in chunks
    end
    assert.equal("", select(2, ask("/status/404", UPGRADE, "HEAD")))
    for _, path in ipairs { "/big/3000000/cut", "/cut/length", "/cut/chunk", "/cut/between" } do
      assert.is_nil((ask(path, UPGRADE)), path)
    end
  end)

  it("that would be content with HTTP/1.1 is an ordinary one", function()
    local _, text = ask("/raw", "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAAB")
    local head = text:lower()
    assert.truthy(head:find("\r\nconnection: close\r\n", 1, true), head)
    assert.is_nil(head:find("upgrade", 1, true))
    assert.is_nil(head:find("http2", 1, true))
  end)
end)
