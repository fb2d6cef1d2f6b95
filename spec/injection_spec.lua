-- check: only 5.4
-- check: limit 1500
-- Faults from outside: no descriptors, no space, no memory, damaged and foreign files in the state directory
-- (what is killed at any moment: kills_spec). Every call ends, with a result or a typed error, and nothing is left.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local sandbar = require "sandbar"

local PRELUDE = faults.PRELUDE
local kill, supervisor, typed, with_root = faults.kill, faults.supervisor, faults.typed, faults.with_root

describe("injected:", function()
  helper.guard { seconds = 25 } -- a supervisor that its caller no longer needs waits for one 5 s

  local sandboxes = helper.open()

  describe("no descriptors in the program", function()
    it("is a typed error, and with descriptors again everything works", function()
      helper.need_program("prlimit")
      local r = helper.run_lua(PRELUDE .. [[
        local core = require "sandbar.core"
        local box = sandbar.assert(sandboxes:create_scoped {})
        sandbar.assert(box:exec("true"))
        sandbar.assert(box.files:write("f", ("x"):rep(200000)))
        -- By a program that was started before: nobody can be started while there are no descriptors.
        local setter = io.popen("sh >/dev/null", "w")
        local function limit(n)
          setter:write(("prlimit --pid %d --nofile=%d:\n"):format(core.pid(), n))
          setter:flush()
          while true do
            local f = io.open("/proc/self/limits")
            local now = f and tonumber(f:read("a"):match("Max open files%s+(%d+)"))
            if f then f:close() end
            if now == n or not now and n < 1024 then return end
          end
        end
        local function first_free()
          local f = io.popen("ls /proc/" .. core.pid() .. "/fd")
          local used, n = {}, 0
          for name in f:lines() do used[tonumber(name)] = true end
          f:close()
          while used[n] do n = n + 1 end
          return n
        end
        local calls = {
          exec = function() return box:exec("echo x", { timeout = 10 }) end,
          start = function()
            local p, err = box:start({ "cat" }, { stdin = "pipe", timeout = 10 })
            if p then p:close() end
            return p, err
          end,
          create = function()
            local other, err = sandboxes:create_scoped({ lifetime = 60 })
            if other then other:close() end
            return other, err
          end,
          connect = function()
            local other, err = sandboxes:connect(box.id, { timeout = 10 })
            if other then other:close() end
            return other, err
          end,
          read = function() return box.files:read("f", { timeout = 10 }) end,
          write = function() return box.files:write("g", ("y"):rep(200000), { timeout = 10 }) end,
          open = function()
            local f, err = box.files:open("f", "r", { timeout = 10 })
            if f then f:close() end
            return f, err
          end,
          list = function() return sandboxes:list { timeout = 10 } end,
          port = function()
            local port, err = box:port(9)
            if not port then return nil, err end
            err = select(2, port:connect { timeout = 10 })
            return err.kind == "Unavailable" and true or nil, err
          end,
        }
        local failed = 0
        for name, call in pairs(calls) do
          for spare = 0, 8 do
            collectgarbage() collectgarbage()
            limit(first_free() + spare)
            local ok, value, err = pcall(call)
            limit(1024)
            if not ok then say("raised", name, spare, value) end
            if ok and not value then
              failed = failed + 1
              if type(err) ~= "table" or not err.kind or err.kind == "Timeout" then say("bad", name, spare, err) end
            end
            local again, why = call()
            if not again then say("afterwards", name, spare, why) end
          end
        end
        if failed == 0 then say("no failure was seen") end
        setter:close()
        box:close()
        say("done")
      ]], { args = { helper.root() }, timeout = 120 })
      assert.equal("done\n", r.stdout, r.stderr)
      assert.equal("", r.stderr)
    end)
  end)

  describe("no descriptors in the supervisor", function()
    -- A next one that had too few took sandboxes for dead that it could not look at, and killed them.
    it("that comes after another one: it takes over all sandboxes or none, and harms none", function()
      helper.need_program("prlimit")
      with_root(function(root, own)
        for i = 1, 24 do
          sandbar.assert(own:create { id = "b" .. i }):close()
        end
        own:close()
        for _, n in ipairs { 84, 100, 116 } do
          kill(assert(supervisor(root)))
          local r = helper.run_lua(([[
            local sandbar, core = require "sandbar", require "sandbar.core"
            os.execute(("prlimit --pid %%d --nofile=%d:%d"):format(core.pid()))
            local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
            local list, err = sandboxes:list()
            print(list and #list or err.kind)
          ]]):format(n, n), { args = { root } })
          assert.is_truthy(r.stdout == "24\n" or r.stdout == "LimitExceeded\n", r.stdout .. r.stderr)
          local now = sandbar.assert(sandbar.open { root = root, linger = 0 })
          for _, info in ipairs(sandbar.assert(now:list())) do
            assert.equal("running", info.state, ("%s, %d descriptors"):format(info.id, n))
          end
          now:close()
        end
      end)
    end)
  end)

  describe("no space in the state directory", function()
    local function with_tmpfs(options, fn)
      helper.need_root()
      local dir = helper.dir("tmpfs")
      local out, status = helper.shell(("mount -t tmpfs -o mode=700,%s none %s"):format(options, dir))
      if status ~= 0 then
        helper.skip("a tmpfs cannot be mounted here: " .. out)
      end
      local ok, why = pcall(fn, dir, sandbar.assert(sandbar.open { root = dir, linger = 0 }))
      local empty = helper.eventually(function() return next(helper.proc.of_dir(dir)) == nil end, 15)
      helper.shell("umount -l " .. dir)
      if not ok then
        error(why, 0)
      end
      assert.is_truthy(empty, "processes are left")
    end

    local function full(dir, own, fill, free)
      local keep = sandbar.assert(own:create { id = "keep" })
      sandbar.assert(keep:exec("true"))
      fill()
      -- The first ones may have been prepared while there was space.
      local n, box, err = 0
      repeat
        n = n + 1
        box, err = own:create {}
        if box then
          assert.is_true(sandbar.assert(box:exec("true")).ok)
        else
          assert.equal("NoSpace", typed(err), tostring(err))
        end
      until not box or n > 20
      assert.is_nil(box, "there is always space")
      assert.equal(n, #sandbar.assert(own:list()))
      for _, info in ipairs(own:list()) do
        if info.id ~= "keep" then
          sandbar.assert(own:destroy(info.id)) -- needs no space
        end
      end
      assert.is_true(sandbar.assert(keep:exec("true")).ok)
      assert.equal("running", sandbar.assert(own:info("keep")).state)
      free()
      box = sandbar.assert(own:create {})
      assert.is_true(sandbar.assert(box:exec("true")).ok)
      sandbar.assert(box:destroy())
      sandbar.assert(keep:destroy())
      assert.same({}, sandbar.assert(own:list()))
      box:close()
      keep:close()
      assert.is_truthy(dir)
    end

    it("refuses a create by name and harms no other sandbox", function()
      with_tmpfs("size=24m", function(dir, own)
        full(dir, own, function()
          helper.shell(("cat /dev/zero >%s/junk"):format(dir))
        end, function()
          os.remove(dir .. "/junk")
        end)
      end)
    end)

    it("of names (inodes) does the same", function()
      with_tmpfs("size=64m,nr_inodes=1500", function(dir, own)
        full(dir, own, function()
          helper.shell(("mkdir -p %s/many; i=0; while : >%s/many/$i; do i=$((i+1)); done"):format(dir, dir))
        end, function()
          helper.shell(("rm -rf %s/many"):format(dir))
        end)
      end)
    end)

    it("from the beginning is said readably", function()
      with_tmpfs("size=4k,nr_inodes=3", function(_, own)
        local box, err = own:create {}
        assert.is_nil(box)
        assert.equal("NoSpace", typed(err), tostring(err))
      end)
    end)
  end)

  -- The path of a library to preload.
  local function preload(name)
    local path = inside.built(name)
    return path:sub(1, 1) == "/" and path or lfs.currentdir() .. "/" .. path
  end

  describe("a bad block of the disk", function()
    it("fails the reads that touch it, whoever makes them, and they consume nothing", function()
      local r = helper.run_lua(PRELUDE .. [[
        local BAD, KIB = 600 * 1024, 1024
        local box = sandbar.assert(sandboxes:create_scoped {})
        sandbar.assert(box.files:write("f", ("0123456789abcdef"):rep(64 * KIB)))
        local f = sandbar.assert(box.files:open("f"))
        local function fails(n)
          local at = f:seek()
          for i = 1, 40 do -- some are operations, some are not
            local data, err = f:read(n)
            if data or err.code ~= "EIO" or err.path ~= "f" or f:seek() ~= at then
              say("no error", at, n, i, err)
            end
          end
        end
        local function reads(n)
          local data, err = f:read(n)
          if #(data or "") ~= n then say("no data", f:seek(), n, err) end
        end
        for _ = 1, 2 do
          f:seek("set", 0)
          reads(256 * KIB)
          reads(256 * KIB)
          fails(256 * KIB)
          reads(64 * KIB)
          fails("l")
          reads(24 * KIB)
          fails(1)
          f:seek("set", BAD + 4096)
          reads(256 * KIB)
        end
        f:close()
        say(select(2, box.files:read("f")).code)
        box:close()
        say("done")
      ]], {
        args = { helper.root() }, env = { LD_PRELOAD = preload("fail_pread.so"), FAIL_PREAD = tostring(600 * 1024) },
      })
      assert.equal("EIO\ndone\n", r.stdout, r.stderr)
    end)
  end)

  describe("a system call filter that is older than epoll_pwait2", function()
    it("refuses it with EPERM, and the loop went round and round without hearing of anything", function()
      local r = helper.run_lua(PRELUDE .. [[
        local box = sandbar.assert(sandboxes:create_scoped {})
        say(sandbar.assert(box:exec("echo heard", { timeout = 20 })).stdout)
        local began = os.clock()
        sandbar.assert(sandbar.sleep(0.5))
        say(os.clock() - began < 0.2)
        box:close()
      ]], { args = { helper.root() }, env = { LD_PRELOAD = preload("refuse_pwait2.so") } })
      assert.equal("heard\n\ntrue\n", r.stdout, r.stderr)
    end)
  end)

  describe("no memory in the library", function()
    it("is a typed error or success for every single allocation, and the next call works", function()
      local shim = preload("fail_malloc.so")
      local file = helper.scratch() .. "/n"
      local r = helper.run_lua([[
        local sandbar = require "sandbar"
        local helper_root, shim, file, step = ...
        local arm = assert(package.loadlib(shim, "fail_arm"))
        local report = assert(package.loadlib(shim, "fail_report"))
        local sandboxes = sandbar.assert(sandbar.open { root = helper_root, linger = 20 })
        local function try(value, err)
          if value == nil then error(err, 0) end
          return value
        end
        local LIMIT = { timeout = 10 }
        local function work()
          local box
          local ok, err = pcall(function()
            box = try(sandboxes:create_scoped { lifetime = 60 })
            try(box:exec({ "echo", "hi" }, LIMIT))
            try(box:exec("cat", { stdin = "abc", timeout = 10, on_output = function() end }))
            local p = try(box:start({ "cat" }, { stdin = "pipe" }))
            try(p.stdin:write("x\n", LIMIT))
            try(p.stdout:read("l", LIMIT))
            try(p:kill { signal = "KILL", timeout = 10 })
            try(box.files:write("f", ("x"):rep(100000), LIMIT))
            try(box.files:write("g", "small", { atomic = false, timeout = 10 }))
            try(box.files:read("f", LIMIT))
            local f = try(box.files:open("f"))
            try(f:read(10))
            f:close()
            try(box.files:list(".", LIMIT))
            try(box.files:upload(arg[0], "up", LIMIT))
            try(box:processes(LIMIT))
            try(box:info(LIMIT))
            try(sandboxes:list(LIMIT))
            local _, why = box:port(9):connect(LIMIT)
            if why.kind ~= "Unavailable" then error(why, 0) end
          end)
          if box and not pcall(box.close, box) then
            box = nil
            collectgarbage() collectgarbage() -- lets go of it as well
          end
          return ok, err
        end
        assert(work())
        local fds = #io.popen("ls /proc/$PPID/fd"):read("a")
        local n, failed = 1, 0
        while true do
          local f = assert(io.open(file, "w"))
          f:write(n)
          f:close()
          arm()
          local ok, err = work()
          report()
          f = assert(io.open(file))
          local seen = f:read("n")
          f:close()
          if seen < n then break end
          if not ok then
            failed = failed + 1
            local text = tostring(err)
            if not (type(err) == "table" and err.kind == "LimitExceeded" or text:find("not enough memory", 1, true)) then
              print(n, text)
            end
          end
          local again, why = work()
          if not again then print("afterwards", n, why) end
          n = n + tonumber(step)
        end
        collectgarbage() collectgarbage()
        local core = require "sandbar.core"
        for _ = 1, 100 do
          if core.outstanding() > 0 then sandbar.sleep(0.05) end
        end
        if core.outstanding() ~= 0 or #sandboxes:list() ~= 0 then print("left over", core.outstanding()) end
        sandbar.assert(sandbar.assert(sandbar.open { root = helper_root, linger = 0 }):list())
        local more = #io.popen("ls /proc/$PPID/fd"):read("a") - fds
        if more > 20 then print("descriptors grew", more) end
        print(failed > 10 and n > 60 and "done" or "too little was seen")
      ]], {
        args = { helper.root(), shim, file, inside.times(1) > 1 and 1 or 3 },
        env = { LD_PRELOAD = shim, FAIL_MALLOC = file }, timeout = 200,
      })
      os.remove(file)
      assert.equal("done\n", r.stdout, r.stderr)
      assert.is_nil(r.signal)
      assert.equal("", r.stderr)
    end)
  end)

  describe("a damaged record", function()
    local DAMAGE = {
      ["cut in half"] = function(path, data) helper.write_file(path, data:sub(1, math.floor(#data / 2))) end,
      ["cut to its head"] = function(path, data) helper.write_file(path, data:sub(1, 16)) end,
      ["one byte"] = function(path) helper.write_file(path, "S") end,
      ["garbage"] = function(path, data) helper.write_file(path, (data:gsub(".", "\165"))) end,
      ["garbage of a megabyte"] = function(path) helper.write_file(path, ("\255"):rep(1048576)) end,
      ["a flipped bit"] = function(path, data)
        local at = math.floor(#data * 0.7)
        helper.write_file(path, data:sub(1, at) .. string.char((data:byte(at + 1) + 1) % 256) .. data:sub(at + 2))
      end,
      ["a directory"] = function(path) os.remove(path) lfs.mkdir(path) end,
      ["a dangling link"] = function(path) os.remove(path) helper.shell("ln -s /nowhere/at/all " .. path) end,
      ["a pipe"] = function(path) os.remove(path) helper.shell("mkfifo " .. path) end,
      ["nothing in it"] = function(path) helper.write_file(path, "") end,
      ["gone"] = function(path) os.remove(path) end,
    }

    it("is a failed sandbox or none, harms no other, and can be destroyed", function()
      with_root(function(root, own)
        local other = sandbar.assert(own:create { id = "other" })
        local hurt = {}
        for name, damage in pairs(DAMAGE) do
          for _, kind in ipairs { "paused", "running" } do
            local id = (kind .. "." .. name):gsub(" ", "-")
            local box = sandbar.assert(own:create { id = id })
            if kind == "paused" then
              sandbar.assert(box:pause { keep = "disk" })
            end
            box:close()
            hurt[id] = damage
          end
        end
        -- Under the eyes of the supervisor, which does not look again: whoever has a connection starts the next
        -- one as soon as this one is dead, and that one reads them.
        for id, damage in pairs(hurt) do
          local path = root .. "/v1/s/" .. id .. "/record"
          damage(path, assert(helper.read_file(path)))
        end
        local pid = assert(supervisor(root))
        kill(pid)
        assert.is_truthy(helper.eventually(function() return not helper.proc.alive(pid) end))
        local listed = 0
        for _, info in ipairs(sandbar.assert(own:list { timeout = 20 })) do
          if hurt[info.id] then
            listed = listed + 1
            assert.equal("failed", info.state, info.id)
            assert.is_truthy(sandbar.assert(own:info(info.id)).cause, info.id)
            local box, err = own:connect(info.id, { resume = true, timeout = 20 })
            if box then
              local r
              r, err = box:exec("true", { timeout = 20 })
              assert.is_nil(r, info.id)
              box:close()
            end
            typed(err, info.id)
          end
        end
        assert.is_true(listed > 4)
        assert.is_true(sandbar.assert(other:exec("true")).ok)
        for id in pairs(hurt) do
          sandbar.assert(own:destroy(id))
          assert.equal("NotFound", select(2, own:info(id)).kind, id)
        end
        sandbar.assert(other:destroy())
        other:close()
      end)
    end)
  end)

  describe("a record that cannot be read for a while", function()
    -- What it names was thrown away as nobody's, so that the record was worth nothing when it was there again.
    it("costs a sandbox nothing of what a snapshot has sealed", function()
      with_root(function(root, own)
        local box = sandbar.assert(own:create { id = "sealed" })
        sandbar.assert(box.files:write("/home/user/f", "still there"))
        sandbar.assert(box:pause { keep = "disk" })
        sandbar.assert(box:snapshot "s")
        box:close()
        sandbar.assert(own.snapshots:delete "s") -- the sandbox names its layer now, nobody else does
        local path = root .. "/v1/s/sealed/record"
        local text = assert(helper.read_file(path))
        helper.write_file(path, "gone for a while")
        local pid = supervisor(root)
        if pid then
          kill(pid)
        end
        assert.equal("failed", sandbar.assert(own:info("sealed")).state)
        helper.write_file(path, text)
        pid = supervisor(root)
        if pid then
          kill(pid)
        end
        box = sandbar.assert(own:connect("sealed", { resume = true }))
        assert.equal("still there", sandbar.assert(box.files:read("/home/user/f")))
        sandbar.assert(box:destroy())
        box:close()
        assert.is_truthy(helper.eventually(function()
          return helper.shell(("ls %s/v1/l"):format(root)) == ""
        end, 10))
      end)
    end)
  end)

  describe("the state directory", function()
    it("may hold a stale socket and lock files", function()
      local STALE = {
        file = function(path) helper.write_file(path, "junk") end,
        directory = function(path) lfs.mkdir(path) end,
        pipe = function(path) helper.shell("mkfifo " .. path) end,
        ["dangling link"] = function(path) helper.shell("ln -s /nowhere/at/all " .. path) end,
        ["dead socket"] = function(path, root, own)
          sandbar.assert(own:list()) -- a supervisor that is killed leaves its own
          local pid = supervisor(root)
          if pid then
            kill(pid)
            assert(helper.eventually(function() return not helper.proc.alive(pid) end))
          end
          assert.is_truthy(path)
        end,
      }
      for name, make in pairs(STALE) do
        with_root(function(root, own)
          lfs.mkdir(root .. "/v1")
          helper.shell("chmod 700 " .. root .. "/v1")
          helper.write_file(root .. "/v1/boot.lock", "99999\n")
          helper.write_file(root .. "/v1/life.lock", "99999\n")
          make(root .. "/v1/sock", root, own)
          local box, err = own:create_scoped {}
          if name == "directory" and not box then -- nobody's stale file: to be said, not to be removed
            typed(err, name)
          else
            assert.is_truthy(box, name .. ": " .. tostring(err))
            assert.is_true(sandbar.assert(box:exec("true")).ok)
            box:close()
          end
        end)
      end
    end)

    it("that is a symbolic link is said to be one", function()
      with_root(function(root)
        local link = root .. ".link"
        helper.sh("ln -s %s %s", root, link)
        local _, err = helper.open({ root = link }):create_scoped {}
        assert(os.remove(link))
        assert.equal("InvalidArgument", err.kind)
        assert.matches(link .. " is a symbolic link", tostring(err), 1, true)
      end)
    end)

    it("whose lock somebody else holds is said within the documented time", function()
      if inside.times(1) == 1 then
        helper.skip("takes 10 s: in check-long")
      end
      helper.need_program("flock")
      with_root(function(root, own)
        lfs.mkdir(root .. "/v1")
        helper.shell("chmod 700 " .. root .. "/v1")
        local holder = io.popen(("exec flock %s/v1/life.lock sh -c 'echo held; exec sleep 25'"):format(root))
        assert.equal("held", holder:read("l"))
        local err
        local seconds = helper.timed(function() err = select(2, own:create {}) end)
        typed(err)
        assert.is_true(seconds < 20, seconds .. " s")
        holder:close()
      end)
    end)

    it("of the wrong mode, owner or kind is refused with a word about it", function()
      local function refused(root, what)
        local own = sandbar.assert(sandbar.open { root = root, linger = 0 })
        local box, err = own:create {}
        assert.is_nil(box)
        typed(err)
        assert.is_truthy(tostring(err):find(root, 1, true), tostring(err))
        assert.is_truthy(tostring(err):lower():find(what, 1, true), tostring(err))
      end
      local dir = helper.dir("wrong")
      helper.shell("chmod 777 " .. dir)
      refused(dir, "mode 777")
      helper.shell(("chmod 700 %s && mkdir -m 755 %s/v1"):format(dir, dir))
      refused(dir, "mode 755")
      lfs.rmdir(dir .. "/v1")
      helper.write_file(dir .. "/v1", "")
      refused(dir, "not a directory")
      os.remove(dir .. "/v1")
      helper.write_file(dir .. "/file", "")
      refused(dir .. "/file", "not a directory")
      refused(dir .. "/file/below", "not a directory")
      helper.shell(("mkdir -m 700 %s/real && ln -s real %s/link"):format(dir, dir))
      refused(dir .. "/link", "director")
      if helper.is_root() then
        helper.shell("chown 65534 " .. dir .. "/real")
        refused(dir .. "/real", "belongs to uid 65534")
      else
        refused("/root/sandbar-spec", "denied")
        refused("/", "belongs to uid 0")
      end
      helper.remove(dir)
    end)
  end)

  describe("many at once", function()
    it("programs that create the same id: one wins, the others are told", function()
      for round = 1, inside.times(3) do
        local gate = helper.scratch() .. "/gate"
        helper.shell("mkfifo " .. gate)
        local children = {}
        for i = 1, 5 do
          children[i] = helper.start_lua(PRELUDE .. [[
            say("ready")
            local gate = io.open(arg[2]) -- until somebody opens its other end
            local box, err = sandboxes:create { id = arg[3], labels = { by = arg[4] } }
            say(box and "won" or err.kind)
            gate:close()
          ]], { args = { helper.root(), gate, "same" .. round, i } })
          assert.equal("ready", children[i]:line())
        end
        local f = assert(io.open(gate, "w"))
        local won, winner = 0, nil
        for i, child in ipairs(children) do
          local said = child:wait().stdout:match("ready\n(%w+)")
          if said == "won" then
            won, winner = won + 1, i
          else
            assert.equal("AlreadyExists", said)
          end
        end
        f:close()
        os.remove(gate)
        assert.equal(1, won)
        assert.equal(tostring(winner), sandbar.assert(sandboxes:info("same" .. round)).labels.by)
        sandbar.assert(sandboxes:destroy("same" .. round))
      end
    end)

    it("50 creates", function()
      local fns = {}
      for i = 1, 50 do
        fns[i] = function()
          local box = sandbar.assert(sandboxes:create_scoped { labels = { i = tostring(i) } })
          local r = sandbar.assert(box:exec { "echo", tostring(i) })
          assert.equal(i .. "\n", r.stdout)
          return box
        end
      end
      local boxes = sandbar.assert(sandbar.all(fns))
      local ids = {}
      for _, info in ipairs(sandbar.assert(sandboxes:list())) do
        ids[info.id] = info.labels.i
      end
      fns = {}
      for i = 1, 50 do
        assert.equal(tostring(i), ids[boxes[i].id])
        fns[i] = function() return boxes[i]:close() end
      end
      sandbar.assert(sandbar.all(fns))
      assert.same({}, sandbar.assert(sandboxes:list()))
    end)
  end)

  it("user namespaces switched off are named, and nothing is left", function()
    -- Two user namespaces of our own, in which no further one may be made; an ordinary user in the inner one.
    local wrap = "unshare -Ur sh -c 'echo 1 >/proc/sys/user/max_user_namespaces && exec unshare -U --map-user=1000 "
      .. "--map-group=1000 %s'"
    local out, status = helper.shell(wrap:format("true"))
    if status ~= 0 then
      helper.skip("cannot be simulated here: " .. out)
    end
    with_root(function(root)
      local code = helper.write_file(helper.scratch() .. "/userns.lua", PRELUDE .. [[
        local box, err = sandboxes:create { timeout = nil }
        say(box, err.kind, tostring(err))
      ]])
      local said, rc = helper.shell(wrap:format(("timeout 30 %s %s %s"):format(helper.interpreter(), code, root)))
      os.remove(code)
      assert.equal(0, rc, said)
      assert.is_truthy(said:match("^nil\t%a+\t"), said)
      assert.is_truthy(said:lower():find("namespace", 1, true), said)
      for name in lfs.dir(root .. "/v1/s") do
        assert.is_truthy(name:sub(1, 1) == ".", "left over: " .. name)
      end
    end)
  end)
end)
