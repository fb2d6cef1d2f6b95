local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("upload and download", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, function(box)
      fn(box.files, helper.dir(), box)
    end)
  end

  local function sh(line)
    local out, status = helper.shell(line)
    assert.equal(0, status, out)
    return out
  end

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
      assert.equal("750\n", sh("stat -c %a " .. dir .. "/out"))
    end)
  end)

  it("carries trees, empty directories, odd names and links", function()
    with_box(function(files, dir)
      sh(("mkdir -p %s/t/a/empty '%s/t/o d d'; echo 1 >%s/t/a/f; : >'%s/t/o d d/-rf'; ln -s a/f %s/t/link"):format(
        dir, dir, dir, dir, dir))
      local report = sandbar.assert(files:upload(dir .. "/t", "tree"))
      assert.equal(2, report.files)
      assert.equal(1, report.links)
      assert.equal("1\n", files:read("tree/link"))
      assert.equal("directory", files:stat("tree/a/empty").type)
      report = sandbar.assert(files:download("tree", dir .. "/back"))
      assert.equal(2, report.files)
      assert.equal("", sh(("diff -r %s/t %s/back"):format(dir, dir)))
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

  it("never writes through a link that lies in the target", function()
    with_box(function(files, dir)
      files:write_many { ["t/d/f"] = "inside" }
      sh(("mkdir %s/out %s/elsewhere; ln -s ../elsewhere %s/out/d"):format(dir, dir, dir))
      local report, err = files:download("t", dir .. "/out")
      assert.is_nil(report)
      assert.is_truthy(err)
      assert.equal("", sh("ls " .. dir .. "/elsewhere"))
    end)
  end)

  it("replaces a link of the host instead of writing through it", function()
    with_box(function(files, dir)
      files:write("f", "new")
      helper.write_file(dir .. "/precious", "old")
      sh(("ln -s precious %s/out"):format(dir))
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
end)
