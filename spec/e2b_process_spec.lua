-- check: only 5.4
-- check: no asan
-- Commands in hosted sandboxes, end to end: the E2B provider against `sandbar serve`, a process of its own. Row ids are
-- those of docs/requirements.md.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local provider = require "sandbar.e2b.provider"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

local kind = helper.kind

describe("commands in a hosted sandbox", function()
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
  end)

  local function assert_ended(marker)
    assert.is_true(serve.has_ended(box, marker), marker .. " goes on")
  end

  describe("exec", function()
    it("gives both outputs, the exit code and the pid", function()
      local r = assert(box:exec "echo out; echo bad >&2; exit 3")
      assert.equal("out\n", r.stdout)
      assert.equal("bad\n", r.stderr)
      assert.equal(3, r.exit_code)
      assert.is_false(r.ok)
      assert.equal("exit", r.reason)
      assert.is_true(r.pid > 1)
    end)

    it("keeps arguments, bytes and pipelines as they are", function()
      assert.equal("a b||$x|*|", assert(box:exec { "printf", "%s|", "a b", "", "$x", "*" }).stdout)
      assert.equal("a\nb\n", assert(box:exec { { "printf", "b\na\n" }, { "sort" } }).stdout)
      assert.equal(1, assert(box:exec { { "echo", "x" }, { "grep", "y" } }).exit_code)
      assert.equal("\0\255\n", assert(box:exec [[printf '\000\377\n']]).stdout)
    end)

    it("takes cwd, env and user, values of the environment never in a command line", function()
      local r = assert(box:exec("pwd; echo $A $B; tr '\\0' ' ' </proc/$$/cmdline", {
        cwd = "/tmp", env = { A = "one", B = core.secret "hidden-value" },
      }))
      assert.truthy(r.stdout:find("^/tmp\none hidden%-value\n"))
      assert.is_nil(r.stdout:match("\n.*\n(.*)"):find("hidden", 1, true))
      assert.equal("root\n", assert(box:exec("id -un", { user = "root" })).stdout)
      kind("Unauthenticated", box:exec("true", { user = "nobody-of-that-name" }))
      kind("InvalidArgument", box:exec("true", { cwd = "/no/such/directory" }))
    end)

    it("merges and ignores outputs", function()
      assert.equal("a\nb\n", assert(box:exec("echo a; echo b >&2", { stderr = "stdout" })).stdout)
      local r = assert(box:exec("echo a; echo b >&2", { stdout = "ignore" }))
      assert.equal("", r.stdout)
      assert.equal("b\n", r.stderr)
    end)

    it("tells the signal that ended it", function()
      local r = assert(box:exec "kill -SEGV $$")
      assert.equal(139, r.exit_code)
      assert.equal("SIGSEGV", r.signal)
      assert.equal("signal", r.reason)
    end)

    it("B-30: is given its input, however long, and the end of it", function()
      assert.equal("hello\nend\n", assert(box:exec("cat; echo end", { stdin = "hello\n" })).stdout)
      assert.equal("2000000\n", assert(box:exec("wc -c", { stdin = ("x"):rep(2000000) })).stdout)
      assert.equal("no\n", assert(box:exec("echo no", { stdin = ("x"):rep(2000000) })).stdout)
      local n = 0
      assert.equal("1\n2\n", assert(box:exec("cat", { stdin = function()
        n = n + 1
        return n < 3 and n .. "\n" or nil
      end })).stdout)
      assert.equal("", assert(box:exec "cat").stdout)
    end)

    it("B-31: kills the whole tree when its time is over, and tells what there was", function()
      local err = kind("ExecTimedOut", box:exec("echo part; sleep 7171 & sleep 7171", { timeout = 1.5 }))
      assert.equal("part\n", err.result.stdout)
      assert.equal("timeout", err.result.reason)
      assert_ended "sleep 7171"
      err = kind("ExecTimedOut", box:exec("echo part; sleep 7172 & sleep 7172", { timeout = 1.5, stdin = "x" }))
      assert.equal("part\n", err.result.stdout)
      assert_ended "sleep 7172"
    end)

    it("has a time limit of the command's own", function()
      local r = assert(box:exec("echo part; sleep 7173 & sleep 7173", { time_limit = 1.5 }))
      assert.equal("limit", r.reason)
      assert.equal("part\n", r.stdout)
      assert_ended "sleep 7173"
    end)

    it("kills its tree when its task is cancelled", function()
      sandbar.run(function()
        local task = sandbar.spawn(function()
          box:exec "sleep 7174 & sleep 7174"
        end)
        repeat
          sandbar.sleep(0.02)
        until assert(box:exec { "pgrep", "-f", "^sleep 7174" }).stdout ~= ""
        task:cancel "enough"
        task:wait()
      end)
      assert_ended "sleep 7174"
    end)

    it("keeps what max_output allows, and counts the rest", function()
      local r = assert(box:exec("printf 0123456789; printf abcdef >&2", { max_output = 4 }))
      assert.equal("0123", r.stdout)
      assert.equal("cdef", r.stderr)
      assert.equal(8, r.dropped)
      assert.is_true(r.truncated)
    end)

    it("hands output on as it comes, and is killed by a false", function()
      local seen = {}
      local r = assert(box:exec("echo a; sleep 0.1; echo b >&2; sleep 7175", {
        on_output = function(data, fd)
          seen[#seen + 1] = fd .. data
          return #seen < 2
        end,
      }))
      assert.same({ "1a\n", "2b\n" }, seen)
      assert.equal("SIGKILL", r.signal)
      assert_ended "sleep 7175"
    end)
  end)

  describe("start", function()
    it("B-32 B-33 B-36: gives a live process, its output in chunks, and its exit", function()
      local p = assert(box:start "echo one; echo two >&2; exit 5")
      local got = { "", "" }
      for fd, data in p:output() do
        got[fd] = got[fd] .. data
      end
      assert.same({ "one\n", "two\n" }, got)
      assert.equal(5, assert(p:wait()).exit_code)
      assert.is_false(p:running())
    end)

    it("B-34: takes input, in order, and its end", function()
      local p = assert(box:start("cat", { stdin = "pipe" }))
      assert.equal(4, p.stdin:write "abc\n")
      assert.equal("abc", p.stdout:read "l")
      assert.equal(3, p.stdin:write("de\n", { timeout = 0 }))
      assert.equal("de", p.stdout:read "l")
      p.stdin:close()
      assert.is_nil(p.stdout:read "l")
      assert.equal(0, assert(p:wait()).exit_code)
    end)

    it("does not take more input than the command reads", function()
      local p = assert(box:start("sleep 7176", { stdin = "pipe" }))
      local n, err = p.stdin:write(("x"):rep(3000000), { timeout = 0.5 })
      assert.is_true(n < 3000000)
      assert.equal("Timeout", err.kind)
      assert(p:kill { grace = 0 })
    end)

    it("sends any signal, and says what of it was delivered", function()
      local p = assert(box:start "trap 'echo usr; exit 9' USR1; echo on; while :; do sleep 0.05; done")
      assert.equal("on", p.stdout:read "l")
      assert.same({ signal = "SIGUSR1", count = 1 }, assert(p:signal "USR1"))
      assert.equal("usr", p.stdout:read "l")
      assert.equal(9, assert(p:wait()).exit_code)
      assert.same({ signal = "SIGUSR1", count = 0 }, assert(p:signal "USR1"))
    end)

    it("B-35: kills the whole group, first with a word and then without", function()
      local p = assert(box:start "trap '' TERM; echo on; sleep 7177 & sleep 7177")
      assert.equal("on", p.stdout:read "l")
      local r = assert(p:kill { grace = 0.2 })
      assert.equal("SIGKILL", r.signal)
      assert_ended "sleep 7177"
    end)

    it("was not seen to end when it was killed before its output had been read", function()
      local p = assert(box:start("cat /dev/zero", { stderr = "ignore" }))
      local q = assert(box:start("cat /dev/zero", { stderr = "ignore", detached = true }))
      local reading = assert(box:attach(q.pid))
      assert.equal(4, #p.stdout:read(4))
      assert(q:close())
      assert.equal(4, #reading.stdout:read(4))
      for _, one in ipairs { p, reading } do
        assert.equal("SIGTERM", assert(one:kill { timeout = 20 }).signal)
        assert.is_true(#one.stdout:read "a" > 65536) -- it can still be read
      end
    end)

    it("ends with its scope", function()
      sandbar.scope(function(scope)
        assert(box:start("sleep 7178 & sleep 7178", { scope = scope }))
      end)
      assert_ended "sleep 7178"
    end)

    it("PS-11: is waited for as long as one likes, which does nothing to it", function()
      local p = assert(box:start("read a; exit 5", { stdin = "pipe" }))
      for _, timeout in ipairs { 0.05, 0 } do
        local r, err = p:wait { timeout = timeout }
        assert.is_nil(r)
        assert.equal("Timeout", err.kind)
        assert.equal(timeout, err.limit)
      end
      sandbar.run(function()
        local task = sandbar.spawn(function()
          return p:wait()
        end)
        sandbar.sleep(0)
        task:cancel "enough"
        local r, err = task:wait()
        assert.is_nil(r)
        assert.equal("Cancelled", err.kind)
      end)
      assert.is_true(p:running())
      p.stdin:write "\n"
      assert.equal(5, assert(p:wait { timeout = 10 }).exit_code)
    end)

    it("has a terminal that can be typed at and resized", function()
      local p = assert(box:start("stty -echo; stty size; read a; echo got $a; stty size", { pty = { cols = 100, rows = 30 } }))
      assert.equal("30 100\r", p.stdout:read "l")
      assert(p:resize { cols = 90, rows = 20 })
      assert.equal(6, p.stdin:write "typed\n")
      assert.equal("got typed\r", p.stdout:read "l")
      assert.equal("20 90\r", p.stdout:read "l")
      assert.equal(0, assert(p:wait()).exit_code)
    end)

    it("is listed as it was asked for", function()
      local p = assert(box:start({ "sleep", "7179" }, { tag = "mine" }))
      local q = assert(box:start({ "sleep", "7180" }))
      local found = {}
      for _, info in ipairs(assert(box:processes())) do
        found[info.pid] = info
      end
      assert.same({ "sleep", "7179" }, found[p.pid].args)
      assert.equal("mine", found[p.pid].tag)
      assert.is_nil(found[q.pid].tag)
      assert(p:kill { grace = 0 })
      assert(q:kill { grace = 0 })
    end)
  end)

  it("of one that is paused are NotRunning, of one that is gone NotFound", function()
    local other = assert(boxes:create { lifetime = 60 })
    assert(other:exec "true")
    assert(other:pause { keep = "disk" })
    for _, call in ipairs { "exec", "start" } do
      local err = kind("NotRunning", other[call](other, "true"))
      assert.truthy(err.message:find("paused.*resume()"), err.message)
    end
    assert(boxes:destroy(other.id))
    kind("NotFound", other:exec "true")
    other:close()
  end)

  it("B14: whose sandbox is destroyed or paused from elsewhere under them are told apart, with what there was", function()
    local function cut(fn)
      local other, ended, err = assert(boxes:create { lifetime = 60 }), nil, nil
      sandbar.run(function()
        local task = sandbar.spawn(function()
          return other:exec("echo part; sleep 7184")
        end)
        repeat
          sandbar.sleep(0.02)
        until other:exec({ "pgrep", "-f", "^sleep 7184" }).stdout ~= ""
        assert(fn(assert(boxes:connect(other.id))))
        ended, err = task:wait { timeout = 20 }
      end)
      assert.is_nil(ended)
      return err, other
    end
    local err, other = cut(function(elsewhere)
      return elsewhere:pause()
    end)
    assert.equal("OutcomeUnknown", err.kind)
    assert.equal("part\n", err.result.stdout)
    assert.equal("paused", other.state) -- it goes on with the sandbox
    assert(boxes:destroy(other.id))
    other:close()
    err, other = cut(function(elsewhere)
      return elsewhere:destroy()
    end)
    assert.equal("NotFound", err.kind)
    assert.equal("part\n", err.cause.result.stdout)
    assert.equal("gone", other.state)
    other:close()
  end)

  it("that were running when the sandbox was destroyed are OutcomeUnknown or NotFound, with what there was", function()
    local other = assert(boxes:create { lifetime = 60 })
    local p = assert(other:start "echo on; sleep 100")
    assert.equal("on", p.stdout:read "l")
    assert(boxes:destroy(other.id))
    local r, err = p:wait()
    assert.is_nil(r)
    assert.truthy(err.kind == "OutcomeUnknown" or err.kind == "NotFound", tostring(err))
    other:close()
  end)
end)
