-- Sandboxes over a root file system of the caller's own.
local helper = require "spec.helper"
local sandbar = require "sandbar"

describe("template = { rootfs = path }", function()
  helper.guard()

  -- A root with one program and what it needs, owned by whoever runs this.
  local function rootfs()
    local dir = helper.dir("rootfs")
    helper.shell(([[
      cd %s && mkdir -p bin etc proc dev tmp usr home/user root lib lib64 && chmod 1777 tmp
      echo 'root:x:0:0::/root:/bin/sh' > etc/passwd; echo 'user:x:1000:1000::/home/user:/bin/sh' >> etc/passwd
      echo 'root:x:0:' > etc/group; echo 'user:x:1000:' >> etc/group
      for p in sh cat id; do
        cp "$(command -v $p)" bin/
        ldd "$(command -v $p)" | grep -o '/[^ ]*' | while read -r l; do mkdir -p ".$(dirname "$l")"; cp -n "$l" ".$l"; done
      done
      echo "of the rootfs" > etc/motd]]):format(helper.quote(dir)))
    return dir
  end

  it("shows that tree and nothing else of the host, and never writes to it", function()
    local dir = rootfs()
    local box = sandbar.assert(helper.open():create_scoped { template = { rootfs = dir }, cwd = "/" })
    local r = sandbar.assert(box:exec { "cat", "/etc/motd" })
    assert.equal("of the rootfs\n", r.stdout)
    assert.is_true(sandbar.assert(box:exec({ "sh", "-c", "echo changed > /etc/motd; echo x > /new" }, { user = "root" })).ok)
    assert.equal("changed\n", sandbar.assert(box.files:read("/etc/motd", { user = "root" })))
    assert.equal("of the rootfs\n", helper.read_file(dir .. "/etc/motd"))
    assert.is_nil(helper.read_file(dir .. "/new"))
    assert.is_false(sandbar.assert(box:exec { "sh", "-c", "test -e /usr/bin/env" }).ok)
    sandbar.assert(box:destroy())
  end)

  it("is refused before anything is made when it cannot be used", function()
    local sandboxes = helper.open()
    local none, err = sandboxes:create { template = { rootfs = "/no/such/tree" } }
    assert.is_nil(none)
    assert.equal("NotFound", err.kind)
    assert.same({}, sandbar.assert(sandboxes:list()))
  end)

  it("with a link where proc, dev or etc should be is refused", function()
    local dir = rootfs()
    for _, name in ipairs { "proc", "dev", "etc" } do
      helper.shell(("cd %s && mv %s %s.real && ln -s /tmp %s"):format(helper.quote(dir), name, name, name))
      local none, err = helper.open():create { template = { rootfs = dir } }
      assert.is_nil(none, name)
      assert.equal("InvalidArgument", err.kind)
      helper.shell(("cd %s && rm %s && mv %s.real %s"):format(helper.quote(dir), name, name, name))
    end
  end)
end)
