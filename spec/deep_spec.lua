-- check: only 5.4
-- check: no asan
-- Trees that are deeper than any path and larger than the time there is: a snapshot takes them whole, or is given up and
-- leaves nothing behind.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("a tree without measure", function()
  helper.guard()

  local sandboxes = helper.open()

  local function run(box, code, ...)
    local r = sandbar.assert(box:exec({ "python3", "-c", code, ... }, { timeout = 60 }))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
  end

  local function create(spec)
    return sandbar.assert(sandboxes:create_scoped(spec or {}))
  end

  -- A file at the top and at the bottom that are one, and a note and a mode on each level.
  local MAKE = [[
import os, sys
deep = int(sys.argv[2])
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])
open("first", "w").write("the same")
top = os.open(".", os.O_RDONLY)
for i in range(deep):
    name = ("%06d" % i) + "d" * 244
    os.mkdir(name); os.chdir(name)
    if i % 50 == 0: open("note", "w").write(str(i)); os.mkdir("z"); os.mkdir("a")
    os.chmod(".", 0o700 if i % 2 else 0o755)
os.link("first", "last", src_dir_fd=top)
]]
  -- How deep it goes, and whether all is there.
  local LOOK = [[
import os, sys
os.chdir(sys.argv[1])
first, i = os.stat("first").st_ino, 0
while True:
    below = [n for n in os.listdir(".") if n[-1] == "d"]
    if not below: break
    os.chdir(below[0])
    assert below[0][:6] == "%06d" % i
    assert os.stat(".").st_mode & 0o777 == (0o700 if i % 2 else 0o755)
    if i % 50 == 0: assert open("note").read() == str(i) and {"a", "note", "z"} < set(os.listdir("."))
    i += 1
print(i, open("last").read(), os.stat("last").st_ino == first)
]]

  it("that is deeper than a path can tell is in a snapshot, of whatever state", function()
    local box = create()
    local function same(of)
      assert.equal("1050 the same True\n", run(of, LOOK, "t"))
      assert.equal("200 the same True\n", run(of, LOOK, "u"))
    end
    run(box, MAKE, "t", "1050")
    run(box, MAKE, "u", "200")
    same(box)
    sandbar.assert(box:snapshot("running"))
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:snapshot("stopped"))
    box:close()
    for _, name in ipairs { "running", "stopped" } do
      local copy = create { snapshot = name }
      same(copy)
      copy:close()
    end
    -- Many layers that become one, in which there is a file in the place of such a tree.
    local copy = create { snapshot = "running" }
    sandbar.assert(copy.files:remove("u", { recursive = true }))
    sandbar.assert(copy.files:write("u", "file"))
    sandbar.assert(copy:pause { keep = "disk" })
    local names = { "running", "stopped" }
    for _ = 1, 15 do
      names[#names + 1] = sandbar.assert(copy:snapshot())
    end
    sandbar.assert(copy:resume())
    assert.equal("1050 the same True\n", run(copy, LOOK, "t"))
    assert.equal("file", sandbar.assert(copy.files:read("u")))
    copy:close()
    for _, name in ipairs(names) do
      sandbar.assert(sandboxes.snapshots:delete(name))
    end
  end)

  it("was copied on when its sandbox had been destroyed, and the next one of that id was taken for it", function()
    local box = create { id = "again" }
    run(box, "for i in range(5000): open('f%d' % i, 'w').close()")
    sandbar.scope(function(scope)
      local snapshot, job = inside.copying(scope, function()
        return select(2, box:snapshot("lost", { timeout = 20 }))
      end)
      sandbar.assert(box:destroy())
      assert.equal("NotFound", snapshot:wait().kind)
      assert.is_truthy(helper.eventually(function() return not helper.proc.all()[job] end))
    end)
    local other = create { id = "again" }
    run(other, "open('other', 'w').close()")
    assert.equal("lost", sandbar.assert(other:snapshot("lost"))) -- whose name is free
    sandbar.assert(other:pause())
    other:close()
    local copy = create { snapshot = "lost" }
    assert.equal("['other']\n", run(copy, "import os; print(os.listdir('.'))"))
    copy:close()
    sandbar.assert(sandboxes.snapshots:delete("lost"))
  end)

  it("was copied while its sandbox, whose pid 1 had died under the copy, was resumed and went on writing", function()
    local box = create()
    local word = helper.mark(7534)
    local p = sandbar.assert(box:start { "sleep", word })
    local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
    run(box, "for i in range(5000): open('f%d' % i, 'w').close()")
    sandbar.assert(box:pause())
    sandbar.scope(function(scope)
      local snapshot, job = inside.copying(scope, function()
        return sandbar.assert(box:snapshot("torn", { timeout = 60 }))
      end)
      helper.sh("kill -9 %d", pid1)
      assert.is_truthy(helper.eventually(function() return sandbar.assert(box:info()).kept == "disk" end))
      local resume = scope:spawn(function() return sandbar.assert(box:resume { timeout = 60 }) end)
      sandbar.sleep(0)
      assert.equal("paused", sandbar.assert(box:info()).state) -- which is asked after the resume was
      helper.sh("kill -CONT %d", job)
      assert.equal("torn", snapshot:wait())
      assert.is_truthy(resume:wait())
    end)
    assert.equal("running", sandbar.assert(box:info()).state)
    p:close()
    box:close()
    local copy = create { snapshot = "torn" }
    assert.equal("5000\n", run(copy, "import os; print(len(os.listdir('.')))"))
    copy:close()
    sandbar.assert(sandboxes.snapshots:delete("torn"))
  end)

  it("was not running, said what knew its lifetime, network, ports and use, while it was copied", function()
    local box = create()
    run(box, "for i in range(5000): open('f%d' % i, 'w').close()")
    sandbar.assert(box:start { "python3", "-c", [[
import socket
s = socket.create_server(("", 3000))
while True:
    c = s.accept()[0]
    c.recv(1000)
    c.sendall(b"HTTP/1.0 200 OK\r\n\r\nthere")
    c.close()
]] })
    local port = sandbar.assert(box:port(3000))
    sandbar.assert(port:wait { timeout = 20 })
    sandbar.scope(function(scope)
      local snapshot, job = inside.copying(scope, function()
        return sandbar.assert(box:snapshot("meanwhile", { timeout = 60 }))
      end)
      assert.is_true(sandbar.assert(box:set_lifetime(500)))
      assert.is_true(sandbar.assert(box:update_network("deny")))
      local metrics = scope:spawn(function() return sandbar.assert(box:metrics { timeout = 20 }).processes end)
      local answer = scope:spawn(function() return sandbar.assert(port:fetch { timeout = 20 }).body end)
      sandbar.sleep(0)
      helper.sh("kill -CONT %d", job)
      assert.equal("meanwhile", snapshot:wait())
      assert.is_truthy(metrics:wait())
      assert.equal("there", answer:wait())
    end)
    assert.equal(500, sandbar.assert(box:info()).lifetime)
    box:close()
    sandbar.assert(sandboxes.snapshots:delete("meanwhile"))
  end)

  it("had been copied, and so a change of its network was said to hold of which its relay did not know yet", function()
    local box = create { network = { allow = { "203.0.113.7" } } }
    run(box, "for i in range(5000): open('f%d' % i, 'w').close()")
    local supervisor, relay = inside.supervisor(helper.root()), nil
    for pid, stat in pairs(helper.proc.all()) do
      relay = stat.parent == supervisor and helper.proc.cmdline(pid)[1] == "sandbar-relay" and pid or relay
    end
    sandbar.scope(function(scope)
      helper.sh("kill -STOP %d", relay)
      local snapshot, job = inside.copying(scope, function()
        return sandbar.assert(box:snapshot("open", { timeout = 60 }))
      end)
      local change = scope:spawn(function() return sandbar.assert(box:update_network("deny")) end)
      sandbar.sleep(0)
      assert.equal("deny", sandbar.assert(box:info()).network) -- which is asked after that
      helper.sh("kill -CONT %d", job)
      assert.equal("open", snapshot:wait())
      assert.is_true(sandbar.assert(box:exec("true")).ok)
      assert.equal("running", change.state)
      helper.sh("kill -CONT %d", relay)
      assert.is_true(change:wait { timeout = 20 })
    end)
    box:close()
    sandbar.assert(sandboxes.snapshots:delete("open"))
  end)

  it("did keep its sandbox after the call had ended: pause, snapshot and fork were Busy, and the name was taken", function()
    local box = create()
    local n = 0
    local function is_there(name)
      return #sandbar.assert(sandboxes.snapshots:list()) == 1 and sandboxes.snapshots:list()[1].name == name
    end
    -- Until it is more than can be copied in the time; one that was whole just as its call ended stays.
    local function at_once(after)
      local given_up
      repeat
        assert.is_true(n < 100000, "it is never late")
        run(box, "import sys\nfor i in range(int(sys.argv[1]), int(sys.argv[2])): open('f%d' % i, 'w').close()",
          tostring(n), tostring(n + 2000))
        n = n + 2000
        local taken, err = box:snapshot("late", { timeout = 0.02 })
        assert.is_true(taken ~= nil or err.kind == "Timeout", tostring(err))
        given_up = not taken and after()
        if is_there("late") then
          given_up = false
          sandbar.assert(sandboxes.snapshots:delete("late"))
        end
      until given_up
    end
    for _, keep in ipairs { "memory", "disk" } do
      at_once(function()
        assert.equal(keep, sandbar.assert(box:pause { keep = keep }))
        return sandbar.assert(box:resume())
      end)
    end
    at_once(function()
      sandbar.assert(box:fork(1))[1]:close()
      return true
    end)
    at_once(function()
      local taken, err = box:snapshot("late")
      if not taken and err.kind == "AlreadyExists" and is_there("late") then
        return false
      end
      assert.equal("late", taken, tostring(err))
      local copy = create { snapshot = "late" }
      assert.equal(n .. "\n", run(copy, "import os; print(len(os.listdir('.')))"))
      copy:close()
      return sandbar.assert(sandboxes.snapshots:delete("late"))
    end)
    box:close()
  end)
end)
