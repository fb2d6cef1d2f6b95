-- check: no asan
-- check: no user
-- Calls of the Connect protocol, and how long they may take.

local busted = require "busted"
local helper = require "spec.helper"
helper.guard()

local client = require "sandbar.http"
local connect = require "sandbar.server.connect"
local http = require "sandbar.server.http"
local json = require "sandbar.json"
local sandbar = require "sandbar"

describe("a call", function()
  local listener, port

  busted.before_each(function()
    listener = sandbar.assert(http.listen { address = "127.0.0.1" })
    port = client.port { port = listener:address().port }
  end)

  busted.after_each(function()
    port:close()
    listener:cut()
    sandbar.assert(listener:drain(5))
  end)

  -- Of SendInput, whose command does not read; it begins by calling `on_start`.
  local function stuck(on_start)
    local call = { input = "process.SendInputRequest", output = "process.SendInputResponse" }
    function call.run(_, first)
      if type(first) == "function" then
        first()
      end
      if on_start then
        on_start()
      end
      local ok, err = sandbar.sleep(60)
      call.outcome = err and err.kind
      return ok and {}, err
    end
    return call
  end

  -- The next request, answered by `call`.
  local function serve(call)
    return sandbar.spawn(function()
      local request = sandbar.assert(listener:accept(10))
      connect.serve(request, call, {})
    end)
  end

  local function ask(call, headers, stream)
    local serving = serve(call)
    headers["content-type"] = stream and "application/connect+json" or "application/json"
    local answer = sandbar.assert(client.request(port, { method = "POST", headers = headers,
      body = stream and "\0\0\0\0\2{}" or "{}" }, 20, "ask"))
    serving:wait { timeout = 10 }
    return answer
  end

  it("without a time of the client's own was never over while its command read nothing", function()
    local call = stuck()
    call.limit = 0.05
    local answer = ask(call, {})
    assert.same({ 504, "deadline_exceeded" }, { answer.status, json.decode(answer.body).code })
    assert.equal("Cancelled", call.outcome)
  end)

  it("has the client's time, whatever it waits for", function()
    local call = stuck()
    local answer = ask(call, { ["connect-timeout-ms"] = "50" })
    assert.same({ 504, "deadline_exceeded" }, { answer.status, json.decode(answer.body).code })
    call = stuck()
    call.many = true
    answer = ask(call, { ["connect-timeout-ms"] = "50" }, true)
    assert.equal("deadline_exceeded", json.decode(answer.body:sub(6)).error.code)
    assert.equal("Cancelled", call.outcome)
  end)

  it("went on when its client had gone", function()
    for _, stream in ipairs { false, true } do
      local asking
      local call = stuck(function()
        asking:cancel()
      end)
      call.many = stream
      local serving = serve(call)
      asking = sandbar.spawn(client.request, port, { method = "POST", body = stream and "\0\0\0\0\2{}" or "{}",
        headers = { ["content-type"] = stream and "application/connect+json" or "application/json" } }, 20, "ask")
      asking:wait { timeout = 10 }
      serving:wait { timeout = 10 }
      assert.equal("Cancelled", call.outcome)
    end
  end)
end)
