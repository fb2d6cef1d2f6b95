local helper = require "spec.helper"

local sandbar = require "sandbar"

describe("sandbar.audit", function()
  helper.guard()

  local sandboxes = helper.open()
  local events

  before_each(function()
    events = {}
    sandbar.assert(sandbar.audit { fn = function(event)
      events[#events + 1] = event
    end })
  end)

  after_each(function()
    sandbar.assert(sandbar.audit { fn = false })
  end)

  local function told()
    local out = {}
    for i, e in ipairs(events) do
      out[i] = ("%s %s %s"):format(e.event, e.what, e.op or e.name)
    end
    return out
  end

  it("tells acquisitions and releases in their order", function()
    sandbar.scope(function(scope)
      local box = sandbar.assert(sandboxes:create_scoped({ id = "seen" }, scope))
      sandbar.assert(box:start { "sleep", "60" })
    end)
    assert.same({
      "acquire sandbox create_scoped", "acquire process start", "release process close", "release sandbox close",
    }, told())
    for _, e in ipairs(events) do
      assert.equal("seen", e.id)
      assert.is_true(e.time > 1e9)
    end
  end)

  it("tells of what the collector let go", function()
    local gone = helper.run_lua(([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.open { root = %q, linger = 0 }
      sandbar.assert(sandbar.audit { fn = function(e) print(e.event, e.what, e.op, e.id) end })
      collectgarbage("stop") -- not before the second is closed
      do
        sandbar.assert(sandboxes:create_scoped { id = "lost" })
        local closed = sandbar.assert(sandboxes:create_scoped { id = "closed" })
        closed:close()
      end
      collectgarbage() collectgarbage()
      sandbar.sleep(0) sandbar.sleep(0)
      print "end"
    ]]):format(helper.root()), { timeout = 20 })
    assert.equal("", gone.stderr)
    local lines = {}
    for line in gone.stdout:gmatch("[^\n]+") do
      lines[#lines + 1] = (line:gsub("\t", " "))
    end
    assert.same({
      "acquire sandbox create_scoped lost", "acquire sandbox create_scoped closed", "release sandbox close closed",
      "release sandbox collected lost", "end",
    }, lines)
  end)

  it("tells refusals with their clause", function()
    local _, err = sandboxes:create { public_ports = true }
    assert.equal("Unsupported", err.kind)
    assert.same({ "refuse sandbox create" }, told())
    assert.equal("public_ports", events[1].clause)
  end)

  it("tells where a secret was used, and never what it is", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    sandbar.assert(box:exec("true", { env = { KEY = sandbar.secret("tell nobody") } }))
    box:close()
    local seen = false
    for _, e in ipairs(events) do
      seen = seen or e.event == "secret" and e.name == "KEY"
      for _, value in pairs(e) do
        assert.is_nil(tostring(value):find("tell nobody", 1, true))
      end
    end
    assert.is_true(seen)
  end)

  -- Runs code whose descriptor 1 is a pipe or, with `into`, a file; returns the events by line, and the record.
  local function lines_of(code, into)
    local r = helper.run_lua(([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.open { root = %q, linger = 0 }
      sandbar.assert(sandbar.audit { fd = 1 })
    ]]):format(helper.root()) .. code, { timeout = 20 })
    assert.equal("", r.stderr)
    local text = r.stdout
    if into then
      local f = assert(io.open(into, "rb"))
      text = f:read("*a")
      f:close()
    end
    local lines = {}
    for line in text:gmatch("[^\n]+") do
      lines[#lines + 1] = line
    end
    return lines, r
  end

  it("writes to a descriptor, the releases after the end of the Lua state included", function()
    local lines = lines_of [[
      local box = sandbar.assert(sandboxes:create_scoped { id = "audited" })
      sandbar.assert(box:exec("true", { env = { KEY = sandbar.secret("tell nobody") } }))
      -- neither closed nor destroyed
    ]]
    assert.equal(3, #lines)
    assert.matches('^{"event":"acquire","time":%d+%.%d+,.*"id":"audited"', lines[1])
    assert.matches('^{"event":"secret",.*"name":"KEY"', lines[2])
    assert.matches('^{"event":"release",.*"op":"detached","id":"audited"}$', lines[3])
    assert.is_nil(table.concat(lines):find("tell nobody", 1, true))
  end)

  it("writes what needs escapes as JSON, and many lines in their order", function()
    local lines = lines_of [[
      local audit = require "sandbar.audit"
      for i = 1, 2000 do
        audit.emit("test", { n = i, text = "a\"b\\c\n\255\195\164", yes = true })
      end
    ]]
    assert.equal(2000, #lines)
    for i, line in ipairs(lines) do
      assert.truthy(line:find(('"n":%d'):format(i), 1, true), line)
    end
    assert.truthy(lines[1]:find([["text":"a\"b\\c\u000a\u00ff]] .. "\195\164\"", 1, true), lines[1])
    assert.truthy(lines[1]:find('"yes":true', 1, true))
  end)

  it("never waits for a reader, and tells it how much it missed", function()
    local lines = lines_of [[
      local audit = require "sandbar.audit"
      for i = 1, 20000 do
        audit.emit("test", { n = i, text = ("x"):rep(200) })
      end
    ]]
    local whole, missed = 0, 0
    for _, line in ipairs(lines) do
      assert.matches("^{.*}$", line)
      local count = line:match('^{"event":"missed","count":(%d+)}$')
      whole = whole + (count and 0 or 1)
      missed = missed + (tonumber(count) or 0)
    end
    assert.equal(20000, whole + missed)
  end)

  it("writes to a file, and refuses what is not open for writing", function()
    local path = helper.scratch() .. "/trail"
    local code = ([[
      local sandbar = require "sandbar"
      local ok, err = sandbar.audit { fd = 900 }
      assert(not ok and err.kind, "taken")
      ok, err = sandbar.audit { fd = -1 }
      assert(not ok and err.kind == "InvalidArgument", tostring(err))
      ok, err = sandbar.audit { fd = 0 }
      assert(not ok and err.kind == "InvalidArgument", tostring(err))
      local audit = require "sandbar.audit"
      sandbar.assert(sandbar.audit { fd = 1 })
      for i = 1, 500 do audit.emit("test", { n = i }) end
      sandbar.assert(sandbar.audit { fd = false })
      audit.emit("unheard", {})
    ]])
    local script = helper.scratch() .. "/trail.lua"
    local f = assert(io.open(script, "wb"))
    f:write(code)
    f:close()
    local r = helper.shell(("%s %s < /dev/null > %s 2>&1; cat %s; rm %s %s"):format(
      helper.interpreter(), script, path, path, path, script))
    local n = 0
    for line in r:gmatch("[^\n]+") do
      n = n + 1
      assert.matches(('^{"event":"test",.*"n":%d}$'):format(n), line)
    end
    assert.equal(500, n)
  end)
end)
