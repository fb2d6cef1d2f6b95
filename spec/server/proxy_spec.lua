-- check: no asan
-- check: no user
-- The way of `sandbar serve` to the ports of a sandbox, where it is not what it should be.

local helper = require "spec.helper"
helper.guard()

local errors = require "sandbar.errors"
local json = require "sandbar.json"
local proxy = require "sandbar.server.proxy"

describe("traffic that cannot wake a sandbox", function()
  local reported

  -- What a request for port 3000 of i1 is answered, which is paused and may be woken by traffic: `woken` is what comes
  -- of that.
  local function answer(woken, found)
    local status, body
    local request = {
      method = "GET", target = "/", headers = { get = function() end },
      respond = function(_, code, _, text)
        status, body = code, json.decode(text)
      end,
    }
    local info = { id = "i1", state = "paused", kept = "memory", own = { auto_resume = "1", secure = "0", timeout = "77" } }
    local boxes = {}
    function boxes.info()
      if found then
        return found()
      end
      return info
    end
    reported = nil
    proxy.serve({
      boxes = boxes,
      report = function(text)
        reported = text
      end,
      resume = function(given, lifetime, timeout)
        assert.same({ info, 77, 60 }, { given, lifetime, timeout })
        return woken()
      end,
    }, request, {}, "i1", 3000)
    assert.equal(status, body.code)
    assert.equal("i1", body.sandboxId)
    return status, body.message
  end

  local function failure(kind)
    return function()
      return nil, errors.new { kind = kind, message = "/var/lib/sandbar: no" }
    end
  end

  it("was 502 whatever the reason was, as if there were none", function()
    local expected = { Busy = 409, Timeout = 409, LimitExceeded = 429, RateLimited = 429, NoSpace = 507,
      Unavailable = 503, Platform = 500 }
    for kind, status in pairs(expected) do
      for _, found in ipairs { false, failure(kind) } do
        local got, message = answer(failure(kind), found)
        assert.equal(status, got, kind)
        assert.is_nil(message:find("/", 1, true))
        assert.truthy(reported:find("i1", 1, true) and reported:find("/var/lib/sandbar: no", 1, true))
      end
    end
  end)

  it("is 502, which is how clients know that it does not run, when there is none", function()
    for _, woken in ipairs { function() end, failure "NotFound", failure "NotRunning" } do
      local status, message = answer(woken)
      assert.equal(502, status)
      assert.equal("The sandbox was not found", message)
    end
    assert.equal(502, (answer(nil, function() end)))
  end)
end)
