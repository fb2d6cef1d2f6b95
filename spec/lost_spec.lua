-- Finalizers that run after what they refer to was collected, in the same cycle: calls used to raise "bad self",
-- which nobody sees there.
local helper = require "spec.helper"

helper.guard()

-- calls(): those on what is in the sandbox "lost" that must answer Closed, and others with what they answer.
-- collect_until(): collects what was lost and waits for a finalizer to have run.
local PRELUDE = [[
  local sandbar = require "sandbar"

  local function collect_until(finalized)
    collectgarbage()
    collectgarbage()
    local deadline = os.time() + 20
    while not finalized() do
      assert(os.time() < deadline, "the finalizer does not run")
      sandbar.sleep(0.01)
    end
  end

  local function calls(scope, root, from)
    local sandboxes = sandbar.assert(sandbar.open { root = root, linger = 0 })
    local box = sandbar.assert(sandboxes:create_scoped({ id = "lost" }, scope))
    local p = sandbar.assert(box:start({ "cat" }, { scope = scope, stdin = "pipe" }))
    local other = sandbar.assert(box:start({ "sleep", "600" }, { scope = scope, detached = true }))
    local f = sandbar.assert(box.files:open("/etc/passwd"))
    local out = sandbar.assert(box.files:open("/tmp/out", "w"))
    sandbar.assert(box.files:write("/tmp/s.py", from))
    sandbar.assert(box:start({ "python3", "/tmp/s.py" }))
    local port = sandbar.assert(box:port(3000))
    local page = sandbar.assert(port:fetch { path = "/", wait = 20, stream = true })
    local connection = sandbar.assert(port:connect())
    local lines, output = f:lines(), p:output()
    output.state[1]._op = output.state[1]._native:read("some", 1) -- as a wait for output leaves it
    local reader = function() return nil end
    return {
      { "exec", function() return box:exec("true") end },
      { "exec with on_output", function() return box:exec("true", { on_output = print }) end },
      { "start", function() return box:start("true", { detached = true }) end },
      { "attach", function() return box:attach(p.pid) end },
      { "processes", function() return box:processes() end },
      { "info", function() return box:info() end },
      { "set_lifetime", function() return box:set_lifetime(10) end },
      { "pause", function() return box:pause { keep = "disk" } end },
      { "resume", function() return box:resume() end },
      { "ports", function() return box:ports() end },
      { "files:read", function() return box.files:read("/etc/passwd") end },
      { "files:write", function() return box.files:write("/tmp/x", "s") end },
      { "files:write of a function", function() return box.files:write("/tmp/x", reader) end },
      { "files:list", function() return box.files:list("/") end },
      { "files:upload", function() return box.files:upload("/etc/hostname", "/tmp/x") end },
      { "files:download", function() return box.files:download("/etc/hostname", root .. "/x") end },
      { "file:read", function() return f:read("a") end },
      { "file:seek", function() return f:seek("end") end },
      { "file:lines", function() return lines:next() end },
      { "file:write", function() return out:write("x") end },
      { "process:wait", function() return p:wait { timeout = 5 } end },
      { "process:signal", function() return p:signal("TERM") end },
      { "process:kill", function() return p:kill() end },
      { "process:detach", function() return p:detach() end },
      { "process:reference", function() return p:reference() end },
      { "stdout:read", function() return p.stdout:read() end },
      { "stderr:read", function() return p.stderr:read("a") end },
      { "stdin:write", function() return p.stdin:write("x") end },
      { "output:next", function() return output:next() end },
      { "adopt", function()
        local s = sandbar.new_scope()
        local ok, err = s:adopt(other)
        s:close()
        return ok, err
      end },
      { "port:fetch", function() return port:fetch { path = "/" } end },
      { "port:wait", function() return port:wait { timeout = 5 } end },
      { "port:connect", function() return port:connect() end },
      { "port:expose", function() return port:expose() end },
      { "port:upstream", function() return port:upstream() end },
      { "body:read", function() return page.body:read("a") end },
      { "connection:read", function() return connection:read() end },
      { "connection:write", function() return connection:write("x") end },
      { "destroy", function() return box:destroy() end },
    }, {
      { "running", function() return p:running() end, false },
      { "tostring", function() return tostring(box) end, "sandbar.Sandbox lost (closed)" },
      { "id", function() return box.id end, "lost" },
      { "port", function() return tostring(box:port(3000)) end, "sandbar.Port 3000 of lost" },
      { "provider:list", function() return type(sandboxes:list()) end, "table" },
      { "output:close", function() return output:close() end, true },
      { "body:close", function() return page.body:close() end, true },
      { "connection:close_write", function() return connection:close_write() end, true },
      { "connection:close", function() return connection:close() end, true },
      { "file:close", function() return f:close() end, true },
      { "stdin:close", function() return p.stdin:close() end, true },
      { "stdout:close", function() return p.stdout:close() end, true },
      { "process:close", function() return p:close() end, true },
      { "box:close", function() return box:close() end, true },
    }
  end

  -- Says what answers otherwise than with Closed, or than it should.
  local function judge(closed, others)
    for _, one in ipairs(closed) do
      local ok, value, err = sandbar.pcall(one[2])
      if not ok or value ~= nil or type(err) ~= "table" or err.kind ~= "Closed" then
        print(one[1], ok, value, err)
      elseif not tostring(err):find("closed", 1, true) then
        print(one[1], err)
      end
    end
    for _, one in ipairs(others) do
      local ok, value, err = sandbar.pcall(one[2])
      if not ok or value ~= one[3] then
        print(one[1], ok, value, err)
      end
    end
    print(#closed, #others)
  end
]]

local SERVER = [[
import http.server
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), http.server.SimpleHTTPRequestHandler).serve_forever()
]]

