-- check: one Lua
-- What the supervisor keeps of its sandboxes, and what it says when it cannot.

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local lfs = require "lfs"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

describe("the supervisor", function()
  helper.guard()

  local sh = helper.sh

  -- The process that serves a state root.
  local function supervisor_of(root)
    local engine = core.engine { root = root, linger = 0 }
    return sandbar.assert(wait.op(engine:request("hello", { version = 1, linger_ms = 0 }), 10, "hello")).fields.pid
  end

  local function kill_supervisor(root)
    local pid = supervisor_of(root)
    sh("kill -KILL %d", pid)
    assert.is_truthy(helper.eventually(function()
      return not helper.proc.alive(pid)
    end))
  end

  it("answers no success for what it could not write (a full disk)", function()
    helper.need_root()
    local root = helper.dir()
    sh("mount -t tmpfs -o size=4m,mode=700 none %s", root)
    local ok, err = pcall(function()
      local sandboxes = helper.open { root = root }
      local box = sandbar.assert(sandboxes:create { id = "a", lifetime = 1000 })
      local ends = box.ends_at
      -- What the supervisor has made ahead and throws away may free a page meanwhile: tried until refused.
      local function refused(fn)
        return helper.eventually(function()
          sh("cat /dev/zero >>%s/full 2>/dev/null || true", root)
          local done, why = fn()
          return not done and why
        end)
      end
      local why = refused(function()
        return box:set_lifetime(1000)
      end)
      assert.equal("NoSpace", why.kind)
      assert.is_true(math.abs(ends - sandbar.assert(box:info()).ends_at) < 10)
      local port = 0
      why = refused(function()
        port = port + 1
        return box:port(port):expose()
      end)
      assert.equal("NoSpace", why.kind)
      assert.equal(port - 1, #sandbar.assert(box:ports()))
      local n = 0
      why = refused(function()
        n = n + 1
        local made, err = sandboxes:create { id = "n" .. n }
        if made then
          made:close()
          assert.is_true(#helper.read_file(root .. "/v1/s/n" .. n .. "/record") > 0)
        end
        return made, err
      end)
      assert.equal("NoSpace", why.kind)
      assert.equal("NotFound", select(2, sandboxes:info("n" .. n)).kind)
      for i = 1, n do
        sandbar.assert(sandboxes:destroy("n" .. i))
      end
      -- A pause writes over what is there: it needs no room.
      assert.equal("disk", sandbar.assert(box:pause { keep = "disk" }))
      os.remove(root .. "/full") -- a resume does
      sandbar.assert(box:resume())
      assert.equal("memory", sandbar.assert(box:pause()))
      sandbar.assert(box:resume())
      assert.equal("running", sandbar.assert(box:info()).state)
      assert.is_true(sandbar.assert(box:exec("true")).ok)
      os.remove(root .. "/full")
      sandbar.assert(box:pause { keep = "disk" })
      sh("cat /dev/zero >>%s/full 2>/dev/null || true", root)
      local resumed = box:resume()
      os.remove(root .. "/full")
      assert.equal(resumed and "running" or "paused", sandbar.assert(box:info()).state)
      sandbar.assert(box:destroy())
      box:close()
    end)
    sh("umount -l %s", root)
    assert(ok, err)
  end)

  it("refuses labels that fit no answer, and stays connected", function()
    local sandboxes = helper.open()
    local labels = {}
    for i = 1, 6400 do
      labels[("%c%c%c"):format(97 + i % 26, 97 + math.floor(i / 26) % 26, 97 + math.floor(i / 676) % 26)] = ""
    end
    local box, err = sandboxes:create { labels = labels }
    assert.is_nil(box)
    assert.equal("LimitExceeded", err.kind)
    box = sandbar.assert(sandboxes:create { labels = { long = ("x"):rep(32000) } })
    assert.equal(32000, #sandbar.assert(box:info()).labels.long)
    sandbar.assert(box:destroy())
    box:close()
  end)

  -- The file that was made with the slot is filled in place, up to a page. A longer record is a file of its own: one
  -- that was filled in two pieces was left damaged by a kill in between.
  it("fills no record in place that is longer than a page, and keeps those of just about a page whole", function()
    local root = helper.dir()
    local sandboxes = helper.open { root = root }
    local boxes = {}
    local function label(n)
      return ("%04d"):format(n) .. ("x"):rep(n - 4)
    end
    local function make(n)
      local id = ("box%04d"):format(n)
      local record = ("%s/v1/s/%s/record"):format(root, id)
      if not boxes[id] then
        -- Second names for the files of all slots, to see what becomes of them.
        sh("cd %s; rm -rf kept; mkdir kept; for d in v1/p/*; do ln $d/record kept/${d##*/} 2>&1 || true; done", root)
        boxes[id] = sandbar.assert(sandboxes:create { id = id, labels = { long = label(n) } })
        local filled = sh("find %s/kept -type f -size +0", root)
        assert.is_true(#helper.read_file(record) <= 4096 or filled == "", filled)
      end
      return #helper.read_file(record)
    end
    -- The longest label with which it is a page.
    local fits, over = 2000, 4096
    assert.is_true(make(fits) <= 4096 and make(over) > 4096)
    while over - fits > 1 do
      local middle = math.floor((fits + over) / 2)
      if make(middle) <= 4096 then
        fits = middle
      else
        over = middle
      end
    end
    for n = fits - 2, over + 2 do
      make(n)
    end
    assert.equal(4096, make(fits))
    assert.is_true(make(over) > 4096)

    local function all_there(state)
      for id in pairs(boxes) do
        local info = sandbar.assert(sandboxes:info(id))
        assert.equal(state, info.state)
        assert.equal(label(tonumber(id:match("%d+"))), info.labels.long)
      end
    end
    local function each(fn)
      for _, box in pairs(boxes) do
        fn(box)
      end
    end
    kill_supervisor(root)
    all_there("running")
    each(function(box) sandbar.assert(box:set_lifetime(1000)) end)
    kill_supervisor(root)
    all_there("running")
    each(function(box) assert.is_true(sandbar.assert(box:exec("true")).ok) end)
    each(function(box) sandbar.assert(box:pause { keep = "disk" }) end)
    kill_supervisor(root)
    all_there("paused")
    each(function(box) sandbar.assert(box:resume()) end)
    kill_supervisor(root)
    all_there("running")
    each(function(box)
      sandbar.assert(box:destroy())
      box:close()
    end)
  end)

  it("destroys at a scope's end no sandbox that somebody else has made under the same id since", function()
    local sandboxes = helper.open()
    local scoped = sandbar.assert(sandboxes:create_scoped { id = "again" })
    sandbar.assert(sandboxes:destroy("again"))
    local other = sandbar.assert(sandboxes:create { id = "again" })
    scoped:close()
    assert.equal("running", sandbar.assert(sandboxes:info("again")).state)
    assert.is_true(sandbar.assert(other:exec("true")).ok)
    sandbar.assert(other:destroy())
    other:close()
  end)

  it("names what ended a sandbox by a word, and says that its disk is kept", function()
    local root = helper.dir()
    local sandboxes = helper.open { root = root }
    local box = sandbar.assert(sandboxes:create { id = "x" })
    for _, child in ipairs(helper.proc.children(supervisor_of(root))) do
      helper.shell("kill -KILL " .. child.pid) -- makers of slots may be gone by now
    end
    assert.is_truthy(helper.eventually(function()
      return sandbar.assert(sandboxes:info("x")).state == "failed"
    end))
    local info = sandbar.assert(sandboxes:info("x"))
    assert.equal("disk", info.kept)
    assert.equal("pid1", info.cause.reason)
    assert.is_true(#info.cause.message > 10)
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("watches no sandbox without a whole record: ends it, and lets nobody change it", function()
    local root = helper.dir()
    local sandboxes = helper.open { root = root }
    local box = sandbar.assert(sandboxes:create { id = "x" })
    sandbar.assert(box:start({ "sleep", helper.mark(7653) }, { detached = true }))
    assert.equal(1, #sandbar.assert(box:processes()))
    helper.write_file(root .. "/v1/s/x/record", "no record at all")
    sh("mkdir -p %s/v1/s/%s", root, ("a"):rep(200))
    kill_supervisor(root)
    local info = sandbar.assert(sandboxes:info("x"))
    assert.equal("failed", info.state)
    assert.equal("record", info.cause.reason)
    assert.is_truthy(helper.eventually(function()
      return sh("pgrep -f '^sleep %s$' | wc -l", helper.mark(7653)):match("%d+") == "0"
    end))
    assert.equal(1, #sandbar.assert(sandboxes:list()))
    local engine = core.engine { root = root, linger = 0 }
    local _, err = wait.op(engine:request("expose", { id = "x", port = 80, on = 1 }), 10, "expose")
    assert.equal("NotRunning", err.kind)
    assert.equal("no record at all", helper.read_file(root .. "/v1/s/x/record"))
    sandbar.assert(sandboxes:destroy("x"))
    box:close()
  end)

  it("says which protocol versions it serves", function()
    local root = helper.dir()
    local engine = core.engine { root = root, linger = 0 }
    for _, version in ipairs { 1, 2 } do
      sandbar.assert(wait.op(engine:request("hello", { version = version, linger_ms = 0 }), 10, "hello"))
    end
    for _, version in ipairs { 0, 3, 99 } do
      local r, err = wait.op(engine:request("hello", { version = version, linger_ms = 0 }), 10, "hello")
      assert.is_nil(r)
      assert.equal("Unsupported", err.kind)
      assert.is_truthy(err.message:find("protocol version 1 ", 1, true))
      assert.is_truthy(err.message:find("version " .. version, 1, true))
    end
  end)

  it("calls an errno the same kind as everybody", function()
    local errors = require "sandbar.errors"
    local box = sandbar.assert(helper.open():create_scoped {})
    local _, err = box.files:write(("x"):rep(300), "")
    assert.equal("ENAMETOOLONG", err.code)
    assert.equal("InvalidArgument", err.kind)
    assert.equal(errors.kind_of(err.errno), err.kind)
    box:close()
  end)

  it("says that groups of its user which cannot be dropped stay inside", function()
    helper.need_root()
    helper.need_program("setpriv")
    sh("chmod a+x %s", helper.scratch())
    local file = helper.write_file(helper.dir() .. "/groups.lua", [[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = arg[1], linger = 0 })
      print(sandbar.assert(sandboxes:capabilities()).privilege_isolated)
      local box, err = sandboxes:create_scoped { expect = { "privilege_isolated" } }
      print(box and box:close() or err.clause)
    ]])
    local function run(groups)
      local root = helper.dir()
      sh("chown 23456:23456 %s && chmod 700 %s", root, root)
      return sh("cd / && HOME=%s setpriv --reuid 23456 --regid 23456 --groups %s %s %s %s", root, groups,
        helper.interpreter(), file, root)
    end
    assert.equal("true\ntrue\n", run("23456"))
    assert.equal("false\nexpect.privilege_isolated\n", run("23456,4,27"))
  end)

  it("slept for ever where it could not make its stock of sandboxes: it leaves when it should", function()
    helper.need_root() -- nobody else may kill the stock
    local root = helper.dir()
    sh("chmod 700 %s", root)
    local program = helper.start_lua(([[
      local sandbar = require "sandbar"
      sandbar.assert(sandbar.assert(sandbar.open { root = %q, linger = 2 }):create { id = "one" }):destroy()
      print "done"
      io.stdout:flush()
      io.read()
    ]]):format(root))
    assert.equal("done", program:line())
    local supervisor = inside.supervisor(root)
    assert.is_truthy(supervisor)
    program:signal("KILL")
    program:wait()
    assert.is_truthy(helper.remove(root))
    helper.eventually(function() -- each that is killed is made again while there are slots
      for _, child in ipairs(helper.proc.children(supervisor)) do
        helper.shell("kill -9 " .. child.pid)
      end
      return not helper.proc.alive(supervisor)
    end, 1)
    assert.is_truthy(helper.eventually(function() return not helper.proc.alive(supervisor) end, 15))
  end)

  -- Where a state root begins to look for id ranges.
  local HASH = [[
import fcntl, os, struct, sys
def start(path):
    st, h = os.stat(path), 0xcbf29ce484222325
    for byte in struct.pack("QQ", st.st_dev, st.st_ino):
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return h % 4096
]]

  local function ranges_of(root)
    local out = {}
    for _, child in ipairs(helper.proc.children(supervisor_of(root))) do
      local map = helper.read_file(("/proc/%d/uid_map"):format(child.pid)) or ""
      local outside = tonumber(map:match("^%s*0%s+(%d+)"))
      if outside and outside > 0 then
        out[#out + 1] = (outside - 1879048192) / 65536
      end
    end
    return out
  end

  it("takes no id range that another state root's supervisor or sandbox has", function()
    helper.need_root()
    local first, second = helper.dir(), helper.dir()
    local sandboxes = helper.open { root = first }
    local box = sandbar.assert(sandboxes:create { id = "a" })
    local taken = {}
    for _, range in ipairs(ranges_of(first)) do
      taken[range] = true
    end
    assert.is_truthy(next(taken))
    kill_supervisor(first)
    -- A root that would begin where the first one's sandbox is.
    local other = sh("python3 -c '%s\nn = 0\nwhile True:\n    path = \"%s/\" + str(n)\n    n += 1\n"
      .. "    os.mkdir(path, 0o700)\n    if start(path) == start(\"%s\"): break\nprint(path)'",
      HASH, second, first):match("%S+")
    local others = helper.open { root = other }
    local theirs = sandbar.assert(others:create { id = "b" })
    for _, range in ipairs(ranges_of(other)) do
      assert.is_nil(taken[range])
    end
    sandbar.assert(theirs:destroy())
    theirs:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  -- Through the machine's proc each new sandbox looked past the names of every living one: at 200 alive a
  -- create took twice its time.
  it("prepares a sandbox past no name that another one's settings have left in the kernel", function()
    helper.need_root()
    local root = helper.dir()
    local box = sandbar.assert(helper.open { root = root }:create { id = "a" })
    local own = sh("for f in /proc/%d/fd/*; do if [ \"$(stat -L -f -c %%T $f)\" = proc ]; then stat -L -c %%d $f; fi; done",
      supervisor_of(root))
    assert.is_truthy(own:match("%d+"))
    assert.is_not.equal(sh("stat -c %%d /proc"), own)
    sandbar.assert(box:destroy())
    box:close()
  end)

  -- destroy is answered before the mounts are dissolved, which takes the kernel longer than anything else of it.
  it("keeps neither mounts nor processes of the sandboxes that are gone, many at once as well", function()
    helper.need_root()
    local root = helper.dir()
    local sandboxes = helper.open { root = root }
    local keep = sandbar.assert(sandboxes:create { id = "keep" })
    local pid = supervisor_of(root)
    local fns = {}
    for i = 1, 12 do
      sandbar.assert(sandboxes:create { id = "gone" .. i }):close()
      fns[i] = function()
        return sandboxes:destroy("gone" .. i)
      end
    end
    for _, r in ipairs(sandbar.assert(sandbar.all(fns))) do
      assert.is_true(r)
    end
    local ok, left = helper.eventually(function()
      local found = {}
      for fd, target in pairs(helper.proc.fds(pid)) do
        if target:match("^mnt:") then
          found[#found + 1] = fd .. " " .. target
        end
      end
      for id, stat in pairs(helper.proc.all()) do
        if stat.parent == pid and stat.state == "Z" then
          found[#found + 1] = "zombie " .. id
        end
      end
      return #found == 0, table.concat(found, ", ")
    end)
    assert.is_true(ok, left)
    sandbar.assert(keep:destroy())
    keep:close()
  end)

  it("keeps more sandboxes ready once more were asked for at once than there were", function()
    local root = helper.dir()
    local sandboxes = helper.open { root = root }
    local engine = core.engine { root = root, linger = 0 }
    local function ready()
      return sandbar.assert(wait.op(engine:request("stats", {}), 10, "stats")).fields.pooled
    end
    local function steady(more)
      return helper.eventually(function()
        return ready() > more
      end)
    end
    local first = sandbar.assert(sandboxes:create { id = "first" })
    local usual = 4 + 2 -- spares and slots
    assert.is_truthy(steady(usual - 1))
    assert.equal(usual, ready())
    local boxes = { first }
    for i = 1, 24 do
      boxes[#boxes + 1] = sandbar.assert(sandboxes:create { id = "b" .. i })
    end
    assert.is_truthy(steady(usual))
    for _, box in ipairs(boxes) do
      sandbar.assert(box:destroy())
      box:close()
    end
  end)

  it("empties its trash although there is always another sandbox to throw away", function()
    local root = helper.root()
    local sandboxes = helper.open()
    local was = {}
    assert.is_truthy(helper.eventually(function()
      local box = sandbar.assert(sandboxes:create_scoped {})
      sandbar.assert(box:destroy())
      box:close()
      local there, gone = {}, false
      for name in lfs.dir(root .. "/v1/trash") do
        there[name] = true
      end
      for name in pairs(was) do
        gone = gone or not there[name]
      end
      was = there
      return gone
    end, 15), "nothing leaves the trash")
  end)
end)
