-- check: limit 180
-- What a program's own functions may do while the library calls them: raise anything, run out of stack or
-- memory, wait, yield, call back into the library, end the program. Every time the operation ends as documented,
-- the command is gone, and the next one works.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

local unpack = table.unpack or unpack -- luacheck: ignore 143

describe("errors and yields inside callbacks (B47)", function()
  helper.guard()

  local sandboxes = helper.open()

  -- fn(box, scope) in a fresh sandbox; afterwards a plain exec works and no process of ours runs.
  local function with_box(fn)
    inside.with_box(sandboxes, function(box, scope)
      fn(box, scope)
      assert.is_true(sandbar.assert(box:exec("true")).ok)
      assert.equal(0, inside.count(box, "4747"))
    end)
  end

  it("called a source's own failure a bug of ours", function()
    with_box(function(box)
      local function broken() return nil, "disk broke" end
      local reason = { why = "tired" }
      for name, call in pairs {
        ["exec"] = function(source) return box:exec("cat", { stdin = source }) end,
        ["files:write"] = function(source) return box.files:write("f", source) end,
      } do
        local _, err = call(broken)
        assert.equal("Platform", err.kind, tostring(err))
        assert.is_truthy(tostring(err):find("disk broke", 1, true), tostring(err))
        assert.equal(name, err.op)
        _, err = call(function() return nil, reason end)
        assert.equal("Platform", err.kind)
        assert.equal(reason, err.cause)
        _, err = call(function() return nil, "full", 28 end)
        assert.equal("NoSpace", err.kind)
      end
      assert.is_false(box.files:exists("f"))
    end)
  end)

  -- With wide frames: the stack is full with fewer of them, and a traceback walks them all several times. Lua 5.1
  -- counts calls, whatever their size.
  local WIDTH = helper.lua == "5.1" and 0 or 40
  local function overflow(...)
    return 1 + overflow(...)
  end

  local mark = { code = 1 }
  local RAISED = {
    { "a string", function() error("x", 0) end, function(got) return got == "x" end },
    { "a table", function() error(mark) end, function(got) return got == mark end },
    { "nil", function() error(nil) end, function(got)
      return got == nil or tostring(got):find("nil", 1, true) ~= nil -- some Luas give a text
    end },
    { "a stack overflow", function() return overflow(unpack({}, 1, WIDTH)) end, function(got)
      -- LuaJIT has no stack left for a handler that would take the traceback, and says so instead.
      return tostring(got):find("stack overflow", 1, true) ~= nil
        or tostring(got):find("error handling", 1, true) ~= nil
    end },
  }

  -- Calls fn(raise, check) for each kind of error; check(ok, got) is for a pcall's results.
  local function each_error(fn)
    for _, entry in ipairs(RAISED) do
      fn(entry[2], function(ok, got)
        assert.is_false(ok, entry[1] .. " was lost")
        assert.is_true(entry[3](got), entry[1] .. " came back as " .. tostring(got))
      end, entry[1])
    end
  end

  describe("an error", function()
    it("in on_output kills the command and comes back as it was, on either stream", function()
      with_box(function(box)
        each_error(function(raise, check)
          check(pcall(box.exec, box, "yes 4747", { on_output = raise }))
          check(pcall(box.exec, box, "exec >&2; echo 4747; sleep 4747", { on_output = raise }))
        end)
      end)
    end)

    it("in on_output after the command has ended comes back as well", function()
      with_box(function(box)
        each_error(function(raise, check)
          check(pcall(box.exec, box, "echo 1; echo 2 >&2", { on_output = function(_, fd)
            if fd == 2 then
              raise()
            end
          end }))
        end)
      end)
    end)

    it("in exec's stdin function kills the command and comes back", function()
      with_box(function(box)
        each_error(function(raise, check)
          check(pcall(box.exec, box, { "sh", "-c", "cat; exit 4", "4747" }, { stdin = raise }))
          local n = 0
          check(pcall(box.exec, box, { "sh", "-c", "cat; exit 4", "4747" }, { stdin = function()
            n = n + 1
            return n < 3 and "data" or raise()
          end }))
        end)
        local ok, why = pcall(box.exec, box, { "cat" }, { stdin = function() return {} end })
        assert.is_false(ok)
        assert.is_truthy(tostring(why):find("stdin", 1, true))
      end)
    end)

    it("in start's stdin function ends the input and fails the scope it belongs to", function()
      with_box(function(box)
        each_error(function(raise, _, name)
          local output
          local _, err = sandbar.scope(function(scope)
            local p = sandbar.assert(box:start({ "cat" }, { stdin = raise, scope = scope }))
            output = sandbar.assert(p.stdout:read("a", { timeout = 5 }))
            return true
          end)
          assert.equal("", output, name)
          assert.is_truthy(err, name .. " was lost")
        end)
      end)
    end)

    it("in a file's source leaves no file", function()
      with_box(function(box)
        sandbar.assert(box.files:write("old", "kept"))
        each_error(function(raise, check)
          local n = 0
          check(pcall(box.files.write, box.files, "old", function()
            n = n + 1
            return n < 3 and "data" or raise()
          end))
          assert.equal("kept", box.files:read("old"))
        end)
        assert.is_truthy(helper.eventually(function()
          return #sandbar.assert(box.files:list(".")) == 1
        end), "a temporary file was left")
      end)
    end)

    it("in on_progress stops the transfer", function()
      with_box(function(box)
        local dir = helper.dir("up")
        helper.write_file(dir .. "/f", ("x"):rep(300000))
        each_error(function(raise, check)
          check(pcall(box.files.upload, box.files, dir, "tree", { on_progress = raise }))
        end)
      end)
    end)

    it("in a finalizer turns the scope into a failure that holds it, and the others run", function()
      each_error(function(raise, check)
        local log = {}
        local value, err = sandbar.scope(function(scope)
          scope:defer(function() log[#log + 1] = "first" end)
          scope:defer(raise)
          scope:defer(function() log[#log + 1] = "last" end)
          return "value"
        end)
        assert.is_nil(value)
        assert.same({ "last", "first" }, log)
        assert.equal("Aggregate", err.kind)
        assert.equal("defect", err.reasons[1].type)
        check(false, err.reasons[1].error)
      end)
    end)

    it("in a release function of acquire, and in the acquiring itself", function()
      each_error(function(raise, check)
        local _, err = sandbar.scope(function(scope)
          sandbar.assert(scope:acquire(function() return {} end, raise))
          return 1
        end)
        assert.equal("Aggregate", err.kind)
        check(pcall(sandbar.scope, function(scope)
          scope:acquire(raise, function() end)
        end))
      end)
    end)

    it("in the audit function disturbs nobody", function()
      with_box(function(box)
        each_error(function(raise)
          sandbar.audit { fn = raise }
          local r, err = box:exec("echo told")
          sandbar.audit {}
          assert.equal("told\n", sandbar.assert(r, err).stdout)
        end)
      end)
    end)
  end)

  describe("memory that is used up", function()
    if os.getenv("SPEC_SANITIZER") == "asan" then
      pending("in a callback: the sanitizer's own memory is not bounded")
      return
    end

    it("in a callback is an error like others, and the program goes on", function()
      local code = [[
        local sandbar = require "sandbar"
        local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
        local box = sandbar.assert(sandboxes:create_scoped {})
        sandbar.assert(box:exec("true"))
        local function hungry()
          local keep, piece = {}, ("x"):rep(500000)
          while true do
            keep[#keep + 1] = piece .. #keep
          end
        end
        local function try(what, ...)
          collectgarbage() collectgarbage()
          local ok, why = pcall(...)
          collectgarbage() collectgarbage()
          local all = tostring(why)
          print(what, ok, all:find("not enough memory", 1, true) ~= nil or all)
          local r, err = box:exec("pgrep -c '^(yes|cat)$'")
          print(r and r.stdout:match("%d") or tostring(err))
        end
        try("on_output", box.exec, box, "yes", { on_output = hungry })
        try("stdin", box.exec, box, "cat", { stdin = hungry })
        try("write", box.files.write, box.files, "f", hungry)
        try("finalizer", function()
          local _, err = sandbar.scope(function(scope) scope:defer(hungry) return 1 end)
          error(tostring(err.reasons[1].error), 0)
        end)
        local r, err = box:close()
        print(r or tostring(err))
      ]]
      local file = helper.write_file(helper.dir("oom") .. "/child.lua", code)
      local out = helper.shell(("ulimit -v 600000; timeout 60 %s %s %s"):format(
        helper.quote(helper.interpreter()), file, helper.quote(helper.root())))
      local expected = {}
      for _, what in ipairs { "on_output", "stdin", "write", "finalizer" } do
        expected[#expected + 1] = what .. "\tfalse\ttrue\n0\n"
      end
      assert.equal(table.concat(expected) .. "true\n", out)
    end)
  end)

  describe("waiting", function()
    it("works in each of them, in the main program and in tasks", function()
      local function all_of_it(box, scope)
        local parts, n = {}, 0
        local r = sandbar.assert(box:exec("cat; echo end >&2", {
          stdin = function()
            n = n + 1
            sandbar.sleep(0.002)
            return n <= 3 and n .. "\n" or nil
          end,
          on_output = function(data)
            sandbar.sleep(0.002)
            parts[#parts + 1] = data
          end,
        }))
        assert.equal("1\n2\n3\n", r.stdout)
        assert.is_truthy(table.concat(parts):find("end\n", 1, true))
        n = 0
        sandbar.assert(box.files:write("waited", function()
          n = n + 1
          sandbar.sleep(0.002)
          return n <= 3 and "w" or nil
        end))
        assert.equal("www", box.files:read("waited"))
        n = 0
        local p = sandbar.assert(box:start({ "cat" }, { scope = scope, stdin = function()
          n = n + 1
          sandbar.sleep(0.002)
          return n <= 3 and "s" or nil
        end }))
        assert.equal("sss", p.stdout:read("a", { timeout = 10 }))
        local dir = helper.dir("wait")
        helper.write_file(dir .. "/f", "x")
        local called = 0
        sandbar.assert(box.files:upload(dir, "up", { on_progress = function()
          called = called + 1
          sandbar.sleep(0.002)
        end }))
        assert.is_true(called > 0)
        local closed
        sandbar.scope(function(inner)
          inner:defer(function()
            sandbar.sleep(0.002)
            closed = sandbar.assert(box:exec("echo closed")).stdout
          end)
        end)
        assert.equal("closed\n", closed)
        return true
      end
      with_box(function(box, scope)
        all_of_it(box, scope)
        local results = sandbar.assert(sandbar.all {
          function() return all_of_it(box, scope) end,
          function() return all_of_it(box, scope) end,
        })
        assert.equal(2, results.n)
      end)
    end)

    it("may be a yield to the program's own resumer", function()
      with_box(function(box)
        local seen = {}
        local step = sandbar.wrap(function()
          local r = sandbar.assert(box:exec("echo a; sleep 0.05; echo b", { on_output = function(data)
            coroutine.yield(data)
          end }))
          return r.exit_code
        end)
        local got = step()
        while type(got) == "string" do
          seen[#seen + 1] = got
          got = step()
        end
        assert.equal("a\nb\n", table.concat(seen))
        assert.equal(0, got)
      end)
    end)

    it("that cannot be is refused with a word about it, and the command is killed", function()
      with_box(function(box)
        -- The main program has nobody to yield to.
        local ok, why = pcall(box.exec, box, "echo 4747; sleep 4747", { on_output = function()
          coroutine.yield()
        end })
        assert.is_false(ok)
        assert.is_truthy(tostring(why):find("yield", 1, true), tostring(why))
        -- A comparison called from C cannot be left inside a task.
        local kind
        sandbar.assert(sandbar.all { function()
          sandbar.assert(box:exec("echo x", { on_output = function()
            table.sort({ 2, 1 }, function(a, b)
              local _, err = sandbar.sleep(0.001)
              kind = err and err.kind or kind
              return a < b
            end)
          end }))
          return true
        end })
        assert.equal("CannotWait", kind)
      end)
    end)

    it("is ended by cancelling the task, which kills the command", function()
      with_box(function(box)
        local began
        local task = sandbar.assert(sandbar.spawn(function()
          return box:exec("echo 4747; sleep 4747", { on_output = function()
            began = true
            return sandbar.sleep(60)
          end })
        end))
        while not began do
          sandbar.sleep(0.005)
        end
        task:cancel("enough")
        local _, err = task:wait { timeout = 5 }
        assert.equal("Cancelled", err.kind)
        assert.is_truthy(helper.eventually(function()
          return inside.count(box, "4747") == 0
        end))
      end)
    end)
  end)

  describe("calls from inside", function()
    it("exec, start and kill work in each of them", function()
      with_box(function(box, scope)
        local function nested()
          assert.equal("nested\n", sandbar.assert(box:exec("echo nested")).stdout)
          local p = sandbar.assert(box:start({ "sleep", "4747" }, { scope = scope }))
          assert.equal("SIGKILL", sandbar.assert(p:kill { signal = "KILL" }).signal)
          assert.equal("deeper\n", sandbar.assert(box:exec("echo deeper", { on_output = function()
            sandbar.assert(box.files:write("deep", "1"))
          end })).stdout)
        end
        sandbar.assert(box:exec("echo a; echo b >&2", { on_output = nested }))
        local n = 0
        local function source()
          n = n + 1
          nested()
          return n < 3 and "x" or nil
        end
        assert.equal("xx", sandbar.assert(box:exec({ "cat" }, { stdin = source })).stdout)
        n = 0
        sandbar.assert(box.files:write("f", source))
        assert.equal("xx", box.files:read("f"))
        sandbar.assert(sandbar.scope(function(inner)
          inner:defer(nested)
          return true
        end))
      end)
    end)

    it("kill of the process that is being read ends the loop", function()
      with_box(function(box)
        local p = sandbar.assert(box:start("yes 4747"))
        for _ in p:output() do
          if p:running() then
            sandbar.assert(p:kill { signal = "KILL" })
          end
        end
        assert.equal("SIGKILL", sandbar.assert(p:wait { timeout = 5 }).signal)
      end)
    end)

    -- The sandbox's end inside of one of its commands' callbacks.
    local ENDS = {
      close = function(box) return box:close() end,
      destroy = function(box) return box:destroy() end,
    }
    for name, finish in pairs(ENDS) do
      it(name .. " of the sandbox ends the command with a typed error", function()
        for _, how in ipairs { "on_output", "stdin", "write" } do
          local box = sandbar.assert(sandboxes:create_scoped {})
          local id, done = box.id, nil
          local function ending()
            if not done then
              done = true
              sandbar.assert(finish(box))
            end
            return "data"
          end
          local r, err
          local seconds = helper.timed(function()
            if how == "write" then
              r, err = box.files:write("f", ending)
            else
              r, err = box:exec("echo 4747; cat; sleep 4747", { [how] = ending })
            end
          end)
          assert.is_true(seconds < 10, how .. " took " .. seconds)
          assert.is_nil(r, how)
          assert.is_truthy(({ Closed = 1, NotFound = 1, NotRunning = 1 })[err.kind], how .. ": " .. tostring(err))
          assert.equal("NotFound", select(2, sandboxes:info(id)).kind)
          box:close()
        end
      end)
    end

    it("close of a handle that does not own the sandbox kills the command all the same", function()
      local owner = sandbar.assert(sandboxes:create_scoped {})
      local box = sandbar.assert(sandboxes:connect(owner.id))
      local r, err = box:exec("echo 4747; sleep 4747", { on_output = function()
        sandbar.assert(box:close())
      end })
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
      assert.is_truthy(helper.eventually(function()
        return inside.count(owner, "4747") == 0
      end), "the command runs on")
      owner:close()
    end)

    it("close of a handle left the command of a plain exec running, and so did cancel and close at once", function()
      local owner = sandbar.assert(sandboxes:create_scoped {})
      for _, cmd in ipairs { { "sleep", "4748" }, "sleep 4748 & sleep 4748", "trap '' TERM HUP; echo 4748; sleep 4748; echo" } do
        for _, cancels in ipairs { false, true } do
          local box = sandbar.assert(sandboxes:connect(owner.id))
          sandbar.run(function()
            local kind
            local task = sandbar.spawn(function()
              local r, err = box:exec(cmd)
              kind = r and "a result" or err.kind
              return true
            end)
            assert.is_truthy(helper.eventually(function()
              sandbar.sleep(0.005)
              return inside.count(owner, "4748") > 0
            end))
            if cancels then
              task:cancel()
            end
            sandbar.assert(box:close())
            task:wait { timeout = 20 }
            assert.is_truthy(kind == "Closed" or cancels and kind == "Cancelled", tostring(kind))
          end)
          assert.is_truthy(helper.eventually(function()
            return inside.count(owner, "4748") == 0
          end), "the command runs on")
        end
      end
      owner:close()
    end)
  end)

  -- What is in the scope is collected in the same cycle, before the scope's finalizers get their turn.
  it("a scope that is lost with the coroutine it was opened in ends quietly, whatever it held", function()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
      local box = sandbar.assert(sandboxes:create_scoped {})
      local ran = 0
      for i = 1, 3 do
        coroutine.resume(coroutine.create(function()
          sandbar.scope(function(scope)
            local other = sandbar.assert(sandboxes:create_scoped({ id = "lost" .. i }, scope))
            local p = sandbar.assert(box:start({ "sleep", "600" }, { scope = scope, stdin = "pipe", detached = true }))
            sandbar.assert(p:reference())
            sandbar.assert(box:start({ "sleep", "601" }, { scope = scope, stdin = "pipe" }))
            sandbar.assert(other:start("sleep 600"))
            sandbar.assert(box.files:open("/etc/passwd"))
            scope:defer(function() ran = ran + 1 end)
            coroutine.yield()
          end)
        end))
        collectgarbage()
        collectgarbage()
        sandbar.sleep(0.01)
      end
      local function left()
        local count = 0
        for _, one in ipairs(sandbar.assert(box:processes())) do
          count = count + (one.running and 1 or 0)
        end
        return count
      end
      local deadline = os.time() + 20
      while ran < 3 or #sandbar.assert(sandboxes:list()) > 1 or left() > 3 do
        assert(os.time() < deadline, "they stay")
        sandbar.sleep(0.01)
      end
      print(left(), sandbar.assert(box:exec("echo on")).stdout)
    ]], { args = { helper.root() }, timeout = 60 })
    assert.equal("", r.stderr)
    assert.equal("3\ton\n\n", r.stdout)
  end)

  it("the program may end inside of each of them", function()
    local PLACES = {
      on_output = [[box:exec("yes", { on_output = leave })]],
      stdin = [[box:exec("cat", { stdin = leave })]],
      ["start's stdin"] = [[box:start("cat", { stdin = leave }):wait()]],
      write = [[box.files:write("f", leave)]],
      progress = [[box.files:upload(arg[0], "f", { on_progress = leave })]],
      finalizer = [[sandbar.scope(function(scope) scope:defer(leave) end)]],
      task = [[sandbar.all {
        function() box:exec("yes", { on_output = leave }) end, function() sandbar.sleep(60) end,
      }]],
      audit = [[sandbar.audit { fn = leave }; box:start("true")]],
    }
    for place, line in pairs(PLACES) do
      for _, way in ipairs { "os.exit(7, true)", "os.exit(7)", "error('out', 0)" } do
        if not (way:find("error", 1, true) and (place == "audit")) then
          local r = helper.run_lua(([[
            local sandbar = require "sandbar"
            local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
            local box = sandbar.assert(sandboxes:create_scoped { id = "left" })
            local function leave() %s end
            sandbar.assert(%s)
            print("still here")
          ]]):format(way, line:gsub("; ", ")\nsandbar.assert(true)\nsandbar.assert(", 1)),
            { args = { helper.root() }, timeout = 30 })
          local where = place .. " with " .. way .. ": " .. r.stderr
          assert.is_nil(r.signal, where)
          if not way:find("error", 1, true) then
            assert.equal(7, r.code, where)
            assert.equal("", r.stdout .. r.stderr, where)
          elseif place ~= "start's stdin" then
            assert.equal(1, r.code, where)
          end
          assert.is_truthy(helper.eventually(function()
            return select(2, sandboxes:info("left")) ~= nil
          end), "the sandbox stayed: " .. where)
        end
      end
    end
  end)
end)
