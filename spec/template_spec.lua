-- Named templates: what a build makes of its steps, what it need not do again, and what is there when it fails.
-- check: one Lua
-- check: limit 120

local helper = require "spec.helper"
local inside = require "spec.support.inside"

local lfs = require "lfs"
local sandbar = require "sandbar"

describe("a template", function()
  helper.guard()

  local sandboxes = helper.open()

  local function build(opts)
    opts.network = opts.network or "deny"
    return sandbar.assert(sandboxes.templates:build(opts))
  end

  local function run(box, line, opts)
    local r = sandbar.assert(box:exec(line, opts))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
  end

  local function create(name)
    return sandbar.assert(sandboxes:create_scoped { template = name })
  end

  local function refused(kind, _, err)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  local function entries(dir, root)
    local list = {}
    for name in lfs.dir((root or helper.root()) .. "/v1/" .. dir) do
      if not name:match("^%.%.?$") then
        list[#list + 1] = name
      end
    end
    return list
  end

  local function cached(built)
    local out = {}
    for i, step in ipairs(built.steps) do
      out[i] = step.cached and "=" or "-"
    end
    return table.concat(out)
  end

  -- Nobody has to wait a day for these.
  local function forget()
    for _, t in ipairs(sandbar.assert(sandboxes.templates:list())) do
      sandbar.assert(sandboxes.templates:delete(t.name))
    end
  end

  it("has the files, environment, directory and user of its steps; the host's files go in", function()
    local dir = helper.dir()
    helper.sh("mkdir %s/d && echo one > %s/d/one && chmod 751 %s/d && ln -s one %s/d/link", dir, dir, dir, dir)
    local log, steps = {}, {}
    build {
      name = "whole", steps = {
        { env = { GREETING = "good day", EMPTY = "" } },
        { workdir = "/tmp/app" },
        { run = "echo $GREETING > greeting; echo told; pwd" },
        { copy = dir .. "/d", to = "data" },
        { run = { "sh", "-c", "cat \"$1\" > /var/tmp/two", "sh", "data/link" } },
        { user = "user" },
      },
      on_progress = function(event)
        if event.event == "output" then
          log[#log + 1] = event.data
        elseif event.event == "done" then
          steps[#steps + 1] = event.kind
        end
      end,
    }
    assert.equal("told\n/tmp/app\n", table.concat(log))
    assert.same({ "env", "workdir", "run", "copy", "run", "user" }, steps)
    local box = create "whole"
    assert.equal("whole", box.template)
    assert.equal("/tmp/app\nuser\n[good day][]\ngood day\none\none\n751\none\n", run(box,
      "pwd; id -un; echo \"[$GREETING][$EMPTY]\"; cat greeting data/one data/link; stat -c %a data; cat /var/tmp/two"))
    local other = sandbar.assert(sandboxes:create_scoped { template = "whole", cwd = "/", env = { GREETING = "mine" } })
    assert.equal("/ mine\n", run(other, "echo $PWD $GREETING"))
    local t = sandbar.assert(sandboxes.templates:list())
    assert.equal(1, #t)
    assert.same({ "whole", "user", "/tmp/app" }, { t[1].name, t[1].user, t[1].cwd })
    box:close()
    other:close()
    forget()
  end)

  it("is built again from the first step on that has changed, be it in its text or in its input", function()
    local dir = helper.dir()
    local function steps(second)
      helper.write_file(dir .. "/in", second)
      return { { run = "echo 1 > /tmp/1" }, { copy = dir .. "/in", to = "/tmp/in" }, { env = { A = "b" } },
        { run = "cat /tmp/in /tmp/1 > /tmp/all" } }
    end
    local first = build { name = "again", steps = steps "x" }
    assert.equal("----", cached(first))
    assert.equal("==-=", cached(build { name = "again", steps = steps "x" }))
    local second = build { name = "again", steps = steps "y" }
    assert.equal("=---", cached(second))
    assert.not_equal(first.digest, second.digest)
    assert.equal("==-=", cached(build { name = "another", steps = steps "x" }), "what was made is found again")
    assert.equal("----", cached(build { name = "another", steps = steps "x", cache = false }))
    local box = create "again"
    assert.equal("y1\n", run(box, "cat /tmp/all"))
    box:close()
    forget()
  end)

  it("that is replaced stays for the sandboxes made from it, and cannot be deleted while there are some", function()
    build { name = "moving", steps = { { run = "echo old > /tmp/which" } } }
    local old = create "moving"
    build { name = "moving", steps = { { run = "echo new > /tmp/which" } } }
    local new = create "moving"
    assert.equal("old\n", run(old, "cat /tmp/which"))
    assert.equal("new\n", run(new, "cat /tmp/which"))
    sandbar.assert(old:pause { keep = "disk" })
    sandbar.assert(old:resume())
    assert.equal("old\n", run(old, "cat /tmp/which"))
    refused("Busy", sandboxes.templates:delete "moving")
    new:close()
    refused("Busy", sandboxes.templates:delete "moving")
    old:close()
    sandbar.assert(sandboxes.templates:delete "moving")
    refused("NotFound", sandboxes.templates:delete "moving")
    refused("NotFound", sandboxes:create { template = "moving" })
  end)

  -- They stayed for a day, although no build could find them any more: a build an hour kept 24 of them.
  it("without a cache has no steps of earlier builds beside it", function()
    sandbar.assert(sandboxes.templates:list())
    local steps, layers = #entries "n", #entries "l"
    for i = 1, 3 do
      build { name = "t", cache = false, steps = { { run = "echo " .. i .. " >/srv/i" }, { run = "echo >/srv/j" } } }
      assert.equal(steps + 2, #entries "n")
      assert.equal(layers + 2, #entries "l")
    end
    build { name = "u", from = "t", cache = false, steps = { { run = "echo u >/srv/u" } } }
    build { name = "t", cache = false }
    assert.equal(steps + 3, #entries "n") -- the other one is made of all three
    local box = create "u"
    assert.equal("3\nu\n", run(box, "cat /srv/i /srv/u"))
    box:close()
    forget()
    assert.equal(steps, #entries "n")
  end)

  -- The build failed with NotFound: what it was at had gone.
  it("is built although somebody else deletes or replaces meanwhile what it is built of", function()
    local first = { run = "echo 1 >/srv/1" }
    build { name = "t", cache = false, steps = { first } }
    for _, case in ipairs {
      { from = "t", function() build { name = "t", cache = false, steps = { first } } end },
      { from = "base", function() sandbar.assert(sandboxes.templates:delete "u") end },
    } do
      local other = case[1]
      build { name = "u", from = case.from, steps = { first } }
      local built = build { name = "u", from = case.from, steps = { first, { run = "cat /srv/1 >/srv/2" } },
        on_progress = function(event)
          if event.event == "step" and event.step == 2 and other then
            local meanwhile = other
            other = nil
            meanwhile()
          end
        end }
      assert.is_nil(other)
      assert.equal(2, #built.steps)
      local box = create "u"
      assert.equal("1\n", run(box, "cat /srv/2"))
      box:close()
    end
    forget()
  end)

  it("can begin with another one, which can go then, or with a directory, which can change then", function()
    local dir = helper.dir()
    helper.shell(([[
      cd %s && mkdir -p bin etc home/user && chmod 755 .
      echo 'root:x:0:0::/:/bin/sh' > etc/passwd; echo 'user:x:1000:1000::/home/user:/bin/sh' >> etc/passwd
      printf 'root:x:0:\nuser:x:1000:\n' > etc/group; echo small > etc/system
      for p in sh cat ls; do
        cp "$(command -v $p)" bin/
        ldd "$(command -v $p)" | grep -o '/[^ ]*' | while read -r l; do mkdir -p ".$(dirname "$l")"; cp -n "$l" ".$l"; done
      done]]):format(helper.quote(dir)))
    build { name = "small", from = dir, steps = { { env = { OF = "small" } }, { workdir = "/etc" } } }
    helper.write_file(dir .. "/etc/system", "changed\n")
    build { name = "smaller", from = "small", steps = { { run = "echo mine > mine" } } }
    sandbar.assert(sandboxes.templates:delete "small")
    local box = create "smaller"
    assert.equal("small\nmine\nsmall /etc\n", run(box, "cat system mine; echo $OF $PWD"))
    assert.is_nil(run(box, "ls /"):find("usr/bin", 1, true))
    local built = build { name = "small", from = dir, steps = {} }
    assert.not_equal(sandbar.assert(sandboxes.templates:list())[2].digest, built.digest)
    box:close()
    forget()
  end)

  it("can begin with an archive, of which nothing comes outside", function()
    local dir = helper.dir()
    helper.sh("cd %s && mkdir -p fs/etc && echo packed > fs/etc/text && ln -s /etc fs/away && tar -czf fs.tgz -C fs .", dir)
    for _, hit in ipairs { "-", "=" } do
      local events = {}
      build { name = "packed", from = dir .. "/fs.tgz", on_progress = function(event)
        events[#events + 1] = event.event == "done" and (event.cached and "=" or "-") or nil
      end }
      assert.same({ hit }, events)
    end
    local box = create "packed"
    assert.equal("packed\n", sandbar.assert(box.files:read "/away/text"))
    box:close()
    helper.sh("cd %s && tar -cPf out.tar --transform 's,^,../,' fs/etc/text", dir)
    refused("InvalidArgument", sandboxes.templates:build { name = "packed", from = dir .. "/out.tar" })
    refused("InvalidArgument", sandboxes.templates:build { name = "packed", from = dir .. "/fs/etc/text" })
    forget()
  end)

  it("has its start command running and ready when create returns", function()
    build { name = "serving", steps = {
      { run = "echo run > /tmp/how" },
      { start = "cat /tmp/how > /tmp/started; exec sleep 1000" },
      { ready = "test -s /tmp/started", timeout = 30 },
    } }
    for _, scoped in ipairs { true, false } do
      local box = scoped and create "serving" or sandbar.assert(sandboxes:create { template = "serving" })
      assert.equal("run\n", run(box, "cat /tmp/started"))
      assert.equal(scoped, box.owned)
      assert.equal(scoped, sandbar.assert(box:info()).owned)
      local p = sandbar.assert(box:attach { tag = "sandbar.start" })
      assert.is_true(sandbar.assert(p:running()))
      p:close()
      sandbar.assert(box:destroy())
    end
    build { name = "quiet", from = "serving", steps = { { start = false } } }
    local box = create "quiet"
    assert.is_nil((box:attach { tag = "sandbar.start" }))
    box:close()
    forget()
  end)

  it("whose start command fails, or is never ready, makes no sandbox and says what it wrote", function()
    build { name = "failing", steps = { { start = "echo no such database >&2; exit 3" }, { ready = { port = 5432 } } } }
    local err = refused("StartFailed", sandboxes:create { template = "failing" })
    assert.is_truthy(err.message:find("exited with 3", 1, true), err.message)
    assert.is_truthy(err.message:find("no such database", 1, true), err.message)
    build { name = "slow", steps = { { start = "echo waiting; sleep 1000" }, { ready = "false", timeout = 1 } } }
    err = refused("StartFailed", sandboxes:create_scoped { template = "slow" })
    assert.is_truthy(err.message:find("waiting", 1, true), err.message)
    assert.same({}, sandbar.assert(sandboxes:list()))
    forget()
  end)

  it("that cannot be built is not there, or stays what it was; what had been done is not done again", function()
    local good = { run = "echo good > /tmp/which" }
    local err = refused("CommandFailed", sandboxes.templates:build { name = "broken", network = "deny",
      steps = { good, { run = "echo why not >&2; exit 9" } } })
    assert.equal(2, err.step)
    assert.equal(9, err.result.exit_code)
    assert.is_truthy(err.message:find("why not", 1, true), err.message)
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
    assert.equal("=", cached(build { name = "broken", steps = { good } }))
    assert.equal("step 2 (copy /no/such/file /tmp/): /no/such/file: No such file or directory",
      refused("NotFound", sandboxes.templates:build { name = "broken", network = "deny",
        steps = { good, { copy = "/no/such/file", to = "/tmp/" } } }).message)
    local _, raised = pcall(sandboxes.templates.build, sandboxes.templates, { name = "x", steps = { good, { copy = "x" } } })
    assert.matches("option 'steps': element 2: option 'to' is missing", raised, 1, true)
    refused("NotFound", sandboxes.templates:build { name = "broken", from = "none", network = "deny" })
    refused("Timeout", sandboxes.templates:build { name = "broken", network = "deny", timeout = 0.3,
      steps = { { run = "sleep 1000" } } })
    refused("InvalidArgument", sandboxes.templates:build { name = "base" })
    refused("InvalidArgument", sandboxes.templates:build { name = "a/b" })
    for _, kind in ipairs { "run", "start", "ready" } do -- it would be built, and nothing could be made of it
      err = refused("InvalidArgument", sandboxes.templates:build { name = "x", steps = { { [kind] = { "", "x" } } } })
      assert.is_truthy(err.message:find("the program's name is empty", 1, true), err.message)
    end
    assert.is_false(pcall(sandboxes.templates.build, sandboxes.templates, { name = "x", steps = { { ran = "x" } } }))
    assert.is_false(pcall(sandboxes.templates.build, sandboxes.templates, { name = "x", steps = { { run = "x", user = "x" } } }))
    local box = create "broken"
    assert.equal("good\n", run(box, "cat /tmp/which"))
    box:close()
    assert.same({}, sandbar.assert(sandboxes:list()))
    forget()
  end)

  it("keeps apart steps that read alike: what is one argument, or one variable, is not two", function()
    local one = build { name = "one", steps = { { env = { A = "1 B=2" } }, { run = { "touch", "/tmp/a b" } } } }
    local two = build { name = "two", steps = { { env = { A = "1", B = "2" } }, { run = { "touch", "/tmp/a b" } } } }
    assert.equal("--", cached(one))
    assert.equal("--", cached(two))
    local args = build { name = "args", steps = { { run = { "mkdir", "-p", "/tmp/d/a b" } } } }
    assert.equal("-", cached(args))
    assert.equal("-", cached(build { name = "args", steps = { { run = { "mkdir", "-p", "/tmp/d/a", "b" } } } }))
    forget()
  end)

  it("with a step that something is in the way of is told so; it is no other build to wait for", function()
    local err = refused("AlreadyExists", sandboxes.templates:build { name = "way", network = "deny", timeout = 20,
      steps = { { workdir = "/etc/passwd" } } })
    assert.is_truthy(err.message:find("/etc/passwd", 1, true), err.message)
    assert.same({}, sandbar.assert(sandboxes:list()))
  end)

  -- What is kept of it was believed: a command longer than any template may have broke the supervisor's stack.
  it("whose file is damaged is not there, harms no other, and can be built again", function()
    build { name = "damaged", steps = { { start = "true" } } }
    local root = helper.root()
    local path = root .. "/v1/m/damaged/about"
    local text = assert(helper.read_file(path))
    local pid = inside.supervisor(root)
    helper.write_file(path, text .. "\171\0\0\0\0\200\0\0" .. ("x"):rep(51200)) -- START, and 51200 bytes
    if pid then
      helper.shell("kill -9 " .. pid)
    end
    refused("NotFound", sandboxes:create_scoped { template = "damaged" })
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
    sandbar.assert(sandboxes:create_scoped {}):close()
    build { name = "damaged", steps = { { start = "true" } } }
    create("damaged"):close()
    forget()
  end)

  it("with a step that copies what cannot be copied says so, instead of copying nothing", function()
    local dir = helper.dir()
    helper.sh("mkdir %s/tree && mkfifo %s/pipe %s/tree/pipe && echo x >%s/tree/file", dir, dir, dir, dir)
    local err = refused("InvalidArgument", sandboxes.templates:build { name = "t", network = "deny",
      steps = { { copy = dir .. "/pipe", to = "/srv/pipe" } } })
    assert.equal(1, err.step)
    local told
    build { name = "t", steps = { { copy = dir .. "/tree", to = "/srv/tree" } }, on_progress = function(event)
      told = event.event == "output" and event.data or told
    end }
    assert.equal("1 entries were left out: pipes, sockets, devices\n", told)
    local box = create "t"
    assert.equal("file\n", run(box, "ls /srv/tree"))
    box:close()
    forget()
  end)

  it("that finds no room is NoSpace and leaves nothing, what runs beside it runs on, and later it is built", function()
    helper.need_root()
    local root = helper.dir("small")
    helper.sh("mount -t tmpfs -o size=24m,mode=700 none %s", root)
    local ok, why = pcall(function()
      local own = helper.open { root = root }
      local beside = sandbar.assert(own:create { id = "beside" })
      local opts = { name = "small", network = "deny", steps = { { run = "head -c 1M /dev/zero >/home/user/x" } } }
      helper.shell(("cat /dev/zero >%s/full 2>/dev/null"):format(root))
      refused("NoSpace", own.templates:build(opts))
      assert.same({}, sandbar.assert(own.templates:list()))
      assert.equal(1, #sandbar.assert(own:list()))
      assert.same({}, entries("l", root))
      assert.same({}, entries("n", root))
      refused("NoSpace", beside.files:write("f", ("x"):rep(1048576)))
      assert.equal("on\n", run(beside, "echo on"))
      os.remove(root .. "/full")
      sandbar.assert(own.templates:build(opts))
      sandbar.assert(beside.files:write("f", ("x"):rep(1048576)))
      sandbar.assert(beside:destroy())
      beside:close()
      own:close()
    end)
    helper.sh("umount -l %s", root)
    assert(ok, why)
  end)

  it("whose build is cancelled leaves nothing", function()
    local began = false
    sandbar.run(function()
      local task = sandbar.spawn(function()
        return sandboxes.templates:build { name = "cancelled", network = "deny", steps = { { run = "echo go; sleep 1000" } },
          on_progress = function(event)
            began = began or event.event == "output"
          end }
      end)
      while not began do
        sandbar.sleep(0.01)
      end
      task:cancel("enough")
      refused("Cancelled", task:wait())
    end)
    assert.same({}, sandbar.assert(sandboxes:list()))
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
  end)

  it("whose build was killed is the old one, and nothing is left of the new one", function()
    local root = helper.dir()
    local mine = helper.open { root = root, linger = 0 }
    sandbar.assert(mine.templates:build { name = "kept", network = "deny", steps = { { run = "echo old > /tmp/which" } } })
    local p = helper.start_lua(([[
      local sandbar = require "sandbar"
      sandbar.open({ root = %q, linger = 0 }).templates:build { name = "kept", network = "deny",
        steps = { { run = "echo new > /tmp/which" }, { run = "echo go; sleep 1000" } },
        on_progress = function(event)
          if event.event == "output" then print("go") io.stdout:flush() end
        end }
    ]]):format(root))
    assert.equal("go", p:line())
    p:signal "KILL"
    p:wait()
    assert.is_truthy(helper.eventually(function()
      return #sandbar.assert(mine:list()) == 0
    end))
    local box = sandbar.assert(mine:create_scoped { template = "kept" })
    assert.equal("old\n", run(box, "cat /tmp/which"))
    box:close()
    -- A request that was interrupted between its directory and the rename.
    helper.sh("mkdir %s/v1/m/.0123456789abcdef", root)
    assert.is_truthy(helper.eventually(function()
      sandbar.assert(mine.templates:list())
      return #entries("m", root) == 1
    end))
    sandbar.assert(mine.templates:delete "kept")
  end)
end)
