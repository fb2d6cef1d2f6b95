-- check: only 5.4
-- check: no user
-- Websockets to the servers inside.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local server = require "spec.support.websocket"

local sandbar = require "sandbar"

describe("box:port(n):websocket", function()
  helper.guard()

  local sandboxes = helper.open()

  -- fn(open, box): open(path, opts) opens one; what it opened is closed afterwards.
  local function with_server(fn)
    inside.with_box(sandboxes, function(box)
      if not sandbar.assert(box:exec("command -v python3")).ok then
        helper.skip("python3 is not installed")
      end
      sandbar.assert(box.files:write("websocket.py", server.SERVER))
      local p = sandbar.assert(box:start({ "python3", "websocket.py", "127.0.0.1", "3000" },
        { stdout = "tail", stderr = "tail" }))
      sandbar.assert(box:port(3000):wait { timeout = 10 })
      local opened = {}
      local ok, err = pcall(fn, function(path, opts)
        local ws, why = box:port(3000):websocket(path, opts)
        opened[#opened + 1] = ws
        return ws, why
      end, box)
      for _, ws in ipairs(opened) do
        sandbar.assert(ws:close { timeout = 0 })
      end
      if not ok then
        error(tostring(err) .. "\n" .. tostring(p.stderr:read("a", { timeout = 0 })), 0)
      end
    end)
  end

  local function fails(kind, value, err)
    assert.is_nil(value)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  it("carries text and bytes both ways, zero bytes, empty messages and a MiB among them (B08, B43)", function()
    with_server(function(open)
      local ws = sandbar.assert(open("/echo"))
      local all = {}
      for i = 0, 255 do
        all[i + 1] = string.char(i)
      end
      all = table.concat(all)
      for _, message in ipairs { { "hello" }, { "\228\184\173 \0 x" }, { all, true }, { "" }, { "", true },
        { all:rep(4096), true }, { ("x"):rep(70000) } } do
        sandbar.assert(ws:send(message[1], { binary = message[2] }))
        local data, kind = ws:receive { timeout = 10 }
        assert.is_true(data == message[1], "a message of " .. #message[1])
        assert.equal(message[2] and "binary" or "text", kind)
      end
      fails("InvalidArgument", ws:send("\255"))
      fails("InvalidArgument", ws:send("\237\160\128")) -- half a pair
      fails("Timeout", ws:receive { timeout = 0.05 })
      sandbar.assert(ws:send("after that"))
      assert.equal("after that", (ws:receive { timeout = 5 }))
      assert.is_true(ws:close())
      fails("Closed", ws:send("x"))
      fails("Closed", ws:receive())
      assert.is_true(ws:close())

      ws = sandbar.assert(open("/big"))
      assert.is_true(ws:receive { timeout = 10 } == all:rep(4096))
    end)
  end)

  it("puts fragments together and answers a ping between them (B43)", function()
    with_server(function(open)
      local ws = sandbar.assert(open("/fragments"))
      local whole = {}
      for i = 0, 99 do
        whole[i + 1] = ("%03d"):format(i)
      end
      assert.equal(table.concat(whole), (ws:receive { timeout = 10 }))
      assert.equal("10:are you there", (ws:receive { timeout = 10 }))
    end)
  end)

  it("tells the code and reason of a close, once every message before it was read (B43)", function()
    with_server(function(open)
      local ws = sandbar.assert(open("/code"))
      local seen = {}
      for data, kind in ws:messages { timeout = 10 } do
        seen[#seen + 1] = data .. kind
      end
      assert.same({ "firsttext" }, seen)
      assert.equal(4001, ws.close_code)
      assert.equal("sch\195\182n", ws.close_reason)
      assert.is_nil(ws:receive())
      fails("Closed", ws:send("x"))

      ws = sandbar.assert(open("/echo"))
      sandbar.assert(ws:send("4001"))
      assert.is_nil(ws:receive { timeout = 10 })
      assert.equal(4001, ws.close_code)

      ws = sandbar.assert(open("/echo"))
      assert.is_true(ws:close { code = 4002, reason = "enough" })
      ws = sandbar.assert(open("/deaf"))
      local seconds, ok = helper.timed(ws.close, ws, { timeout = 0.2 })
      assert.is_true(ok and seconds < 2)
      ws = sandbar.assert(open("/echo"))
      fails("InvalidArgument", ws:close { code = 1006 })
      fails("InvalidArgument", ws:close { reason = ("x"):rep(124) })
    end)
  end)

  it("has one rule for Host with fetch, takes headers and fat answers (B43)", function()
    with_server(function(open, box)
      local ws = sandbar.assert(open("/host"))
      assert.equal("Host: localhost:3000", (ws:receive { timeout = 5 }))
      local secret = sandbar.secret("hidden-value")
      ws = sandbar.assert(open("/host", { headers = { Host = "app.example", ["X-Token"] = secret } }))
      assert.equal("Host: app.example", (ws:receive { timeout = 5 }))
      assert.equal("X-Token: hidden-value", (ws:receive { timeout = 5 }))
      ws = sandbar.assert(open("/fat", { headers = { Cookie = ("c"):rep(60000) } }))
      assert.equal(("h"):rep(1000), ws.headers["x-59"])
      sandbar.assert(ws:send("still"))
      assert.equal("still", (ws:receive { timeout = 5 }))
      ws = sandbar.assert(open("/early"))
      assert.equal("early", (ws:receive { timeout = 5 }))
      local data, kind = ws:receive { timeout = 5 }
      assert.equal("\0\1binary", data .. tostring(kind))
      ws = sandbar.assert(open("/echo", { protocols = { "one", "two" } }))
      assert.equal("two", ws.protocol)
      for _, name in ipairs { "Upgrade", "connection", "Sec-WebSocket-Key", "X\r\nY", "" } do
        fails("InvalidArgument", open("/echo", { headers = { [name] = "x" } }))
      end
      fails("InvalidArgument", open("/echo", { headers = { X = "a\r\nY: b" } }))
      fails("InvalidArgument", open("/echo", { protocols = { "a b" } }))
      for _, path in ipairs { "echo", "http://elsewhere/", "/a b", "/a\r\n" } do
        fails("InvalidArgument", open(path))
      end
      assert.equal(404, sandbar.assert(box:port(3000):fetch {}).status)
    end)
  end)

  it("tells answers that are none from connections that break (B41)", function()
    with_server(function(open, box)
      local err = fails("Protocol", open("/plain"))
      assert.equal(404, err.status)
      for _, path in ipairs { "/liar", "/extension", "/other", "/half" } do
        fails("Protocol", open(path))
      end
      fails("Timeout", open("/mute", { timeout = 0.1 }))
      err = fails("Unavailable", box:port(3001):websocket("/"))
      assert.equal("ECONNREFUSED", err.code)
      for _, path in ipairs { "/cut", "/reset" } do
        local ws = sandbar.assert(open(path))
        assert.equal("before", (ws:receive { timeout = 5 }))
        fails("OutcomeUnknown", ws:receive { timeout = 5 })
      end
      for _, path in ipairs { "/utf8", "/masked" } do
        fails("Protocol", sandbar.assert(open(path)):receive { timeout = 5 })
      end
      local ws = sandbar.assert(open("/big", { max_message = 1000 }))
      fails("LimitExceeded", ws:receive { timeout = 5 })
      ws = sandbar.assert(open("/echo"))
      sandbar.assert(box:pause { keep = "disk" })
      fails("OutcomeUnknown", ws:receive { timeout = 5 })
      fails("NotRunning", open("/echo"))
      sandbar.assert(box:destroy())
      fails("NotFound", open("/echo"))
    end)
  end)

  it("stops a server that nobody listens to, and goes on", function()
    with_server(function(open)
      local flood = sandbar.assert(open("/flood"))
      local function sent()
        local ws = sandbar.assert(open("/sent"))
        local n = tonumber((ws:receive { timeout = 5 }))
        ws:close { timeout = 0 }
        return n
      end
      local before = -1
      assert.is_truthy(helper.eventually(function()
        local now = sent()
        local still = now == before and now > 0
        before = now
        if not still then
          sandbar.sleep(0.1)
        end
        return still
      end))
      assert.is_true(before * 65536 < 16 * 1048576, before .. " messages of 64 KiB were taken")
      for _ = 1, before + 100 do
        assert.equal(65536, #sandbar.assert(flood:receive { timeout = 10 }))
      end
    end)
  end)

  it("lets tasks send and receive at once, and refuses a second receiver", function()
    with_server(function(open)
      local ws = sandbar.assert(open("/slow"))
      local results = sandbar.assert(sandbar.all {
        function() return (ws:receive { timeout = 10 }) end,
        function()
          sandbar.sleep(0.05)
          local _, err = ws:receive { timeout = 5 }
          return err.kind
        end,
        function() return ws:send("x") end,
      })
      assert.same({ "x", "Busy", true, n = 3 }, results)
      ws = sandbar.assert(open("/echo"))
      local big = ("0123456789abcdef"):rep(65536 * 4) -- more than any buffer on the way
      local back = sandbar.assert(sandbar.all {
        function()
          for _ = 1, 3 do
            sandbar.assert(ws:send(big, { binary = true }))
          end
          return true
        end,
        function()
          for _ = 1, 3 do
            if ws:receive { timeout = 20 } ~= big then
              return false
            end
          end
          return true
        end,
      })
      assert.same({ true, true, n = 2 }, back)
    end)
  end)

  it("lets go of what is closed, lost or cancelled", function()
    with_server(function(open, box)
      local before = helper.anonymous_fds()
      for _ = 1, 20 do
        box:port(3000):websocket("/echo")
        local ws = sandbar.assert(open("/echo"))
        ws:receive { timeout = 0.001 }
        ws:close { timeout = 0 }
        open("/mute", { timeout = 0.001 })
      end
      assert.is_truthy(helper.eventually(function()
        collectgarbage()
        return helper.anonymous_fds() <= before + 4
      end))
      -- With a send under way that nobody takes.
      local ws = sandbar.assert(open("/flood"))
      fails("Timeout", ws:send(("x"):rep(8000000), { timeout = 0.05 }))
      fails("Timeout", ws:send("y", { timeout = 0.05 }))
      assert.is_true(ws:close { timeout = 0.1 })
    end)
  end)
end)
