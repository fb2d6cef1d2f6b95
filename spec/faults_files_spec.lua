-- check: limit 600
-- The "what went wrong elsewhere" of files, as specs. Repetitions grow with SANDBAR_LONG=1.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("faults of files", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn, spec)
    inside.with_box(sandboxes, function(box, scope)
      fn(box.files, box, scope)
    end, spec)
  end

  local function names(files, path)
    local out = {}
    for i, entry in ipairs(sandbar.assert(files:list(path))) do
      out[i] = entry.name
    end
    return out
  end

  it("B18: takes names that mean something in URLs or to a shell as they are", function()
    with_box(function(files)
      sandbar.assert(files:mkdir("D"))
      local odd = {
        "a b", "a+b", "a%20b", "100%", "a#b", "a?b=c&d", "-rf", "--help", "a;id", "$(id)", "a'b\"c", "a\\b",
        ".hidden", "..x", "\230\151\165\230\156\172\232\170\158", "\195\169", "e\204\129", ("n"):rep(255), "a\nb", "*",
      }
      for i, name in ipairs(odd) do
        sandbar.assert(files:write("D/" .. name, name))
        assert.equal(name, files:read("D/" .. name))
        assert.same({ name }, names(files, "D"))
        local second = odd[i % #odd + 1]
        sandbar.assert(files:move("D/" .. name, "D/" .. second))
        assert.same({ second }, names(files, "D"))
        assert.equal(second, files:stat("D/" .. second).name)
        sandbar.assert(files:remove("D/" .. second))
        assert.same({}, names(files, "D"))
      end
      local r, err = files:write("D/" .. ("n"):rep(256), "")
      assert.is_nil(r)
      assert.equal("ENAMETOOLONG", err.code)
    end)
  end)

  it("B19: reads back what was written, byte for byte", function()
    with_box(function(files)
      local all = {}
      for i = 0, 255 do
        all[#all + 1] = string.char(i)
      end
      local random = {}
      for i = 1, 1048576 / 16 do
        random[i] = ("%016x"):format(i * 2654435761 % 2 ^ 40)
      end
      for _, data in ipairs {
        "it's \"q\" $HOME \n \\ %s", "-n text", "a\r\nb\r\n", "no newline", table.concat(all),
        table.concat(random), "",
      } do
        for _, opts in ipairs { {}, { atomic = false } } do
          local entry = sandbar.assert(files:write("f", data, opts))
          assert.equal(#data, entry.size)
          assert.is_true(files:read("f") == data)
          local f = sandbar.assert(files:open("f"))
          assert.is_true(f:read("a") == data)
          f:close()
        end
      end
      local batch = {}
      for i = 1, 50 do
        batch[i] = { path = "batch/" .. i, data = i % 20 == 0 and "" or "data " .. i }
      end
      sandbar.assert(files:write_many(batch))
      for i = 1, 50 do
        assert.equal(batch[i].data, files:read("batch/" .. i))
      end
      sandbar.assert(files:write("nothing", function() return nil end))
      assert.equal("", files:read("nothing"))
      assert.equal(0, files:stat("nothing").size)
      files:write("f", ("x"):rep(1048576))
      files:write("f", "abc")
      assert.equal(3, files:stat("f").size)
    end)
  end)

  it("B19: a program that has just been written can be executed at once", function()
    with_box(function(files, box)
      local script = "#!/bin/sh\n" .. ("# a long program\n"):rep(8000) .. "exit 7\n"
      local here = helper.write_file(helper.dir() .. "/up", script)
      local ways = {
        write = function() return files:write("p", script, { mode = "755" }) end,
        small = function() return files:write("p", "#!/bin/sh\nexit 7\n", { mode = "755" }) end,
        pieces = function()
          local rest = { script }
          return files:write("p", function() return table.remove(rest) end, { mode = "755" })
        end,
        upload = function() return files:upload(here, "p") and files:chmod("p", "755") end,
        handle = function()
          local f = sandbar.assert(files:open("p", "w"))
          sandbar.assert(f:write(script))
          f:close()
          return files:chmod("p", "755")
        end,
      }
      for _ = 1, inside.times(20) do
        for name, way in pairs(ways) do
          sandbar.assert(way())
          local r, err = box:exec { "./p" }
          assert.equal(7, r and r.exit_code, name .. ": " .. tostring(err))
        end
      end
    end)
  end)

  it("B20: moves large files in bounded memory", function()
    local function rss()
      collectgarbage()
      collectgarbage()
      return tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
    end
    with_box(function(files, box)
      local dir = helper.dir()
      for _, size in ipairs { 1, 65535, 65536, 65537, 1048576, inside.size(104857600, 41943040) } do
        helper.shell(("head -c %d /dev/urandom >%s/in"):format(size, dir))
        local before = rss()
        sandbar.assert(files:upload(dir .. "/in", "f"))
        sandbar.assert(files:download("f", dir .. "/out"))
        assert.is_true(rss() - before < 32768, ("grew by %d kB"):format(rss() - before))
        local _, status = helper.shell(("cmp %s/in %s/out"):format(dir, dir))
        assert.equal(0, status)
        local here = helper.shell(("sha256sum <%s/in"):format(dir))
        assert.equal(here, sandbar.assert(box:exec("sha256sum <f")).stdout)
      end
      os.remove(dir .. "/in")
      os.remove(dir .. "/out")
      if inside.times(1) > 1 then
        sandbar.assert(box:exec("truncate -s 2147483649 sparse"))
        local f = sandbar.assert(files:open("sparse"))
        assert.equal(2147483649, f:seek("end"))
        f:seek("set", 2147483648)
        assert.equal("\0", f:read("a"))
        f:close()
      end
    end)
  end)

  it("carries a gigabyte both ways in constant memory, and tells how far it is", function()
    with_box(function(files, box)
      local dir, size = helper.dir(), inside.times(1) > 1 and 1073741824 or 33554432
      helper.shell(("head -c %d /dev/urandom >%s/in"):format(size, dir))
      local most, before = 0, tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
      local at, calls
      local function progress(bytes, path)
        assert.is_true(bytes > at and bytes <= size, path)
        at, calls = bytes, calls + 1
        if calls % 8 == 0 then
          most = math.max(most, tonumber(helper.proc.status("self", "VmRSS"):match("%d+")))
        end
      end
      for _, way in ipairs {
        function() return files:upload(dir .. "/in", "f", { on_progress = progress }) end,
        function() return files:download("f", dir .. "/out", { on_progress = progress }) end,
      } do
        at, calls = 0, 0
        assert.equal(size, sandbar.assert(way()).bytes)
        assert.equal(size, at)
        assert.is_true(calls >= size / 1048576)
      end
      local bounded = os.getenv("SPEC_SANITIZER") ~= "asan" -- which keeps for a while what was freed
      assert.is_true(not bounded or most - before < 32768, ("grew by %d kB"):format(most - before))
      assert.equal(size, files:stat("f").size)
      assert.equal("", (helper.shell(("cmp %s/in %s/out"):format(dir, dir))))
      os.remove(dir .. "/in")
      os.remove(dir .. "/out")
      -- Holes are zeros.
      helper.shell(("truncate -s 8M %s/holes; printf end >>%s/holes"):format(dir, dir))
      sandbar.assert(files:upload(dir .. "/holes", "holes"))
      sandbar.assert(box:exec("cp --sparse=always holes again; truncate -s +8M again", { check = true }))
      sandbar.assert(files:download("again", dir .. "/back"))
      helper.shell(("truncate -s +8M %s/holes"):format(dir))
      assert.equal("", (helper.shell(("cmp %s/holes %s/back"):format(dir, dir))))
    end)
  end)

  it("hangs on no FIFO, socket or device, whatever it is asked to do with it", function()
    with_box(function(files, box)
      local dir = helper.dir()
      sandbar.assert(box:exec("mkfifo f; mkdir t; mkfifo t/f; echo 1 > t/1; echo 2 > other", { check = true }))
      helper.shell(("mkfifo %s/f; mkdir %s/t; mkfifo %s/t/f; echo 1 > %s/t/1"):format(dir, dir, dir, dir))
      local took = helper.timed(function()
        for _, path in ipairs { "f", "/dev/zero", "/dev/null", "/dev/tty", "/proc/kmsg" } do
          for name, ask in pairs {
            read = function() return files:read(path) end,
            open = function() return files:open(path) end,
            lines = function() return files:lines(path):next() end,
            write = function() return files:write(path, "x") end,
            append = function() return files:write(path, "x", { flag = "a" }) end,
            place = function() return files:write(path, "x", { atomic = false }) end,
            copy = function() return files:copy(path, "to" .. path:gsub("/", "_")) end,
            over = function() return files:copy("other", path) end,
            get = function() return files:download(path, dir .. "/got") end,
            put = function() return files:upload(dir .. "/t/1", path) end,
            watch = function() return files:watch(path) end,
          } do
            local got, err = ask()
            assert.is_true(got == true or got == nil and err ~= nil and type(err.kind) == "string", name .. " " .. path)
          end
          sandbar.assert(files:glob(path .. "*/*"))
        end
        assert.same({ "/home/user/t/f" }, sandbar.assert(files:download("t", dir .. "/tree")).skipped)
        assert.same({ "t2/f" }, sandbar.assert(files:upload(dir .. "/t", "t2")).skipped)
        sandbar.assert(files:copy("t", "t3"))
        assert.equal("fifo", files:stat("t3/f").type)
        local _, err = files:upload(dir .. "/f", "from")
        assert.is_true(err == nil or err.kind ~= nil)
        assert.is_false(files:exists("from"))
      end)
      assert.is_true(took < 60)
    end)
  end)

  it("B21: says why one cannot write there", function()
    with_box(function(files, box)
      sandbar.assert(files:write("D/a/b/c/f", "1"))
      local r = sandbar.assert(box:exec("for d in D D/a D/a/b D/a/b/c; do touch $d/new && rm $d/new || exit 1; done; "
        .. "stat -c '%U %a' D D/a D/a/b D/a/b/c | sort -u"))
      assert.equal("user 755\n", r.stdout)
      local function code(_, err)
        return err and (err.code or err.kind)
      end
      assert.equal("EISDIR", code(files:write("D", "x")))
      assert.equal("EISDIR", code(files:write("D", "x", { atomic = false })))
      sandbar.assert(files:write("D/f", "1"))
      assert.equal("ENOTDIR", code(files:write("D/f/x", "1")))
      assert.equal("EISDIR", code(files:read("D")))
      assert.is_false(files:mkdir("D"))
      sandbar.assert(files:write("D/g", "2"))
      sandbar.assert(files:move("D/g", "D/f"))
      assert.equal("2", files:read("D/f"))
      assert.is_truthy(code(files:move("D/f", "D/a")))
      assert.equal("ENOENT", code(files:remove("D/none")))
      local refused = select(2, files:write("/usr/bin/mine", "x"))
      assert.equal("PermissionDenied", refused.kind)
      local results = select(2, files:write_many {
        { path = "m/1", data = "" }, { path = "m/2", data = "" }, { path = "D/f/no", data = "" },
        { path = "m/4", data = "" }, { path = "m/5", data = "" },
      }).result
      for i = 1, 5 do
        assert.equal(i ~= 3, results[i].entry ~= nil)
        assert.equal(i == 3, results[i].error ~= nil)
      end
    end)
  end)

  it("B22: leaves whole files when a write is cut, and never a mix", function()
    with_box(function(files, box)
      sandbar.assert(files:write("f", "old"))
      local half_way = false
      local task = sandbar.assert(sandbar.spawn(function()
        local n = 0
        return files:write("f", function()
          n = n + 1
          if n > 25 then
            half_way = true
            sandbar.sleep(30)
          end
          return ("x"):rep(262144)
        end)
      end))
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.001) -- the task's turn
        return half_way
      end), "it was not written")
      task:cancel("half-way")
      local _, err = task:wait()
      assert.equal("Cancelled", err.kind)
      assert.equal("old", files:read("f"))
      assert.is_truthy(helper.eventually(function()
        return #sandbar.assert(files:list(".")) == 1
      end), "a stray temporary file")
      local fns = {}
      for i = 1, 8 do
        fns[i] = function()
          for _ = 1, inside.times(4) / 4 do
            sandbar.assert(files:write("shared", tostring(i):rep(1048576)))
          end
          return true
        end
      end
      fns[9] = function()
        for _ = 1, inside.times(12) do
          local data = files:read("shared")
          if data then
            assert.equal(1048576, #data)
            assert.is_true(data == data:sub(1, 1):rep(1048576))
          end
        end
        return true
      end
      sandbar.assert(sandbar.all(fns))
      assert.is_true(sandbar.assert(box:exec("true")).ok)
    end)
  end)

  it("B22: reports a full disk as what it is, and stays usable", function()
    helper.need_root()
    local dir = helper.dir("full")
    local _, status = helper.shell(
      ("mount -t tmpfs -o size=24m,nr_inodes=2000 none %s && chmod 700 %s"):format(dir, dir))
    if status ~= 0 then
      helper.skip("a size-limited tmpfs cannot be mounted here")
    end
    local ok, raised = pcall(function()
      local other = sandbar.assert(sandbar.open { root = dir, linger = 0 })
      inside.with_box(other, function(box)
        local files = box.files
        local r, err = files:write("big", ("x"):rep(40 * 1048576))
        assert.is_nil(r)
        assert.equal("NoSpace", err.kind)
        assert.is_false(files:exists("big"))
        assert.is_true(sandbar.assert(box:exec("true")).ok)
        sandbar.assert(files:write("small", ("x"):rep(1048576)))
        sandbar.assert(files:remove("small"))
        r = sandbar.assert(box:exec("i=0; while true >n$i; do i=$((i+1)); done 2>/dev/null; echo $i"))
        assert.is_true(tonumber(r.stdout) > 0)
        r, err = files:write("one-more", "x")
        assert.is_nil(r)
        assert.equal("NoSpace", err.kind)
        sandbar.assert(box:exec("rm -f n*"))
        sandbar.assert(files:write("one-more", "x"))
      end)
      assert(helper.eventually(function()
        return next(helper.proc.of_dir(dir)) == nil
      end))
    end)
    helper.shell("umount -l " .. dir)
    if not ok then
      error(raised, 0)
    end
  end)

  it("B23: tells missing, no directory, not permitted and empty apart", function()
    with_box(function(files, box)
      local function code(_, err)
        return err and (err.code or err.kind)
      end
      sandbar.assert(box:exec([[
        mkdir -p D/empty D/shut D/real/sub; touch D/f D/real/x; chmod 0 D/shut
        ln -s real D/to-dir; ln -s . D/loop; ln -s b D/a; ln -s a D/b; ln -s nowhere D/dangling
      ]]))
      assert.equal("ENOENT", code(files:list("D/none")))
      assert.equal("ENOTDIR", code(files:list("D/f")))
      assert.same({}, names(files, "D/empty"))
      assert.equal("EACCES", code(files:list("D/shut")))
      assert.same({ "sub", "x" }, names(files, "D/to-dir"))
      local by_path = {}
      for _, entry in ipairs(sandbar.assert(files:list("D", { depth = false }))) do
        assert.is_nil(by_path[entry.path])
        by_path[entry.path] = entry
      end
      for name, target in pairs { loop = ".", a = "b", b = "a", dangling = "nowhere", ["to-dir"] = "real" } do
        local entry = by_path["/home/user/D/" .. name]
        assert.equal("link", entry.type)
        assert.equal(target, entry.target)
      end
      assert.is_truthy(by_path["/home/user/D/real/x"])
      assert.is_nil(by_path["/home/user/D/loop/f"])
    end)
  end)

  it("B23: counts depth from the start, lists 20 000 entries and a tree that changes", function()
    with_box(function(files, box)
      sandbar.assert(box:exec("mkdir -p T/1/2/3; touch T/f0 T/1/f1 T/1/2/f2 T/1/2/3/f3"))
      assert.equal(2, #files:list("T"))
      assert.equal(2, #files:list("T", { depth = 1 }))
      assert.equal(4, #files:list("T", { depth = 2 }))
      assert.equal(6, #files:list("T", { depth = 3 }))
      assert.equal(7, #files:list("T", { depth = false }))
      local many = inside.size(20000, 2000)
      sandbar.assert(box:exec(("mkdir many; cd many; seq 1 %d | xargs touch"):format(many)))
      local list = sandbar.assert(files:list("many"))
      assert.equal(many, #list)
      for i = 2, #list do
        assert.is_true(list[i - 1].name < list[i].name)
      end
      local p = sandbar.assert(box:start(
        "mkdir c; while :; do touch c/1 c/2 c/3; mkdir -p c/d/e; rm -rf c/d c/1 c/2; done", { stderr = "ignore" }))
      assert.is_truthy(helper.eventually(function()
        return files:exists("c/1")
      end), "nothing changes")
      for _ = 1, inside.times(30) do
        sandbar.assert(files:list("c", { depth = false }))
      end
      p:kill { signal = "KILL" }
    end)
  end)

  it("B24: knows where it is and who it is", function()
    with_box(function(files, box)
      for _, path in ipairs { "x", "~/x", "./x", "a/../x" } do
        assert.equal("/home/user/x", sandbar.assert(files:write(path, "")).path)
      end
      assert.equal("/home/user", files:stat("~").path)
      assert.equal("InvalidArgument", select(2, files:write("~root/x", "")).kind)
      assert.equal("/", files:stat("/../../..").path)
      local function failure(opts)
        local r, err = box:exec("true", opts)
        assert.is_nil(r)
        return err
      end
      local err = failure { cwd = "/no/such/place" }
      assert.equal("NotFound", err.kind)
      assert.is_truthy(tostring(err):find("/no/such/place", 1, true))
      assert.equal("ENOTDIR", failure({ cwd = "/etc/passwd" }).code)
      sandbar.assert(box:exec("mkdir shut; chmod 0 shut"))
      assert.equal("PermissionDenied", failure({ cwd = "/home/user/shut" }).kind)
      assert.equal("InvalidArgument", failure({ user = "nobody-such" }).kind)
      assert.equal("/home/user\n", sandbar.assert(box:exec("pwd", { cwd = "~" })).stdout)
      local p = sandbar.assert(box:start("echo in; read line; ls; echo still", { cwd = "/tmp", stdin = "pipe" }))
      assert.equal("in", p.stdout:read("l"))
      p.stdin:close()
      assert.is_truthy(p.stdout:read("a"):find("still", 1, true))
      -- A working directory that is removed under a running command.
      sandbar.assert(files:mkdir("short-lived"))
      p = sandbar.assert(box:start("echo in; read line; echo on", { cwd = "/home/user/short-lived", stdin = "pipe" }))
      assert.equal("in", p.stdout:read("l"))
      sandbar.assert(files:remove("short-lived"))
      assert.equal("NotFound", failure({ cwd = "/home/user/short-lived" }).kind)
      p.stdin:close()
      assert.equal("on\n", p.stdout:read("a"))
      if not box:exec("true", { user = "root" }) then
        return -- the single-id form has one user only
      end
      assert.equal("/root/x", sandbar.assert(files:write("x", "", { user = "root" })).path)
      local r = sandbar.assert(box:exec("echo $HOME $USER $LOGNAME; id -u", { user = "root" }))
      assert.equal("/root root root\n0\n", r.stdout)
      files:write("/tmp/private", "s", { user = "root", mode = "600" })
      assert.equal("PermissionDenied", select(2, files:read("/tmp/private")).kind)
    end)
  end)
end)
