-- Output that is kept ("spool"): any number of readers, from any offset, also in other programs.
-- check: only 5.4
-- check: no asan

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("kept output", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  local function read(output, what, timeout)
    return output:read(what or "a", { timeout = timeout or 20 })
  end

  -- All that output() gives: where it begins in each stream, and the bytes, without gaps.
  local function all_of(p)
    local first, data = {}, { "", "" }
    for fd, piece, offset in p:output { timeout = 20 } do
      first[fd] = first[fd] or offset
      assert.equal(first[fd] + #data[fd], offset)
      data[fd] = data[fd] .. piece
    end
    return { first[1], data[1], first[2], data[2] }
  end

  local function kind_of(r, err)
    assert.is_nil(r)
    return err.kind
  end

  it("is read like any other, and has absolute offsets", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one; echo err >&2; read x; echo two; printf rest",
        { stdout = "spool", stderr = "spool", stdin = "pipe" }))
      assert.equal("", read(p.stdout, 0))
      assert.equal("one", read(p.stdout, "l"))
      assert.equal("er", read(p.stderr, 2))
      assert.equal("Timeout", kind_of(read(p.stdout, "l", 0.02)))
      p.stdin:write("\n")
      assert.equal("tw", read(p.stdout, 2))
      assert.equal(0, sandbar.assert(p:wait { timeout = 20, output = true }).exit_code)
      assert.same({ 6, "o\nrest", 2, "r\n" }, all_of(p))
      assert.is_nil(read(p.stdout, "l"))
      assert.equal("", read(p.stdout, "a"))
      assert.is_nil(read(p.stdout, 0))
      local lines = {}
      for line in sandbar.assert(box:attach(p.pid)).stdout:lines("L", { timeout = 20 }) do
        lines[#lines + 1] = line
      end
      assert.same({ "one\n", "two\n", "rest" }, lines)
      assert.is_true(sandboxes:capabilities().spool)
    end)
  end)

  it("is read from the offset that is asked for, in each stream", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one; echo err >&2; read x; echo two",
        { stdout = "spool", stderr = "spool", stdin = "pipe" }))
      assert.equal("one\n", read(p.stdout, 4))
      local function from(at)
        local q = sandbar.assert(box:attach(p.pid, { from = at }))
        return q.stdout, q.stderr
      end
      local a, b = from(1)
      local c, d = from { stdout = 4, stderr = 2 }
      local e, f = from { stderr = 1 }
      local later = from(6) -- has not been written yet
      assert.equal("Timeout", kind_of(read(later, "a", 0.02)))
      p.stdin:write("\n")
      assert.same({ "ne\ntwo\n", "rr\n" }, { read(a), read(b) })
      assert.same({ "two\n", "r\n" }, { read(c), read(d) })
      assert.same({ "one\ntwo\n", "rr\n" }, { read(e), read(f) })
      assert.equal("o\n", read(later))
      assert.equal("", read((from(2 ^ 47 - 1))))
    end)
  end)

  it("takes no other offsets, and none in what is not kept", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one", { stdout = "spool" }))
      for _, from in ipairs { -1, 2 ^ 47, 2 ^ 52, { stdout = -5 }, { stdout = 2 ^ 52 }, { stderr = 1 } } do
        assert.equal("InvalidArgument", kind_of(box:attach(p.pid, { from = from })))
      end
      for _, from in ipairs { 1.5, 1 / 0, "1", { stdout = 0.5 }, { 1 }, { stdin = 1 } } do
        assert.has_error(function()
          box:attach(p.pid, { from = from })
        end)
      end
      local plain = sandbar.assert(box:start("echo one", { stdout = "tail" }))
      local _, err = box:attach(plain.pid, { from = 0 })
      assert.equal(("attach: from: this output of process %d is not kept; start it with \"spool\" (InvalidArgument)"):format(
        plain.pid), tostring(err))
      _, err = box:exec("true", { stdout = "spool" })
      assert.equal("exec: stdout = \"spool\" is for start; exec waits for its output and gives it back (Unsupported)",
        tostring(err))
    end)
  end)

  it("is given to many readers, each at its own pace, nothing twice and nothing missing", function()
    with_box(function(box)
      local last = 20000
      local p = sandbar.assert(box:start(("seq 1 %d; read x; seq %d %d"):format(last / 2, last / 2 + 1, last),
        { stdout = "spool", stderr = "stdout", stdin = "pipe" }))
      local want = {}
      for i = 1, last do
        want[i] = i .. "\n"
      end
      want = table.concat(want)
      local readers = {}
      for i = 1, 20 do
        readers[i] = sandbar.assert(box:attach(p.pid, { from = (i - 1) * 1000 }))
        assert.equal(want:sub((i - 1) * 1000 + 1, i * 1500), read(readers[i].stdout, i * 1500 - (i - 1) * 1000))
      end
      p.stdin:write("\n")
      for i = 1, 20 do
        assert.is_true(want:sub(i * 1500 + 1) == read(readers[i].stdout), i)
      end
      local at = 0
      for fd, data, offset in p:output { timeout = 20 } do
        assert.same({ 1, at }, { fd, offset })
        assert.is_true(want:sub(at + 1, at + #data) == data)
        at = at + #data
      end
      assert.equal(#want, at)
    end)
  end)

  it("survives the program and the supervisor, and goes on for others where those were", function()
    local box = sandbar.assert(sandboxes:create { id = "kept", lifetime = 120 })
    local child = helper.start_lua([[
      local sandbar = require "sandbar"
      local box = sandbar.assert(sandbar.assert(sandbar.open { root = (...), linger = 0 }):connect("kept"))
      local p = sandbar.assert(box:start("seq 1 1000; while ! [ -e go ]; do sleep 0.01; done; seq 1001 2000",
        { stdout = "spool", cwd = "/home/user" }))
      print(p:reference())
      local at
      for _, data, offset in p:output() do
        print(offset + #data)
        io.stdout:flush()
        io.read()
      end
    ]], { args = { helper.root() } })
    local reference = child:line()
    local at = tonumber(child:line())
    helper.shell("kill -9 " .. inside.supervisor(helper.root()))
    child:signal("KILL")
    child:wait()
    box:close()
    box = sandbar.assert(sandboxes:connect("kept"))
    local p = sandbar.assert(box:attach(reference, { from = at }))
    sandbar.assert(box.files:write("/home/user/go", ""))
    local want = {}
    for i = 1, 2000 do
      want[i] = i .. "\n"
    end
    want = table.concat(want)
    assert.is_true(want:sub(at + 1) == read(p.stdout))
    assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
    p:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("comes from terminals, pipelines, and commands that were let go", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo hi; read x; echo there", { stdout = "spool", pty = { cols = 80, rows = 24 } }))
      p.stdin:write("x\n")
      assert.equal(0, sandbar.assert(p:wait { timeout = 20 }).exit_code)
      for _ = 1, 2 do
        local shown = read(sandbar.assert(box:attach(p.pid)).stdout)
        assert.equal("there\r\n", shown:sub(-7))
      end
      local line = sandbar.assert(box:start({ { "sh", "-c", "echo a; echo b >&2" }, { "tr", "a", "c" } },
        { stdout = "spool", stderr = "spool", detached = true }))
      assert.same({ "c\n", "b\n" }, { read(line.stdout), read(line.stderr) })
      local loose = sandbar.assert(box:start("echo one; read x; echo two", { stdout = "spool", stdin = "pipe" }))
      assert.equal("one", read(loose.stdout, "l"))
      sandbar.assert(loose:detach())
      loose.stdin:write("\n")
      assert.equal("two", read(loose.stdout, "l"))
      loose:close()
      assert.equal("one\ntwo\n", read(sandbar.assert(box:attach(loose.pid)).stdout))
    end)
  end)

  it("took the other output away from its reader, when a reader of the kept one went", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo out; read x; echo err >&2", { stdout = "spool", stdin = "pipe" }))
      local q = sandbar.assert(box:attach(p.pid))
      assert.equal("out", read(q.stdout, "l"))
      assert.equal("Busy", kind_of(read(q.stderr, "l", 0.05)))
      local fd, data, offset = sandbar.assert(box:attach(p.pid)):output({ timeout = 20 }):next()
      assert.same({ 1, "out\n", 0 }, { fd, data, offset })
      q:close()
      q = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      p.stdin:write("\n")
      assert.equal("err", read(p.stderr, "l"))
    end)
  end)

  it("is read to the end by those who began while it was kept, and by nobody after that", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("seq 1 100000", { stdout = "spool" }))
      local q = sandbar.assert(box:attach(p.pid, { from = 10 }))
      local reference = sandbar.assert(p:reference())
      assert.equal("6\n", read(q.stdout, 2))
      assert.equal(0, sandbar.assert(p:wait { timeout = 20, output = true }).exit_code)
      for _ = 1, 257 do -- as many ended ones are remembered, and one more
        sandbar.assert(box:exec { "true" })
      end
      assert.equal("NotFound", kind_of(box:attach(reference)))
      local _, err = read(p.stdout, "l")
      assert.equal(("read: process %d has ended, and what it wrote is kept no more (NotFound)"):format(p.pid), tostring(err))
      local n, last = 0, nil
      for line in q.stdout:lines("l", { timeout = 20 }) do
        n, last = n + 1, line
      end
      assert.same({ 100000 - 6, "100000" }, { n, last })
      assert.is_nil(read(q.stdout, "l"))
    end)
  end)
end)
