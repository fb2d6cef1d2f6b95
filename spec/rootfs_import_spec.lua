-- What a rootfs keeps of modes and owners, for root in place, for an ordinary user in the one copy made of it.

local helper = require "spec.helper"

local sandbar = require "sandbar"

describe("a rootfs in place or copied", function()
  helper.guard()

  local sh = helper.sh

  -- A small system: a shell and a few programs with their libraries.
  local function make(dir)
    sh([[cd %s && chmod 755 . && mkdir -p bin etc tmp home/user odd && chmod 1777 tmp
      for p in sh cat ls id stat; do
        f=$(readlink -f "$(command -v $p)"); cp "$f" bin/$p
        ldd "$f" | grep -o '/[^ ]*' | while read -r l; do mkdir -p "./$(dirname "$l")"; cp -L "$l" "./$l"; done
      done
      echo 'root:x:0:0::/:/bin/sh
user:x:1000:1000::/home/user:/bin/sh' > etc/passwd
      printf 'root:x:0:\nuser:x:1000:\n' > etc/group
      echo one > etc/release
      echo secret > odd/closed; chmod 000 odd/closed
      cp bin/id odd/setuid; chmod 4755 odd/setuid
      mkfifo odd/fifo; ln -s ../etc/release odd/link; mkdir odd/dir; chmod 750 odd/dir]], dir)
  end

  local function copies(root)
    local out = sh("ls -A %s/v1/t", root)
    local n = 0
    for _ in out:gmatch("fs%-") do
      n = n + 1
    end
    return n
  end

  it("is the sandbox's root, the sandbox's writes stay its own", function()
    local root, dir = helper.dir(), helper.dir()
    make(dir)
    local sandboxes = helper.open { root = root }
    local expected = helper.is_root() and 0 or 1
    for i = 1, 2 do
      local box = sandbar.assert(sandboxes:create_scoped { template = { rootfs = dir } })
      local r = sandbar.assert(box:exec { "sh", "-c", "cat /etc/release; cat /odd/link; ls /" })
      assert.equal("one\none\nbin\ndev\netc\nhome\n", r.stdout:gsub("lib%S*\n", ""):match("^.-home\n"))
      r = sandbar.assert(box:exec({ "sh", "-c", "echo two > /etc/release; cat /etc/release" }, { user = "root" }))
      if not r.ok then -- one id: what the user has is his
        r = sandbar.assert(box:exec { "sh", "-c", "echo two > /etc/release; cat /etc/release" })
      end
      assert.equal("two\n", r.stdout)
      r = sandbar.assert(box:exec { "stat", "-c", "%a %F %u", "/odd/setuid", "/odd/fifo", "/odd/dir", "/tmp" })
      assert.equal("4755 regular file 0\n", r.stdout:match("^[^\n]*\n"))
      assert.is_truthy(r.stdout:find("fifo 0", 1, true))
      assert.is_truthy(r.stdout:find("750 directory 0", 1, true))
      assert.is_truthy(r.stdout:find("1777 directory 0", 1, true))
      assert.is_false(sandbar.assert(box:exec { "cat", "/odd/closed" }).ok)
      box:close()
      assert.equal(expected, copies(root), "run " .. i)
    end
    assert.equal("one\n", helper.read_file(dir .. "/etc/release"))
    sh("mkdir %s/more", dir)
    local box = sandbar.assert(sandboxes:create { template = { rootfs = dir } })
    assert.is_true(sandbar.assert(box:exec { "ls", "/more" }).ok)
    assert.equal(2 * expected, copies(root))
    sandbar.assert(box.files:write("/tmp/kept", "yes"))
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:resume())
    assert.equal("yes", box.files:read("/tmp/kept"))
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("is refused with a reason", function()
    local sandboxes, dir = helper.open(), helper.dir()
    local box, err = sandboxes:create { template = { rootfs = dir .. "/none" } }
    assert.is_nil(box)
    assert.equal("NotFound", err.kind)
    sh("ln -s / %s/dev", dir)
    box, err = sandboxes:create { template = { rootfs = dir } }
    assert.is_nil(box)
    assert.equal("InvalidArgument", err.kind)
  end)

  it("is copied by several at once, and destroyed while it is copied", function()
    local root, dir = helper.dir(), helper.dir()
    make(dir)
    sh("dd if=/dev/zero of=%s/large bs=1M count=100 2>/dev/null", dir)
    local sandboxes = helper.open { root = root }
    local made = sandbar.assert(sandbar.run(function()
      local tasks = {}
      for i = 1, 3 do
        tasks[i] = function()
          local box = sandboxes:create({ id = "c" .. i, template = { rootfs = dir } }, { timeout = 30 })
          if box then
            assert(box:exec({ "cat", "/etc/release" }).stdout == "one\n")
            box:close()
          end
          return box ~= nil
        end
      end
      tasks[4] = function()
        sandbar.sleep(0.01)
        return sandboxes:destroy("c1")
      end
      return { sandbar.all(tasks) }
    end))
    assert.is_truthy(made)
    for i = 1, 3 do
      sandbar.assert(sandboxes:destroy("c" .. i))
    end
    assert.is_true(copies(root) <= 1)
  end)
end)
