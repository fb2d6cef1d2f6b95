local helper = require "spec.helper"

local reference = require "sandbar.reference"
local sandbar = require "sandbar"

describe("process references", function()
  helper.guard()

  local sandboxes = helper.open()

  it("encode like base64url and decode back", function()
    for bytes, text in pairs { [""] = "", ["f"] = "Zg", ["fo"] = "Zm8", ["foo"] = "Zm9v", ["\255\254\253"] = "__79" } do
      assert.equal(text, reference.encode(bytes))
      assert.equal(bytes, reference.decode(text))
    end
    for _, bad in ipairs { "A", "Zh", "Zm9", "a+b=", "Zg==" } do
      assert.is_nil(reference.decode(bad))
    end
  end)

  it("find the process again, from another program", function()
    local box = sandbar.assert(sandboxes:create { id = "refs", labels = { owner = "me" } })
    local p = sandbar.assert(box:start("echo hi; sleep 351", { detached = true, cwd = "/tmp" }))
    local ref = sandbar.assert(p:reference())
    assert.is_truthy(ref:match("^sandbar%-proc:[%w_-]+$"))
    p:close()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      local root, ref = ...
      local box = sandbar.assert(sandbar.assert(sandbar.open { root = root, linger = 0 }):connect("refs"))
      local p = sandbar.assert(box:attach(ref, {
        expect = { sandbox = "refs", labels = { owner = "me" }, cwd = "/tmp" },
      }))
      io.write(p.stdout:read("l"), " ", tostring(p:running()))
      p:kill { signal = "KILL" }
    ]], { args = { helper.root(), ref } })
    assert.equal("hi true", r.stdout, r.stderr)
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("are NotFound after a reboot, for another process, tampered with, or against expectations", function()
    local box = sandbar.assert(sandboxes:create { id = "refs2", labels = { owner = "me" } })
    local p = sandbar.assert(box:start { "sleep", "352" })
    local ref = sandbar.assert(p:reference())
    local function not_found(text, opts)
      local found, err = box:attach(text, opts)
      assert.is_nil(found)
      assert.equal("NotFound", err.kind)
    end
    sandbar.assert(box:attach(ref)):close()
    not_found(ref:sub(1, -2))
    not_found(ref .. "AA")
    not_found("sandbar-proc:")
    not_found("sandbar-proc:AAAA")
    assert.matches('"ticker" is no process reference', tostring(select(2, box:attach("ticker"))), 1, true) -- it is a tag
    local parsed = assert(reference.parse(ref))
    local function altered(field, value)
      local what = { args = { "sleep", "352" } }
      for k, v in pairs(parsed) do what[k] = v end
      what[field] = value
      return reference.format(what)
    end
    assert.equal(ref, altered("pid", parsed.pid))
    not_found(altered("args", { "sleep", "353" }))
    not_found(altered("start_ns", parsed.start_ns + 1e6))
    not_found(altered("boot", "another"))
    not_found(altered("sandbox", "refs3"))
    not_found(altered("pid", parsed.pid + 1000))
    for _, pid in ipairs { 2 ^ 62, 2 ^ 64, 0 } do -- once raised by the engine's request
      not_found(altered("pid", pid))
      not_found(altered("start_ns", pid))
    end
    local function respelt(pattern, with)
      local bytes, n = reference.decode(ref:match(":(.*)$")):gsub(pattern, with, 1)
      assert.equal(1, n)
      not_found("sandbar-proc:" .. reference.encode(bytes))
    end
    respelt("%z(%d+)%z", "\0" .. "0%1" .. "\0")
    respelt("%x[a-f]%x", string.upper)
    not_found(ref, { expect = { sandbox = "other" } })
    not_found(ref, { expect = { labels = { owner = "you" } } })
    not_found(ref, { expect = { cwd = "/nowhere" } })
    sandbar.assert(box:pause { keep = "disk" })
    sandbar.assert(box:resume())
    not_found(ref)
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("find a process that has ended, which the types denied", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local p = sandbar.assert(box:start("echo last; exit 3", { stdout = "tail", stderr = "tail" }))
    local ref = sandbar.assert(p:reference())
    sandbar.assert(p:wait { timeout = 10 })
    local again = sandbar.assert(box:attach(ref))
    assert.equal(3, sandbar.assert(again:wait { timeout = 10 }).exit_code)
    assert.equal("last", again.stdout:read("l"))
    box:close()
  end)

  it("hold nothing secret", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local p = sandbar.assert(box:start({ "sleep", "354" }, { env = { K = sandbar.secret("topsecretvalue") } }))
    local ref = sandbar.assert(p:reference())
    assert.is_nil(reference.decode(ref:match(":(.*)$")):find("topsecret", 1, true))
    box:close()
  end)
end)
