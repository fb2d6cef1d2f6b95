-- What has to hold on any server of E2B's protocol: the shared suites of the contract, and what has gone wrong there
-- before. `open()` gives the provider; `labels` are on every sandbox; `reaches` (1.1.1.1): see sandbar.conformance.

local assert = require "luassert"
local busted = require "busted"
local helper = require "spec.helper"
local conformance = require "sandbar.conformance"
local sandbar = require "sandbar"

local ok = sandbar.assert

return function(name, open, labels, reaches)
  local boxes

  local function with_box(fields, fn)
    fields.labels, fields.lifetime = labels, 300
    sandbar.scope(function(scope)
      fn(ok(boxes:create_scoped(fields, scope)))
    end)
  end

  conformance.run { name = name, spec = { labels = labels }, reaches = reaches, open = function()
    boxes = open()
    return boxes
  end }

  busted.describe("A-108: " .. name, function()
    busted.it("B-20 A-110: begin anew after a pause to disk: another boot, no process, the same files", function()
      with_box({}, function(box)
        ok(box.files:write("/home/user/kept", "\0\1\255"))
        local p = ok(box:start({ "sleep", "1000" }, { detached = true }))
        local reference = ok(p:reference())
        assert.equal("disk", ok(box:pause { keep = "disk" }))
        ok(box:resume())
        assert.equal("\0\1\255", ok(box.files:read "/home/user/kept"))
        assert.equal("NotFound", select(2, box:attach(reference)).kind)
        assert.equal(0, #ok(box:processes()))
      end)
    end)

    busted.it("take input that is bytes, in pieces, and its end", function()
      with_box({}, function(box)
        local all = {}
        for i = 0, 255 do
          all[i + 1] = string.char(i)
        end
        local bytes = table.concat(all):rep(1200)
        local p = ok(box:start("cat | cksum; cat", { stdin = "pipe" }))
        for at = 1, #bytes, 100000 do
          ok(p.stdin:write(bytes:sub(at, at + 99999)))
        end
        p.stdin:close()
        local sum = ok(p.stdout:read "l")
        assert.equal(ok(box:exec("cksum", { stdin = bytes })).stdout, sum .. "\n")
        assert.equal(0, ok(p:wait()).exit_code)
      end)
    end)

    busted.it("have no network where none was asked for, and can be given it", function()
      local line = ([[{ exec 3<>/dev/tcp/%s/80 && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && head -c 1 <&3; } | wc -c]])
        :format(reaches or "1.1.1.1")
      local given
      local function heard(box)
        return ok(box:exec(line, { shell = "/bin/bash", time_limit = 10 })).stdout
      end
      with_box({ network = "deny" }, function(box)
        assert.equal("0\n", heard(box))
        ok(box:update_network "allow")
        given = heard(box)
        ok(box:update_network "deny")
        assert.equal("0\n", heard(box))
      end)
      if given ~= "1\n" and not reaches then
        helper.skip "nothing at 1.1.1.1 answers where the network is allowed"
      end
      assert.equal("1\n", given)
    end)
  end)

  busted.it("leave nothing", function()
    assert.same({}, ok(boxes:list { labels = labels }))
    boxes = nil
  end)
end
