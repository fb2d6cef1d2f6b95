-- Files: what is written is there, whole or not at all; names, trees, watches, transfers.

return function(t)
  local it, assert, fails = t.it, t.assert, t.fails
  local ok = t.sandbar.assert

  -- fn(files, path of an empty directory)
  local function with_dir(fn)
    local files = t.box.files
    local dir = ok(files:temp_dir())
    fn(files, dir .. "/")
    ok(files:remove(dir, { recursive = true }))
  end

  it("A-50 B-39 B-40: bytes are written and read, parents made, the mode given", function()
    with_dir(function(files, dir)
      local entry = ok(files:write(dir .. "a/b/c.txt", "text\0\255", { mode = "640" }))
      assert.equal("c.txt", entry.name)
      assert.equal("file", entry.type)
      assert.equal(6, entry.size)
      assert.equal("640", entry.mode)
      assert.equal("text\0\255", files:read(dir .. "a/b/c.txt"))
      local long = ("0123456789abcdef"):rep(200000)
      ok(files:write(dir .. "long", long))
      assert.is_true(files:read(dir .. "long") == long)
      fails("NotFound", files:read(dir .. "nothing"))
      fails("LimitExceeded", files:read(dir .. "long", { max = 1000 }))
    end)
  end)

  it("A-48 A-49: a write is exclusive, appends, or replaces through a link, as it is told", function()
    with_dir(function(files, dir)
      ok(files:write(dir .. "f", "one", { flag = "wx" }))
      fails("AlreadyExists", files:write(dir .. "f", "two", { flag = "wx" }))
      ok(files:write(dir .. "f", "+", { flag = "a" }))
      assert.equal("one+", files:read(dir .. "f"))
      ok(files:symlink("f", dir .. "link"))
      ok(files:write(dir .. "link", "new"))
      assert.equal("new", files:read(dir .. "f"))
      assert.equal("link", files:stat(dir .. "link", { nofollow = true }).type)
      assert.equal("f", files:readlink(dir .. "link"))
    end)
  end)

  it("what fails in the middle was not", function()
    with_dir(function(files, dir)
      local n = 0
      local _, err = files:write(dir .. "f", function()
        n = n + 1
        if n == 3 then
          return nil, "enough"
        end
        return "piece"
      end)
      assert.is_truthy(err)
      assert.same({}, ok(files:list(dir)))
    end)
  end)

  it("trees are listed, found, moved, copied and removed", function()
    with_dir(function(files, dir)
      ok(files:write_many { { path = dir .. "t/a.lua", data = "1" }, { path = dir .. "t/u/b.lua", data = "2" } })
      local names = {}
      for _, entry in ipairs(ok(files:list(dir .. "t", { depth = 2 }))) do
        names[#names + 1] = entry.name
      end
      table.sort(names)
      assert.same({ "a.lua", "b.lua", "u" }, names)
      assert.equal(2, #ok(files:glob(dir .. "t/**/*.lua")))
      ok(files:move(dir .. "t/a.lua", dir .. "t/c.lua"))
      assert.is_false(files:exists(dir .. "t/a.lua"))
      ok(files:copy(dir .. "t", dir .. "v"))
      assert.equal("2", files:read(dir .. "v/u/b.lua"))
      local _, err = files:remove(dir .. "t")
      assert.is_truthy(err)
      ok(files:remove(dir .. "t", { recursive = true }))
      assert.is_false(files:exists(dir .. "t"))
      ok(files:mkdir(dir .. "m"))
      ok(files:chmod(dir .. "m", "700"))
      assert.equal("700", files:stat(dir .. "m").mode)
    end)
  end)

  it("A-45: an open file is read, written and moved about in", function()
    t.needs "open_files"
    with_dir(function(files, dir)
      ok(files:write(dir .. "f", "line 1\nline 2\n"))
      local f = ok(files:open(dir .. "f", "r+"))
      assert.equal("line 1", f:read "l")
      assert.equal(14, f:seek("end", 0))
      ok(f:write "more")
      assert.equal(0, f:seek("set", 0))
      assert.equal("line 1\nline 2\nmore", f:read "a")
      f:close()
    end)
  end)

  it("A-46: a watch tells what changes from when it returns", function()
    t.needs "watch"
    with_dir(function(files, dir)
      local watch = ok(files:watch(dir))
      ok(files:write(dir .. "new", "1"))
      local event
      repeat
        event = ok(watch:next { timeout = t.patience })
      until event.path:match("new$")
      watch:close()
    end)
  end)

  it("files and trees come and go between here and there", function()
    local host = os.tmpname()
    os.remove(host)
    with_dir(function(files, dir)
      ok(files:write_many { { path = dir .. "t/a", data = "1" }, { path = dir .. "t/u/b", data = ("x"):rep(300000) } })
      ok(files:download(dir .. "t", host))
      ok(files:upload(host, dir .. "back"))
      assert.equal("1", files:read(dir .. "back/a"))
      assert.equal(300000, #files:read(dir .. "back/u/b"))
    end)
    for _, name in ipairs { "/a", "/u/b", "/u", "" } do
      os.remove(host .. name)
    end
  end)

  it("each user has his own rights", function()
    fails("PermissionDenied", t.box.files:write("/etc/conformance", "x"))
    ok(t.box.files:write("/etc/conformance", "x", { user = "root" }))
    ok(t.box.files:remove("/etc/conformance", { user = "root" }))
  end)
end
