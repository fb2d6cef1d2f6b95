-- What keeping output costs, and who pays: the bound of a stream, slow readers and lost ones, pauses, a full disk.
-- check: only 5.4
-- check: no asan
-- check: no user

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

local BOUND = 67108864

describe("kept output", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn, spec)
    inside.with_box(sandboxes, fn, spec)
  end

  local function read(output, what, timeout)
    return output:read(what or "a", { timeout = timeout or 30 })
  end

  local function kind_of(r, err)
    assert.is_nil(r)
    return err.kind
  end

  it("loses its oldest bytes beyond 64 MiB, and says how many; nobody waits for a slow reader", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("printf first; read x; head -c 70000000 /dev/zero; echo last",
        { stdout = "spool", stderr = "stdout", stdin = "pipe" }))
      assert.equal("first", read(p.stdout, 5))
      local slow = sandbar.assert(box:attach(p.pid))
      assert.equal("f", read(slow.stdout, 1))
      p.stdin:write("\n")
      local all = 5 + 70000000 + 5
      local result = sandbar.assert(p:wait { timeout = 30, output = true })
      assert.same({ 0, all - BOUND, true }, { result.exit_code, result.dropped, result.truncated })
      local late = sandbar.assert(box:attach(p.pid, { from = 10 }))
      assert.equal(all - BOUND, late.dropped)
      local first, total = nil, 0
      for _, data, offset in late:output { timeout = 30 } do
        first = first or offset
        assert.equal(first + total, offset)
        total = total + #data
      end
      assert.same({ all - BOUND, BOUND }, { first, total })
      -- What is read is never put together over a jump.
      local before = sandbar.assert(read(slow.stdout))
      assert.equal("irst", before:sub(1, 4))
      assert.is_truthy(before:find("^irst%z*$"))
      local after = sandbar.assert(read(slow.stdout))
      assert.is_truthy(after:find("^%z*last\n$"))
      assert.equal(BOUND, #after)
      assert.equal("", read(slow.stdout))
    end)
  end)

  it("leaves nothing of a reader that goes in the middle, or with its program", function()
    helper.need_root() -- who else may count pid 1's descriptors
    with_box(function(box)
      local p = sandbar.assert(box:start("yes; : 7171.33", { stdout = "spool", stderr = "ignore" }))
      local pid1 = inside.pid1("yes; : 7171.33")
      local function open()
        local n = 0
        for _, what in pairs(helper.proc.fds(pid1)) do
          n = n + (what:find("^pipe:") and 1 or 0)
        end
        return n
      end
      local before = open()
      for _ = 1, 20 do
        local q = sandbar.assert(box:attach(p.pid))
        assert.equal("y", read(q.stdout, "l"))
        q.stdout:close()
        q:close()
      end
      local child = helper.start_lua(([[
        local sandbar = require "sandbar"
        local box = sandbar.assert(sandbar.assert(sandbar.open { root = (...), linger = 0 }):connect(%q))
        for i = 1, 20 do
          _G[i] = sandbar.assert(box:attach(%d))
          sandbar.assert(_G[i].stdout:read("l"))
        end
        print("ready")
        io.stdout:flush()
        sandbar.sleep(60)
      ]]):format(box.id, p.pid), { args = { helper.root() } })
      assert.equal("ready", child:line())
      assert.is_true(open() >= before + 20)
      child:signal("KILL")
      child:wait()
      assert.is_truthy(helper.eventually(function()
        return open() <= before
      end), ("%d pipes, %d before"):format(open(), before))
      sandbar.assert(p:kill { timeout = 20 })
    end)
  end)

  it("goes on after a pause that keeps memory, and is gone after one that does not", function()
    with_box(function(box)
      local p = sandbar.assert(box:start("echo one; read x; echo two; exec sleep 1000", { stdout = "spool", stdin = "pipe" }))
      local reference = sandbar.assert(p:reference())
      assert.equal("one", read(p.stdout, "l"))
      sandbar.assert(box:pause())
      assert.equal("Timeout", kind_of(read(p.stdout, "l", 0.05)))
      sandbar.assert(box:resume())
      p.stdin:write("\n")
      assert.equal("two", read(p.stdout, "l"))
      assert.equal("one\ntwo", read(sandbar.assert(box:attach(reference)).stdout, 7))
      sandbar.assert(box:pause { keep = "disk" })
      local r, err = read(p.stdout, "l", 5) -- the process has ended; pid 1 may have had no time to say so
      assert.is_nil(r)
      assert.is_truthy(err == nil or err.kind == "NotRunning", tostring(err))
      sandbar.assert(box:resume())
      assert.equal("NotFound", kind_of(box:attach(reference, { from = 4 })))
      assert.equal("", sandbar.assert(box:exec("ls -A / | grep sandbar; true")).stdout)
    end)
  end)

  it("keeps what there is room for on a full disk, and refuses to begin there", function()
    helper.need_root()
    local dir = helper.dir("small")
    local out, status = helper.shell(("mount -t tmpfs -o size=24m,mode=700 none %s"):format(dir))
    if status ~= 0 then
      helper.skip("a size-limited tmpfs cannot be mounted here: " .. out)
    end
    local own = sandbar.assert(sandbar.open { root = dir, linger = 0 })
    local ok, why = pcall(inside.with_box, own, function(box)
      local p = sandbar.assert(box:start("head -c 30000000 /dev/zero; echo last", { stdout = "spool", stderr = "ignore" }))
      local result = sandbar.assert(p:wait { timeout = 30, output = true })
      local kept = 30000005 - result.dropped
      assert.is_true(kept > 10000000 and kept < 24 * 1048576, kept)
      local data = read(p.stdout)
      assert.equal(kept, #data)
      assert.is_truthy(data:find("^%z*last\n$"))
      local r, err = box:start("true", { stdout = "spool" })
      assert.is_truthy(r or err.kind == "NoSpace", tostring(err))
      assert.equal("NoSpace", kind_of(box.files:write("/home/user/more", ("x"):rep(8388608))))
    end)
    own = nil -- luacheck: ignore
    helper.shell(("while mountpoint -q %s && ! umount %s 2>/dev/null; do sleep 0.05; done"):format(dir, dir))
    assert.is_true(ok, tostring(why))
  end)
end)
