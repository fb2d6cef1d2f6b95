-- check: long
-- check: only 5.4
-- check: no asan
-- How long a server that is told to end waits for what does not end.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local message = require "sandbar.e2b.message"
local stream = require "sandbar.stream"

describe("sandbar serve, told to end", function()
  helper.guard { each = false }

  it("does not wait for ever for a command that goes on", function()
    local server = serve.start()
    local client = serve.client(server)
    local _, headers = client.create()
    local all = client.with(headers, { ["content-type"] = "application/connect+json", host = "localhost" })
    local request = '{"process":{"cmd":"/bin/sleep","args":["600"]},"stdin":false}'
    local answer = assert(http.request(client.port, { method = "POST", path = "/process.Process/Start", stream = true,
      body = message.envelope(0, request), headers = all }, 20, "ask"))
    assert(stream.some(answer.body, 20))
    server.terminate()
    local piece, err
    repeat
      piece, err = stream.some(answer.body, 20)
    until not piece
    assert.truthy(err)
    answer.body:close()
    client.port:close()
    local record = server.wait()
    assert.equal(0, record.code, record.stderr)
    server.stop()
  end)
end)
