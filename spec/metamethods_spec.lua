-- Whoever has the debug library reaches the metamethods of every userdata: none crashes for a wrong argument.
local helper = require "spec.helper"

helper.guard()

-- Collects the classes of the handles while the library is loaded, and those of C from the registry. `each(fn)`
-- calls fn(name, key, function) for all that is callable in them, methods included.
local PRELUDE = [[
  local core = require "sandbar.core"
  local classes, class = {}, core.class
  core.class = function(name, ...)
    classes["handle " .. name] = class(name, ...)
    return classes["handle " .. name]
  end
  local sandbar = require "sandbar"
  for _, module in ipairs { "http", "files", "port", "start", "attach" } do
    require("sandbar." .. module)
  end
  local natives = 0
  for name, value in pairs(debug.getregistry()) do
    if type(name) == "string" and name:find("^sandbar%.") and type(value) == "table" and rawget(value, "__gc") then
      classes[name], natives = value, natives + 1
    end
  end

  local function each(fn)
    for name, metatable in pairs(classes) do
      for key, value in pairs(metatable) do
        if type(value) == "function" then
          fn(name, key, value)
        elseif key == "__index" then
          for method, f in pairs(value) do
            fn(name, method, f)
          end
        end
      end
    end
  end

  local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
]]

describe("the metamethods of userdata", function()
  it("__gc of something else, or of nothing, is no crash", function()
    local r = helper.run_lua(PRELUDE .. [[
      local box = sandbar.assert(sandboxes:create_scoped())
      local op = core.timer(0)
      local values = { {}, 5, "text", true, print, io.stdout, box, op, sandbar.secret("x"), core.mailbox(),
        coroutine.create(function() end) }
      local calls, quiet = 0, 0
      each(function(name, key, f)
        for _, value in ipairs(values) do
          if debug.getmetatable(value) ~= classes[name] then
            local ok = pcall(f, value)
            quiet = quiet + (ok and key == "__gc" and 1 or 0)
            pcall(f, value, value)
            pcall(f, value, value, value)
            calls = calls + 1
          end
        end
        pcall(f)
        if key == "__gc" then
          assert(pcall(f), name)
          assert(pcall(f, nil), name)
        end
      end)
      assert(natives >= 10 and calls > 500 and quiet > 100, ("%d %d %d"):format(natives, calls, quiet))
      collectgarbage()
      print(sandbar.assert(box:exec("echo here")).stdout)
      sandbar.assert(box:close())
    ]], { args = { helper.root() } })
    assert.equal("", r.stderr)
    assert.equal("here\n\n", r.stdout)
  end)

  it("__gc called twice, or on what is in use, is no crash", function()
    local r = helper.run_lua(PRELUDE .. [[
      local box = sandbar.assert(sandboxes:create_scoped())
      local p = sandbar.assert(box:start("cat", { stdin = "pipe" }))
      local f = sandbar.assert(box.files:open("/etc/passwd"))
      local port = box:port(3000)
      local secret = sandbar.secret("value")
      local op = core.timer(600)
      local state, process, link = core.state(box), core.state(p), core.state(box)._link
      local used = { op, secret, process._native, core.state(p.stdout)._native, core.state(f)._native, link.box,
        process._guard, state._release, link.driver:engine(), f, p.stdout, p.stdin, p, port, box, core.mailbox() }
      local count = 0
      for i = 1, 16 do
        if used[i] then
          local value = used[i]
          local metatable = debug.getmetatable(value)
          count = count + 1
          for _ = 1, 2 do
            assert(pcall(metatable.__gc, value))
            pcall(tostring, value)
            if metatable.__close then
              pcall(metatable.__close, value, nil)
            end
          end
          if type(metatable.__index) == "table" then
            for _, method in pairs(metatable.__index) do
              pcall(method, value)
              pcall(method, value, 1, 1)
              pcall(method, value, "x", "x")
            end
          end
        end
      end
      print(count, pcall(function() return secret .. "" end))
      collectgarbage()
      collectgarbage()
    ]], { args = { helper.root() } })
    assert.equal("", r.stderr)
    assert.matches("^1[3-6]\t", r.stdout)
    assert.equal(0, r.code)
  end)
end)
