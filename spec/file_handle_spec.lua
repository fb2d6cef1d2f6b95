local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("open files", function()
  helper.guard()

  local sandboxes = helper.open()

  -- fn gets the files of a sandbox and a directory of the host, to do the same in both.
  local function with_box(fn)
    inside.with_box(sandboxes, function(box)
      fn(box.files, helper.dir())
    end)
  end

  it("reads as io files do", function()
    with_box(function(files, dir)
      local text = "first\nsecond\n\n 0x10 -3.5e1 nan\nlast without end"
      files:write("f", text)
      local host = assert(io.open(helper.write_file(dir .. "/f", text), "rb"))
      local ours = sandbar.assert(files:open("f"))
      for _, format in ipairs { "*l", 3, "*n", 0, "*l", "*l", "*n", "*n", "*l", "*a", "*a", "*l", 0 } do
        assert.equal(host:read(format), (ours:read(format)), "format " .. format)
      end
      host:close()
      ours:close()
    end)
  end)

  it("takes a timeout in every call that waits; what is too late has consumed nothing", function()
    with_box(function(files)
      files:write("f", "one\ntwo\n")
      local f = sandbar.assert(files:open("f", "r+"))
      -- Without waiting there is the result, if it is there at once, or a Timeout that has changed nothing.
      local none, err = f:read("l", "a", { timeout = 0 })
      if none then
        f:seek("set", 0)
      else
        assert.equal("Timeout", err.kind)
        assert.equal(0, err.limit)
      end
      assert.equal("one", f:read("l", { timeout = 5 }))
      for line in f:lines("L", { timeout = "5s" }) do
        assert.equal("two\n", line)
      end
      none, err = f:seek("end", 0, { timeout = 0 })
      assert.is_true(none == 8 or err.kind == "Timeout")
      assert.equal(8, f:seek("end", 0, { timeout = 5 }))
      assert.equal(f, f:write("three", "\n", { timeout = 5 }))
      none, err = f:write("four", { timeout = 0 })
      assert.is_true(none == f or err.kind == "Timeout")
      none, err = f:read("l", { timeout = -1 })
      assert.is_nil(none)
      assert.equal("InvalidArgument", err.kind)
      assert.error_matches(function() f:read("l", { timout = 1 }) end, "bad argument #2 to 'read' %(unknown option")
      assert.error_matches(function() f:read { timeout = {} } end, "option 'timeout'")
      f:close()
    end)
  end)

  it("gives several results and stops at the first nil", function()
    with_box(function(files)
      files:write("f", "ab\ncd\n")
      local f = sandbar.assert(files:open("f"))
      local a, b, c, d = f:read(1, "l", "l", "l")
      assert.same({ "a", "b", "cd" }, { a, b, c })
      assert.is_nil(d)
      f:close()
    end)
  end)

  it("seeks, writes in place and appends", function()
    with_box(function(files)
      local f = sandbar.assert(files:open("f", "w+"))
      assert.equal(f, f:write("hello ", "world", 5))
      assert.equal(12, f:seek())
      assert.equal(6, f:seek("set", 6))
      f:write("W")
      assert.equal("orld5", f:read("a"))
      assert.equal(12, f:seek("end"))
      assert.equal(0, f:seek("set"))
      assert.equal("hello World5", f:read("a"))
      local at, err = f:seek("set", -1)
      assert.is_nil(at)
      assert.equal("InvalidArgument", err.kind)
      -- Once the next read or write raised, from inside the library.
      assert.equal(2 ^ 52, f:seek("set", 2 ^ 52))
      assert.is_nil(f:read(1))
      for _, from in ipairs { "cur", "end" } do
        at, err = f:seek(from, 2 ^ 52)
        assert.is_nil(at)
        assert.equal("InvalidArgument", err.kind)
      end
      f:seek("set")
      assert.equal("hello World5", f:read(2 ^ 53))
      f:close()
      f = sandbar.assert(files:open("f", "a"))
      f:write("!")
      f:write("?")
      f:close()
      assert.equal("hello World5!?", files:read("f"))
      f = sandbar.assert(files:open("f", "r+"))
      f:write("J")
      f:close()
      assert.equal("Jello World5!?", files:read("f"))
    end)
  end)

  it("has the other methods of io files", function()
    with_box(function(files)
      local f = sandbar.assert(files:open("f", "w"))
      assert.is_true(f:setvbuf("full", 1024))
      assert.equal(f, f:flush())
      assert.is_truthy(tostring(f):find("open", 1, true))
      assert.is_true(f:close())
      assert.is_true(f:close())
      local n, err = f:write("x")
      assert.is_nil(n)
      assert.equal("Closed", err.kind)
    end)
  end)

  it("iterates lines, closing behind files:lines", function()
    with_box(function(files)
      files:write("f", "a\nb\nc")
      local got = {}
      for line in files:lines("f") do
        got[#got + 1] = line
      end
      assert.same({ "a", "b", "c" }, got)
      local f = sandbar.assert(files:open("f"))
      got = {}
      for line in f:lines("L") do
        got[#got + 1] = line
      end
      assert.same({ "a\n", "b\n", "c" }, got)
      f:close()
      local line, err = files:lines("missing"):next()
      assert.is_nil(line)
      assert.equal("NotFound", err.kind)
    end)
  end)

  it("made a for over a missing file call a nil value", function()
    with_box(function(files)
      for _, path in ipairs { "missing", "" } do
        local ok, err = pcall(function()
          for _ in files:lines(path) do
            error("there is no line")
          end
        end)
        assert.is_false(ok)
        assert.equal(path == "" and "InvalidArgument" or "NotFound", err.kind)
      end
    end)
  end)

  it("reads a long line in linear time", function()
    with_box(function(files)
      local line = ("x"):rep(4000000)
      files:write("f", line .. "\nend\n")
      local f = sandbar.assert(files:open("f"))
      assert.equal(line, f:read("l"))
      assert.equal("end", f:read("l"))
      f:close()
    end)
  end)

  it("keeps its place through any mixture of reads, writes and seeks", function()
    with_box(function(files)
      local seed = 1
      local function random(n) -- 0 to n - 1
        seed = seed * 16807 % 2147483647
        return seed % n
      end
      local sizes = { 0, 1, 100, 5000, 65535, 65536, 70000, 262144, 300000 }
      local function text()
        return ("%d lines\n"):format(seed):rep(1 + random(100)):sub(1, -1 - random(3))
      end
      local content = ("a line of some length %d\n"):format(seed):rep(30000)
      sandbar.assert(files:write("f", content))
      local f, pos = sandbar.assert(files:open("f", "r+")), 0
      for step = 1, 600 do
        local what = random(6)
        if what <= 2 then
          local n = sizes[1 + random(#sizes)]
          local expected = content:sub(pos + 1, pos + n)
          local got, err = f:read(n)
          assert.is_nil(err)
          assert.is_true(got == (pos < #content and expected or nil), ("step %d: read(%d) at %d"):format(step, n, pos))
          pos = pos + #expected
        elseif what == 3 then
          local line = content:match("^[^\n]*", pos + 1)
          assert.equal(pos < #content and line or nil, (f:read("l")), ("step %d: a line at %d"):format(step, pos))
          pos = math.min(pos + #line + 1, #content)
        elseif what == 4 then
          local data = text()
          sandbar.assert(f:write(data))
          content = content:sub(1, pos) .. data .. content:sub(pos + #data + 1)
          pos = pos + #data
        else
          pos = random(#content + 1)
          assert.equal(pos, f:seek("set", pos))
        end
        assert.equal(pos, f:seek(), "step " .. step)
      end
      f:close()
      assert.is_true(files:read("f") == content)
    end)
  end)

  it("reads what is there now of a file that others cut and append to", function()
    inside.with_box(sandboxes, function(box)
      local function sh(line)
        assert(sandbar.assert(box:exec(line)).ok, line)
      end
      sandbar.assert(box.files:write("f", ("a"):rep(300000)))
      local f = sandbar.assert(box.files:open("f", "r+"))
      assert.equal(100000, #f:read(100000))
      sh("truncate -s 150000 f")
      assert.equal(50000, #f:read(100000))
      assert.is_nil((f:read(1)))
      sh("printf more >> f")
      assert.equal("more", f:read(100000))
      assert.is_nil((f:read(100000)))
      sandbar.assert(f:write("mine"))
      sh("printf yours >> f")
      assert.equal("yours", f:read("a"))
      f:close()
    end)
  end)

  describe("in tasks", function()
    local LONG, CHUNK = 8 * 1048576, 65536

    it("lets others have their turn while one reads a long file", function()
      with_box(function(files)
        sandbar.assert(files:write("f", ("x"):rep(LONG)))
        local reading, turns, total = true, 0, 0
        local other = sandbar.spawn(function()
          while reading do
            turns = turns + 1
            sandbar.sleep(0)
          end
        end)
        local reader = sandbar.spawn(function()
          local f = sandbar.assert(files:open("f"))
          local data
          repeat
            data = f:read(CHUNK)
            total = total + #(data or "")
          until not data
          reading = false
          return f:close()
        end)
        sandbar.assert(reader:wait { timeout = 20 })
        other:wait()
        assert.equal(LONG, total)
        assert.is_true(turns >= 7, turns) -- one a mebibyte
      end)
    end)

    it("reads no further once cancelled", function()
      with_box(function(files)
        sandbar.assert(files:write("f", ("x"):rep(LONG)))
        local chunks, task = 0, nil
        task = sandbar.spawn(function()
          local f = sandbar.assert(files:open("f"))
          local data, err
          repeat
            data, err = f:read(CHUNK)
            chunks = chunks + (data and 1 or 0)
            if chunks == 5 then
              task:cancel("enough")
            end
          until not data
          f:close()
          return nil, err
        end)
        local ok, err = task:wait { timeout = 20 }
        assert.is_nil(ok)
        assert.equal("Cancelled", err.kind)
        assert.equal(5, chunks)
      end)
    end)
  end)

  it("opens regular files only", function()
    with_box(function(files)
      local _, err = files:open("/home/user")
      assert.equal("EISDIR", err.code)
      _, err = files:open("/dev/null")
      assert.is_truthy(err)
      _, err = files:open("nope/nope")
      assert.equal("NotFound", err.kind)
      files:write("x", "")
      _, err = files:open("x", "wx")
      assert.equal("AlreadyExists", err.kind)
    end)
  end)
end)