describe("a handle that was collected together with its scope", function()
  it("is a closed one for the scope's finalizers", function()
    local r = helper.run_lua(PRELUDE .. [[
      local root, server = ...
      local ran = false
      coroutine.resume(coroutine.create(function()
        sandbar.scope(function(scope)
          local closed, others = calls(scope, root, server)
          scope:defer(function()
            judge(closed, others)
            ran = true
          end)
          coroutine.yield()
        end)
      end))
      collect_until(function() return ran end)
    ]], { args = { helper.root(), SERVER }, timeout = 60 })
    assert.equal("", r.stderr)
    assert.equal("39\t14\n", r.stdout)
  end)

  it("is a closed one for the finalizer of another object of the program's", function()
    local r = helper.run_lua(PRELUDE .. [[
      local root, server = ...
      local function finalized(fn)
        if _VERSION ~= "Lua 5.1" then
          return setmetatable({}, { __gc = fn })
        end
        local object = newproxy(true)
        getmetatable(object).__gc = fn
        return object
      end
      local ran = false
      do
        local closed, others
        -- Of objects that become garbage together, the one that was made first is finalized last.
        local object = finalized(function()
          ran = true
          judge(closed, others)
        end)
        local scope = sandbar.new_scope()
        closed, others = calls(scope, root, server)
        others[#others + 1] = { "object", function() return object ~= nil end, true }
      end
      for _ = 1, 3 do
        collectgarbage()
      end
      assert(ran)
    ]], { args = { helper.root(), SERVER }, timeout = 60 })
    assert.equal("", r.stderr)
    assert.equal("39\t15\n", r.stdout)
  end)

  it("leaves alone what the program still has", function()
    local r = helper.run_lua(PRELUDE .. [[
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
      local box = sandbar.assert(sandboxes:create_scoped())
      local said
      coroutine.resume(coroutine.create(function()
        sandbar.scope(function(scope)
          local port, p = box:port(3000), sandbar.assert(box:start("sleep 600", { scope = scope }))
          scope:defer(function()
            local answer, err = port:fetch { path = "/" }
            local waited, why = p:wait { timeout = 5 }
            said = { answer == nil and err.kind, waited == nil and why.kind, sandbar.assert(box:exec("echo on")).stdout }
          end)
          coroutine.yield()
        end)
      end))
      collect_until(function() return said end)
      print(said[1], said[2], said[3])
      sandbar.assert(box:close())
    ]], { args = { helper.root() } })
    assert.equal("", r.stderr)
    assert.equal("Unavailable\tClosed\ton\n\n", r.stdout)
  end)
end)
