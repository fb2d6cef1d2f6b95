-- check: only 5.4
-- check: no asan
-- Commands in hosted sandboxes that nobody waits for any more: however that came, they are killed; and sandboxes that
-- nobody waits for any more are destroyed. The E2B provider against `sandbar serve`, which is stopped where an answer is
-- to be late. B and two digits are numbers of known faults.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local nginx = require "spec.support.nginx"
local planes = require "spec.support.control_plane"
local provider = require "sandbar.e2b.provider"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

describe("a command in a hosted sandbox that nobody waits for", function()
  local server, boxes, box

  busted.teardown(function()
    box:close()
    boxes, box = nil, nil
    collectgarbage()
    collectgarbage()
    server.stop()
  end)

  helper.guard { each = false }

  busted.setup(function()
    server = serve.start()
    boxes = assert(provider.open({ api_url = server.url, sandbox_url = server.url, api_key = server.key }, 1))
    box = assert(boxes:create { lifetime = 300 })
    assert(box:exec "true")
  end)

  -- While the server does nothing. What it finds in its sockets after that it begins, unless it has seen before that
  -- the client is gone; the releases know which.
  local function stopped(fn)
    local before = core.outstanding()
    helper.shell("kill -STOP " .. server.pid)
    local ok, err = pcall(fn)
    helper.shell("kill -CONT " .. server.pid)
    assert(ok, err)
    assert.is_truthy(helper.eventually(function()
      return core.outstanding() == before
    end, 10))
  end

  -- A command that leaves a mark when it has begun, and goes on.
  local function command(name)
    return ("touch /tmp/%s; sleep %s & sleep %s"):format(name, name, name)
  end

  -- Waits until it has begun.
  local function begun(name)
    return ("until test -e /tmp/%s; do sleep 0.02; done"):format(name)
  end

  -- Nothing of it is left.
  local function assert_killed(name)
    assert.is_true(serve.has_ended(box, "^sleep " .. name), name .. " goes on")
  end

  local function assert_no_worker()
    assert.is_true(serve.has_ended(box, "^perl"), "a worker goes on")
  end

  it("went on when its time was over before its start was told of, and the error said otherwise", function()
    stopped(function()
      local r, err = box:exec(command "8101", { timeout = 0.3 })
      assert.is_nil(r)
      assert.equal("ExecTimedOut", err.kind)
      assert.is_nil(err.result.pid)
      assert.truthy(err.message:find("if it was, it is killed", 1, true), err.message)
      r, err = box:exec(command "8102", { timeout = 0.3, on_output = function() end })
      assert.is_nil(r)
      assert.equal("ExecTimedOut", err.kind)
      r, err = box:start(command "8103", { timeout = 0.3, detached = true, tag = "a tag of the program's" })
      assert.is_nil(r)
      assert.equal("Timeout", err.kind)
      r, err = box:start(command "8104", { timeout = 0.3, pty = { cols = 80, rows = 24 } })
      assert.is_nil(r)
      assert.equal("Timeout", err.kind)
    end)
    for i = 8101, 8104 do
      assert_killed(tostring(i))
    end
  end)

  it("was left when it was a worker of a file's, which nobody gave any input", function()
    stopped(function()
      sandbar.run(function()
        local function asked(name, ...)
          local r, err = box.files[name](box.files, ...)
          assert.is_nil(r)
          assert.equal("Timeout", err.kind)
          return true
        end
        local limit = { timeout = 0.3 }
        local write = sandbar.spawn(asked, "write", "g", "x", limit)
        local open = sandbar.spawn(asked, "open", "f", "w", limit)
        assert(sandbar.spawn(asked, "stat", "g", limit):wait())
        assert(open:wait())
        helper.shell("kill -CONT " .. server.pid) -- a write that failed tries for 5 s to undo what it has done
        assert(write:wait())
      end)
    end)
    assert_no_worker()
  end)

  it("went on when it was cancelled before its start was told of", function()
    stopped(function()
      sandbar.run(function()
        local task = sandbar.spawn(function()
          return box:exec(command "8105")
        end)
        sandbar.sleep(0.1)
        task:cancel "enough"
        task:wait()
      end)
    end)
    assert_killed "8105"
  end)

  it("went on when the sandbox's handle was closed", function()
    sandbar.run(function()
      local other = assert(boxes:connect(box.id))
      local task = sandbar.spawn(function()
        return other:exec(command "8110")
      end)
      assert(box:exec(begun "8110", { timeout = 20 }))
      other:close()
      local r, err = task:wait()
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
    end)
    assert_killed "8110"
  end)

  it("went on when what was to kill it could not be started, and counted as killed", function()
    local said
    -- For a while there is no shell, which does the killing.
    local without = assert(box:start([[read -r gone; mv /usr/bin/sh /usr/bin/sh.away 2>&1 && echo gone
      read -r back; mv /usr/bin/sh.away /usr/bin/sh]], { user = "root", stdin = "pipe", stdout = "pipe" }))
    sandbar.run(function()
      local task = sandbar.spawn(function()
        return box:exec(command "8111")
      end)
      assert(box:exec(begun "8111", { timeout = 20 }))
      assert(without.stdin:write("gone\n"))
      said = without.stdout:read("l")
      task:cancel "enough"
      task:wait()
    end)
    local refused = box:exec("true") == nil
    assert(without.stdin:write("back\n"))
    assert(without:wait())
    assert_killed "8111"
    if said ~= "gone" then
      helper.skip("the shell cannot be taken away here: " .. said)
    end
    assert.is_true(refused)
  end)

  it("went on when the program ended right after it was cancelled, or in the middle of it", function()
    for name, code in pairs {
      ["8106"] = [[
        sandbar.run(function()
          local task = sandbar.spawn(function() box:exec(arg_line) end)
          sandbar.assert(box:exec(arg_begun, { timeout = 20 }))
          task:cancel "enough"
          task:wait()
          os.exit(0)
        end)
      ]],
      ["8107"] = [[
        sandbar.run(function()
          sandbar.spawn(function() box:exec(arg_line) end)
          sandbar.assert(box:exec(arg_begun, { timeout = 20 }))
          os.exit(0)
        end)
      ]],
    } do
      helper.run_lua(([[
        local sandbar = require "sandbar"
        local boxes = sandbar.assert(sandbar.open { provider = "e2b", api_key = %q, api_url = %q, sandbox_url = %q })
        local box = sandbar.assert(boxes:connect(%q))
        local arg_line, arg_begun = %q, %q
        %s
      ]]):format(server.key, server.url, server.url, box.id, command(name), begun(name), code))
      assert_killed(name)
    end
  end)

  describe("", function()
    local web, dir, plane
    local why_not = nginx.missing()

    local INIT = [[
  init_by_lua_block {
    sb = require "sandbar"
    provider = sb.assert(sb.open { provider = "e2b", api_key = "KEY", api_url = "URL", sandbox_url = "URL" })
    canned = sb.assert(sb.open { provider = "e2b", api_key = "PASS", api_url = "PLANE" })
  }
]]

    local LOCATIONS = [[
    location = /create { content_by_lua_block {
      local box, err
      sb.scope(function(scope)
        if ngx.var.arg_scoped then
          box, err = canned:create_scoped({ id = ngx.var.arg_id }, scope)
        else
          box, err = canned:create { id = ngx.var.arg_id }
        end
      end)
      ngx.print(box and "made" or err.kind)
    } }
    location = /leave { content_by_lua_block {
      local box = sb.assert(provider:connect("BOX"))
      box:exec(ngx.unescape_uri(ngx.var.arg_line), ngx.var.arg_streamed and { on_output = function() end } or nil)
    } }
]]

    setup(function()
      if why_not then
        return
      end
      plane = planes.start()
      web = nginx.start { init = INIT, locations = LOCATIONS, values = {
        KEY = server.key, URL = server.url, BOX = box.id, PASS = planes.KEY, PLANE = plane.url,
      } }
      dir = web.dir
    end)

    teardown(function()
      if web then
        web:stop()
        plane:stop()
      end
      helper.shell("rm -rf " .. helper.quote(dir or "/nonexistent"))
    end)

    local function visit(path)
      return helper.shell(("curl -s --max-time 20 --unix-socket %s/s 'http://x%s' >%s/said 2>&1 & echo $!"):format(dir, path,
        dir)):match "%d+"
    end

    it("stayed, when it was a sandbox, and held up who wanted one of the same id, for good", function()
      if why_not then
        helper.skip(why_not)
      end
      local hosted = plane:open()
      for _, path in ipairs { "/create?id=mine", "/create?id=mine&scoped=1" } do
        plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "hold" } }
        local visitor = visit(path)
        assert.is_truthy(helper.eventually(function()
          return #hosted:list() == 1
        end))
        local other = visit("/create?id=mine")
        helper.shell(("curl -sS --max-time 5 --unix-socket %s/s http://x/ping"):format(dir)) -- it waits by now
        helper.shell("kill " .. visitor)
        helper.shell(("while kill -0 %s 2>/dev/null; do sleep 0.02; done"):format(other))
        local said = helper.read_file(dir .. "/said")
        assert.is_true(said == "made" or said == "AlreadyExists", said) -- it may come before the other one has gone
        assert.is_truthy(helper.eventually(function()
          return #hosted:list() == (said == "made" and 1 or 0)
        end))
        for info in hosted:each() do
          hosted:destroy(info.provider_id)
        end
      end
    end)

    it("went on when it was in a request to nginx whose visitor left (B48)", function()
      if why_not then
        helper.skip(why_not)
      end
      local pids = {}
      for name, more in pairs { ["8108"] = "", ["8109"] = "&streamed=1" } do
        local line = command(name):gsub("%W", function(c)
          return ("%%%02x"):format(c:byte())
        end)
        pids[#pids + 1] = helper.shell(("curl -s --max-time 30 --unix-socket %s/s 'http://x/leave?line=%s%s' >/dev/null 2>&1 & "
          .. "echo $!"):format(dir, line, more)):match "%d+"
        assert.is_truthy(helper.eventually(function()
          return box:exec({ "test", "-e", "/tmp/" .. name }).ok
        end))
      end
      helper.shell("kill " .. table.concat(pids, " "))
      assert_killed "8108"
      assert_killed "8109"
    end)
  end)
end)
