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
end)
