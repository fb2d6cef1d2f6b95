local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("box.files", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, function(box)
      fn(box.files, box)
    end)
  end

  local function kind(_, err)
    return err and err.kind
  end

  it("writes, reads and creates missing parents (B-39, B-40)", function()
    with_box(function(files, box)
      local entry = sandbar.assert(files:write("/home/user/a/b/c.txt", "text\0\255"))
      assert.equal("c.txt", entry.name)
      assert.equal("file", entry.type)
      assert.equal(6, entry.size)
      assert.equal("text\0\255", files:read("a/b/c.txt"))
      assert.equal("text\0\255", sandbar.assert(box:exec { "cat", "a/b/c.txt" }).stdout)
      assert.equal("NotFound", kind(files:read("nothing")))
    end)
  end)

  it("keeps mode and owner of what it replaces, through a final link", function()
    with_box(function(files)
      files:write("real", "1", { mode = "750" })
      files:symlink("real", "link")
      files:write("link", "22")
      assert.equal("22", files:read("real"))
      assert.equal("750", files:stat("real").mode)
      assert.equal("link", files:stat("link", { nofollow = true }).type)
    end)
  end)

  it("is exclusive with wx, appends with a, truncates in place with atomic = false", function()
    with_box(function(files)
      files:write("f", "one", { flag = "wx" })
      assert.equal("AlreadyExists", kind(files:write("f", "two", { flag = "wx" })))
      files:write("f", "+", { flag = "a" })
      assert.equal("one+", files:read("f"))
      local handle = sandbar.assert(files:open("f"))
      files:write("f", "x", { atomic = false })
      assert.equal("x", handle:read("a"))
      handle:close()
      assert.equal("x", files:read("f"))
    end)
  end)

  it("writes from functions and files, whole or not at all", function()
    with_box(function(files)
      local n = 0
      files:write("big", function()
        n = n + 1
        return n <= 40 and ("%04d"):format(n):rep(10000) or nil
      end)
      assert.equal(40 * 40000, files:stat("big").size)
      local name = helper.write_file(helper.dir() .. "/x", "from the host")
      local f = assert(io.open(name, "rb"))
      files:write("copy", f)
      f:close()
      assert.equal("from the host", files:read("copy"))
      local mark = {}
      local ok, raised = pcall(files.write, files, "copy", function() error(mark, 0) end)
      assert.is_false(ok)
      assert.equal(mark, raised)
      assert.equal("from the host", files:read("copy"))
      assert.equal(2, #files:list("."))
    end)
  end)

  it("gives a file the mode that was asked for, however it is written", function()
    with_box(function(files)
      local function pieces(data)
        return function()
          local all = data
          data = nil
          return all
        end
      end
      for i, data in ipairs { "small", ("x"):rep(200000), pieces("piece") } do
        for _, how in ipairs { { atomic = false }, { flag = "a" }, {} } do
          local name = ("f%d"):format(i)
          files:write(name, "there", { mode = "644" })
          how.mode = "600"
          local entry = sandbar.assert(files:write(name, type(data) == "function" and pieces("piece") or data, how))
          assert.equal("600", entry.mode)
          how.mode = nil
          entry = sandbar.assert(files:write(name, type(data) == "function" and pieces("piece") or data, how))
          assert.equal("600", entry.mode)
          files:remove(name)
          how.mode = "666"
          entry = sandbar.assert(files:write(name, type(data) == "function" and pieces("piece") or data, how))
          assert.equal("666", entry.mode)
        end
      end
    end)
  end)

  it("means by timeout the whole call, whatever its source does", function()
    with_box(function(files)
      for _, atomic in ipairs { true, false } do
        local began = helper.now()
        local none, err = files:write("f", function()
          sandbar.sleep(0.1)
          return "x"
        end, { timeout = 0.35, atomic = atomic })
        assert.is_nil(none)
        assert.equal("Timeout", err.kind)
        assert.equal(0.35, err.limit)
        assert.is_true(helper.now() - began < 3)
        assert.equal(not atomic, files:exists("f"))
      end
    end)
  end)

  it("reads no file of any size: 256 MiB unless max says more", function()
    inside.with_box(sandboxes, function(box)
      sandbar.assert(box:exec("truncate -s 6G sparse; truncate -s 270M less", { check = true }))
      for _, name in ipairs { "sparse", "less" } do
        local data, err = box.files:read(name)
        assert.is_nil(data)
        assert.equal("LimitExceeded", err.kind)
        assert.equal(268435456, err.limit)
      end
      local _, err = box.files:read("less", { max = 1000 })
      assert.equal(1000, err.limit)
    end)
  end)

  it("means by timeout the whole of write_many", function()
    with_box(function(files)
      local list = {}
      for i = 1, 20 do
        list[i] = {
          path = "f" .. i,
          data = function()
            sandbar.sleep(0.1)
          end,
        }
      end
      local began = helper.now()
      local none, err = files:write_many(list, { timeout = 0.35 })
      assert.is_nil(none)
      assert.is_true(helper.now() - began < 1.5)
      assert.equal("Aggregate", err.kind)
      assert.equal("f1", err.result[1].entry.name)
      assert.equal("Timeout", err.result[20].error.kind)
      assert.equal(0.35, err.result[20].error.limit)
      assert.is_false(files:exists("f20"))
    end)
  end)

  it("kept a file open that came for a write without time, until the program waited again", function()
    with_box(function(files)
      for i = 1, 100 do
        local _, err = files:write("f" .. i, function() end, { timeout = 0 })
        assert.equal("Timeout", err.kind)
      end
      assert.is_truthy(helper.eventually(function()
        collectgarbage()
        for _, target in pairs(helper.proc.fds()) do
          if target:match("^/.*deleted") then
            return nil
          end
        end
        return true
      end))
    end)
  end)

  it("tells each entry's fate in write_many", function()
    with_box(function(files)
      local entries = sandbar.assert(files:write_many { { path = "a", data = "1" }, { path = "d/b", data = "" } })
      assert.equal(2, #entries)
      assert.equal(0, entries[2].size)
      local _, err = files:write_many {
        { path = "x", data = "1" }, { path = "a/under", data = "2" }, { path = "y", data = "3", mode = "600" },
      }
      assert.equal("Aggregate", err.kind)
      assert.is_truthy(err.result[1].entry)
      assert.equal("ENOTDIR", err.result[2].error.code)
      assert.equal("600", err.result[3].entry.mode)
      assert.is_nil(err.message:find("files:write: ", 1, true), err.message) -- once it named the call twice
      assert.is_truthy(err.message:find("a/under", 1, true), err.message)
      sandbar.assert(files:write_many { m = "map", n = "" })
      assert.equal("map", files:read("m"))
    end)
  end)

  it("gives full entries", function()
    with_box(function(files)
      files:write("f", "123", { mode = "640" })
      local e = sandbar.assert(files:stat("f"))
      assert.equal("f", e.name)
      assert.equal("/home/user/f", e.path)
      assert.equal("file", e.type)
      assert.equal(3, e.size)
      assert.equal("640", e.mode)
      assert.equal("user", e.owner)
      assert.is_truthy(e.group)
      assert.is_true(math.abs(e.mtime - os.time()) < 100)
      files:symlink("f", "l")
      local l = sandbar.assert(files:stat("l", { nofollow = true }))
      assert.equal("link", l.type)
      assert.equal("f", l.target)
      assert.equal("file", files:stat("l").type)
    end)
  end)

  it("only answers false to exists when there is nothing", function()
    with_box(function(files)
      files:write("f", "")
      assert.is_true(files:exists("f"))
      assert.is_false(files:exists("g"))
      local there, err = files:exists("f/g")
      assert.is_nil(there)
      assert.equal("ENOTDIR", err.code)
      assert.equal("PermissionDenied", kind(files:exists("/root/x")))
    end)
  end)

  it("makes, moves, copies, removes, changes modes and links", function()
    with_box(function(files)
      assert.is_true(files:mkdir("p/q", { mode = "700" }))
      assert.is_false(files:mkdir("p/q"))
      assert.equal("700", files:stat("p/q").mode)
      files:write("p/f", "1")
      sandbar.assert(files:copy("p", "copy"))
      assert.equal("1", files:read("copy/f"))
      sandbar.assert(files:move("p/f", "p/g"))
      assert.is_false(files:exists("p/f"))
      sandbar.assert(files:chmod("p/g", "711"))
      assert.equal("711", files:stat("p/g").mode)
      sandbar.assert(files:symlink("../etc", "p/l"))
      assert.equal("../etc", files:readlink("p/l"))
      local full = select(2, files:remove("p"))
      assert.equal("ENOTEMPTY", full.code)
      assert.matches("recursive = true", full.message, 1, true)
      sandbar.assert(files:remove("p", { recursive = true }))
      assert.is_false(files:exists("p"))
      assert.equal("NotFound", kind(files:remove("p")))
      local dir = sandbar.assert(files:temp_dir())
      assert.equal("directory", files:stat(dir).type)
      assert.equal("700", files:stat(dir).mode)
    end)
  end)

  it("acts with the rights of `user` and gives away with `owner`", function()
    with_box(function(files, box)
      if not box:exec("true", { user = "root" }) then
        helper.skip("the single-id form has one user only")
      end
      sandbar.assert(files:write("/root/secret", "s", { user = "root", mode = "600" }))
      assert.equal("PermissionDenied", kind(files:read("/root/secret")))
      assert.equal("s", files:read("/root/secret", { user = "root" }))
      sandbar.assert(files:write("/var/tmp/given", "g", { user = "root", owner = "user" }))
      assert.equal("user", files:stat("/var/tmp/given").owner)
      assert.equal("InvalidArgument", kind(files:read("x", { user = "nobody-such" })))
    end)
  end)

  it("hid the caller's line when an element of write_many's list is no table", function()
    with_box(function(files)
      local ok, err = pcall(function()
        local result = files:write_many { 5 }
        return result
      end)
      assert.is_false(ok)
      assert.matches("files_spec.lua:%d+: bad argument #1 to 'write_many' %(element 1: table expected", err)
    end)
  end)

  it("refuses bad arguments: values as errors, types at the caller's line", function()
    with_box(function(files)
      assert.equal("InvalidArgument", kind(files:read("")))
      assert.equal("InvalidArgument", kind(files:read("a\0b")))
      assert.equal("InvalidArgument", kind(files:write("f", "", { mode = "9z" })))
      assert.equal("InvalidArgument", kind(files:write("f", "", { flag = "q" })))
      for _, integer in ipairs { 644, 755, 600, 700, 777, 512 } do -- once the file got just any rights
        local entry, err = files:write("f", "", { mode = integer })
        assert.is_nil(entry)
        assert.equal("InvalidArgument", err.kind)
        assert.equal(("mode: the number %d is the bits of \"%o\"; write \"%d\", or \"%o\" if you mean that")
          :format(integer, integer, integer, integer), err.message)
        assert.equal("InvalidArgument", kind(files:chmod(".", integer)))
      end
      assert.equal("751", sandbar.assert(files:write("f", "", { mode = 489 })).mode)
      for _, bits in ipairs { "1777", "4755", "1755", "2750", "1420", "1400", "7777" } do -- once refused as numbers
        sandbar.assert(files:chmod("f", tonumber(bits, 8)))
        assert.equal(bits, sandbar.assert(files:stat("f")).mode)
      end
      for _, none in ipairs { 4096, 4755, 7777, -1 } do
        assert.equal("InvalidArgument", kind(files:chmod("f", none)))
      end
      assert.equal("InvalidArgument", kind(files:open("f", "rw")))
      assert.has_error(function() files:read(3) end)
      assert.has_error(function() files:write("f", 3) end)
      local ok, err = pcall(function() files:list(".", { dept = 2 }) end)
      assert.is_false(ok)
      assert.is_truthy(err:find("files_spec.lua", 1, true))
      assert.is_truthy(err:find("depth", 1, true))
      for _, name in ipairs { "read", "stat", "exists", "mkdir", "readlink" } do
        for what, call in pairs {
          ["string expected, got nil"] = function() local r = files[name](files) return r end,
          ["sandbar.Files expected, got table"] = function() local r = files[name]({}, "x") return r end,
        } do
          ok, err = pcall(call)
          assert.is_false(ok)
          assert.matches("^[^:]*files_spec.lua:%d+: ", err)
          assert.is_truthy(err:find(what, 1, true), name .. ": " .. err)
          assert.is_nil(err:find("'begin'", 1, true))
        end
        local _, why = files[name](files, "")
        assert.equal("files:" .. name, why.op)
        _, why = files[name](files, "x", { timeout = "soon" })
        assert.equal("files:" .. name, why.op)
      end
    end)
  end)

  it("says why a link cannot be read or a directory moved into itself", function()
    with_box(function(files)
      files:write("f", "")
      files:mkdir("d")
      for _, call in ipairs {
        function() return files:readlink("f") end, function() return files:move("d", "d/e") end,
        function() return files:copy("d", "d/e") end,
      } do
        local _, err = call()
        assert.equal("EINVAL", err.code)
        assert.is_nil(err.message:find("it failed", 1, true))
      end
    end)
  end)

  it("wrote extended attributes and never showed them", function()
    with_box(function(files)
      local given = { ["user.color"] = "red", ["user.bytes"] = "\0\255" }
      assert.same(given, sandbar.assert(files:write("f", "1", { xattrs = given })).xattrs)
      assert.same(given, sandbar.assert(files:stat("f", { xattrs = true })).xattrs)
      assert.is_nil(sandbar.assert(files:stat("f")).xattrs)
      for _, name in ipairs { "color", "paint.color", "" } do
        local _, err = files:write("g", "1", { xattrs = { [name] = "red" } })
        assert.equal("InvalidArgument", err.kind)
        assert.is_truthy(err.message:find("user.", 1, true), err.message)
      end
      assert.is_false(files:exists("g"))
    end)
  end)

  it("refuses what comes later by name", function()
    with_box(function(files)
      for _, name in ipairs { "upload_url", "download_url" } do
        local _, err = files[name](files, "x")
        assert.equal("Unsupported", err.kind)
        assert.equal(name, err.clause)
        assert.equal("files:" .. name, err.op)
      end
    end)
  end)

  it("limits what read takes into memory", function()
    with_box(function(files)
      files:write("f", ("x"):rep(2000))
      assert.equal("LimitExceeded", kind(files:read("f", { max = 1000 })))
      assert.equal("InvalidArgument", kind(files:read("f", { max = -1 })))
      assert.equal("InvalidArgument", kind(files:read("f", { max = 0 / 0 })))
      assert.equal(2000, #files:read("f", { max = 2000 }))
    end)
  end)
end)
