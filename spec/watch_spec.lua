-- files:watch. Repetitions grow with SANDBAR_LONG=1.

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("files:watch", function()
  helper.guard()

  local sandboxes = helper.open()

  -- Runs fn(box, watch, sh): watch(opts) watches ~/D, sh(line) runs a shell line in it.
  local function with_watch(fn, spec)
    inside.with_box(sandboxes, function(box, scope)
      sandbar.assert(box.files:mkdir("D"))
      fn(box, function(opts)
        return (sandbar.assert(box.files:watch("D", opts)))
      end, function(line)
        return sandbar.assert(box:exec(line, { cwd = "/home/user/D", check = true, timeout = 60 }))
      end, scope)
    end, spec)
  end

  local function next_of(w)
    return sandbar.assert(w:next { timeout = 20 })
  end

  -- The events up to the first creation of `mark` (not included), as "type path" each.
  local function events_until(w, mark)
    local out = {}
    while true do
      local event = next_of(w)
      if event.type == "create" and event.path == mark then
        return out
      end
      out[#out + 1] = event.type .. " " .. event.path
    end
  end

  -- What `line` leads to, up to a file that is made for that and removed again.
  local marks = 0
  local function told(w, sh, line)
    marks = marks + 1
    local mark = "mark" .. marks
    sh(line)
    sh(": > " .. mark .. "; rm " .. mark)
    local out = events_until(w, mark)
    assert.equal(mark, next_of(w).path)
    return table.concat(out, ", ")
  end

  it("tells what happens to files, and nothing of what lies deeper (B25, B26)", function()
    with_watch(function(_, watch, sh)
      local w = watch()
      assert.equal("create f, write f", told(w, sh, "echo x > f"))
      assert.equal("write f", told(w, sh, "echo y >> f"))
      assert.equal("chmod f", told(w, sh, "chmod 600 f"))
      assert.equal("rename f, create g", told(w, sh, "mv f g"))
      assert.equal("create h", told(w, sh, "ln g h"))
      assert.equal("create l", told(w, sh, "ln -s nowhere l"))
      assert.equal("create p", told(w, sh, "mkfifo p"))
      assert.equal("remove g, remove h", told(w, sh, "rm g h"))
      assert.equal("create s", told(w, sh, "mkdir s; echo > s/f; mkdir s/t; mv s/f s/t"))
      assert.equal("create e.tmp, write e.tmp, rename e.tmp, create e", told(w, sh, "echo 1 > e.tmp; mv e.tmp e"))
      assert.equal("rename s", told(w, sh, "mv s ../outside"))
      assert.equal("create s", told(w, sh, "mv ../outside s"))
    end)
  end)

  it("tells of box.files:write by one name", function()
    with_watch(function(box, watch, sh)
      local w = watch { recursive = true }
      sandbar.assert(box.files:write("D/f", "1"))
      sandbar.assert(box.files:write("D/f", "2"))
      sandbar.assert(box.files:write("D/new/g", "3", { flag = "wx" }))
      assert.equal("create f, create f, create new, create new/g", told(w, sh, ":"))
    end)
  end)

  it("takes names as bytes", function()
    with_watch(function(box, watch)
      local w = watch { recursive = true }
      for _, name in ipairs { "new\nline", "back\\slash", "\\n", "\255\1", ("n"):rep(255), "- x", "e" } do
        sandbar.assert(box.files:mkdir("D/" .. name))
        sandbar.assert(box.files:mkdir("D/" .. name .. "/in"))
        local event = next_of(w)
        assert.equal("create", event.type)
        assert.equal(name, event.path)
        assert.equal(name .. "/in", next_of(w).path)
      end
    end)
  end)

  it("misses nothing and repeats nothing in directories that are new (B25)", function()
    with_watch(function(_, watch, sh)
      local w = watch { recursive = true }
      local want = { ["a"] = true, ["a/b"] = true, ["a/b/c"] = true, ["a/b/c/f"] = true }
      for _ = 1, inside.times(40) do
        sh("mkdir -p a/b/c && echo x > a/b/c/f")
        local seen, n = {}, 0
        while n < 4 do
          local event = next_of(w)
          if event.type ~= "write" then
            assert.equal("create", event.type)
            assert.is_true(want[event.path], event.path)
            assert.is_nil(seen[event.path], event.path)
            seen[event.path] = true
            n = n + 1
          end
        end
        sh("rm -rf a")
        local gone = 0
        while gone < 4 do
          local event = next_of(w)
          if event.type ~= "write" then
            assert.equal("remove", event.type)
            gone = gone + 1
          end
        end
      end
    end)
  end)

  it("never reports the coming of a name twice, however fast it goes again", function()
    with_watch(function(_, watch, sh)
      local w = watch { recursive = true }
      local there = {}
      for i = 1, inside.times(40) do
        sh("mkdir -p a/b/c && echo x > a/b/c/f && rm -rf a && : > m" .. i)
        while true do
          local event = next_of(w)
          if event.path == "m" .. i then
            break
          elseif event.type == "create" then
            assert.is_nil(there[event.path], event.path)
            there[event.path] = true
          elseif event.type == "remove" then
            for path in pairs(there) do
              if path == event.path or path:sub(1, #event.path + 1) == event.path .. "/" then
                there[path] = nil
              end
            end
          end
        end
        assert.is_nil(next(there))
      end
    end)
  end)

  it("tells all names of a tree that is unpacked (B25)", function()
    with_watch(function(_, watch, sh)
      sh([[mkdir ../T && cd ../T && i=0 && while [ $i -lt 200 ]; do mkdir -p d$((i%20))/e$i
        j=0; while [ $j -lt 10 ]; do : > d$((i%20))/e$i/f$j; j=$((j+1)); done; i=$((i+1)); done
        tar cf ../T.tar .]])
      local w = watch { recursive = true }
      sh("tar xf ../T.tar && : > end")
      local seen = {}
      for _, line in ipairs(events_until(w, "end")) do
        local path = line:match("^create (.*)")
        if path then
          assert.is_nil(seen[path], path)
          seen[path] = true
        end
      end
      local want = 0
      for path in sh("cd ../T && find d* ").stdout:gmatch("[^\n]+") do
        want = want + 1
        assert.is_true(seen[path], path)
        seen[path] = nil
      end
      assert.equal(2220, want)
      assert.is_nil(next(seen))
    end)
  end)

  -- Kept up to date by events alone.
  local function model()
    local has = {}
    return has, function(event)
      if event.type == "create" then
        has[event.path] = true
      elseif event.type == "remove" or event.type == "rename" then
        for path in pairs(has) do
          if path == event.path or path:sub(1, #event.path + 1) == event.path .. "/" then
            has[path] = nil
          end
        end
      end
    end
  end

  -- How many watches are at work in the sandbox: processes of pid 1's program.
  local WORKERS = "for p in /proc/[0-9]*; do [ $p != /proc/1 ] && cmp -s $p/comm /proc/1/comm && echo ${p#/proc/}; done; true"

  local function workers(box)
    local _, n = sandbar.assert(box:exec(WORKERS)).stdout:gsub("\n", "")
    return n
  end

  local function assert_released(box)
    assert.is_truthy(helper.eventually(function()
      return workers(box) == 0
    end, 20))
  end

  -- The worker of the sandbox's one watch, and how many directories that has its eyes on: what root can see from outside.
  local function worker_of(box)
    local word = helper.mark(86420 + marks)
    local p = sandbar.assert(box:start { "sleep", word })
    local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
    p:kill { signal = "KILL" }
    for pid, stat in pairs(helper.proc.all()) do
      local _, n = 0, 0
      if stat.parent == pid1 then
        _, n = helper.shell(("cat /proc/%d/fdinfo/* 2>/dev/null || true"):format(pid)):gsub("inotify wd", "")
      end
      if n > 0 then
        return pid, n
      end
    end
  end
  local function directories(box)
    return select(2, worker_of(box))
  end

  it("gives a renamed directory its new name at once, and forgets one that has left (B26)", function()
    with_watch(function(box, watch, sh)
      sh("mkdir -p d s/deep ../elsewhere/t/u && : > d/old && : > ../elsewhere/t/u/v")
      local w = watch { recursive = true }
      if helper.is_root() then
        assert.equal(4, directories(box))
      end
      assert.equal("rename d, create e, create e/old", told(w, sh, "mv d e"))
      assert.equal("create e/x, write e/x", told(w, sh, "echo > e/x"))
      assert.equal("rename s", told(w, sh, "mv s ../elsewhere; echo > ../elsewhere/s/f; mkdir ../elsewhere/s/deep/n"))
      if helper.is_root() then
        assert.equal(2, directories(box))
      end
      assert.equal("create t, create t/u, create t/u/v", told(w, sh, "mv ../elsewhere/t ."))
      assert.equal("create t/u/w", told(w, sh, ": > t/u/w"))
      if helper.is_root() then
        assert.equal(4, directories(box))
      end
      assert.equal("create x, create x/y", told(w, sh, "mkdir -p x/y"))
      assert.equal("rename t, create x/y/t, create x/y/t/u, create x/y/t/u/v, create x/y/t/u/w", told(w, sh, "mv t x/y"))
    end)
  end)

  it("lets a model of the directory be kept by its events, whatever changes its name (B26)", function()
    with_watch(function(_, watch, sh)
      sh("mkdir a b && : > a/1 && : > b/2")
      local w = watch { recursive = true }
      local has, apply = model()
      has["a"], has["b"], has["a/1"], has["b/2"] = true, true, true, true
      sh(([[i=0; while [ $i -lt %d ]; do mv a c; echo $i > c/x$((i%%7)); mv b a; : > u$((i%%5)); mv c b; rm -f a/x$((i%%3))
        mkdir -p a/n/m; mv a/n b/n$i; rm -rf b/n$((i-3)); i=$((i+1)); done; : > end]]):format(inside.times(60) / 2))
      while not has["end"] do
        apply(next_of(w))
      end
      local real = {}
      for path in sh("find . -mindepth 1").stdout:gmatch("[^\n]+") do
        real[path:sub(3)] = true
      end
      assert.same(real, has)
    end)
  end)

  it("is active when it returns (B27)", function()
    with_watch(function(box, watch)
      for i = 1, inside.times(60) do
        local w = watch { recursive = i % 2 == 0 }
        sandbar.assert(box.files:mkdir("D/f" .. i))
        assert.equal("f" .. i, next_of(w).path)
        w:close()
      end
    end)
  end)

  it("lasts while nothing happens, and wakes nobody up then (B27)", function()
    with_watch(function(box, watch)
      local w = watch { recursive = true }
      local pid = helper.is_root() and worker_of(box)
      local function turns()
        return pid and helper.proc.status(pid, "voluntary_ctxt_switches")
      end
      local before
      assert(helper.eventually(function() -- until it waits
        local last = before
        before = turns()
        sandbar.sleep(0.2)
        return before == last
      end, 20))
      sandbar.sleep(inside.times(1) > 1 and 90 or 1)
      assert.equal(before, turns())
      sandbar.assert(box.files:mkdir("D/s"))
      assert.equal("s", next_of(w).path)
    end)
  end)

  it("goes on after a pause that keeps memory (B27)", function()
    with_watch(function(box, watch)
      local w = watch { recursive = true }
      for i = 1, 3 do
        sandbar.assert(box:pause())
        local _, err = w:next { timeout = i == 1 and (inside.times(1) > 1 and 3 or 0.2) or 0 }
        assert.equal("Timeout", err.kind)
        sandbar.assert(box:resume())
        sandbar.assert(box.files:mkdir(("D/a%d/b"):format(i)))
        assert.equal("a" .. i, next_of(w).path)
        assert.equal(("a%d/b"):format(i), next_of(w).path)
      end
      w:close()
      assert_released(box)
    end)
  end)

  it("fails at the call where there is nothing to watch (B27)", function()
    with_watch(function(box)
      sandbar.assert(box.files:write("f", ""))
      local function fails(kind, code, ...)
        local w, err = box.files:watch(...)
        assert.is_nil(w)
        assert.equal(kind, err.kind)
        assert.equal(code, err.code)
        assert.equal("files:watch", err.op)
      end
      fails("NotFound", "ENOENT", "nothing")
      fails("Platform", "ENOTDIR", "f")
      fails("InvalidArgument", nil, "")
      fails("InvalidArgument", "ENOENT", "D", { user = "nobody-such" })
      sandbar.assert(box:exec("mkdir closed && chmod 0 closed"))
      fails("PermissionDenied", "EACCES", "closed")
      assert.has_error(function() box.files:watch("D", { deep = true }) end)
      assert.has_error(function() box.files:watch() end)
    end)
  end)

  it("goes on where a directory cannot be read, and into it once it can", function()
    with_watch(function(_, watch, sh)
      sh("mkdir -p shut/in; chmod 0 shut")
      local w = watch { recursive = true }
      assert.equal("chmod shut, create shut/in", told(w, sh, "chmod 755 shut"))
      assert.equal("create shut/in/f", told(w, sh, ": > shut/in/f"))
    end)
  end)

  it("ends with a last event when its directory is removed or moved (B26, B27)", function()
    with_watch(function(box, watch, sh)
      for recursive = 0, 1 do
        sh("mkdir -p r/s")
        local w = sandbar.assert(box.files:watch("D/r", { recursive = recursive == 1 }))
        sh("rm -rf r")
        local seen = {}
        for event in w do
          seen[#seen + 1] = event.type .. " " .. event.path
        end
        assert.equal("remove s, remove .", table.concat(seen, ", "))
        assert.equal("NotFound", w.reason.kind)
        assert.is_nil((w:next()))
        assert.is_truthy(tostring(w):find("ended", 1, true))
        sh("mkdir r")
        w = sandbar.assert(box.files:watch("D/r", { recursive = recursive == 1 }))
        sh("mv r r2 && echo > r2/f && rm -r r2")
        local event = next_of(w)
        assert.equal("rename .", event.type .. " " .. event.path)
        local none, err = w:next()
        assert.is_nil(none)
        assert.is_nil(err)
        assert.is_truthy(w.reason.message:find("moved", 1, true))
      end
      -- What is above it moves: a watch of a tree cannot follow.
      sh("mkdir -p up/root")
      local w = sandbar.assert(box.files:watch("D/up/root", { recursive = true }))
      sh("mv up down && mkdir down/root/n")
      assert.equal("n", next_of(w).path)
      assert.equal(".", next_of(w).path)
      assert.is_nil((w:next()))
      assert.is_truthy(w.reason.message:find("moved", 1, true))
      assert.is_truthy(watch)
    end)
  end)

  it("stops when it is told to, as often as that is, also in the loop (B27)", function()
    with_watch(function(box, watch, sh)
      local w = watch()
      sh(": > a; : > b; : > c")
      local n = 0
      for event in w do
        n = n + 1
        assert.equal("a", event.path)
        assert.is_true(w:close())
      end
      assert.equal(1, n)
      assert.is_true(w:close())
      assert.is_nil((w:next()))
      assert.is_nil(w.reason)
      assert.is_truthy(tostring(w):find("closed", 1, true))
      assert_released(box)
    end)
  end)

  it("lets an error in the loop through, and is closed with its scope or its sandbox (B27)", function()
    with_watch(function(box, watch, sh)
      local w = watch()
      sh(": > a")
      local ok, err = pcall(function()
        for _ in w do
          error("mine", 0)
        end
      end)
      assert.is_false(ok)
      assert.equal("mine", err)
      sandbar.scope(function(inner)
        sandbar.assert(inner:adopt(w))
      end)
      assert.is_nil((w:next()))
      assert_released(box)
      local other = sandbar.assert(sandboxes:connect(box.id))
      w = sandbar.assert(other.files:watch("D"))
      other:close()
      local none, why = w:next { timeout = 10 }
      assert.is_nil(none)
      assert.equal("Closed", why.kind)
      none, why = w:next()
      assert.is_nil(none)
      assert.is_nil(why)
      assert.equal("Closed", w.reason.kind)
    end)
  end)

  it("ends when it is collected", function()
    with_watch(function(box, watch)
      watch()
      collectgarbage()
      collectgarbage()
      assert_released(box)
    end)
  end)

  it("ends with the sandbox, and says why once (B27)", function()
    with_watch(function(box, watch, _, scope)
      local function ends(w, kind)
        local none, err = w:next { timeout = 20 }
        assert.is_nil(none)
        assert.equal(kind, err.kind)
        assert.equal(kind, w.reason.kind)
        none, err = w:next()
        assert.is_nil(none)
        assert.is_nil(err)
      end
      local w = watch { recursive = true }
      sandbar.assert(box:pause { keep = "disk" })
      ends(w, "NotRunning")
      sandbar.assert(box:resume())
      w = watch()
      local other = sandbar.assert(sandboxes:connect(box.id))
      sandbar.assert(other:destroy())
      ends(w, "NotFound")
      box = sandbar.assert(sandboxes:create_scoped({}, scope))
      w = sandbar.assert(box.files:watch("."))
      sandbar.assert(box:destroy())
      ends(w, "NotFound")
      assert.has_error(function()
        box = sandbar.assert(sandboxes:create_scoped({}, scope))
        w = sandbar.assert(box.files:watch("."))
        sandbar.assert(sandboxes:destroy(box.id))
        for _ in w do -- luacheck: ignore 512
          break
        end
      end)
    end)
  end)

  it("ends when somebody inside ends or stops its worker", function()
    with_watch(function(_, watch, sh)
      for _, signal in ipairs { "KILL", "STOP" } do
        local w = watch()
        sh("kill -" .. signal .. " $(" .. WORKERS .. ") || true") -- one of another operation may have ended
        local none, err = w:next { timeout = 20 }
        assert.is_nil(none)
        assert.equal("OutcomeUnknown", err.kind)
      end
    end)
  end)

  it("says that the kernel has dropped events, and goes on with a fresh look", function()
    with_watch(function(box, watch, sh)
      local kept = tonumber((helper.read_file("/proc/sys/fs/inotify/max_queued_events")))
      if kept > 50000 then
        return helper.skip(("the kernel keeps %d events"):format(kept))
      end
      local w = watch { recursive = true }
      sh(("mkdir sub; i=0; while [ $i -lt %d ]; do : > %s$i; i=$((i+1)); done; mkdir late"):format(
        kept + 5000, ("n"):rep(240)))
      local overflows = 0
      while overflows == 0 do
        local event = next_of(w)
        if event.type == "overflow" then
          assert.equal(".", event.path)
          overflows = 1
        end
      end
      sandbar.assert(box.files:write("D/late/x", "1"))
      sandbar.assert(box.files:write("D/sub/y", "1"))
      local seen = {}
      while not (seen["late/x"] and seen["sub/y"]) do
        seen[next_of(w).path] = true
      end
    end)
  end)

  it("lets the others run, and is closed by one of them while it waits", function()
    with_watch(function(_, watch, sh)
      sandbar.run(function()
        local w = watch()
        local seen, at_end = {}, false
        local reader = sandbar.assert(sandbar.spawn(function()
          while true do
            local event, err = w:next()
            if not event then
              at_end = err == nil
              return
            end
            seen[#seen + 1] = event.path
          end
        end))
        sh(": > a")
        assert(helper.eventually(function()
          sandbar.sleep(0.005)
          return #seen == 1
        end))
        w:close()
        local _, err = reader:wait { timeout = 10 }
        assert.is_nil(err)
        assert.is_true(at_end)
        _, err = watch():next { timeout = 0.05 }
        assert.equal("Timeout", err.kind)
        assert.equal(0.05, err.limit)
      end)
    end)
  end)

  it("is limited in number, with a message that says by what", function()
    with_watch(function(_, watch, _)
      local all = {}
      local err
      for i = 1, 40 do
        local ok, why = pcall(watch)
        if not ok then
          err = why
          break
        end
        all[i] = why
      end
      assert.equal("LimitExceeded", err.kind)
      assert.is_truthy(err.message:find("inotify", 1, true), err.message)
      assert.is_true(#all <= 16, #all)
      for _, w in ipairs(all) do
        w:close()
      end
      assert(helper.eventually(function()
        local ok, w = pcall(watch)
        return ok and w:close()
      end))
    end)
  end)
end)
