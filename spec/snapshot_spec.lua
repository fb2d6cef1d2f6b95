-- Snapshots and copies: what is in them, whom they belong to, and that nothing of them stays.
-- check: limit 300

local helper = require "spec.helper"

local core = require "sandbar.core"
local lfs = require "lfs"
local sandbar = require "sandbar"

describe("a snapshot", function()
  helper.guard()

  local sandboxes = helper.open()

  local function create(spec)
    return sandbar.assert(sandboxes:create_scoped(spec or {}))
  end

  local function run(box, line, opts)
    local r = sandbar.assert(box:exec(line, opts))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
  end

  local function refused(kind, _, err)
    assert.equal(kind, err and err.kind, tostring(err))
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

  -- Everything an upper can say. As root inside: /etc and /usr are root's.
  local CHANGES = [[
    set -e
    rm /etc/hosts; mv /etc/hostname /etc/name
    rm -r /etc/ssl; mkdir /etc/ssl; echo new >/etc/ssl/only
    rm -r /srv; echo file >/srv
    mkdir -p /opt/a/b; echo deep >/opt/a/b/c; chmod 1777 /opt/a; chown -R 1000:1000 /opt/a/b
    cd /home/user; echo one >f; ln f g; ln -s f l; mkfifo p; chmod 640 f
    truncate -s 100M sparse; printf end | dd of=sparse bs=1 seek=104857000 conv=notrunc status=none
    touch -d @1000000000 f
    setfattr -n user.note -v kept f 2>/dev/null || true
  ]]
  -- What it looks like, in one text.
  local LOOK = [[
    cd /; (find etc/ssl srv opt home/user etc/name etc/hosts 2>/dev/null | sort | while read -r name; do
      stat -c '%n %F %a %u %g %h' "$name"; done
    cat etc/ssl/only srv opt/a/b/c home/user/f home/user/g; readlink home/user/l
    stat -c '%Y %s' home/user/f; stat -c %s home/user/sparse; du -k home/user/sparse | cut -f1; tail -c 5 home/user/sparse
    getfattr --only-values -n user.note home/user/f 2>/dev/null) 2>&1; true
  ]]
  local ROOT = { user = "root" }

  it("of a running, a standing and a stopped sandbox is the same, and has all of it", function()
    local box = create { env = { A = "1" }, cwd = "/home/user" }
    run(box, CHANGES, ROOT)
    local look = run(box, LOOK, ROOT)
    assert.is_truthy(look:find("etc/ssl/only", 1, true))
    assert.is_nil(look:find("etc/hosts", 1, true))
    local p = sandbar.assert(box:start({ "sleep", "60" }))
    assert.equal("running", sandbar.assert(box:snapshot("running")))
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(box:pause())
    assert.equal("standing", sandbar.assert(box:snapshot("standing")))
    assert.equal("memory", sandbar.assert(sandboxes:info(box.id)).kept)
    sandbar.assert(box:resume())
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(box:pause { keep = "disk" })
    assert.equal("stopped", sandbar.assert(box:snapshot("stopped")))
    sandbar.assert(box:resume())
    assert.equal(look, run(box, LOOK, ROOT))
    local names = {}
    for i, one in ipairs(sandbar.assert(sandboxes.snapshots:list())) do
      names[i] = one.name
      assert.equal("base", one.template)
      assert.is_true(math.abs(one.created_at - os.time()) < 60)
    end
    assert.same({ "running", "standing", "stopped" }, names)
    for _, name in ipairs(names) do
      local copy = create { snapshot = name, env = { B = "2" } }
      assert.equal(look, run(copy, LOOK, ROOT))
      assert.equal("1 2 /home/user\n", run(copy, "echo $A $B $PWD"))
      assert.same({}, (function()
        local running = {}
        for _, one in ipairs(sandbar.assert(copy:processes())) do
          running[#running + 1] = one.running and one or nil
        end
        return running
      end)())
      assert.equal(name, sandbar.assert(copy:info()).snapshot)
      -- Neither sees what the other does.
      sandbar.assert(copy.files:write("/home/user/f", name, { user = "root" }))
      assert.equal("one\n", box.files:read("/home/user/f", { user = "root" }))
      refused("Busy", sandboxes.snapshots:delete(name))
      sandbar.assert(copy:close())
      sandbar.assert(sandboxes.snapshots:delete(name))
      refused("NotFound", sandboxes.snapshots:delete(name))
    end
    box:close()
    nothing_left()
  end)

  it("of a stopped sandbox copies nothing, whatever its size", function()
    local box = create()
    run(box, "head -c 24M /dev/urandom >big; sha256sum big >sum")
    sandbar.assert(box:pause { keep = "disk" })
    local function used()
      -- What the trash is emptied of meanwhile would be complained of, with a path that may have digits too.
      return tonumber(helper.shell("du -sk " .. helper.root() .. "/v1 2>/dev/null"):match("^(%d+)%s"))
    end
    local before = used()
    sandbar.assert(box:snapshot("big"))
    local copies = sandbar.assert(box:fork(3))
    assert.is_true(used() - before < 12288, used() - before .. " KiB more")
    for _, copy in ipairs(copies) do
      run(copy, "sha256sum -c sum")
      run(copy, "echo more >>big; ! sha256sum -c sum 2>/dev/null")
      copy:close()
    end
    sandbar.assert(box:resume())
    run(box, "sha256sum -c sum")
    box:close()
    sandbar.assert(sandboxes.snapshots:delete("big"))
    nothing_left()
  end)

  it("can stand on others, and what is removed, replaced and made again comes out right", function()
    local box = create()
    local steps = {
      "mkdir d; echo 1 >d/a; echo 1 >d/b; echo 1 >f",
      "rm d/a; echo 2 >d/c; rm f; mkdir f; echo 2 >f/x",
      "rm -r d; mkdir d; echo 3 >d/new; rm -r f; echo 3 >f",
      "rm -r d; echo 4 >d; rm f",
      "rm d; mkdir d; echo 5 >d/b; mkdir f; echo 5 >f/y",
    }
    local looks = {}
    for i, step in ipairs(steps) do
      run(box, step)
      looks[i] = run(box, "find . -type f | sort | xargs grep -H .")
      if i % 2 == 0 then
        sandbar.assert(box:pause { keep = "disk" })
      end
      sandbar.assert(box:snapshot("step" .. i))
      sandbar.assert(box:resume())
    end
    for i in ipairs(steps) do
      local copy = create { snapshot = "step" .. i }
      assert.equal(looks[i], run(copy, "find . -type f | sort | xargs grep -H ."))
      -- And a snapshot of the copy, which has layers of its own by then.
      run(copy, "echo own >own")
      sandbar.assert(copy:snapshot("again"))
      local second = create { snapshot = "again" }
      assert.equal(looks[i] .. "./own:own\n", run(second, "find . -type f | sort | xargs grep -H ."))
      second:close()
      sandbar.assert(sandboxes.snapshots:delete("again"))
      copy:close()
      sandbar.assert(sandboxes.snapshots:delete("step" .. i))
    end
    box:close()
    nothing_left()
  end)

  it("has a name of its own, which is checked before anything is done", function()
    local box = create()
    local name = sandbar.assert(box:snapshot())
    assert.is_truthy(name:match("^%x+%-%x+%-4%x+%-%x+%-%x+$"))
    refused("AlreadyExists", box:snapshot(name))
    refused("InvalidArgument", box:snapshot("a/b"))
    refused("InvalidArgument", box:snapshot(""))
    refused("InvalidArgument", sandboxes:create { snapshot = "../x" })
    refused("InvalidArgument", sandboxes:create { snapshot = name, template = "base" })
    refused("InvalidArgument", sandboxes.snapshots:delete("a/b"))
    refused("NotFound", sandboxes:create { snapshot = "nowhere" })
    refused("InvalidArgument", box:fork(0))
    refused("InvalidArgument", box:fork(1.5))
    assert.has_error(function() box:snapshot {} end)
    assert.has_error(function() box:fork("x") end)
    sandbar.assert(sandboxes.snapshots:delete(name))
    box:close()
    refused("Closed", box:snapshot())
    refused("Closed", box:fork())
    nothing_left()
  end)

  it("is not seen by calls that come while it is taken: they wait", function()
    local box = create()
    run(box, "for i in $(seq 150); do mkdir -p d/$i; echo $i >d/$i/f; done")
    sandbar.scope(function(scope)
      local done = 0
      for i = 1, 20 do
        scope:spawn(function()
          local opts = i % 2 == 0 and { on_output = function() end } or nil
          assert.equal(i .. "\n", run(box, "echo " .. i, opts))
          done = done + 1
        end)
      end
      sandbar.assert(box:snapshot("busy"))
      assert(helper.eventually(function() sandbar.sleep(0.01) return done == 20 end))
    end)
    sandbar.assert(sandboxes.snapshots:delete("busy"))
    box:close()
    nothing_left()
  end)

  it("lets copies begin as their original is, with labels, settings and files", function()
    local box = sandbar.assert(sandboxes:create {
      id = "original", labels = { of = "ann" }, lifetime = 500, on_expiry = "destroy", env = { A = "x" },
      limits = { processes = 100 },
    })
    sandbar.assert(box.files:write("f", "one"))
    local copies = sandbar.assert(box:fork(3))
    assert.equal(3, #copies)
    for i, copy in ipairs(copies) do
      assert.equal("one", copy.files:read("f"))
      assert.equal("x\n", run(copy, "echo $A"))
      local info = sandbar.assert(copy:info())
      assert.same({ of = "ann" }, info.labels)
      assert.same({ 500, "destroy", false }, { info.lifetime, info.on_expiry, info.owned })
      assert.is_nil(info.snapshot)
      sandbar.assert(copy.files:write("f", tostring(i)))
    end
    assert.equal("one", box.files:read("f"))
    assert.equal("2", copies[2].files:read("f"))
    assert.same({}, sandbar.assert(sandboxes.snapshots:list()))
    for _, copy in ipairs(copies) do
      sandbar.assert(copy:destroy())
      copy:close()
    end
    sandbar.assert(box:destroy())
    box:close()
    nothing_left()
  end)

  it("leaves no copy of a scoped sandbox behind", function()
    local ids = {}
    sandbar.scope(function(scope)
      local box = sandbar.assert(sandboxes:create_scoped({}, scope))
      for i, copy in ipairs(sandbar.assert(box:fork(2))) do
        ids[i] = copy.id
        assert.is_true(copy.owned)
      end
    end)
    for _, id in ipairs(ids) do
      refused("NotFound", sandboxes:info(id))
    end
    nothing_left()
  end)

  it("has no copies that nobody got, where a fork ended early with several of them under way", function()
    local box = create { id = "many" }
    sandbar.assert(box:pause { keep = "disk" })
    local ended, i = 0, 0
    local timeouts = { false, false, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05 }
    while i < #timeouts do
      i = i + 1
      local timeout = timeouts[i]
      local began = core.now()
      local copies, err = box:fork(12, { timeout = timeout })
      ended = ended + (copies and 0 or 1)
      assert.equal(copies and 12 or "Timeout", copies and #copies or err.kind)
      if i == 2 then -- and some that end when part of them is made
        local whole = core.now() - began
        for part = 76, 100, 3 do
          timeouts[#timeouts + 1] = whole * part / 100
        end
      end
      for _, copy in ipairs(copies or {}) do
        sandbar.assert(copy:destroy())
        copy:close()
      end
    end
    assert.is_true(ended > 0)
    assert.is_truthy(helper.eventually(function()
      return #sandbar.assert(sandboxes:list()) == 1
    end))
    sandbar.assert(box:destroy())
    box:close()
    nothing_left()
  end)

  it("of a program that was killed in the middle of a fork goes with it", function()
    local root = helper.dir()
    local own = helper.open { root = root }
    local box = sandbar.assert(own:create { id = "big" })
    sandbar.assert(box:exec("for i in $(seq 800); do echo $i >f$i; done"))
    for _ = 1, 3 do
      local child = helper.start_lua(([[
        local sandbar = require "sandbar"
        local own = sandbar.assert(sandbar.open { root = %q, linger = 0 })
        local box = sandbar.assert(own:connect("big"))
        print("go") io.stdout:flush()
        box:fork(50)
      ]]):format(root))
      assert.equal("go", child:line())
      sandbar.sleep(0.1)
      child:signal("KILL")
      child:wait()
      assert.is_true(sandbar.assert(box:exec("true")).ok)
    end
    assert.same({}, sandbar.assert(own.snapshots:list()))
    assert.is_truthy(helper.eventually(function() -- copies of an unscoped one belong to nobody; one may be on its way
      for _, info in ipairs(sandbar.assert(own:list())) do
        sandbar.assert(own:destroy(info.id))
      end
      return helper.shell(("ls %s/v1/l %s/v1/n"):format(root, root)):gsub("/[^\n]*\n", ""):gsub("%s", "") == ""
    end))
    box:close()
    own:close()
    helper.remove(root)
  end)

  it("that finds no room fails, and the sandbox runs on", function()
    helper.need_root()
    local root = helper.dir()
    assert.equal("", (helper.shell("mount -t tmpfs -o size=12m,mode=700 none " .. root)))
    local own = helper.open { root = root }
    local box = sandbar.assert(own:create { id = "full" })
    sandbar.assert(box:exec("head -c 7M /dev/zero >f"))
    refused("NoSpace", box:snapshot("never"))
    assert.same({}, sandbar.assert(own.snapshots:list()))
    refused("NoSpace", box:fork(1))
    assert.is_true(sandbar.assert(box:exec("true")).ok)
    sandbar.assert(box:exec("rm f"))
    assert.is_truthy(helper.eventually(function() -- the half copy is thrown away a moment later
      return box:snapshot("now")
    end))
    sandbar.assert(box:destroy())
    box:close()
    own:close()
    helper.shell("umount -l " .. root)
    helper.remove(root)
  end)
end)
