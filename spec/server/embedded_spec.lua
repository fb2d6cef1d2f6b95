-- check: no asan
-- sandbar.serve: the server as a part of a program.

local helper = require "spec.helper"

local http = require "sandbar.http"
local json = require "sandbar.json"
local sandbar = require "sandbar"

describe("sandbar.serve", function()
  helper.guard()

  local sandboxes = helper.open()

  local function fails(kind, options)
    local server, err = sandbar.serve(options)
    assert.is_nil(server)
    assert.equal(kind, err.kind)
    assert.equal("serve", err.op)
    return err.message
  end

  it("refuses what is unsafe or makes no sense", function()
    fails("InvalidArgument", { root = helper.root(), listen = "0.0.0.0:0" })
    fails("InvalidArgument", { root = helper.root(), listen = "nonsense" })
    fails("NotFound", { root = helper.root(), listen = "127.0.0.1:0", api_key_file = "/nope" })
    local short = helper.write_file(helper.scratch() .. "/keys", "short\n")
    fails("InvalidArgument", { root = helper.root(), listen = "127.0.0.1:0", api_key_file = short })
    os.remove(short)
    assert.has_error(function()
      sandbar.serve { lisen = "127.0.0.1:0" }
    end)
  end)

  it("took what is no name for its domain: with an empty one it was everybody's whose name ends with a dot", function()
    for _, wrong in ipairs { "", ".", ".a.test", "a..test", "a.test.", "a b", "https://a.test", "a.test:", "a.test:x" } do
      assert.matches("domain", fails("InvalidArgument", { root = helper.root(), listen = "127.0.0.1:0", domain = wrong }))
    end
    local server = sandbar.assert(sandbar.serve { root = helper.root(), listen = "127.0.0.1:0", domain = "A.test:8443" })
    server:close()
    sandbar.assert(server:wait { timeout = 10 })
  end)

  it("that everybody reaches said an address that nobody does", function()
    local keys = helper.write_file(helper.scratch() .. "/keys", ("k"):rep(20) .. "\n")
    local server = sandbar.assert(sandbar.serve { root = helper.root(), listen = "0.0.0.0:0", api_key_file = keys })
    os.remove(keys)
    assert.matches("^http://127%.0%.0%.1:%d+$", server.url)
    server:close()
    sandbar.assert(server:wait { timeout = 10 })
  end)

  it("serves beside the program, and its sandboxes are the program's own", function()
    local server = sandbar.assert(sandbar.serve { root = helper.root(), listen = "127.0.0.1:0" })
    assert.truthy(server.api_key:match("^e2b_%x+$"))
    local port = http.port { port = tonumber(server.url:match(":(%d+)$")) }
    local function ask(method, path, body)
      local r = sandbar.assert(http.request(port, { method = method, path = path, body = body,
        headers = { host = "localhost", ["x-api-key"] = server.api_key } }, 20, "ask"))
      return r.status, r.body
    end
    local status, body = ask("POST", "/v2/sandboxes", '{"templateID":"base","metadata":{"a":"b"}}')
    assert.equal(201, status)
    local id = json.decode(body).sandboxID
    assert.equal("b", sandbar.assert(sandboxes:info(id)).labels.a)
    assert.equal(204, (ask("DELETE", "/sandboxes/" .. id)))
    local own = sandbar.assert(sandboxes:create { lifetime = 60 })
    assert.equal(404, (ask("GET", "/sandboxes/" .. own.id))) -- not made through the server
    sandbar.assert(own:destroy())
    port:close()
    sandbar.assert(server:close())
    sandbar.assert(server:wait { timeout = 10 })
  end)

  it("and another one could have the same root at the same time: each undid the other's changes", function()
    local options = { root = helper.root(), listen = "127.0.0.1:0" }
    for _ = 1, 2 do
      local server = sandbar.assert(sandbar.serve(options))
      assert.truthy(fails("Busy", options):find(helper.root(), 1, true))
      local record = helper.run_lua(nil, { file = "src/main/sandbar.lua",
        args = { "serve", "--root", helper.root(), "--listen", "127.0.0.1:0" } })
      assert.equal(1, record.code)
      assert.truthy(record.stderr:find("there is a server on " .. helper.root() .. " already", 1, true), record.stderr)
      sandbar.assert(server:close())
      sandbar.assert(server:wait { timeout = 10 })
    end
  end)

  it("leaves the root to others when it could not start", function()
    local first = sandbar.assert(sandbar.serve { root = helper.root(), listen = "127.0.0.1:0" })
    local other = helper.dir("other")
    local none, err = sandbar.serve { root = other, listen = first.url:match("//(.*)") }
    assert.is_nil(none)
    assert.equal("listen", err.op)
    assert.matches("port 0 takes a free one", err.message, 1, true)
    sandbar.assert(first:close())
    sandbar.assert(first:wait { timeout = 10 })
    local second = sandbar.assert(sandbar.serve { root = other, listen = "127.0.0.1:0" })
    sandbar.assert(second:close())
    sandbar.assert(second:wait { timeout = 10 })
    helper.remove(other)
  end)
end)
