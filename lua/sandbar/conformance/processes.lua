-- Commands that go on: their streams, signals, ends, and finding them again.

return function(t)
  local it, assert, fails = t.it, t.assert, t.fails
  local sandbar = t.sandbar
  local ok = sandbar.assert

  it("B-34: input is taken in order, output read in lines, and the end of input is one", function()
    local p = ok(t.box:start("cat", { stdin = "pipe" }))
    assert.equal(4, p.stdin:write "abc\n")
    assert.equal("abc", p.stdout:read "l")
    assert.equal(3, p.stdin:write "de\n")
    assert.equal("de", p.stdout:read "l")
    p.stdin:close()
    assert.is_nil(p.stdout:read "l")
    assert.equal(0, ok(p:wait()).exit_code)
    assert.is_false(p:running())
  end)

  it("both outputs come as they are written", function()
    local p = ok(t.box:start "echo one; echo two >&2; exit 5")
    local got = { "", "" }
    for fd, data in p:output() do
      got[fd] = got[fd] .. data
    end
    assert.same({ "one\n", "two\n" }, got)
    assert.equal(5, ok(p:wait()).exit_code)
  end)

  it("a read whose time is over takes nothing", function()
    local p = ok(t.box:start("printf ab; read a; echo $a", { stdin = "pipe" }))
    fails("Timeout", p.stdout:read("l", { timeout = 0.5 }))
    p.stdin:write "c\n"
    assert.equal("abc", p.stdout:read "l")
    ok(p:wait())
  end)

  it("B-35: a kill reaches the whole group, first with a word and then without", function()
    local p = ok(t.box:start "trap '' TERM; echo on; sleep 6201 & sleep 6201")
    assert.equal("on", p.stdout:read "l")
    t.eventually_are(2, "sleep 6201")
    assert.equal("SIGKILL", ok(p:kill { grace = 0.2 }).signal)
    t.eventually_are(0, "sleep 6201")
  end)

  it("signals are delivered, and what was is told", function()
    local p = ok(t.box:start "trap 'echo usr; exit 9' USR1; echo on; while :; do sleep 0.05; done")
    assert.equal("on", p.stdout:read "l")
    assert.equal("SIGUSR1", ok(p:signal "USR1").signal)
    assert.equal("usr", p.stdout:read "l")
    assert.equal(9, ok(p:wait()).exit_code)
    assert.same({ signal = "SIGUSR1", count = 0 }, ok(p:signal "USR1"))
    assert.same({ signal = "SIGUSR1", count = 0 }, ok(p:signal("USR1", { group = true })))
  end)

  it("one ends with its scope, and goes on where it was let go", function()
    local kept
    sandbar.scope(function(scope)
      ok(t.box:start({ "sleep", "6202" }, { scope = scope }))
      kept = ok(t.box:start({ "sleep", "6203" }, { scope = scope, detached = true })).pid
      t.eventually_are(1, "sleep 6202")
    end)
    t.eventually_are(0, "sleep 6202")
    ok(t.box:exec({ "kill", tostring(kept) }, { check = true }))
  end)

  it("one is listed as it was asked for, found by number, tag and reference, and only by whom it fits", function()
    local p = ok(t.box:start({ "sleep", "6204" }, { tag = "conformance" }))
    local found
    for _, info in ipairs(ok(t.box:processes())) do
      found = info.pid == p.pid and info or found
    end
    assert.same({ "sleep", "6204" }, found.args)
    assert.equal("conformance", found.tag)
    local reference = ok(p:reference())
    for _, target in ipairs { p.pid, reference, { tag = "conformance" } } do
      local q = ok(t.box:attach(target))
      assert.equal(p.pid, q.pid)
      q:close()
    end
    fails("NotFound", t.box:attach(reference, { expect = { cwd = "/no/such" } }))
    fails("NotFound", t.box:attach { tag = "of nobody" })
    fails("NotFound", t.box:attach(4194303))
    ok(p:kill { grace = 0 })
  end)

  it("a terminal is typed at and resized", function()
    t.needs "pty"
    local line = "stty -echo; stty size; read a; echo got $a; stty size"
    local p = ok(t.box:start(line, { pty = { cols = 100, rows = 30 } }))
    assert.equal("30 100\r", p.stdout:read "l")
    ok(p:resize { cols = 90, rows = 20 })
    p.stdin:write "typed\n"
    assert.equal("got typed\r", p.stdout:read "l")
    assert.equal("20 90\r", p.stdout:read "l")
    ok(p:wait())
  end)

  it("kept output is read from any offset, by any reader, nothing twice and nothing missing", function()
    t.needs "spool"
    local p = ok(t.box:start("printf 0123456789; read a; printf abc", { stdout = "spool", stdin = "pipe" }))
    local reference = ok(p:reference())
    local function from(offset)
      local q = ok(t.box:attach(reference, { from = offset }))
      local text = q.stdout:read(10 - offset)
      q:close()
      return text
    end
    assert.equal("0123456789", from(0))
    assert.equal("456789", from(4))
    p.stdin:write "\n"
    p.stdin:close()
    ok(p:wait())
  end)
end
