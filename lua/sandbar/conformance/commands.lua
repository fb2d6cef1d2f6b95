-- Commands that are waited for: what they are given, what comes back, what ends them.

return function(t)
  local it, assert, fails = t.it, t.assert, t.fails
  local sandbar = t.sandbar
  local ok = sandbar.assert

  local function out(...)
    return ok(t.box:exec(...)).stdout
  end

  it("A-52 A-53 A-54: both outputs are bytes, apart, with a last line that has no end", function()
    local r = ok(t.box:exec [[printf '\000\377a\nb'; printf 'bad' >&2; exit 3]])
    assert.equal("\0\255a\nb", r.stdout)
    assert.equal("bad", r.stderr)
    assert.equal(3, r.exit_code)
    assert.is_false(r.ok)
    assert.equal("exit", r.reason)
  end)

  it("A-61 A-62: a line goes through a shell, a list does not, and lists are a pipeline", function()
    assert.equal("1\n2\n", out "echo 1; echo 2")
    assert.equal("a b||$x|*|", out { "printf", "%s|", "a b", "", "$x", "*" })
    assert.equal("a\nb\n", out { { "printf", "b\na\n" }, { "sort" } })
    assert.equal(1, ok(t.box:exec { { "echo", "x" }, { "grep", "y" } }).exit_code)
  end)

  it("A-55 A-56: input is bytes and has an end, however long", function()
    assert.equal("a\0b\255", out("cat", { stdin = "a\0b\255" }))
    assert.equal("1000000\n", out("wc -c", { stdin = ("x"):rep(1000000) }))
    assert.equal("", out "cat")
    local n = 0
    assert.equal("1\n2\n", out("cat", { stdin = function()
      n = n + 1
      return n < 3 and n .. "\n" or nil
    end }))
  end)

  it("A-57 A-58 A-60: directory and variables are as they are given, the values in no command line", function()
    local line = "pwd; echo $A $B; tr '\\0' ' ' </proc/$$/cmdline"
    local text = out(line, { cwd = "/tmp", env = { A = "one", B = sandbar.secret "hidden-value" } })
    assert.truthy(text:find("^/tmp\none hidden%-value\n"))
    assert.is_nil(text:match("\n.*\n(.*)"):find("hidden", 1, true))
  end)

  it("A-59: a clean environment has what is given, and nothing else of the sandbox's", function()
    local text = out({ "env" }, { clean_env = true, env = { ONLY = "this" } })
    assert.truthy(text:find("ONLY=this", 1, true))
    assert.is_nil(text:find("HOME=", 1, true))
  end)

  it("users are as they are asked for", function()
    assert.equal("root\n", out("id -un", { user = "root" }))
  end)

  it("a signal that ended it is told", function()
    local r = ok(t.box:exec "kill -SEGV $$")
    assert.equal(139, r.exit_code)
    assert.equal("SIGSEGV", r.signal)
    assert.equal("signal", r.reason)
  end)

  it("a failure is an error where that is asked for", function()
    local err = fails("CommandFailed", t.box:exec("echo out; exit 4", { check = true }))
    assert.equal(4, err.result.exit_code)
    assert.equal("out\n", err.result.stdout)
  end)

  it("B-31: at the end of its time the whole group is killed, and what there was is told", function()
    local err = fails("ExecTimedOut", t.box:exec("echo part; sleep 6101 & sleep 6101", { timeout = 2 }))
    assert.equal("part\n", err.result.stdout)
    t.eventually_are(0, "sleep 6101")
    local r = ok(t.box:exec("echo part; sleep 6102", { time_limit = 2 }))
    assert.equal("limit", r.reason)
  end)

  it("output beyond the bound is counted, and kills nobody", function()
    local r = ok(t.box:exec("printf 0123456789; printf abcdef >&2; exit 5", { max_output = 4 }))
    assert.equal("0123", r.stdout)
    assert.equal("cdef", r.stderr)
    assert.equal(8, r.dropped)
    assert.is_true(r.truncated)
    assert.equal(5, r.exit_code)
  end)

  it("output is handed on as it comes; a no kills", function()
    local seen = {}
    local r = ok(t.box:exec("echo a; sleep 0.1; echo b >&2; sleep 6103", { on_output = function(data, fd)
      seen[#seen + 1] = fd .. data
      return #seen < 2
    end }))
    assert.same({ "1a\n", "2b\n" }, seen)
    assert.equal("SIGKILL", r.signal)
  end)

  it("outputs are merged, or left", function()
    assert.equal("a\nb\n", out("echo a; echo b >&2", { stderr = "stdout" }))
    local r = ok(t.box:exec("echo a; echo b >&2", { stdout = "ignore" }))
    assert.equal("", r.stdout)
    assert.equal("b\n", r.stderr)
  end)

  it("many run at once", function()
    local all = {}
    for i = 1, 8 do
      all[i] = function()
        return out("echo " .. i)
      end
    end
    local results = ok(sandbar.all(all))
    for i = 1, 8 do
      assert.equal(i .. "\n", results[i])
    end
  end)

  it("what is no command is an error that says so", function()
    assert.is_false(ok(t.box:exec "no-such-program-here").ok)
    fails("InvalidArgument", t.box:exec { "echo", "a\0b" })
    assert.has_error(function()
      t.box:exec(7)
    end)
    assert.has_error(function()
      t.box:exec("true", { no_such_option = 1 })
    end)
  end)
end
