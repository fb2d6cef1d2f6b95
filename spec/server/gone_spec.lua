-- check: only 5.4
-- check: no asan
-- Requests to `sandbar serve` whose sandbox is destroyed while they are answered, or whose body ends otherwise than it
-- should.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local stream = require "sandbar.stream"

local CLIENT = (os.getenv("SPEC_BUILD") or "build") .. "/spec/raw_client"

describe("a request", function()
  local server, client

  serve.suite(function(...)
    server, client = ...
  end)

  it("with a file was an error of the server's when its sandbox was destroyed meanwhile", function()
    local id, headers = client.create()
    local pieces = { ("x"):rep(300000) }
    local answer = assert(http.request(client.port, {
      method = "POST", path = "/files?path=f",
      headers = client.with(headers, { ["content-type"] = "application/octet-stream", host = "localhost" }),
      body = function()
        local piece = table.remove(pieces)
        if not piece then
          client.get(204, "DELETE", "/sandboxes/" .. id)
        end
        return piece
      end,
    }, 20, "ask"))
    assert.equal(502, answer.status, answer.body)
  end)

  it("that writes to a process ends with the sandbox", function()
    local id, headers = client.create()
    local start = json.encode { process = { cmd = "/bin/sleep", args = { "600" } }, stdin = true, tag = "t" }
    local running = assert(http.request(client.port, { method = "POST", path = "/process.Process/Start", stream = true,
      body = message.envelope(0, start),
      headers = client.with(headers, { ["content-type"] = "application/connect+json", host = "localhost" }) }, 20, "ask"))
    assert(stream.some(running.body, 20))
    local sandbar = require "sandbar"
    local input = json.encode { process = { tag = "t" }, input = { stdin = ("eHh4"):rep(200000) } }
    local sending = sandbar.spawn(http.request, client.port, { method = "POST", path = "/process.Process/SendInput",
      body = input, headers = client.with(headers, { ["content-type"] = "application/json", host = "localhost" }) }, 20,
      "ask")
    client.get(204, "DELETE", "/sandboxes/" .. id)
    local answer = assert(sending:wait())
    assert.is_true(answer.status == 502 or answer.status == 503, answer.status .. answer.body)
    running.body:close()
  end)

  it("with a file for a path where there is something else was one, too", function()
    local _, headers = client.create()
    local octets = client.with(headers, { ["content-type"] = "application/octet-stream" })
    for path, text in pairs { ["/dev/full"] = "is not a regular file", ["/tmp"] = "is a directory" } do
      assert.matches(text, client.get(400, "POST", "/files?path=" .. path, "x", octets).message)
    end
  end)

  it("with a body that is not what it should be was an error of the server's", function()
    local _, headers = client.create()
    local lines = { "Host: localhost\\r\\nX-API-Key: " .. server.key .. "\\r\\n" }
    for name, value in pairs(headers) do
      lines[#lines + 1] = ("%s: %s\\r\\n"):format(name, value)
    end
    local daemon = table.concat(lines)
    local function status(target, more, body)
      local head = ("send=POST %s HTTP/1.1\\r\\n%s%s\\r\\n%s"):format(target, daemon, more, body)
      local out = helper.sh("%s %s %s shut end", CLIENT, server.url:match(":(%d+)$"), helper.quote(head))
      return out:match("^HTTP/1.1 (%d+)")
    end
    local octets, form = "Content-Type: application/octet-stream\\r\\n",
      "Content-Type: multipart/form-data; boundary=b\\r\\n"
    local part = '--b\\r\\nContent-Disposition: form-data; name="file"\\r\\n\\r\\nx'
    assert.equal("400", status("/files?path=f", octets .. "Transfer-Encoding: chunked\\r\\n", "zz\\r\\n"))
    assert.equal("400", status("/files?path=f", octets .. "Content-Length: 9\\r\\n", "cut"))
    assert.equal("400", status("/files?path=f", form .. "Content-Length: 999\\r\\n", part))
    assert.equal("400", status("/files/compose", "Transfer-Encoding: chunked\\r\\n", "-1\\r\\n"))
  end)
end)
