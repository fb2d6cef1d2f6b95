local helper = require "spec.helper"
local inside = require "spec.support.inside"

describe("spec.helper", function()
  helper.guard()

  it("runs a program in a child interpreter and gives its streams and status", function()
    local r = helper.run_lua([[
      io.write("out ", (...), os.getenv("X"), io.read("*l"))
      io.stderr:write("err")
      os.exit(3)
    ]], { args = { "a b" }, env = { X = "it's" }, stdin = "line\n" })
    assert.equal("out a bit'sline", r.stdout)
    assert.equal("err", r.stderr)
    assert.equal(3, r.code)
    assert.is_false(r.ok)
  end)

  it("bounds a child in time", function()
    local r = helper.run_lua("while true do end", { timeout = 0.2 })
    assert.is_true(r.timed_out)
  end)

  it("can kill a child by its process id", function()
    local child = helper.start_lua("print('up') io.stdout:flush() while true do end", { timeout = 10 })
    assert.equal("up", child:line())
    assert.is_true(helper.proc.alive(child.pid))
    child:signal("KILL")
    assert.equal(9, child:wait().signal)
    assert.is_false(helper.proc.alive(child.pid))
  end)

  it("uses the same Lua in children", function()
    local r = helper.run_lua("io.write(type(jit) == 'table' and 'luajit' or _VERSION:match('%d%.%d'))")
    assert.equal(helper.lua, r.stdout)
  end)

  it("sees a descriptor that was left open", function()
    local before = helper.snapshot()
    local f = assert(io.open("/etc/hostname"))
    local clean, found = helper.leftovers(before, false, 0)
    assert.is_nil(clean)
    assert.matches("/etc/hostname", found)
    f:close()
    assert.is_true(helper.leftovers(before, false, 0))
  end)

  it("looked at every process, again and again, until a supervisor had left", function()
    local v1 = helper.root() .. "/v1"
    helper.sh("mkdir %s && touch %s/life.lock", helper.quote(v1), helper.quote(v1))
    local holder = assert(io.popen(("unset LD_PRELOAD; exec flock %s/life.lock cat"):format(helper.quote(v1)), "w"))
    assert.is_truthy(helper.eventually(function() return inside.supervisor(helper.root()) end))
    local looks, of_dir = 0, helper.proc.of_dir
    helper.proc.of_dir = function(dir)
      looks = looks + 1
      return of_dir(dir)
    end
    local clean, found = helper.leftovers(helper.snapshot(), true, 0.2)
    helper.proc.of_dir = of_dir
    holder:close()
    assert.is_nil(clean)
    assert.matches("flock", found)
    assert.equal(1, looks)
  end)

  it("sees a process that has something of a directory open", function()
    local dir = helper.dir("open")
    local child = helper.start_lua([[
      local f = assert(io.open(... .. "/f", "w"))
      print("up")
      io.stdout:flush()
      while f do end
    ]], { args = { dir }, timeout = 10 })
    child:line()
    assert.is_table(helper.proc.of_dir(dir)[child.pid])
    child:signal("KILL")
    child:wait()
    assert.same({}, helper.proc.of_dir(dir))
  end)
end)
