-- check: only 5.4
-- check: no asan
-- limits.disk: a file system of the asked size for what a sandbox writes. What fills it fails there and nowhere else;
-- it goes through pauses, snapshots and lost supervisors with the sandbox, and its device ends with it.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local sandbar = require "sandbar"

local MIB = 1048576
local SIZE = 24 * MIB

describe("limits.disk", function()
  helper.guard()

  local sandboxes = helper.open()

  local function need_disks()
    if not sandbar.assert(sandboxes:capabilities()).limit_disk then
      helper.skip("this machine gives this user no limit_disk")
    end
  end

  -- The loop devices of this state root's images, one a line.
  local function devices()
    return (helper.shell(("cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep -F %s/"):format(helper.root())))
  end

  local function no_devices()
    assert.is_truthy(helper.eventually(function() return devices() == "" end), devices())
  end

  local function entries(dir)
    local list = {}
    for name in lfs.dir(helper.root() .. "/v1/" .. dir) do
      if not name:match("^%.%.?$") then
        list[#list + 1] = name
      end
    end
    return list
  end

  local function create(spec)
    return sandbar.assert(sandboxes:create(spec))
  end

  local function run(box, line, opts)
    local r = sandbar.assert(box:exec(line, opts))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
  end

  -- How many bytes there are for files in it.
  local function room(box)
    return tonumber(run(box, "stat -f -c '%a %S' /"):match("^%d+")) * 4096
  end

  it("is Unsupported with a reason where it cannot be enforced, and nothing is made", function()
    if sandbar.assert(sandboxes:capabilities()).limit_disk then
      helper.skip("this machine gives this user limit_disk")
    end
    local box, err = sandboxes:create { id = "none", limits = { disk = SIZE } }
    assert.is_nil(box)
    assert.equal("Unsupported", err.kind)
    assert.is_truthy(err.message:find("limits.disk: %a+"), err.message)
    assert.same({}, sandbar.assert(sandboxes:list()))
  end)

  it("ends a program's writes with ENOSPC and the library's with NoSpace, and leaves a neighbour alone", function()
    need_disks()
    local box = create { limits = { disk = SIZE } }
    local other = create { limits = { disk = SIZE } }
    assert.equal(SIZE, sandbar.assert(box:info()).limits.disk)
    local before = room(box)
    assert.is_true(before > SIZE * 0.75 and before < SIZE, before)
    local r = sandbar.assert(box:exec("head -c 100000000 /dev/zero >big"))
    assert.is_false(r.ok)
    assert.is_truthy(r.stderr:find("No space left on device", 1, true), r.stderr)
    local size = sandbar.assert(box.files:stat("big")).size
    assert.is_true(size > SIZE * 0.75 and size < SIZE, size)
    local used = sandbar.assert(box:metrics()).disk
    assert.is_true(used >= size and used <= SIZE, used)
    local done, err = box.files:write("more", ("x"):rep(MIB))
    assert.is_nil(done)
    assert.equal("NoSpace", err.kind)
    assert.is_false(box.files:exists("more"))
    assert.is_true(sandbar.assert(box:exec("true")).ok)
    sandbar.assert(other.files:write("more", ("x"):rep(MIB)))
    assert.is_true(sandbar.assert(other:metrics()).disk < 4 * MIB)
    sandbar.assert(box.files:remove("big"))
    sandbar.assert(box.files:write("more", ("x"):rep(MIB)))
    -- Also for root inside, and in what looks like the host's.
    r = box:exec("head -c 100000000 /dev/zero >/usr/big", { user = "root" })
    assert.is_false(r.ok)
    assert.is_true(room(box) < MIB)
    sandbar.assert(box:destroy())
    sandbar.assert(other:destroy())
    box:close()
    other:close()
    no_devices()
  end)

  it("bounds files that take no bytes as well; a neighbour has its own, and both end at once (escape probe 56)", function()
    need_disks()
    local box = create { limits = { disk = SIZE } }
    local other = create { limits = { disk = SIZE } }
    local made = tonumber(run(box, "mkdir n; cd n; i=0; while true >f$i; do i=$((i+1)); done 2>/dev/null; echo $i"))
    assert.is_true(made > 500 and made < SIZE / 4096, made)
    local done, err = box.files:write("n/more", "x")
    assert.is_nil(done)
    assert.equal("NoSpace", err.kind)
    sandbar.assert(other.files:write("more", "x"))
    run(other, "mkdir n; cd n; i=0; while test $i -lt 500; do : >f$i; i=$((i+1)); done")
    for _, each in ipairs { box, other } do
      sandbar.assert(each:destroy { timeout = 5 })
      each:close()
    end
    no_devices()
  end)

  it("goes with the sandbox through pauses, snapshots and forks; each copy has its own", function()
    need_disks()
    local made = {}
    local box = create { limits = { disk = SIZE } }
    run(box, [[set -e; rm /etc/hosts; rm -r /srv; mkdir /srv; chmod 1777 /srv; echo new >/srv/only
      cd /home/user; head -c 3000000 /dev/urandom >r; ln r s; sha1sum r >sum; truncate -s 10M hole; chown 1000 r]],
      { user = "root" })
    local LOOK = "sha1sum -c /home/user/sum >&2 && cd / && stat -c '%n %a %u %h %s' srv/only home/user/* "
      .. "&& ls -A srv && ! test -e etc/hosts && ! head -c 100000000 /dev/zero 2>/dev/null >/home/user/big; rm /home/user/big"
    local look = run(box, "cd /home/user; " .. LOOK, { user = "root" })
    local function same(other, what)
      assert.equal(look, run(other, "cd /home/user; " .. LOOK, { user = "root" }), what)
    end
    sandbar.assert(box:snapshot("live"))
    assert.equal("memory", sandbar.assert(box:pause()))
    sandbar.assert(box:snapshot("frozen"))
    sandbar.assert(box:resume())
    same(box, "after a pause with memory")
    assert.equal("disk", sandbar.assert(box:pause { keep = "disk" }))
    assert.equal("", devices()) -- nobody has it open, and what was written is in it
    sandbar.assert(box:snapshot("rests"))
    sandbar.assert(box:resume())
    same(box, "after a pause")
    for _, name in ipairs { "live", "frozen", "rests" } do
      made[#made + 1] = create { snapshot = name }
      same(made[#made], name)
      assert.is_true(room(made[#made]) > SIZE * 0.75) -- what is below does not count
    end
    made[#made + 1] = create { snapshot = "rests", limits = { disk = 2 * SIZE } }
    assert.is_true(room(made[#made]) > 2 * SIZE * 0.75)
    made[#made + 1] = sandbar.assert(box:fork(1))[1]
    same(made[#made], "fork")
    assert.equal(SIZE, sandbar.assert(made[#made]:info()).limits.disk)
    made[#made + 1] = box
    for _, each in ipairs(made) do
      sandbar.assert(each:destroy())
      each:close()
    end
    for _, one in ipairs(sandbar.assert(sandboxes.snapshots:list())) do
      sandbar.assert(sandboxes.snapshots:delete(one.name))
    end
    no_devices()
    assert.same({}, entries("l"))
  end)

  it("is set aside: a create for which there is no room is NoSpace, and leaves nothing", function()
    need_disks()
    local root = helper.dir("small")
    helper.sh("mount -t tmpfs -o size=40m,mode=700 none %s", root)
    local ok, why = pcall(function()
      local own = sandbar.assert(sandbar.open { root = root, linger = 0 })
      local box = sandbar.assert(own:create { id = "a", limits = { disk = SIZE } })
      local made, err = own:create { id = "b", limits = { disk = SIZE } }
      assert.is_nil(made)
      assert.equal("NoSpace", err.kind)
      assert.is_truthy(err.message:find("limits.disk", 1, true), err.message)
      assert.equal("NotFound", select(2, own:info("b")).kind)
      helper.shell(("cat /dev/zero >%s/full 2>/dev/null"):format(root))
      -- What others have filled is nothing to the one that has its own.
      sandbar.assert(box.files:write("f", ("x"):rep(16 * MIB)))
      assert.equal(16 * MIB, #sandbar.assert(box.files:read("f")))
      os.remove(root .. "/full")
      sandbar.assert(box:destroy())
      box:close()
      local again = helper.eventually(function() return own:create { id = "b", limits = { disk = SIZE } } end)
      sandbar.assert(again:destroy())
      again:close()
      assert.is_truthy(helper.eventually(function() return next(helper.proc.of_dir(root)) == nil end))
    end)
    helper.sh("umount -l %s", root)
    assert(ok, why)
  end)

  it("is whole or gone when the supervisor is killed at any moment, and no device is left", function()
    need_disks()
    local delays = inside.times(1) > 1 and { 0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.08 } or { 0.005, 0.03 }
    for _, delay in ipairs(delays) do
      local box
      local function struck(call)
        local results = sandbar.assert(sandbar.all {
          function() return { call() } end,
          function()
            sandbar.sleep(delay)
            local pid = faults.supervisor()
            return not pid or faults.kill(pid) and helper.eventually(function() return not helper.proc.alive(pid) end)
          end,
        })
        local value, err = results[1][1], results[1][2]
        if value == nil then
          faults.typed(err)
        end
        return value, err
      end
      box = struck(function() return sandboxes:create { id = "a", limits = { disk = SIZE } } end)
      box = box or sandbar.assert(sandboxes:create { id = "a", limits = { disk = SIZE } })
      sandbar.assert(box:exec("echo kept >f"))
      struck(function() return box:snapshot("s") end)
      sandbar.assert(struck(function() return box:pause { keep = "disk" } end))
      sandbar.assert(struck(function() return box:resume() end))
      assert.equal("kept\n", run(box, "cat f"))
      sandbar.assert(box:snapshot("t"))
      sandbar.assert(struck(function() return box:destroy() end))
      box:close()
      for _, one in ipairs(sandbar.assert(sandboxes.snapshots:list())) do
        local copy = create { id = "copy", snapshot = one.name }
        assert.equal("kept\n", run(copy, "cat f"))
        sandbar.assert(copy:destroy())
        copy:close()
        sandbar.assert(sandboxes.snapshots:delete(one.name))
      end
      assert.same({}, sandbar.assert(sandboxes:list()))
    end
    no_devices()
    assert.same({}, entries("s"))
  end)
end)
