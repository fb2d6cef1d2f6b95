-- check: only 5.4
-- What a provider says that it can do, what of it is measured, and what a program makes depend on it.
local helper = require "spec.helper"
local measuring = require "sandbar.measuring"
local sandbar = require "sandbar"

describe("capabilities", function()
  helper.guard()

  local sandboxes
  before_each(function()
    sandboxes = helper.open()
  end)

  local function clause(told, name)
    for _, c in ipairs(told.clauses) do
      if c.clause == name then
        return c
      end
    end
  end

  it("are measured in a sandbox, with what was tried and what came back", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local before = sandbar.assert(box.files:list("/tmp"))
    local have = sandbar.assert(sandboxes:capabilities { measure = box, timeout = 60 })
    local expected = {
      workspace_coherent = true, filesystem_isolated = true, process_isolated = true, network_isolated = true,
      egress_restricted = true, privilege_isolated = true, append = true, atomic_write = true, open_files = true,
      xattrs = true, watch = true, pty = true, output_tail = true, spool = true, signals = "all",
    }
    for name, value in pairs(expected) do
      local m = have.measured[name]
      assert.is_truthy(m, name)
      assert.equal(value, m.value, name .. ": " .. m.evidence)
      assert.equal(value, have[name], name)
      assert.is_true(math.abs(m.at - os.time()) < 120)
    end
    local kill = have.measured.tree_kill -- what is claimed holds; what was seen once may be better
    assert.is_true(kill.value == "exact" or kill.value == have.tree_kill, kill.evidence)
    assert.equal("sent HUP, USR1, TERM, KILL; ended by HUP, USR1, TERM, KILL", have.measured.signals.evidence)
    assert.is_truthy(have.measured.privilege_isolated.evidence:find("all refused", 1, true))
    -- As it was before.
    assert.equal(#before, #sandbar.assert(box.files:list("/tmp")))
    for _, p in ipairs(sandbar.assert(box:processes())) do
      assert.is_false(p.running, p.pid)
    end
    box:destroy()
  end)

  it("are measured of a sandbox that shows what it should not as well", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    -- Somebody in between says what a command without any isolation would.
    local lying = setmetatable({ files = box.files }, {
      __index = function(_, name)
        return function(_, cmd, opts)
          if type(cmd) == "string" then
            local text = cmd:find("CapEff", 1, true) and "CapEff: 000001ffffffffff NoNewPrivs: 0 Seccomp: 0 user 1000"
              or cmd:find("try mount", 1, true) and "mount\nunshare\n"
              or cmd:find("/net/dev", 1, true) and "lo eth0 "
              or cmd:find("/net/route", 1, true) and "eth0\nlo\n"
              or cmd:find("/proc/1/comm", 1, true) and "143\nsystemd\n"
            if text then
              return { ok = true, exit_code = 0, stdout = text }
            end
          end
          return box[name](box, cmd, opts)
        end
      end,
    })
    local measured = sandbar.assert(measuring.all(lying))
    for _, name in ipairs { "privilege_isolated", "network_isolated", "egress_restricted", "process_isolated" } do
      assert.is_false(measured[name].value, name .. ": " .. measured[name].evidence)
    end
    assert.is_truthy(measured.privilege_isolated.evidence:find("mount unshare worked", 1, true))
    box:destroy()
  end)

  it("are measured of a sandbox whose commands are root's as well", function()
    local box = sandboxes:create_scoped { user = "root" }
    if not box or not box:exec({ "true" }) then
      helper.skip("there is no root inside with a single id")
    end
    local m = sandbar.assert(sandboxes:capabilities { measure = box, timeout = 60 }).measured.privilege_isolated
    assert.is_true(m.value, m.evidence)
    assert.is_truthy(m.evidence:find("user 0;", 1, true), m.evidence)
    box:destroy()
  end)

  it("that were measured as less than they are claimed were expected all the same", function()
    local weak = sandbar.assert(sandboxes:create_scoped { env = { PATH = "/home/user/bin:/usr/bin:/bin" } })
    sandbar.assert(weak.files:write("/home/user/bin/stty", "#!/bin/sh\necho no\27[31m terminal\n", { mode = "755" }))
    local have = sandbar.assert(sandboxes:capabilities { measure = weak, timeout = 60 })
    assert.is_true(have.pty) -- a claim stays one
    assert.is_false(have.measured.pty.value)
    local box, err = sandboxes:create { expect = { "pty", "watch" } }
    assert.is_nil(box)
    assert.equal("Unsupported", err.kind)
    assert.equal("expect.pty", err.clause)
    assert.is_truthy(tostring(err):find("pty is false here, it is wanted (measured: a terminal of 81 columns", 1, true), tostring(err))
    assert.is_nil(tostring(err):find("%c"))
    local told = sandbar.assert(sandboxes:explain { expect = { "pty", tree_kill = have.tree_kill } })
    assert.equal("refused", clause(told, "expect.pty").verdict)
    assert.equal("enforced", clause(told, "expect.tree_kill").verdict)
    weak:destroy()
    -- In one that is as it should be they are measured again.
    local good = sandbar.assert(sandboxes:create_scoped {})
    sandbar.assert(sandboxes:capabilities { measure = good, timeout = 60 })
    sandbar.assert(sandboxes:create_scoped { expect = { "pty", tree_kill = have.tree_kill, signals = "all" } }):destroy()
    good:destroy()
  end)

  it("are not measured for longer than the call may take", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local took, err = helper.timed(function()
      return select(2, sandboxes:capabilities { measure = box, timeout = 0.05 })
    end)
    assert.is_true(took < 5)
    assert.equal("Timeout", err.kind)
    assert.equal(0.05, err.limit)
    box:destroy()
  end)

  it("were told as measured, none of them, of a sandbox in which nothing can run", function()
    local box = sandbar.assert(sandboxes:create {})
    local function refused(kind)
      local have, err = sandboxes:capabilities { measure = box }
      assert.is_nil(have)
      assert.equal(kind, err.kind)
    end
    box:pause()
    refused("NotRunning")
    box:destroy()
    refused("NotFound")
    box:close()
    refused("Closed")
  end)

  it("are asked for and expected by names: everything else is told at the caller's line, in short", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local cycle, huge, deep, long = {}, {}, {}, ("x"):rep(1000000)
    cycle[1], cycle.pty = cycle, cycle
    for i = 1, 50000 do
      huge[i], huge["x" .. i] = "flying" .. i, true
    end
    local at = deep
    for _ = 1, 10000 do
      at[1] = {}
      at = at[1]
    end
    local raising = setmetatable({ 1 }, { __tostring = error, __len = error, __concat = error, __eq = error, __lt = error })
    local others = { cycle, huge, deep, raising, print, 1, 0 / 0, coroutine.create(print), io.stdout, box,
      sandbar.secret("hidden") }

    local function raises(fn, what)
      local ok, err = pcall(fn)
      assert.is_false(ok)
      assert.is_truthy(tostring(err):find("^spec/capabilities_spec.lua:%d+: bad argument #1 to '%a+' "), tostring(err))
      assert.is_truthy(err:find(what, 1, true), err)
      assert.is_nil(err:find("hidden", 1, true))
      assert.is_true(#err < 300, err)
    end
    for _, v in ipairs(others) do
      if v ~= box then
        raises(function() return (sandboxes:capabilities { measure = v }) end, "option 'measure'")
      end
      raises(function() return (sandboxes:capabilities(v)) end, "")
      for _, fn in ipairs { sandboxes.create, sandboxes.explain } do
        raises(function() return (fn(sandboxes, { expect = { v } })) end, "option 'expect'")
        raises(function() return (fn(sandboxes, { expect = { pty = v } })) end, "option 'expect'")
        if v == v then -- what is not itself is no key
          raises(function() return (fn(sandboxes, { providers = { ["local"] = { expect = { [v] = true } } } })) end,
            "option 'expect'")
        end
      end
    end
    raises(function() return (sandboxes:capabilities { measured = box }) end, "unknown option 'measured'")
    raises(function() return (sandboxes:explain { expects = {} }) end, "unknown option 'expects'")
    raises(function() return (sandboxes:explain { prepare = { print } }) end, "option 'prepare': element 1")

    for _, expect in ipairs { huge, { long }, { [long] = true }, { pty = long }, { "pty\0" }, { ["pty\0x"] = true },
      { pty = "\27[31m" }, { "" } } do
      local took, box_or_nil, err = helper.now(), sandboxes:create { expect = expect }
      assert.is_nil(box_or_nil)
      assert.is_true(helper.now() - took < 5)
      assert.is_truthy(err.kind == "InvalidArgument" or err.kind == "Unsupported", tostring(err))
      local told = sandbar.assert(sandboxes:explain { expect = expect })
      assert.is_false(told.ok)
      for _, text in ipairs { tostring(err), told.clauses[#told.clauses].message } do
        assert.is_true(#text < 300, text)
        assert.is_nil(text:find("[%z\1-\31\127]"), text)
      end
    end
    -- A table of somebody else's is read as it is.
    local own = setmetatable({ "pty" }, { __index = function() return "flying" end })
    assert.is_true(sandbar.assert(sandboxes:explain { expect = own }).ok)
    assert.equal(1, #sandbar.assert(sandboxes:list()))
    box:destroy()
  end)

  it("are told as unknown where a step fails", function()
    -- A kill that spares what has left the session, and a disk that takes nothing.
    local box = {
      files = { temp_dir = function() return nil, "no room" end },
      start = function(self)
        return {
          stdout = { read = function() return "" end },
          signal = function() return nil, "no" end,
          wait = function() return nil, "no" end,
          kill = function() return {} end,
          close = function() return self end,
        }
      end,
      attach = function() return nil, "no" end,
      exec = function(_, cmd)
        if type(cmd) == "string" and cmd:find("987", 1, true) then
          return { ok = true, stdout = "987652\n" }
        end
        return nil, { kind = "Closed" }
      end,
    }
    local measured = measuring.all(box)
    assert.equal("descendants", measured.tree_kill.value)
    assert.is_truthy(measured.tree_kill.evidence:find("an orphan in one yes", 1, true))
    for _, name in ipairs { "append", "workspace_coherent", "xattrs", "filesystem_isolated", "signals" } do
      assert.is_nil(measured[name], name)
    end
  end)

  it("that are expected and not there refuse a create before anything is made, with every reason", function()
    local spec = { id = "wanting", expect = { "process_isolated", "memory_survives_reboot", "signed_urls" } }
    local box, err = sandboxes:create(spec)
    assert.is_nil(box)
    assert.equal("Unsupported", err.kind)
    assert.equal("expect.memory_survives_reboot", err.clause)
    assert.equal(2, #err.reasons)
    assert.equal("expect.signed_urls", err.reasons[2].clause)
    assert.is_truthy(tostring(err):find("signed_urls is false here, it is wanted", 1, true))
    assert.same({}, sandbar.assert(sandboxes:list()))

    local told = sandbar.assert(sandboxes:explain(spec))
    assert.is_false(told.ok)
    assert.equal("enforced", clause(told, "expect.process_isolated").verdict)
    assert.equal("refused", clause(told, "expect.signed_urls").verdict)

    err = select(2, sandboxes:create { expect = { tree_kill = "group", pty = true } })
    assert.equal("expect.tree_kill", err.clause)
    assert.equal(1, #err.reasons)
    err = select(2, sandboxes:create { expect = { "flying" } })
    assert.equal("InvalidArgument", err.kind)

    box = sandbar.assert(sandboxes:create_scoped { expect = { "pty", process_isolated = true, signals = "all" } })
    box:destroy()
  end)

  it("that the host's operator attests are the ones that count: what he does not name is false", function()
    local attested = helper.open { capabilities = { process_isolated = true, tree_kill = "group" } }
    local have = sandbar.assert(attested:capabilities())
    assert.is_true(have.process_isolated)
    assert.equal("group", have.tree_kill)
    assert.is_false(have.pty)
    local err = select(2, attested:create { expect = { "pty" } })
    assert.equal("expect.pty", err.clause)
    -- A lie is seen by measuring.
    local box = sandbar.assert(attested:create_scoped { expect = { tree_kill = "group" } })
    have = sandbar.assert(attested:capabilities { measure = box })
    assert.equal("group", have.tree_kill)
    assert.is_true(have.measured.pty.value)
    assert.are_not.equal("group", have.measured.tree_kill.value)
    box:destroy()
  end)

  it("of the machine decide what explain says of a spec that is right in itself", function()
    local weak = helper.open { capabilities = { process_isolated = true } }
    local told = sandbar.assert(weak:explain { network = { allow = { "example.org" } }, allow_setuid = true })
    assert.is_false(told.ok)
    assert.equal("refused", clause(told, "network").verdict)
    assert.equal("Unsupported", clause(told, "network").kind)
    assert.equal("refused", clause(told, "allow_setuid").verdict)
    told = sandbar.assert(weak:explain { network = { allow = {} }, allow_setuid = false })
    assert.is_true(told.ok)
    assert.equal("enforced", clause(told, "network").verdict)
    local have = sandbar.assert(sandboxes:capabilities())
    told = sandbar.assert(sandboxes:explain { network = "allow", allow_setuid = true })
    assert.equal(have.name_rules and "enforced" or "refused", clause(told, "network").verdict)
    assert.equal(have.setuid and "enforced" or "refused", clause(told, "allow_setuid").verdict)
  end)
end)
