local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("files:glob", function()
  helper.guard()

  local sandboxes = helper.open()

  -- Runs fn(glob, files, box): glob(pattern) gives names below the home, joined by blanks.
  local function with_tree(paths, fn)
    inside.with_box(sandboxes, function(box)
      local files = box.files
      local list = {}
      for i, path in ipairs(paths) do
        list[i] = { path = path, data = "" }
      end
      sandbar.assert(files:write_many(list))
      fn(function(pattern, opts)
        local found = sandbar.assert(files:glob(pattern, opts))
        for i, path in ipairs(found) do
          found[i] = path:gsub("^/home/user/", "")
        end
        return table.concat(found, " ")
      end, files, box)
    end)
  end

  it("knows *, ?, classes and braces, and sorts", function()
    with_tree({ "a.lua", "b.lua", "ab.lua", "c.txt", "x1", "x2", "x-", "src/d.lua" }, function(glob)
      assert.equal("a.lua ab.lua b.lua", glob("*.lua"))
      assert.equal("a.lua b.lua", glob("?.lua"))
      assert.equal("x1 x2", glob("x[0-9]"))
      assert.equal("x-", glob("x[!0-9]"))
      assert.equal("x-", glob("x[^0-9]"))
      assert.equal("x-", glob("x[a-]"))
      assert.equal("a.lua b.lua c.txt", glob("[abc].*"))
      assert.equal("a.lua c.txt", glob("{a.lua,c.*}"))
      assert.equal("a.lua ab.lua b.lua", glob("{*,{a,b}}.lua"))
      assert.equal("src/d.lua", glob("*/*.lua"))
      assert.equal("src", glob("*/"))
      assert.equal("src/d.lua", glob("~/src/d.lua"))
      assert.equal("src/d.lua", glob("./no/../src/*"))
      assert.equal("", glob("*.none"))
      assert.equal("", glob("none/*"))
      assert.equal("", glob("a.lua/*"))
    end)
  end)

  it("takes ** for any directories, also none, and never follows a link through it", function()
    with_tree({ "t/a.c", "t/d/b.c", "t/d/e/c.c", "t/d/e/c.h", "other/z.c" }, function(glob, files)
      sandbar.assert(files:symlink("..", "t/d/loop"))
      sandbar.assert(files:symlink("/home/user/other", "t/out"))
      sandbar.assert(files:symlink("nowhere", "t/dangling"))
      assert.equal("t/a.c t/d/b.c t/d/e/c.c", glob("t/**/*.c"))
      assert.equal("t/a.c t/d t/d/b.c t/d/e t/d/e/c.c t/d/e/c.h t/d/loop t/dangling t/out", glob("t/**"))
      assert.equal("t/d/e/c.c t/d/e/c.h", glob("t/**/**/e/**"))
      assert.equal("t/d/e/c.h", glob("**/d/**/c.h"))
      assert.equal("t/d t/d/e t/d/loop t/out", glob("t/**/"))
      -- Named by itself or by * a link is followed, as by a shell.
      assert.equal("t/out/z.c", glob("t/out/*.c"))
      assert.equal("t/out/z.c", glob("t/o*/*.c"))
      assert.equal("t/dangling", glob("t/dang*"))
      -- Each path once, however many ways the pattern has to it.
      assert.equal("t/d/e/c.c", glob("**/t/**/**/e/**/{c.c,*.c}"))
    end)
  end)

  it("matches hidden names only where the pattern has the dot", function()
    with_tree({ ".config/a", "d/.x", "d/y", ".profile.test" }, function(glob)
      assert.equal("d/y", glob("d/*"))
      assert.equal("d/.x", glob("d/.*"))
      assert.equal("", glob("d/[.]x")) -- not by a class
      assert.equal(".config/a", glob(".config/*"))
      assert.equal("", glob("**/a"))
      assert.equal(".config/a", glob("**/.config/a"))
      assert.equal(".profile.test", glob(".prof*"))
    end)
  end)

  it("takes names as bytes: escapes, UTF-8, what is no text, newlines", function()
    with_tree({ "star*", "starry", "[x]", "{a,b}", "back\\slash", "\195\164", "\255x", "new\nline" }, function(glob)
      assert.equal("star*", glob("star\\*"))
      assert.equal("[x]", glob("\\[x\\]"))
      assert.equal("[x]", glob("[[]x]"))
      assert.equal("{a,b}", glob("\\{a,b\\}"))
      assert.equal("back\\slash", glob("back\\\\slash"))
      assert.equal("\195\164", glob("?"))
      assert.equal("\195\164", glob("[\195\160-\195\170]"))
      assert.equal("\255x", glob("?x"))
      assert.equal("new\nline", glob("new?line"))
      assert.equal("", glob("[x"))
      assert.equal("", glob("star["))
    end)
  end)

  it("acts with the user's rights, and starts at his home", function()
    with_tree({ "mine" }, function(glob, files, box)
      assert.equal("/home/user/mine", sandbar.assert(files:glob("*"))[1])
      sandbar.assert(files:write("roots", "", { user = "root" }))
      assert.same({ "/root/roots" }, sandbar.assert(files:glob("roo*", { user = "root" })))
      sandbar.assert(box:exec("mkdir -p locked/x && touch locked/x/f && chmod 0 locked"))
      assert.equal("", glob("locked/*"))
      assert.equal("locked mine", glob("**"))
      sandbar.assert(box:exec("chmod 111 locked"))
      assert.equal("", glob("locked/*"))
      assert.equal("locked/x/f", glob("locked/x/*")) -- named, it needs no listing
      local none, err = files:glob("*", { user = "nobody-such" })
      assert.is_nil(none)
      assert.equal("InvalidArgument", err.kind)
    end)
  end)

  it("does not take what a home is called for a pattern", function()
    with_tree({ "/tmp/[h]ome*/f", "/tmp/home/f" }, function(_, files, box)
      local r = sandbar.assert(box:exec("cat /etc/passwd", { user = "root" })).stdout
      local changed = sandbar.assert(files:write("/etc/passwd",
        r:gsub(":/home/user:", ":/tmp/[h]ome*:"), { user = "root" }))
      assert.is_truthy(changed)
      assert.same({ "/tmp/[h]ome*/f" }, sandbar.assert(files:glob("f")))
      assert.same({ "/tmp/[h]ome*/f" }, sandbar.assert(files:glob("~/*")))
    end)
  end)

  it("refuses what is no pattern", function()
    with_tree({}, function(_, files)
      local function kind(pattern)
        local none, err = files:glob(pattern)
        assert.is_nil(none)
        assert.equal("files:glob", err.op)
        return err.kind
      end
      assert.equal("InvalidArgument", kind(""))
      assert.equal("InvalidArgument", kind("a\0b"))
      assert.equal("InvalidArgument", kind("~root/*"))
      assert.equal("InvalidArgument", kind(("*/"):rep(100) .. "x"))
      assert.equal("InvalidArgument", kind(("x"):rep(5000)))
      assert.equal("LimitExceeded", kind(("{a,b}"):rep(11)))
      assert.has_error(function() files:glob(1) end)
      assert.has_error(function() files:glob("x", { color = true }) end)
      assert.same({ "/" }, sandbar.assert(files:glob("/")))
      assert.is_truthy(#sandbar.assert(files:glob("/*")) > 5)
    end)
  end)

  it("walks large and deep trees, and hangs on no special file", function()
    with_tree({}, function(_, files, box)
      sandbar.assert(box:exec([[mkdir many && cd many && i=0 && while [ $i -lt 3000 ]; do : > f$i; i=$((i+1)); done
        cd .. && mkdir odd && mkfifo odd/fifo
        d=deep; i=0; while [ $i -lt 300 ]; do d=$d/d; i=$((i+1)); done; mkdir -p $d && : > $d/end]], { check = true }))
      assert.equal(3000, #sandbar.assert(files:glob("many/*")))
      assert.equal(1, #sandbar.assert(files:glob("deep/**/end")))
      assert.equal(1, #sandbar.assert(files:glob("odd/*")))
      assert.equal(0, #sandbar.assert(files:glob("odd/*/*")))
      assert.is_truthy(#sandbar.assert(files:glob("/dev/*")) > 3)
      local began = helper.now()
      sandbar.assert(files:glob("deep/" .. ("**/d/"):rep(20) .. "none"))
      assert.is_true(helper.now() - began < 5)
    end)
  end)
end)
