-- check: only 5.4
-- check: no asan
-- Processes of hosted sandboxes beyond the program that started them: references, attaching, letting go, kept output.
-- The E2B provider against `sandbar serve`, a process of its own. Row ids are those of docs/requirements.md.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local provider = require "sandbar.e2b.provider"
local sandbar = require "sandbar"
local sandbox = require "sandbar.sandbox"
local serve = require "spec.support.serve"
local wait = require "sandbar.wait"

local kind = helper.kind

describe("a process in a hosted sandbox", function()
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

  -- Another program, with `box` and what else it is given as `arg_1` and so on: what it printed.
  local function elsewhere(code, ...)
    local lines = {}
    for i, value in ipairs { ... } do
      lines[i] = ("local arg_%d = %q"):format(i, value)
    end
    return helper.run_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(sandbar.open { provider = "e2b", api_key = %q, api_url = %q, sandbox_url = %q })
      local box = sandbar.assert(boxes:connect(%q))
      %s
      %s
    ]]):format(server.key, server.url, server.url, box.id, table.concat(lines, "\n"), code)).stdout
  end

  describe("reference", function()
    it("P-28 PS-19: names one process in every program: the same text, and the same process", function()
      local p = assert(box:start({ "sh", "-c", "read a; echo got $a; exit 7", "x y" },
        { stdin = "pipe", detached = true }))
      local ref = assert(p:reference())
      assert.truthy(ref:find "^sandbar%-proc:[%w_-]+$")
      assert.equal(ref, assert(p:reference()))
      local said = elsewhere([[
        local q = sandbar.assert(box:attach(arg_1))
        assert(q:reference() == arg_1)
        q.stdin:write "this\n"
        print(q.pid, q.stdout:read "l", q:wait().exit_code)
      ]], ref)
      assert.equal(("%d\tgot this\t7\n"):format(p.pid), said)
      assert.equal(7, assert(p:wait()).exit_code)
    end)

    it("P-29 PS-19: of a process that has ended, of another one, tampered with, not as expected is NotFound", function()
      local p = assert(box:start({ "sleep", "7191" }, { cwd = "/tmp" }))
      local ref = assert(p:reference())
      local q = assert(box:attach(ref, { expect = { sandbox = box.id, cwd = "/tmp" } }))
      assert.equal(p.pid, q.pid)
      assert.is_true(q:running())
      kind("NotFound", box:attach(ref, { expect = { cwd = "/" } }))
      kind("NotFound", box:attach(ref, { expect = { labels = { a = "b" } } }))
      local reference = require "sandbar.reference"
      local parsed = assert(reference.parse(ref))
      for name, value in pairs { start_ns = parsed.start_ns + 10000000, boot = "x", cwd = "/", sandbox = "other",
        args = { "sleep", "7192" } } do
        local changed = { sandbox = parsed.sandbox, pid = parsed.pid, boot = parsed.boot, start_ns = parsed.start_ns,
          args = { "sleep", "7191" }, cwd = parsed.cwd }
        assert.equal(ref, reference.format(changed))
        changed[name] = value
        kind("NotFound", box:attach(reference.format(changed)))
      end
      assert(p:kill { grace = 0 })
      kind("NotFound", box:attach(ref))
      kind("NotFound", box:attach(4194303))
      kind("NotFound", box:attach { tag = "of nobody" })
    end)
  end)

  it("P-29 P-05: that a pause to disk has ended is none; whoever has its number now is another one", function()
    local other = assert(boxes:create { lifetime = 60 })
    local p = assert(other:start({ "sleep", "7190" }, { detached = true }))
    local ref = assert(p:reference())
    assert(other:pause { keep = "memory" })
    assert(other:resume())
    assert.equal(p.pid, assert(other:attach(ref)).pid)
    assert(other:pause { keep = "disk" })
    kind("NotRunning", other:attach(ref))
    assert(other:resume())
    local q
    repeat -- the same number, the same command
      q = assert(other:start({ "sleep", "7190" }, { detached = true }))
    until q.pid >= p.pid
    kind("NotFound", other:attach(ref))
    assert(other:destroy())
    other:close()
  end)

  it("counted as one of a run before where the sandbox was started anew while it was asked which run it is", function()
    local other = assert(boxes:create { lifetime = 60 })
    local rpc = assert(core.state(other, sandbox.class)._link:calls())
    function rpc.wait(...)
      rpc.wait = nil
      local r, err = rpc.wait(...)
      assert(other:pause { keep = "disk" })
      assert(other:resume())
      return r, err
    end
    local p = assert(other:start "exit 0")
    assert(p:wait { timeout = 10 })
    assert.equal(0, assert(p:signal "TERM").count)
    assert(other:destroy())
    other:close()
  end)

  it("A-72: that was kept over a pause to disk hit whoever had its number then", function()
    local other = assert(boxes:create { lifetime = 60 })
    assert(other:exec("i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done")) -- the next run has lower numbers
    local scope = sandbar.new_scope()
    local p = assert(other:start({ "sleep", "7180" }, { scope = scope, stdin = "pipe" }))
    local over = assert(other:start("sleep 7181 & exit 0", { stdout = "ignore", stderr = "ignore" }))
    assert(over:wait { timeout = 10 })
    local watching = assert(other:attach(p.pid))
    -- One that this library did not start.
    local rpc = core.state(other, sandbox.class)._link.rpc
    local foreign = assert(wait.op(rpc:stream("process.Process/Start", "process.StartRequest",
      { process = { cmd = "/bin/sleep", args = { "7182" } }, stdin = true }, {}), 10, "start")).object
    local attached = assert(other:attach(foreign:pid()))
    assert(attached:signal "CONT")
    foreign:close()
    assert(other:pause { keep = "disk" })
    assert(other:resume())
    local numbers = { over.pid, p.pid, attached.pid }
    table.sort(numbers)
    local strangers = assert(other:start({ "sh", "-c", [[
      for n; do
        while :; do
          setsid sleep 7183 & at=$!
          [ $at -lt $n ] || break
          kill -9 $at
        done
        [ $at = $n ] || echo missed $n
      done 2>/dev/null
      echo all; wait]], "sh", tostring(numbers[1]), tostring(numbers[2]), tostring(numbers[3]) }, { detached = true }))
    assert.equal("all", strangers.stdout:read("l", { timeout = 20 }))
    for _, handle in ipairs { p, watching, attached, over } do
      kind("NotRunning", handle:signal "KILL")
      kind("NotRunning", handle:signal("KILL", { group = true }))
      kind("NotRunning", handle:kill { grace = 0 })
    end
    kind("NotRunning", watching:wait { timeout = 10 })
    kind("Closed", p.stdin:write("x", { timeout = 10 }))
    assert(scope:adopt(attached))
    assert(scope:close())
    assert(over:close())
    for _, number in ipairs(numbers) do
      assert.is_true(other:exec({ "kill", "-0", tostring(number) }).ok, number .. " was killed")
    end
    assert(other:destroy())
    other:close()
  end)

  describe("attach", function()
    it("B-38 B-S2: by number and by tag; one reader at a time in a program, the others wait and signal", function()
      local p = assert(box:start("trap 'echo usr; exit 3' USR1; echo on; while :; do sleep 0.05; done",
        { tag = "of mine" }))
      assert.equal("on", p.stdout:read "l")
      local q, r = assert(box:attach(p.pid)), assert(box:attach { tag = "of mine" })
      assert.equal(p.pid, r.pid)
      assert.equal("of mine", q.tag)
      kind("Busy", q.stdout:read "l")
      assert(r:signal "USR1")
      assert.equal("usr", p.stdout:read "l")
      for _, handle in ipairs { p, q, r } do
        assert.equal(3, assert(handle:wait { timeout = 10 }).exit_code)
      end
    end)

    it("gives what is written from then on, and takes input; its close ends nothing", function()
      local p = assert(box:start("while read a; do echo got $a; done", { stdin = "pipe", detached = true }))
      local pid = p.pid
      p:close()
      local q = assert(box:attach(pid))
      q.stdin:write "one\n"
      assert.equal("got one", q.stdout:read "l")
      q:close()
      q = assert(box:attach(pid))
      q.stdin:write "two\n"
      assert.equal("got two", q.stdout:read "l")
      q.stdin:close()
      assert.equal(0, assert(q:wait()).exit_code)
      assert.equal(0, assert(assert(box:attach(pid)):wait()).exit_code) -- it is known for a while
    end)

    it("on a terminal is typed at and resized by whoever attaches", function()
      local p = assert(box:start("stty -echo; read a; stty size; echo got $a; read a",
        { pty = { cols = 80, rows = 24 }, detached = true }))
      local ref = assert(p:reference())
      assert(p:close()) -- so that what is written from now on is the next one's
      local q = assert(box:attach(ref, { timeout = 10 }))
      assert(q:resize { cols = 90, rows = 20 })
      assert.equal(5, q.stdin:write "this\n")
      local text
      repeat -- perhaps behind an echo of before stty
        text = assert(q.stdout:read("l", { timeout = 10 }))
      until text:find "^%d"
      assert.equal("20 90\r", text)
      assert.equal("got this\r", q.stdout:read("l", { timeout = 10 }))
      assert.same({ "/bin/sh", "-c", "stty -echo; read a; stty size; echo got $a; read a" }, box:processes()[1].args)
      assert.equal(1, q.stdin:write "\n")
      assert.equal(0, assert(q:wait()).exit_code)
    end)

    it("B-37 A-69 PS-10: what was detached goes on, with nobody reading, and can be owned again", function()
      local p
      sandbar.scope(function(scope)
        p = assert(box:start("echo on; head -c 3000000 /dev/zero; echo off >/tmp/off; exec sleep 7193",
          { scope = scope }))
        assert.equal("on", p.stdout:read "l")
        assert(p:detach())
      end)
      assert.is_truthy(helper.eventually(function() -- its output holds nothing up
        return box:exec("cat /tmp/off").stdout == "off\n"
      end))
      assert.is_true(p:running())
      sandbar.scope(function(scope)
        assert(scope:adopt(assert(box:attach(p.pid))))
      end)
      assert_ended "sleep 7193"
      assert.equal("SIGKILL", assert(p:wait { timeout = 10 }).signal)
    end)

    it("A-67: what a program that has ended had detached goes on, what it had not ends", function()
      local said = elsewhere [[
        scope = sandbar.new_scope()
        local p = sandbar.assert(box:start({ "sleep", "7194" }, { scope = scope }))
        local q = sandbar.assert(box:start({ "sleep", "7195" }, { scope = scope }))
        sandbar.assert(q:detach())
        print(q.pid)
        os.exit(0)
      ]]
      assert_ended "^sleep 7194"
      assert(assert(box:attach(tonumber(said))):kill { grace = 0 })
      assert_ended "^sleep 7195"
    end)

    it("lists neither helpers nor what starts the commands", function()
      local p = assert(box:start({ { "cat" }, { "sleep", "7196" } }, { clean_env = true, stdin = "pipe" }))
      local q = assert(box:start({ "sleep", "7197" }, { stdout = "spool" }))
      local seen = {}
      for _, info in ipairs(assert(box:processes())) do
        seen[info.pid] = table.concat(info.args, " ")
      end
      assert.equal("cat sleep 7196", seen[p.pid])
      assert.equal("sleep 7197", seen[q.pid])
      for _, words in pairs(seen) do
        assert.is_nil(words:find("_sb", 1, true))
      end
      assert(p:kill { grace = 0 })
      assert(q:kill { grace = 0 })
    end)
  end)

  describe("tail", function()
    it("holds nothing up, and leaves the end of what was written", function()
      local p = assert(box:start("head -c 300000 /dev/zero | tr '\\0' x; echo end; echo bad >&2",
        { stdout = "tail", stderr = "tail" }))
      local r = assert(p:wait())
      assert.equal(0, r.exit_code)
      assert.equal(300004 - 65536, r.dropped)
      assert.equal(("x"):rep(65532) .. "end\n", p.stdout:read "a")
      assert.equal("bad\n", p.stderr:read "a")
    end)
  end)

  describe("command", function()
    it("has only the variables that it is given", function()
      local got = assert(box:exec({ "env" }, { clean_env = true, env = { A = "one\nPATH=x\nB=2", ["C"] = "" } })).stdout
      local lines = {}
      for line in got:gmatch "[^\n]+" do
        lines[#lines + 1] = line
      end
      table.sort(lines)
      assert.same({ "A=one", "B=2", "C=", "PATH=x" }, lines)
      assert.equal("C=3\n", assert(box:exec({ { "env" }, { "grep", "-v", "^[P_]" } }, { clean_env = true,
        env = { C = "3" } })).stdout)
      assert.equal("x\n", assert(box:exec("echo $A | cat", { clean_env = true, env = { A = "x" } })).stdout)
    end)

    it("whose name begins with a dash is a command", function()
      assert(box:exec "printf '#!/bin/sh\necho ran $1' >/tmp/-x; chmod 755 /tmp/-x")
      local env = { PATH = "/tmp:/usr/bin:/bin" }
      assert.equal("ran a\n", assert(box:exec({ "-x", "a" }, { env = env })).stdout)
      assert.equal("ran b\n", assert(box:exec({ { "-x", "b" }, { "cat" } }, { env = env })).stdout)
      assert.equal("ran c\n", assert(box:exec({ "-x", "c" }, { env = env, stderr = "ignore" })).stdout)
      local p = assert(box:start({ "-x", "d" }, { env = env, pty = { cols = 80, rows = 24 } }))
      assert.equal("ran d\r", p.stdout:read "l")
      assert.equal(127, assert(box:exec { "-y" }).exit_code)
    end)

    it("of a pipeline is a program, whatever the shell has of that name", function()
      assert.equal(127, assert(box:exec { { "true" }, { "exit", "3" } }).exit_code)
    end)
  end)

  describe("kept output", function()
    it("is read from any offset, live and afterwards, by any number of readers and programs", function()
      local p = assert(box:start("echo one; read a; echo two $a; echo bad >&2", { stdin = "pipe", stdout = "spool",
        stderr = "spool", detached = true }))
      local ref = assert(p:reference())
      assert.equal("one", p.stdout:read "l")
      local q = assert(box:attach(ref, { from = 2 }))
      assert.equal("e", q.stdout:read "l")
      p.stdin:write "x\n"
      assert.equal("two x", p.stdout:read "l")
      assert.equal("two x\n", q.stdout:read "a")
      assert.equal("bad\n", p.stderr:read "a")
      assert.is_nil(p.stdout:read "l")
      assert.equal(0, assert(p:wait { output = true }).exit_code)
      assert.equal("0\tone\ntwo x\n\n", elsewhere([[
        local q = sandbar.assert(box:attach(arg_1, { from = 0 }))
        print(q:wait().exit_code, (q.stdout:read "a"))
      ]], ref))
    end)

    it("is all there once, in order, for a reader that comes and goes", function()
      local p = assert(box:start("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done", { stdout = "spool" }))
      local all, at = {}, 0
      while true do
        local q = assert(box:attach(p.pid, { from = at }))
        local piece = q.stdout:read(7000)
        q:close()
        if not piece then
          break
        end
        all[#all + 1], at = piece, at + #piece
      end
      local expected = {}
      for i = 0, 2999 do
        expected[i + 1] = "line " .. i .. "\n"
      end
      assert.equal(table.concat(expected), table.concat(all))
    end)

    it("goes on when its reader's stream was cut, nothing twice and nothing missing", function()
      local p = assert(box:start("i=0; while [ $i -lt 20 ]; do echo line $i; sleep 0.05; i=$((i+1)); done",
        { stdout = "spool" }))
      local got = {}
      for line in p.stdout:lines() do
        got[#got + 1] = line
        if #got == 5 then
          box:exec("pkill -9 -f 'sandbar-.*tol[d]'", { user = "root" })
        end
      end
      assert.equal(20, #got)
      assert.equal("line 19", got[20])
    end)

    it("ends with what keeps it, and says so", function()
      local p = assert(box:start("echo on; sleep 7198", { stdout = "spool" }))
      assert.equal("on", p.stdout:read "l")
      assert(box:exec("pkill -9 -f 'drai[n]'", { user = "root" }))
      kind("OutcomeUnknown", p.stdout:read "l")
      assert(p:kill { grace = 0 })
    end)

    it("A-68: goes a minute after the end of its process, and so does every trace of it", function()
      local p
      sandbar.scope(function(scope)
        p = assert(box:start("echo on; exec sleep 7188", { stdout = "spool", scope = scope }))
        assert.equal("on", p.stdout:read "l")
      end)
      local function left()
        return box:exec("ls -d /tmp/.sandbar-* | while read -r d; do grep -l '^" .. p.pid .. " ' $d/id; done").stdout
      end
      assert.are_not.equal("", left())
      local keeper = assert(box:exec("cat $(dirname " .. left():match "[^\n]+" .. ")/keeper")).stdout:match "%d+"
      local waiting = helper.eventually(function() -- for the minute
        return box:exec({ "pgrep", "-P", keeper, "-x", "sleep" }).ok
      end)
      assert.is_truthy(waiting)
      assert.is_truthy(helper.eventually(function() -- once more where a reader has just gone
        assert(box:exec({ "pkill", "-P", keeper, "-x", "sleep" }))
        return left() == ""
      end))
      kind("InvalidArgument", box:attach(p.pid, { from = 0 })) -- nothing is kept of it
    end)

    it("A-77: is not read while the sandbox is paused, which reading does not wake", function()
      local other = assert(boxes:create { lifetime = 60 })
      local p = assert(other:start("echo on; read a; echo $a", { stdin = "pipe", stdout = "spool" }))
      assert.equal("on", p.stdout:read "l")
      assert(other:pause { keep = "memory" })
      kind("NotRunning", p.stdout:read("l", { timeout = 20 }))
      kind("NotRunning", other:attach(p.pid, { from = 0 }))
      assert.equal("paused", boxes:info(other.id).state)
      assert(other:resume())
      local q = assert(other:attach(p.pid, { from = 0 }))
      q.stdin:write "off\n"
      assert.equal("on\noff\n", q.stdout:read("a", { timeout = 20 }))
      assert(other:destroy())
      other:close()
    end)

    it("whose files the user has changed made root hang, read or empty others", function()
      local pid = assert(box:exec("true")).pid
      assert(box:exec("for d in 1 2; do mkdir -m 700 /tmp/.sandbar-$d$d$d$d; done; mkfifo /tmp/.sandbar-1111/id; "
        .. "ln -s /dev/zero /tmp/.sandbar-2222/id; ln -s /tmp/.sandbar-1111 /tmp/.sandbar-3333"))
      assert.equal(0, assert(assert(box:attach(pid, { timeout = 20 })):wait()).exit_code)
      assert(box:exec("rm -r /tmp/.sandbar-1111 /tmp/.sandbar-2222 /tmp/.sandbar-3333"))
      local plant = {
        fifo = { "mv 1.0 x; mkfifo 1.0", "OutcomeUnknown" },
        link = { "mv 1.0 x; ln -s /tmp/secret 1.0", "OutcomeUnknown" },
        keeper = { "mv keeper x; mkfifo keeper", "OutcomeUnknown" },
      }
      assert(box:exec("echo secret >/tmp/secret; chmod 600 /tmp/secret", { user = "root" }))
      for _, way in pairs(plant) do
        local p = assert(box:start("echo on; read a; echo $a", { stdin = "pipe", stdout = "spool" }))
        assert.equal("on", p.stdout:read "l")
        assert(box:exec(("cd $(dirname $(grep -l '^%d ' /tmp/.sandbar-*/id)) && %s"):format(p.pid, way[1])))
        local q = assert(box:attach(p.pid, { from = 0 }))
        kind(way[2], q.stdout:read("l", { timeout = 20 }))
        assert(p:kill { grace = 0 })
      end
      assert.equal("secret\n", assert(box:exec("cat /tmp/secret", { user = "root" })).stdout)
    end)

    it("was not to be read where a killed reader had left its mark under the number that the next one has", function()
      local p = assert(box:start("echo on; read a", { stdin = "pipe", stdout = "spool" }))
      assert.equal("on", p.stdout:read "l")
      assert(box:exec(("cd $(dirname $(grep -l '^%d ' /tmp/.sandbar-*/id)) && "
        .. "perl -e 'symlink \"/\", \"r.$_\" for 1 .. 40000'"):format(p.pid)))
      local q = assert(box:attach(p.pid, { from = 0 }))
      assert.equal("on", q.stdout:read("l", { timeout = 20 }))
      assert(p:kill { grace = 0 })
    end)

    it("cannot be asked for from where there is none", function()
      local p = assert(box:start({ "sleep", "7199" }))
      kind("InvalidArgument", box:attach(p.pid, { from = 0 }))
      kind("Unsupported", box:start("true", { pty = { cols = 80, rows = 24 }, stdout = "spool" }))
      assert(p:kill { grace = 0 })
    end)
  end)

  describe("whose daemon lies or is cut off", function()
    local attach = require "sandbar.attach"
    local link = require "sandbar.e2b.link"
    local message = require "sandbar.e2b.message"
    local server_http = require "sandbar.server.http"

    local START, OVER = { start = { pid = 41 } }, {}

    local function out(text)
      return { data = { stdout = text } }
    end

    local function ended(code)
      return { ["end"] = { exitCode = code, exited = true, status = "exit status " .. code } }
    end

    -- Calls fn(link, asked) with a daemon that answers a list with one process of number 41, whose output is kept if
    -- that is said, and a stream with the events that answer(name, arguments of the helper) gives. Without OVER as the
    -- last one it counts as cut. `asked` counts streams by name.
    local function with_daemon(kept, answer, fn)
      local request = require "sandbar.e2b.request"
      local config = request.start { arg = { "x" }, out_mode = kept and 5 or 1, err_mode = 1, in_mode = 0 }.process
      local asked = { Start = 0, Connect = 0 }
      local function handle(exchange)
        local name = exchange.target:match "[^/]*$"
        local body = exchange:read_all(65536)
        if name == "List" then
          return exchange:respond(200, { ["Content-Type"] = "application/proto" },
            assert(message.encode("process.ListResponse", { processes = { { pid = 41, config = config } } }, "proto")))
        end
        asked[name] = asked[name] + 1
        local args = name == "Start" and assert(message.decode("process.StartRequest", body:sub(6), "proto")).process.args
        exchange:begin(200, { ["Content-Type"] = "application/connect+proto" })
        for _, event in ipairs(answer(name, args)) do
          exchange:write(event == OVER and message.envelope(2, "{}")
            or message.envelope(0, assert(message.encode("process.StartResponse", { event = event }, "proto"))))
        end
        exchange:finish() -- a reset could take along what was sent before
      end
      sandbar.run(function()
        local listener = assert(server_http.listen { address = "127.0.0.1", port = 0 })
        local task = sandbar.spawn(server_http.serve, listener, handle)
        local to = link.new {
          id = "box", limits = {}, driver = {
            access = { vendor_id = "ibox", domain = "x" }, info = function()
              return { fields = { state = { "running" } } }
            end,
            client = { sandbox_url = "http://127.0.0.1:" .. listener:address().port, proxy_for = function() end },
          },
        }
        local before = core.outstanding()
        local ok, why = sandbar.pcall(fn, to, asked)
        to:close()
        while core.outstanding() > before do -- what kills readers needs the daemon
          sandbar.sleep(0.01)
        end
        listener:close()
        task:cancel "enough"
        task:wait()
        assert(ok, why)
      end)
    end

    local IDENTITY = { START, out "boot.1 100\n", ended(0), OVER }

    it("is connected to once, whatever becomes of the stream: what had come, then OutcomeUnknown", function()
      with_daemon(false, function(name)
        return name == "Start" and IDENTITY or { START, out "part" }
      end, function(to, asked)
        local p = assert(attach.attach(to, 41, {}, 5))
        assert.equal("part", p.stdout:read(4))
        kind("OutcomeUnknown", p.stdout:read(1))
        kind("OutcomeUnknown", p:wait())
        assert.same({ Start = 1, Connect = 1 }, asked)
      end)
    end)

    it("and of whose helper nothing can be believed is not the one that a reference means", function()
      for _, said in ipairs { { START, out "nonsense", ended(0), OVER }, { START, ended(1), OVER },
        { START, out "boot.1 101\n", ended(0), OVER } } do
        local ref
        with_daemon(false, function()
          return IDENTITY
        end, function(to)
          ref = assert(assert(attach.attach(to, 41, {}, 5)):reference())
        end)
        with_daemon(false, function()
          return said
        end, function(to, asked)
          kind("NotFound", attach.attach(to, ref, {}, 5))
          assert.equal(0, asked.Connect)
        end)
      end
    end)

    it("gives kept output once and in order, or an error", function()
      local function reading(script, fn)
        local n = 0 -- readers; other helpers kill those that were cut off
        with_daemon(true, function(name, args)
          if name == "Connect" then
            return { START, ended(0), OVER }
          elseif (args[4] or ""):find("$told", 1, true) then
            n = n + 1
            return script(tonumber(args[8]), n)
          end
          return IDENTITY
        end, function(to)
          local p = assert(attach.attach(to, 41, {}, 5))
          fn(p)
          p:close()
        end)
      end
      reading(function(from, n) -- cut in the middle of everything
        return n == 1 and { START, out "0", out "\nabc" } or n == 2 and { START, out(from .. "\nd") } or
          { START, out(from .. "\nef"), ended(0), OVER }
      end, function(p)
        assert.equal("abcdef", p.stdout:read "a")
      end)
      reading(function(_, n) -- something had to go meanwhile
        return n == 1 and { START, out "0\nabc", ended(75), OVER } or { START, out "9\njkl", ended(0), OVER }
      end, function(p)
        local got = {}
        for _, data, offset in p:output() do
          got[#got + 1] = offset .. data
        end
        assert.same({ "0abc", "9jkl" }, got)
      end)
      for code, expected in pairs { [44] = "NotFound", [28] = "NoSpace", [70] = "OutcomeUnknown" } do
        reading(function()
          return { START, out "0\nab", ended(code), OVER }
        end, function(p)
          assert.equal("ab", p.stdout:read(2))
          kind(expected, p.stdout:read(1))
        end)
      end
      reading(function() -- it begins before where it was asked to
        return { START, out "0\nabc", ended(75), OVER }
      end, function(p)
        assert.equal("abc", p.stdout:read(3))
        kind("Protocol", p.stdout:read(1))
      end)
      reading(function() -- twice in a row nothing came
        return { START }
      end, function(p)
        kind("OutcomeUnknown", p.stdout:read(1))
      end)
    end)
  end)
end)
