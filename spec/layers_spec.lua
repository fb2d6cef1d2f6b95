-- check: only 5.4
-- check: no asan
-- What a sandbox stands on: the same whatever way it came to be, and right after any number of snapshots.

local helper = require "spec.helper"

local lfs = require "lfs"
local sandbar = require "sandbar"

describe("a snapshot", function()
  helper.guard()

  local sandboxes = helper.open()
  local ROOT = { user = "root" }

  local function create(spec)
    return sandbar.assert(sandboxes:create_scoped(spec or {}))
  end

  local function run(box, line, opts)
    local r = sandbar.assert(box:exec(line, opts))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
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

  local function nothing_left()
    assert.is_truthy(helper.eventually(function()
      return #entries("l") == 0 and #entries("n") == 0
    end), table.concat(entries("l"), " ") .. table.concat(entries("n"), " "))
  end

  it("gives a copy the same mounts and the same pid 1 as any sandbox has, and a pause does", function()
    -- Everything but what an overlay says of its layers, the range's ids and the boot's.
    local SEEN = [[
      sed 's/^[0-9]* [0-9]* [0-9]*:[0-9]* //; /- overlay /s/ - overlay.*//
        s,^/[0-9a-f-]\{36\}[^ ]*,/boot,; s/\([ug]id=\)[0-9]\{9\}[0-9]*/\1/g' /proc/self/mountinfo | sort
      cat /proc/1/status | grep -E 'NoNewPrivs|Seccomp|Cap|Uid' ; stat -c '%a %U %n' / /dev /dev/pts /dev/shm /proc /tmp /usr
      readlink /proc/self/cwd /proc/self/root; ls /dev; hostname; id; tty; ulimit -u
      script -qc 'test -t 0 && echo terminal' /dev/null; echo x >/dev/shm/x; cat /proc/sys/kernel/random/boot_id | wc -c]]
    local function seen(box)
      return run(box, SEEN)
    end
    local box = create()
    local fresh = seen(box)
    local boots = { [sandbar.assert(box:info()).boot_id] = true }
    sandbar.assert(box:snapshot("whole"))
    for i = 1, 6 do -- more than are prepared
      local copy = create { snapshot = "whole" }
      assert.equal(fresh, seen(copy), "copy " .. i)
      copy:close()
    end
    for i = 1, 3 do
      sandbar.assert(box:pause { keep = "disk" })
      sandbar.assert(box:resume())
      assert.equal(fresh, seen(box), "resume " .. i)
      local n = sandbar.assert(box:info()).boot_id
      assert.is_nil(boots[n])
      boots[n] = true
    end
    box:close()
    sandbar.assert(sandboxes.snapshots:delete("whole"))
    nothing_left()
  end)

  it("of a stopped sandbox did take owner, mode and time from its / and /usr", function()
    local box = create()
    local LOOK = "stat -c '%n %a %u:%g %Y' / /usr; getfattr --only-values -n user.note / 2>/dev/null; true"
    -- An ordinary user's /usr is the host's, and read-only.
    run(box, [[chmod 1775 /; chown 1000:50 /; setfattr -n user.note -v kept /
      chmod 750 /usr && chown 0:1000 /usr && touch -d @1000000000 /usr; touch -d @1000000001 /]], ROOT)
    local look = run(box, LOOK)
    assert.is_truthy(look:find("/ 1775 1000:50 1000000001\n", 1, true), look)
    if helper.is_root() then
      assert.is_truthy(look:find("/usr 750 0:1000 1000000000\n", 1, true), look)
    end
    local names = {}
    local function rest(of)
      sandbar.assert(of:pause { keep = "disk" })
      names[#names + 1] = sandbar.assert(of:snapshot())
      sandbar.assert(of:resume())
      assert.equal(look, run(of, LOOK))
    end
    rest(box)
    rest(box)
    names[#names + 1] = sandbar.assert(box:snapshot())
    for i = 1, 3 do
      local copy = create { snapshot = names[i] }
      assert.equal(look, run(copy, LOOK))
      rest(copy)
      copy:close()
    end
    for _, copy in ipairs(sandbar.assert(box:fork(2))) do
      assert.equal(look, run(copy, LOOK))
      copy:close()
    end
    box:close()
    for _, name in ipairs(names) do
      sandbar.assert(sandboxes.snapshots:delete(name))
    end
    nothing_left()
  end)

  it("of a directory of the host's is not closed to others, whatever that directory is", function()
    local dir = helper.dir("closed")
    helper.sh("chmod 700 %s && echo here >%s/file", dir, dir)
    if helper.is_root() then
      helper.sh("chown 1000 %s", dir)
    end
    sandbar.assert(sandboxes.templates:build { name = "closed", from = dir })
    local copy = create { template = "closed" }
    assert.equal("755", sandbar.assert(copy.files:stat("/")).mode)
    assert.equal("here\n", sandbar.assert(copy.files:read("/file")))
    copy:close()
    sandbar.assert(sandboxes.templates:delete("closed"))
    helper.remove(dir)
  end)

  it("can be taken without end: layers are merged before they are too many", function()
    local box = create()
    -- What comes later hides, replaces and changes what was before, directories' attributes too.
    local steps = {
      "mkdir -p d/e g; echo 1 >d/a; echo 1 >d/e/b; ln d/a d/h; echo 1 >f; setfattr -n user.x -v 1 g 2>/dev/null; chmod 700 g",
      "rm d/a; echo 2 >d/c; rm f; mkdir f; echo 2 >f/x; setfattr -x user.x g 2>/dev/null; chmod 755 g; echo 2 >g/y",
      "rm -r d/e; mkdir d/e; echo 3 >d/e/new; rm -r f; echo 3 >f; ln -s f l; truncate -s 8M s; echo 3 >>s; rm -r /srv",
      "rm -r d; echo 4 >d; rm f g/y; mkdir /srv; echo >/srv/of",
      "rm d; mkdir d; echo 5 >d/b; mkdir f; echo 5 >f/y; ln d/b f/z; mkfifo p; touch -d @1000000000 d/b",
    }
    -- Not how many names a file has: those of other layers count.
    local SEEN = [[cd /home/user; find . /srv | sort | while read -r name; do stat -c '%n %F %a %U %Y' "$name"; done
      find . -type f -size -2 | sort | xargs grep -H .; readlink l; tail -c 2 s; stat -c %b s | cut -c1; getfattr -d g 2>/dev/null
      test f/z -ef d/b && echo one; true]]
    local looks, names = {}, {}
    local function snapshot()
      names[#names + 1] = sandbar.assert(box:snapshot())
    end
    local function same(of, look)
      assert.equal(look, run(of, SEEN, ROOT))
    end
    for i, step in ipairs(steps) do
      run(box, "cd /home/user; " .. step .. "; true", ROOT)
      looks[i] = run(box, SEEN, ROOT)
      sandbar.assert(box:pause { keep = "disk" })
      snapshot()
      if i == 4 then
        for _ = 1, 9 do
          snapshot()
        end
      end
      sandbar.assert(box:resume())
      same(box, looks[i])
    end
    -- Of a running one that stands on fourteen, a fifteenth: that one takes all together.
    local copy = create { snapshot = names[#names] }
    sandbar.assert(copy:pause { keep = "disk" })
    local more = sandbar.assert(copy:snapshot("more"))
    sandbar.assert(copy:resume())
    run(copy, "echo 6 >/home/user/d/six", ROOT)
    local look = run(copy, SEEN, ROOT)
    sandbar.assert(copy:snapshot("all"))
    copy:close()
    sandbar.assert(sandboxes.snapshots:delete(more))
    copy = create { snapshot = "all" }
    same(copy, look)
    assert.equal("one\n", run(copy, "cd /home/user; echo 7 >>d/b; test f/z -ef d/b && echo two || echo one", ROOT))
    copy:close()
    sandbar.assert(sandboxes.snapshots:delete("all"))
    -- The second time it comes for the sandbox itself, which has changed meanwhile and waits for it.
    sandbar.assert(box:pause { keep = "disk" })
    snapshot()
    sandbar.assert(sandbar.all {
      function() snapshot() return true end,
      function() return sandbar.assert(box:resume()) end,
    })
    same(box, looks[5])
    for i, name in ipairs(names) do
      if i == 3 or i == #names then
        copy = create { snapshot = name }
        same(copy, looks[math.min(i, 5)])
        copy:close()
      end
      sandbar.assert(sandboxes.snapshots:delete(name))
    end
    assert.is_true(#entries("l") < 4, #entries("l") .. " layers")
    same(box, looks[5])
    box:close()
    nothing_left()
  end)
end)
