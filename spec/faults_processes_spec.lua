-- check: limit 600
-- The "what went wrong elsewhere" of output, start, input and kill, as specs. Races are tried a few times
-- here and 200 times with SANDBAR_LONG=1.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local sandbar = require "sandbar"

describe("faults of processes", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn, spec)
    inside.with_box(sandboxes, fn, spec)
  end

  local function quick(seconds, fn, ...)
    local a, b
    local args, n = { ... }, select("#", ...)
    local took = helper.timed(function()
      a, b = fn((table.unpack or unpack)(args, 1, n)) -- luacheck: ignore 143 113
    end)
    assert.is_true(took < seconds, ("took %.2f s"):format(took))
    return a, b
  end

  describe("B01, a character torn where two chunks meet", function()
    local euro = "\226\130\172"
    local four = "\240\159\152\128"

    it("keeps a character whose bytes come apart", function()
      with_box(function(box)
        local line = "printf '\\342\\202'; sleep 0.3; printf '\\254\\n'"
        assert.equal(euro .. "\n", sandbar.assert(box:exec(line)).stdout)
        local parts = {}
        sandbar.assert(box:exec(line, { on_output = function(data) parts[#parts + 1] = data end }))
        assert.equal(euro .. "\n", table.concat(parts))
      end)
    end)

    it("keeps one that lies across any buffer's end, on both streams at once", function()
      with_box(function(box)
        for _, n in ipairs { 4095, 8191, 32767, 65535 } do
          local line = ("head -c %d /dev/zero | tr '\\0' x; printf '\\360\\237\\230\\200'"):format(n)
          local both = ("{ %s; } & { { %s; } >&2; } & wait"):format(line, line)
          local expected = ("x"):rep(n) .. four
          local parts = { "", "" }
          local r = sandbar.assert(box:exec(both, { on_output = function(data, fd)
            parts[fd] = parts[fd] .. data
          end }))
          assert.is_true(r.stdout == expected and r.stderr == expected)
          assert.is_true(parts[1] == expected and parts[2] == expected)
        end
      end)
    end)

    it("keeps a lone byte that is no character", function()
      with_box(function(box)
        assert.equal("\255", sandbar.assert(box:exec("printf '\\377'")).stdout)
      end)
    end)
  end)

  describe("B02, the last lines vanish when the process ends quickly", function()
    it("loses nothing of 200 000 bytes", function()
      with_box(function(box)
        for i = 1, inside.times(25) do
          local to = i % 2 == 0 and " >&2" or ""
          local r = sandbar.assert(box:exec(
            ("head -c 200000 /dev/zero | tr '\\0' x%s; exit %d"):format(to, i % 3 == 0 and 3 or 0)))
          assert.equal(200000, #(i % 2 == 0 and r.stderr or r.stdout))
          assert.equal(i % 3 == 0 and 3 or 0, r.exit_code)
        end
      end)
    end)

    it("loses nothing with 20 of them together", function()
      with_box(function(box)
        for _ = 1, inside.times(3) / 3 do
          local fns = {}
          for i = 1, 20 do
            fns[i] = function()
              return #sandbar.assert(box:exec("head -c 200000 /dev/zero | tr '\\0' x")).stdout
            end
          end
          for _, n in ipairs(sandbar.assert(sandbar.all(fns))) do
            assert.equal(200000, n)
          end
        end
      end)
    end)

    it("delivers no data after the end", function()
      with_box(function(box)
        for _ = 1, inside.times(10) do
          local n, ended = 0, false
          sandbar.assert(box:exec("head -c 200000 /dev/zero", { on_output = function(data)
            assert.is_false(ended)
            n = n + #data
          end }))
          ended = true
          assert.equal(200000, n)
        end
      end)
    end)
  end)

  describe("B03, the command has finished but exec never returns", function()
    it("does not wait for a background child that holds the pipes", function()
      with_box(function(box)
        local r = sandbar.assert(quick(2, box.exec, box, "echo hi; sleep 361 &"))
        assert.equal("hi\n", r.stdout)
        assert.equal(0, r.exit_code)
        assert.equal(1, inside.count(box, "sleep 361"))
        quick(1, box.exec, box, "(sleep 362 >/dev/null 2>&1 &)")
        r = sandbar.assert(quick(2, box.exec, box, "echo hi; sleep 363 &", { on_output = function() end }))
        assert.equal("hi\n", r.stdout)
      end)
    end)

    it("lets nobody's memory grow for a child that goes on writing", function()
      with_box(function(box)
        local r = sandbar.assert(quick(3, box.exec, box, "yes > /dev/stderr & exit 7"))
        assert.equal(7, r.exit_code)
        r = nil -- luacheck: ignore 311
        collectgarbage()
        local before = tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
        assert.is_truthy(helper.eventually(function() -- it has written for 0.2 s of processor time
          local times = box:exec("cut -d' ' -f14,15 /proc/$(pgrep -x yes)/stat").stdout
          local user, system = times:match("(%d+) (%d+)")
          return user and user + system >= 20
        end), "nobody writes")
        local after = tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
        assert.is_true(after - before < 8192, ("grew by %d kB"):format(after - before))
      end)
    end)
  end)

  describe("B05, a command that cannot start", function()
    it("is a start error with its reason, at once", function()
      with_box(function(box)
        sandbar.assert(box.files:write("text", "echo\n", { mode = "644" }))
        sandbar.assert(box.files:write("lost", "#!/no/such/interpreter\n", { mode = "755" }))
        for program, code in pairs {
          ["no-such-program"] = "ENOENT", ["./text"] = "EACCES", ["./lost"] = "ENOENT", ["/tmp"] = "EACCES",
        } do
          for _, call in ipairs { box.exec, box.start } do
            local r, err = quick(1, call, box, { program })
            assert.is_nil(r)
            assert.equal("StartFailed", err.kind, program)
            assert.equal(code, err.code, program)
          end
        end
        for _, bad in ipairs { {}, { "" } } do
          local r, err = quick(1, box.exec, box, bad)
          assert.is_nil(r)
          assert.equal("InvalidArgument", err.kind)
        end
      end)
    end)

    it("is the shell's 127 and 126 when the shell looks for it", function()
      with_box(function(box)
        local r = sandbar.assert(quick(1, box.exec, box, "no-such-program"))
        assert.equal(127, r.exit_code)
        assert.is_truthy(r.stderr:find("no-such-program", 1, true))
        assert.equal(126, sandbar.assert(box:exec("/tmp")).exit_code)
      end)
    end)

    it("is told apart from a sandbox that is not there", function()
      local box = sandbar.assert(sandboxes:create {})
      sandbar.assert(box:destroy())
      local r, err = quick(2, box.exec, box, "exit 1")
      assert.is_nil(r)
      assert.equal("NotFound", err.kind)
      box:close()
    end)
  end)

  describe("B07, a chatty program", function()
    local function rss()
      collectgarbage()
      return tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
    end

    it("fills neither memory nor time under a cap", function()
      with_box(function(box)
        local before = rss()
        local _, err = box:exec("yes", { max_output = 1048576, timeout = inside.times(1) > 1 and 10 or 1 })
        assert.equal("ExecTimedOut", err.kind)
        assert.is_true(err.result.truncated)
        assert.equal(1048576, #err.result.stdout)
        assert.is_true(rss() - before < 32768)
        local p = sandbar.assert(box:start("yes", { stdout = "tail" }))
        sandbar.assert(quick(1, p.kill, p, { signal = "KILL" }))
      end)
    end)

    it("takes one endless line in linear time", function()
      with_box(function(box)
        local function take(n)
          return helper.timed(function()
            local r = sandbar.assert(box:exec(("head -c %d /dev/zero | tr '\\0' x"):format(n)))
            assert.equal(n, #r.stdout)
          end)
        end
        take(1000000)
        local half, whole = take(25000000), take(50000000)
        assert.is_true(whole < 4 * half + 0.5, ("%.2f s, %.2f s"):format(half, whole))
      end)
    end)

    it("keeps the one useful message", function()
      with_box(function(box)
        local r = sandbar.assert(box:exec(
          "head -c 200000 /dev/zero | tr '\\0' n; echo FATAL >&2; exit 1", { max_output = 100000 }))
        assert.equal("FATAL\n", r.stderr)
        assert.equal(100000, #r.stdout)
        assert.equal(100000, r.dropped)
      end)
    end)

    it("runs to its end in the background with nobody listening", function()
      with_box(function(box)
        local before = rss()
        local size = inside.times(1) > 1 and 500000000 or 50000000
        local p = sandbar.assert(box:start(("head -c %d /dev/zero"):format(size), { stdout = "tail" }))
        assert.is_true(sandbar.assert(p:wait { timeout = 60 }).ok)
        assert.is_true(rss() - before < 8192)
      end)
    end)
  end)

  describe("B08, the zero byte", function()
    it("is refused wherever the kernel would cut at it", function()
      with_box(function(box)
        local function refused(value, err)
          assert.is_nil(value)
          assert.equal("InvalidArgument", err.kind)
        end
        refused(box:exec { "echo", "a\0b" })
        refused(box:exec("echo a\0b"))
        refused(box:exec("true", { env = { X = "a\0b" } }))
        refused(box:exec("true", { env = { X = sandbar.secret("a\0b") } }))
        refused(box:exec("true", { env = { ["X\0"] = "a" } }))
        for _, option in ipairs { "cwd", "user", "tag" } do
          refused(box:exec("true", { [option] = "a\0b" }))
        end
        for _, method in ipairs { "read", "list", "stat", "exists", "mkdir", "remove", "readlink", "open" } do
          refused(box.files[method](box.files, "f\0g"))
        end
        refused(box.files:lines("f\0g"):next())
        refused(box.files:write("f\0g", ""))
        refused(box.files:move("a", "f\0g"))
        refused(box.files:symlink("f\0g", "a"))
      end)
    end)

    it("is data in data", function()
      with_box(function(box)
        assert.equal("a\0b", sandbar.assert(box:exec("printf 'a\\000b'")).stdout)
        local all = {}
        for i = 0, 255 do
          all[#all + 1] = string.char(i)
        end
        all = table.concat(all)
        sandbar.assert(box.files:write("all", all))
        assert.equal(all, box.files:read("all"))
        assert.equal(all, sandbar.assert(box:exec({ "cat" }, { stdin = all })).stdout)
      end)
    end)
  end)

  describe("B09, arguments and environment travel as data", function()
    it("takes an argument of 131071 bytes and refuses one more", function()
      with_box(function(box)
        assert.equal(131072, tonumber(sandbar.assert(
          box:exec { "sh", "-c", "printf '%s\\n' \"$1\" | wc -c", "sh", ("x"):rep(131071) }).stdout))
        local r, err = quick(1, box.exec, box, { "true", ("x"):rep(131072) })
        assert.is_nil(r)
        assert.equal("E2BIG", err.code)
        assert.is_true(sandbar.assert(box:exec("true")).ok)
        r, err = quick(1, box.exec, box, "true", { env = { BIG = ("x"):rep(200000) } })
        assert.is_nil(r)
        assert.equal("E2BIG", err.code)
        r, err = quick(1, box.exec, box, "true", { env = { BIG = sandbar.secret(("x"):rep(200000)) } })
        assert.is_nil(r)
        assert.is_truthy(err)
        assert.is_true(sandbar.assert(box:exec("true")).ok)
      end)
    end)

    it("takes 5000 variables, and values of any look", function()
      with_box(function(box)
        local env = {}
        for i = 1, 5000 do
          env[("V%04d"):format(i)] = ("v"):rep(14)
        end
        assert.equal(5000, tonumber(sandbar.assert(box:exec("env | grep -c ^V....=v", { env = env })).stdout))
        for _, value in ipairs {
          "a b", "$(id)", "`id`", "\"'\\", "two\nlines", "\195\169\230\188\162\240\159\152\128", "",
        } do
          assert.equal(value, sandbar.assert(box:exec("printf %s \"$X\"", { env = { X = value } })).stdout)
        end
        for _, key in ipairs { "A;id=", "A=B", "", "=" } do
          local r, err = box:exec("true", { env = { [key] = "1" } })
          assert.is_nil(r)
          assert.equal("InvalidArgument", err.kind)
        end
      end)
    end)

    it("has a road for large input", function()
      with_box(function(box)
        local r = sandbar.assert(box:exec({ "wc", "-c" }, { stdin = ("z"):rep(10485760) }))
        assert.equal(10485760, tonumber(r.stdout))
      end)
    end)
  end)

  describe("B10, standard input", function()
    it("is at its end unless asked for, and closing it is half of it", function()
      with_box(function(box)
        assert.equal("", sandbar.assert(quick(1, box.exec, box, { "cat" })).stdout)
        local p = sandbar.assert(box:start({ "sort" }, { stdin = "pipe" }))
        sandbar.assert(p.stdin:write("b\na\n"))
        assert.is_true(p.stdin:close())
        assert.is_true(p.stdin:close())
        assert.equal("a\nb\n", sandbar.assert(p.stdout:read("a", { timeout = 5 })))
        local n, err = p.stdin:write("c")
        assert.is_nil(n)
        assert.equal("Closed", err.kind)
      end)
    end)

    it("goes in while output comes out", function()
      with_box(function(box)
        local data = ("0123456789abcdef"):rep(524288)
        assert.is_true(sandbar.assert(box:exec({ "cat" }, { stdin = data })).stdout == data)
        for _, size in ipairs { 1048576, 1 } do
          local at, all = 1, size == 1 and data:sub(1, 20000) or data
          local r = sandbar.assert(box:exec({ "cat" }, { stdin = function()
            local piece = all:sub(at, at + size - 1)
            at = at + size
            return piece ~= "" and piece or nil
          end }))
          assert.is_true(r.stdout == all)
        end
      end)
    end)

    it("is asked for again after an empty piece, whatever the command does meanwhile", function()
      with_box(function(box)
        local n = 0
        local r = sandbar.assert(box:exec({ "cat" }, { timeout = 20, stdin = function()
          n = n + 1
          return n <= 9 and (n % 3 == 0 and tostring(n) or "") or nil
        end }))
        assert.equal("369", r.stdout)
        local _, err = box:exec({ "sleep", "60" }, { timeout = 0.2, stdin = function() return "" end })
        assert.equal("ExecTimedOut", err.kind)
      end)
    end)

    it("may be left unread by the command, and the host lives", function()
      with_box(function(box)
        local r = sandbar.assert(quick(5, box.exec, box, { "head", "-c", "1" }, { stdin = ("x"):rep(10485760) }))
        assert.equal("x", r.stdout)
        local p = sandbar.assert(box:start({ "head", "-c", "1" }, { stdin = "pipe" }))
        local n, err = p.stdin:write(("x"):rep(10485760))
        assert.is_nil(n)
        assert.equal("Closed", err.kind)
      end)
    end)

    it("may be closed by a command that goes on: the SIGPIPE does not reach the host while it waits", function()
      with_box(function(box)
        for i = 1, 20 do
          local size = i % 2 == 0 and 1000 or 1000000
          local r = sandbar.assert(quick(5, box.exec, box, "exec <&-; sleep 0.05; echo on", { stdin = ("x"):rep(size) }))
          assert.equal("on\n", r.stdout)
        end
      end)
    end)

    it("may be closed by a command while its host writes without waiting, which killed the host", function()
      local r = helper.run_lua([[
        local sandbar = require "sandbar"
        local box = sandbar.assert(sandbar.assert(sandbar.open { root = arg[1], linger = 0 }):create_scoped {})
        local p = sandbar.assert(box:start("read x; exec <&-; echo closed; exec sleep 60", { stdin = "pipe" }))
        assert(p.stdin:write("x\n", { timeout = 0 }) == 2)
        assert(p.stdout:read("l", { timeout = 10 }) == "closed")
        for _ = 1, 3 do
          local n, err = p.stdin:write("x\n", { timeout = 0 })
          print(n, err.kind)
        end
        sandbar.assert(box:destroy())
      ]], { args = { helper.root() } })
      assert.equal(("nil\tClosed\n"):rep(3), r.stdout, r.stderr)
      assert.equal(0, r.code)
    end)

    it("is never the host's own", function()
      local dir = helper.dir()
      local child = helper.write_file(dir .. "/child.lua", [[
        package.path, package.cpath = arg[2], arg[3]
        local sandbar = require "sandbar"
        local box = sandbar.assert(sandbar.assert(sandbar.open { root = arg[1], linger = 0 }):create_scoped {})
        io.write("got (", sandbar.assert(box:exec { "cat" }).stdout, ")")
        os.exit(0, true)
      ]])
      local words = {}
      for i, word in ipairs { helper.interpreter(), child, helper.root(), package.path, package.cpath } do
        words[i] = helper.quote(word)
      end
      local out, status = helper.shell(("mkfifo %s/never; exec 9<>%s/never; timeout 10 %s <&9"):format(
        dir, dir, table.concat(words, " ")))
      assert.equal("got ()", out)
      assert.equal(0, status)
    end)
  end)

  describe("B11, the time limit kills the shell and leaves its children", function()
    it("reaches every child, also one that ignores TERM, and pipelines", function()
      with_box(function(box)
        for i, line in ipairs {
          "sleep 371 & sleep 371 & wait",
          "(trap '' TERM; sleep 371; sleep 371) & wait",
          "yes 371 | cat >/dev/null",
          "setsid sleep 371 & wait",
        } do
          local how = i % 2 == 0 and { timeout = 0.5 } or { time_limit = 0.5 }
          quick(3, box.exec, box, line, how)
          assert.equal(0, inside.count(box, "371"), line)
        end
        box:exec({ { "yes", "371" }, { "cat" } }, { timeout = 0.5, stdout = "ignore" })
        assert.equal(0, inside.count(box, "yes 371"))
      end)
    end)

    it("frees a port for the next run at once", function()
      with_box(function(box)
        if not box:exec("command -v python3").ok then
          helper.skip("python3 is not installed")
        end
        local server = "import socket,time\ns=socket.socket()\ns.bind(('127.0.0.1',4000))\ns.listen()\n"
          .. "print('up',flush=True)\ntime.sleep(60)"
        for _ = 1, inside.times(3) do
          local p = sandbar.assert(box:start({ "sh", "-c", "python3 -c \"$0\" & wait", server }))
          assert.equal("up", sandbar.assert(p.stdout:read("l", { timeout = 10 })))
          sandbar.assert(p:kill { signal = "KILL" })
        end
      end)
    end)
  end)

  describe("B12, dead processes pile up", function()
    it("reaps orphans inside", function()
      with_box(function(box)
        for _ = 1, inside.times(20) do
          sandbar.assert(box:exec("for i in 1 2 3 4 5 6 7 8 9 10; do sh -c '(sleep 0.01 &) ; exit'; done"))
        end
        assert.is_truthy(helper.eventually(function()
          return inside.in_state(box, "Z") <= 1
        end))
      end)
    end)

    it("leaves no child of the host behind, not even for failed starts", function()
      with_box(function(box)
        for _ = 1, inside.times(30) do
          local _, err = box:exec { "no-such-program" }
          assert.equal("StartFailed", err.kind)
        end
        assert.is_true(inside.in_state(box, "Z") <= 1)
      end)
      for _ = 1, inside.times(5) do
        with_box(function() end)
      end
      for _, stat in pairs(helper.proc.all()) do
        assert.is_false(stat.parent == core.pid() and stat.state == "Z")
      end
    end)
  end)
end)
