local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local filecall = require "sandbar.filecall"
local sandbar = require "sandbar"

describe("upload and download", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, function(box)
      fn(box.files, helper.dir(), box)
    end)
  end

  local sh = helper.sh

  it("carries a file both ways, with its mode", function()
    with_box(function(files, dir)
      local data = ("0123456789\0\255"):rep(100000)
      helper.write_file(dir .. "/in", data)
      sh("chmod 750 " .. dir .. "/in")
      local report = sandbar.assert(files:upload(dir .. "/in", "sub/there"))
      assert.equal(1, report.files)
      assert.equal(#data, report.bytes)
      assert.equal("750", files:stat("sub/there").mode)
      assert.equal(data, files:read("sub/there"))
      report = sandbar.assert(files:download("sub/there", dir .. "/out"))
      assert.equal(#data, report.bytes)
      assert.equal(data, helper.read_file(dir .. "/out"))
      assert.equal("750\n", sh("stat -c %%a " .. dir .. "/out"))
    end)
  end)

  it("carries trees, empty directories, odd names and links", function()
    with_box(function(files, dir)
      sh("mkdir -p %s/t/a/empty '%s/t/o d d'; echo 1 >%s/t/a/f; : >'%s/t/o d d/-rf'; ln -s a/f %s/t/link",
        dir, dir, dir, dir, dir)
      local report = sandbar.assert(files:upload(dir .. "/t", "tree"))
      assert.equal(2, report.files)
      assert.equal(1, report.links)
      assert.equal("1\n", files:read("tree/link"))
      assert.equal("directory", files:stat("tree/a/empty").type)
      report = sandbar.assert(files:download("tree", dir .. "/back"))
      assert.equal(2, report.files)
      assert.equal("", sh("diff -r %s/t %s/back", dir, dir))
      assert.equal("a/f\n", sh("readlink " .. dir .. "/back/link"))
    end)
  end)

  it("reports progress", function()
    with_box(function(files, dir)
      helper.write_file(dir .. "/in", ("x"):rep(3000000))
      local last, calls = 0, 0
      sandbar.assert(files:upload(dir .. "/in", "f", { on_progress = function(bytes, path)
        assert.is_true(bytes > last)
        assert.equal("f", path)
        last, calls = bytes, calls + 1
      end }))
      assert.equal(3000000, last)
      assert.is_true(calls > 1)
    end)
  end)

  it("takes only what matches", function()
    with_box(function(files, dir)
      files:write_many { ["t/a.lua"] = "1", ["t/b.txt"] = "2", ["t/s/c.lua"] = "3" }
      local report = sandbar.assert(files:download("t", dir .. "/out", { match = "*.lua" }))
      assert.equal(2, report.files)
      assert.equal("3", helper.read_file(dir .. "/out/s/c.lua"))
      assert.is_nil(helper.read_file(dir .. "/out/b.txt"))
    end)
  end)

  it("never follows a link of the sandbox out of the target", function()
    with_box(function(files, dir, box)
      sandbar.assert(box:exec("mkdir t; ln -s /etc/passwd t/abs; ln -s ../../.. t/up; ln -s sub t/in; mkdir t/sub"))
      local report = sandbar.assert(files:download("t", dir .. "/out"))
      assert.equal(2, #report.skipped)
      assert.equal("sub\n", sh("readlink " .. dir .. "/out/in"))
      assert.equal("", sh("ls -d " .. dir .. "/out/abs " .. dir .. "/out/up 2>/dev/null || true"))
    end)
  end)

  it("made links that are inside each by itself, and by way of each other led out of the target", function()
    with_box(function(files, dir, box)
      sandbar.assert(box:exec("mkdir -p t/a/b; ln -s ../.. t/a/b/top; ln -s a/b/top/../secret t/out; ln -s a/b/../f t/by; "
        .. "ln -s ./b/top/f t/a/in; echo inside >t/f"))
      helper.write_file(dir .. "/secret", "outside")
      local report = sandbar.assert(files:download("t", dir .. "/t"))
      table.sort(report.skipped)
      assert.same({ "/home/user/t/by", "/home/user/t/out" }, report.skipped)
      assert.equal("inside\n", sh("cat %s/t/a/in", dir))
      assert.equal(2, select(2, helper.shell("ls " .. dir .. "/t/out")))
    end)
  end)

  it("never writes through a link that lies in the target", function()
    with_box(function(files, dir)
      files:write_many { ["t/d/f"] = "inside" }
      sh("mkdir %s/out %s/elsewhere; ln -s ../elsewhere %s/out/d", dir, dir, dir)
      local report, err = files:download("t", dir .. "/out")
      assert.is_nil(report)
      assert.is_truthy(err)
      assert.equal("", sh("ls " .. dir .. "/elsewhere"))
    end)
  end)

  it("takes a set that is never closed, or empty, for the text it is", function()
    with_box(function(files, dir)
      files:write_many { ["t/a[b"] = "1", ["t/a[]"] = "2", ["t/]"] = "3", ["t/a["] = "4", ["t/b"] = "5" }
      for pattern, count in pairs { ["a[b"] = 1, ["a[]"] = 1, ["["] = 0, ["a["] = 1, ["[!"] = 0, ["[]]"] = 1,
        ["[!]]"] = 1, ["[a[b"] = 0, ["[ab]"] = 1, ["*["] = 1, ["%"] = 0 } do
        local report = sandbar.assert(files:download("t", dir .. "/out", { match = pattern }))
        assert.equal(count, report.files, pattern)
      end
    end)
  end)

  it("raised an error in the program for a sandbox that named files as nobody can", function()
    require "sandbar.files"
    local OP, dir = filecall.OP, helper.dir()
    local function told(path, target, top)
      local files = filecall.new {
        id = "liar",
        call = function(_, _, _, _, _, fields)
          local answer = { fields = { path = top, ftype = "directory" } }
          return fields.file_op == OP.LIST and { parts = { { path = path, ftype = "link", target = target } } } or answer
        end,
      }
      local report, err = files:download("/t", dir .. "/out")
      assert.is_nil(report)
      assert.equal("Protocol", err.kind)
      assert.equal("", sh("ls -A %s/out", dir))
    end
    told("/t/a\0b", "x", "/t")
    told("/t/link", "..\0x", "/t")
    told("/t/../u", "x", "/u")
    told("", "x")
  end)

  it("knows ranges in a set, and never takes a slash for one of its characters", function()
    with_box(function(files, dir)
      files:write_many { ["t/a1"] = "1", ["t/b2"] = "2", ["t/-3"] = "3", ["t/a/z"] = "4" }
      for pattern, count in pairs { ["[a-c]?"] = 2, ["[!a-c]?"] = 1, ["[c-]*"] = 1, ["a[!x]z"] = 0, ["a[/]z"] = 0, ["[a/]*"] = 1,
        ["**/[x-z]"] = 1, ["a/**"] = 1, ["**"] = 4 } do
        local report = sandbar.assert(files:download("t", dir .. "/out", { match = pattern }))
        assert.equal(count, report.files, pattern)
      end
    end)
  end)

  it("was held up for years by names that are made for a pattern", function()
    with_box(function(files, dir, box)
      sandbar.assert(box:exec("d=a/b/c/d; for i in 1 2 3 4 5 6 7 8; do d=$d/$d; done; mkdir -p t/$d; echo 1 >t/$d/f; echo 1 >t/$d/f.e", { check = true }))
      local report = sandbar.assert(files:download("t", dir .. "/out", { match = "**/a/**/b/**/c/**/d/**/*.e" }))
      assert.equal(1, report.files)
    end)
  end)

  it("does not put a file in the place of a pipe or a device, as /dev/null is", function()
    with_box(function(files, dir)
      files:write("f", "new")
      sh("mkfifo " .. dir .. "/pipe")
      local _, err = files:download("f", dir .. "/pipe")
      assert.equal("AlreadyExists", err.kind)
      assert.equal(dir .. "/pipe", err.path)
      assert.equal("pipe\n", sh("ls -A " .. dir))
      assert.equal(0, select(2, helper.shell("test -p " .. dir .. "/pipe")))
    end)
  end)

  it("replaces a link of the host instead of writing through it", function()
    with_box(function(files, dir)
      files:write("f", "new")
      helper.write_file(dir .. "/precious", "old")
      sh("ln -s precious %s/out", dir)
      sandbar.assert(files:download("f", dir .. "/out"))
      assert.equal("old", helper.read_file(dir .. "/precious"))
      assert.equal("new", helper.read_file(dir .. "/out"))
    end)
  end)

  it("leaves nothing behind when it fails half-way", function()
    with_box(function(files, dir)
      helper.write_file(dir .. "/in", ("x"):rep(5000000))
      local mark = {}
      local ok, raised = pcall(files.upload, files, dir .. "/in", "f", {
        on_progress = function() error(mark, 0) end,
      })
      assert.is_false(ok)
      assert.equal(mark, raised)
      assert.same({}, files:list("."))
      files:write("g", ("y"):rep(5000000))
      ok = pcall(files.download, files, "g", dir .. "/out", { on_progress = function() error(mark, 0) end })
      assert.is_false(ok)
      assert.equal("in\n", sh("ls -A " .. dir))
    end)
  end)

  it("takes trees of up to 256 directories inside each other, and says when one is deeper", function()
    with_box(function(files, dir)
      sh("mkdir -p %s/t/%s", dir, ("d/"):rep(256))
      local report = sandbar.assert(files:upload(dir .. "/t", "tree"))
      assert.equal(257, report.directories)
      sh("mkdir -p %s/t/%s", dir, ("d/"):rep(257))
      local none, err = files:upload(dir .. "/t", "tree2")
      assert.is_nil(none)
      assert.equal("ELOOP", err.code)
    end)
  end)

  it("gives up listing the host's tree when it is cancelled", function()
    local op = core.host_tree("/usr") -- large enough for the word to come in time
    op:cancel()
    assert.is_truthy(helper.eventually(function() return op:done() end))
    local ok, err = op:result()
    assert.is_false(ok)
    assert.equal("Cancelled", err.kind)
  end)

  it("names what is missing", function()
    with_box(function(files, dir)
      local _, err = files:upload(dir .. "/none", "x")
      assert.equal("NotFound", err.kind)
      _, err = files:download("none", dir .. "/x")
      assert.equal("NotFound", err.kind)
      files:write("f", "")
      _, err = files:download("f", dir .. "/no/such/dir/f")
      assert.equal("NotFound", err.kind)
    end)
  end)

  it("names the directory that is in the place of the file", function()
    with_box(function(files, dir)
      sandbar.assert(files:write("f", ""))
      sh("mkdir " .. dir .. "/there")
      local _, err = files:download("f", dir .. "/there")
      assert.equal("EISDIR", err.code)
      assert.equal(dir .. "/there", err.path)
      assert.is_nil(tostring(err):find(".sandbar-", 1, true))
      assert.equal("", sh("ls -A " .. dir .. "/there"))
    end)
  end)
end)
