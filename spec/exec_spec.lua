local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("box:exec", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn, spec)
    inside.with_box(sandboxes, fn, spec)
  end

  it("runs a string as a shell line and a list without a shell (B-26, B-29)", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("echo $((1 + 2)); echo err >&2"))
      assert.equal("3\n", r.stdout)
      assert.equal("err\n", r.stderr)
      assert.is_true(r.ok)
      r = sandbar.assert(box:exec { "printf", "%s|", "$HOME", "a b", "" })
      assert.equal("$HOME|a b||", r.stdout)
    end)
  end)

  it("gives the whole record", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("exit 3"))
      assert.equal(3, r.exit_code)
      assert.is_false(r.ok)
      assert.is_nil(r.signal)
      assert.equal("exit", r.reason)
      assert.equal("", r.stdout)
      assert.equal("", r.stderr)
      assert.is_false(r.truncated)
      assert.equal(0, r.dropped)
      assert.is_true(r.pid > 1)
      assert.is_true(r.duration > 0 and r.duration < 10)
    end)
  end)

  it("tells signals by name and by 128 + n, and exit 137 without a signal (B06)", function()
    with_box(function(box)
      for name, number in pairs { TERM = 15, KILL = 9, SEGV = 11 } do
        local r = sandbar.assert(box:exec("kill -" .. name .. " $$"))
        assert.equal("SIG" .. name, r.signal)
        assert.equal(128 + number, r.exit_code)
        assert.equal("signal", r.reason)
        assert.is_false(r.ok)
      end
      for _, code in ipairs { 0, 1, 7, 126, 127, 130, 137, 255 } do
        local r = sandbar.assert(box:exec("exit " .. code))
        assert.equal(code, r.exit_code)
        assert.is_nil(r.signal)
        assert.equal("exit", r.reason)
      end
    end)
  end)

  it("makes a non-zero exit an error only with check (B-28)", function()
    with_box(function(box)
      assert.equal(1, sandbar.assert(box:exec("exit 1")).exit_code)
      local r, err = box:exec("echo out; exit 4", { check = true })
      assert.is_nil(r)
      assert.equal("exec: the command exited with 4 (CommandFailed)", tostring(err))
      assert.equal(4, err.result.exit_code)
      assert.equal("out\n", err.result.stdout)
      -- Once nothing of what the command had said about it was shown.
      r, err = box:exec("echo first >&2; printf 'no such thing\\n\\n ' >&2; exit 4", { check = true })
      assert.equal("exec: the command exited with 4: no such thing (CommandFailed)", tostring(err))
      assert.is_nil(r)
      r, err = box:exec("head -c 5000 /dev/zero | tr '\\0' x >&2; exit 4", { check = true })
      assert.is_nil(r)
      assert.equal("the command exited with 4: " .. ("x"):rep(200), err.message)
      assert.is_true(sandbar.assert(box:exec("true", { check = true })).ok)
    end)
  end)

  it("looked at stderr for as long as the command chose, and showed half a secret", function()
    local function shows(expected, stderr)
      local result = { ok = false, exit_code = 1, stderr = stderr }
      local _, err = require("sandbar.exec").finish(result, { check = true })
      assert.equal("the command exited with 1" .. expected, err.message)
    end
    for written, expected in pairs { [""] = "", [" \n"] = "", ["a\rb"] = ": b", ["only"] = ": only" } do
      shows(expected, written)
    end
    local secret = sandbar.secret("-----BEGIN\nhush-hush\n-----END")
    shows(": it is [redacted]", "it is -----BEGIN\nhush-hush\n-----END")
    local line = ("z"):rep(190)
    shows(": " .. line .. "[redacted]", "said\n" .. line .. "-----BEGIN\nhush-hush\n-----END of it")
    assert.is_truthy(secret)
    shows(": last", (("y"):rep(63) .. "\n"):rep(2000) .. "last\n")
    for _, written in ipairs { "\n", " ", "\r\n", "x", "x\n", "x " } do -- once, years in one call in C
      shows(": the end", written:rep(500000) .. "\n the end \n \r\n")
    end
  end)

  it("kills the whole tree at the timeout and says so (B-31, B11)", function()
    with_box(function(box)
      local seconds, r, err
      seconds = helper.timed(function()
        r, err = box:exec("echo started; trap '' TERM; sleep 341 & sleep 341 & wait", { timeout = 0.5 })
      end)
      assert.is_nil(r)
      assert.equal("ExecTimedOut", err.kind)
      assert.equal("timeout", err.clock)
      assert.equal("timeout", err.result.reason)
      assert.equal("started\n", err.result.stdout)
      assert.is_false(err.result.ok)
      assert.is_true(seconds < 3)
      assert.equal(0, inside.count(box, "sleep 341"))
    end)
  end)

  it("tells its own clock from time_limit, which is no error", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("sleep 30", { time_limit = 0.3 }))
      assert.equal("limit", r.reason)
      assert.is_false(r.ok)
    end)
  end)

  it("takes cwd, env, clean_env and user", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("pwd; printf %s \"$X\"", { cwd = "/tmp", env = { X = "a b\n$y" } }))
      assert.equal("/tmp\na b\n$y", r.stdout)
      r = sandbar.assert(box:exec({ "/usr/bin/env" }, { clean_env = true, env = { ONLY = "1" } }))
      assert.equal("ONLY=1\n", r.stdout)
      r = sandbar.assert(box:exec("id -u; echo $HOME $USER $LOGNAME"))
      assert.equal("1000\n/home/user user user\n", r.stdout)
      assert.equal("/home/user\n", sandbar.assert(box:exec("pwd")).stdout)
    end)
  end)

  it("knows what became of the usual user before the first command, looked up ahead or not", function()
    with_box(function(box)
      sandbar.assert(box.files:write("/etc/passwd", "user:x:1000:1000::/var:/bin/sh\n", { user = "root" }))
      assert.equal("/var\n", sandbar.assert(box:exec("pwd")).stdout)
    end)
  end)

  it("looks a user up anew once the files of users have changed", function()
    with_box(function(box)
      local function whoami()
        local r = sandbar.assert(box:exec("echo $HOME; id -G", { user = "visitor" }))
        return (r.stdout:gsub("%s+", " "))
      end
      local function change(line)
        sandbar.assert(box:exec(line, { user = "root", check = true }))
      end
      change("echo visitor:x:1000:1000::/tmp:/bin/sh >> /etc/passwd; touch /etc/group")
      assert.equal("/tmp 1000 ", whoami())
      -- in place, as long as before, and within one tick of the clock of files
      for _, home in ipairs { "/var", "/usr", "/dev", "/tmp" } do
        change("sed s,:/[a-z]*:/bin/sh$,:" .. home .. ":/bin/sh, /etc/passwd > /tmp/p; cat /tmp/p > /etc/passwd")
        assert.equal(home .. " 1000 ", whoami())
      end
      sandbar.assert(box:exec { "sleep", "0.2" }) -- old enough to be remembered
      assert.equal("/tmp 1000 ", whoami())
      assert.equal("/tmp 1000 ", whoami())
      change("sed s,:/tmp:,:/var:, /etc/passwd > /tmp/p; cat /tmp/p > /etc/passwd")
      assert.equal("/var 1000 ", whoami())
      change("sed /^visitor/d /etc/passwd > /tmp/p; mv /tmp/p /etc/passwd; chmod 644 /etc/passwd")
      local _, err = box:exec({ "true" }, { user = "visitor" })
      assert.equal("InvalidArgument", err.kind)
    end)
  end)

  it("gives a secret to the command and to nobody else", function()
    with_box(function(box)
      local secret = sandbar.secret("hunter2hunter2")
      local r = sandbar.assert(box:exec("printf %s \"$TOKEN\" | wc -c", { env = { TOKEN = secret } }))
      assert.equal(14, tonumber(r.stdout))
      for _, p in ipairs(sandbar.assert(box:processes())) do
        assert.is_nil(table.concat(p.args, " "):find("hunter2", 1, true))
      end
    end)
  end)

  it("uses another shell and a login shell when told (contract 5)", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("echo $0", { shell = "/bin/bash" }))
      assert.equal("/bin/bash\n", r.stdout)
      r = sandbar.assert(box:exec("shopt -q login_shell && echo login", { shell = "/bin/bash", login = true }))
      assert.equal("login\n", r.stdout)
      local _, err = box:exec({ "true" }, { shell = "/bin/bash" })
      assert.equal("InvalidArgument", err.kind)
    end)
  end)

  it("runs pipelines: the last stage's exit counts (A-61)", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec({ { "printf", "b\\na\\n" }, { "sort" }, { "head", "-n", "1" } }))
      assert.equal("a\n", r.stdout)
      assert.is_true(r.ok)
      assert.equal(5, sandbar.assert(box:exec { { "true" }, { "sh", "-c", "cat; exit 5" } }).exit_code)
      assert.equal(0, sandbar.assert(box:exec { { "false" }, { "cat" } }).exit_code)
    end)
  end)

  it("merges, ignores and separates streams", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("echo a; echo b >&2", { stderr = "stdout" }))
      assert.equal("a\nb\n", r.stdout)
      assert.equal("", r.stderr)
      r = sandbar.assert(box:exec("echo a; echo b >&2", { stdout = "ignore" }))
      assert.equal("", r.stdout)
      assert.equal("b\n", r.stderr)
    end)
  end)

  it("fails with what its source of input fails with, and the command is gone", function()
    with_box(function(box)
      local n = 0
      local r, err = box:exec("cat; sleep 4242", { stdin = function()
        n = n + 1
        if n == 1 then
          return "half"
        end
        return nil, "the tape is torn", 5
      end })
      assert.is_nil(r)
      assert.equal("exec", err.op)
      assert.equal("EIO", err.code)
      assert.is_truthy(tostring(err):find("the tape is torn", 1, true))
      assert.is_false(err.result.ok)
      local f = sandbar.assert(box.files:open("f", "w"))
      f:close()
      r, err = box:exec("cat", { stdin = f })
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
      local host = assert(io.open("/tmp"))
      r, err = box:exec("cat", { stdin = host })
      host:close()
      assert.is_nil(r)
      assert.equal("EISDIR", err.code)
      local ok, raised = pcall(function() box:exec("cat", { stdin = host }) end)
      assert.is_false(ok)
      assert.matches("bad option 'stdin' to 'exec' %(closed file%)", raised)
      assert.equal("", sandbar.assert(box:exec("pgrep -fx 'sleep 4242'")).stdout)
    end)
  end)

  it("feeds stdin from a string, a function and a file (B-30)", function()
    with_box(function(box)
      assert.equal("x\0y", sandbar.assert(box:exec({ "cat" }, { stdin = "x\0y" })).stdout)
      assert.equal("", sandbar.assert(box:exec({ "cat" }, { stdin = "" })).stdout)
      local n = 0
      local r = sandbar.assert(box:exec({ "wc", "-c" }, { stdin = function()
        n = n + 1
        return n <= 100 and ("z"):rep(1000) or nil
      end }))
      assert.equal(100000, tonumber(r.stdout))
      local name = helper.write_file(helper.dir() .. "/in", ("line\n"):rep(1000))
      local f = assert(io.open(name, "rb"))
      r = sandbar.assert(box:exec({ "wc", "-l" }, { stdin = f }))
      f:close()
      assert.equal(1000, tonumber(r.stdout))
    end)
  end)

  it("calls on_output as output arrives, in the calling coroutine", function()
    with_box(function(box)
      local got, fds = {}, {}
      local line = "heard() { until [ -e $1 ]; do sleep 0.01; done; }; echo a; heard 1; echo b >&2; heard 2; echo c"
      local r = sandbar.assert(box:exec(line, {
        on_output = function(data, fd)
          got[#got + 1], fds[fd] = data, true
          sandbar.assert(box.files:write(tostring(#got), ""))
        end,
      }))
      assert.equal("a\nb\nc\n", table.concat(got))
      assert.is_true(fds[1] and fds[2])
      assert.equal("a\nc\n", r.stdout)
      assert.equal("b\n", r.stderr)
    end)
  end)

  it("kills when on_output says false, and when it raises, raising it again (B47)", function()
    with_box(function(box)
      local r = sandbar.assert(box:exec("yes", { on_output = function() return false end }))
      assert.equal("SIGKILL", r.signal)
      local mark = {}
      local ok, raised = pcall(box.exec, box, "yes 343", { on_output = function() error(mark, 0) end })
      assert.is_false(ok)
      assert.equal(mark, raised)
      assert.equal(0, inside.count(box, "yes"))
    end)
  end)

  it("takes the timeout on the streaming road too", function()
    with_box(function(box)
      local r, err = box:exec("echo begun; sleep 30", { timeout = 0.4, on_output = function() end })
      assert.is_nil(r)
      assert.equal("ExecTimedOut", err.kind)
      assert.equal("begun\n", err.result.stdout)
    end)
  end)

  it("truncates per stream, keeping the tail of stderr, on both roads (B07)", function()
    with_box(function(box)
      local line = "head -c 200000 /dev/zero | tr '\\0' x; head -c 200000 /dev/zero | tr '\\0' y >&2; echo FATAL >&2"
      for _, on_output in ipairs { false, function() end } do
        local r = sandbar.assert(box:exec(line, { max_output = 100000, on_output = on_output or nil }))
        assert.is_true(r.truncated)
        assert.equal(100000, #r.stdout)
        assert.equal(100000, #r.stderr)
        assert.equal("FATAL\n", r.stderr:sub(-6))
        assert.equal(200006, r.dropped)
        assert.is_true(r.ok)
      end
    end)
  end)

  it("runs many at once", function()
    with_box(function(box)
      local fns = {}
      for i = 1, 20 do
        fns[i] = function()
          return sandbar.assert(box:exec("echo " .. i)).stdout
        end
      end
      local results = sandbar.assert(sandbar.all(fns))
      for i = 1, 20 do
        assert.equal(i .. "\n", results[i])
      end
    end)
  end)

  it("a pipe that is full of very little does not stop the command for ever", function()
    with_box(function(box)
      local program = (os.getenv("SPEC_BUILD") or "build") .. "/spec/splicer"
      sandbar.assert(box.files:upload(program, "/home/user/splicer"))
      sandbar.assert(box.files:chmod("/home/user/splicer", "755"))
      local r = sandbar.assert(box:exec({ "./splicer", "splicer", "200" }, { timeout = 20 }))
      assert.equal(200, #r.stdout)
    end)
  end)

  it("refuses what it cannot do by name", function()
    with_box(function(box)
      for option, value in pairs { stdout = "inherit", stderr = "inherit" } do
        local r, err = box:exec("true", { [option] = value })
        assert.is_nil(r)
        assert.equal("Unsupported", err.kind)
        assert.is_truthy(err.message:find(option, 1, true))
      end
    end)
  end)

  it("spoke of an argument 3 where the program had given one line, and of a hole where options had slipped in", function()
    with_box(function(box)
      for cmd, message in pairs {
        ["echo \0"] = "exec: cmd: the shell line contains a zero byte (InvalidArgument)",
        [("x"):rep(131072)] = "exec: cmd: the shell line has 131072 bytes; one argument may have at most 131071 "
          .. "(use stdin or a file) (LimitExceeded)",
        [{ "echo", "\0" }] = "exec: cmd: argument 2 contains a zero byte (InvalidArgument)",
        [{ "pwd", cwd = "/tmp" }] = "exec: cmd: the list has a key \"cwd\"; options are the next argument (InvalidArgument)",
        [{ "echo", [3] = "x" }] = "exec: cmd: the list has a hole (InvalidArgument)",
      } do
        local r, err = box:exec(cmd)
        assert.is_nil(r)
        assert.equal(message, tostring(err))
      end
      local _, why = pcall(function() box:attach { pid = 5 } end)
      assert.matches("exec_spec%.lua:%d+: bad argument #1 to 'attach' "
        .. "%(unknown option 'pid'; a number is given as it is: attach%(pid%)%)", why)
    end)
  end)

  it("refused stdout = \"tail\", which its types had, and did not say what it takes", function()
    with_box(function(box)
      local _, err = box:exec("true", { stdout = "tail" })
      assert.equal("exec: stdout = \"tail\" is for start; exec waits for its output and gives it back (Unsupported)",
        tostring(err))
      _, err = box:exec("true", { stderr = "stdin" })
      assert.equal("exec: stderr: \"stdin\" is none of \"pipe\", \"ignore\", \"stdout\" (InvalidArgument)", tostring(err))
      _, err = box:start("true", { stdout = "file" })
      assert.equal("start: stdout: \"file\" is none of \"pipe\", \"ignore\", \"tail\", \"spool\" (InvalidArgument)", tostring(err))
    end)
  end)

  it("raises for wrong types wherever they are, at the caller's line", function()
    with_box(function(box)
      for what, args in pairs {
        timeout = { "true", { timeout = {} } },
        ["'timeout'"] = { "true", { timeout = true } },
        time_limit = { "true", { time_limit = {} } },
        ["element 2: string"] = { { "ls", {} } },
        ["element 1: string"] = { { { "ls" }, { true } } },
        ["element 2: table"] = { { { "ls" }, "wc" } },
        ["'A': string or secret"] = { "true", { env = { A = 1 } } },
        ["strings expected as keys"] = { "true", { env = { "A" } } },
      } do
        for _, name in ipairs { "exec", "start" } do
          local ok, err = pcall(function()
            box[name](box, args[1], args[2])
            return nil
          end)
          assert.is_false(ok, what)
          assert.is_truthy(err:find("exec_spec.lua:%d+: bad argument #%d to '" .. name), err)
          assert.is_truthy(err:find(what, 1, true), err)
        end
      end
    end)
  end)

  it("raises for misuse at the caller's line, naming the nearest option", function()
    with_box(function(box)
      local ok, err = pcall(function()
        box:exec("true", { timeuot = 3 })
      end)
      assert.is_false(ok)
      assert.is_truthy(err:find("exec_spec.lua:%d+:"))
      assert.is_truthy(err:find("timeout", 1, true))
      assert.has_error(function() box:exec(42) end)
      assert.has_error(function() box:exec("true", { stdin = 42 }) end)
    end)
  end)
end)
