local core = require "sandbar.core"
local errors = require "sandbar.errors"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

local VALUE = "s3cr3t/value+with&signs"

local function base64(s)
  local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
  local bits = s:gsub(".", function(c)
    local byte, out = c:byte(), ""
    for i = 7, 0, -1 do
      out = out .. math.floor(byte / 2 ^ i) % 2
    end
    return out
  end) .. "0000"
  local text = bits:gsub("%d%d%d?%d?%d?%d?", function(six)
    if #six < 6 then
      return ""
    end
    local at = tonumber(six, 2) + 1
    return letters:sub(at, at)
  end)
  return text .. ({ "", "==", "=" })[#s % 3 + 1]
end

describe("a secret", function()
  local secret
  before_each(function()
    secret = sandbar.secret(VALUE)
  end)

  it("is shown as redacted", function()
    assert.equal("secret([redacted])", tostring(secret))
    assert.equal("secret([redacted])", tostring(secret:prefixed("Bearer ")))
  end)

  it("gives nothing away by length, comparison, index or metatable", function()
    assert.is_false(pcall(function() return #secret end) and #secret == #VALUE)
    assert.is_false(secret == sandbar.secret(VALUE))
    assert.is_false(secret == VALUE)
    assert.is_not.truthy(type(getmetatable(secret)) == "table")
    assert.is_nil(tostring(select(2, pcall(function() return secret.value end))):find(VALUE, 1, true))
    local pairs_seen = 0
    pcall(function()
      for _ in pairs(secret) do
        pairs_seen = pairs_seen + 1
      end
    end)
    assert.equal(0, pairs_seen)
  end)

  it("cannot be read by joining it to a text", function()
    local ok, joined = pcall(function() return "x" .. secret end)
    assert.is_nil(tostring(joined):find(VALUE, 1, true))
    assert.truthy(ok or joined)
  end)

  it("is taken out of texts in all its usual encodings", function()
    local hex = VALUE:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
    local percent = VALUE:gsub("[^%w%-%._~]", function(c) return ("%%%02X"):format(c:byte()) end)
    local url64 = base64(VALUE):gsub("%+", "-"):gsub("/", "_"):gsub("=", "")
    for _, text in ipairs { VALUE, hex, hex:upper(), percent, base64(VALUE), url64 } do
      local clean = core.redact("before " .. text .. " after")
      assert.is_nil(clean:find(text, 1, true), text)
      assert.truthy(clean:find("[redacted]", 1, true))
    end
    assert.is_true(core.is_secret(secret))
  end)

  it("does not show in errors made while it lives", function()
    local err = errors.new { kind = "Unauthenticated", message = "key " .. VALUE .. " is wrong" }
    assert.equal("key [redacted] is wrong (Unauthenticated)", tostring(err))
    assert.is_true(core.is_secret(secret))
  end)

  it("is made of a string only", function()
    assert.error_matches(function() sandbar.secret(5) end, "bad argument #1 to 'secret' %(string expected, got number%)")
  end)
end)

describe("an audit event", function()
  after_each(function()
    sandbar.audit { fn = false }
  end)

  it("is redacted and flat", function()
    local audit = require "sandbar.audit"
    local secret, got = sandbar.secret(VALUE), nil
    assert.is_true(sandbar.audit { fn = function(event) got = event end })
    audit.emit("acquire", { kind = "sandbox", id = "x " .. VALUE, n = 3, what = secret })
    assert.same({ "acquire", "sandbox", "x [redacted]", 3, "secret([redacted])" },
      { got.event, got.kind, got.id, got.n, got.what })
    assert.equal("number", type(got.time))
  end)

  it("goes nowhere when nobody asked", function()
    local audit = require "sandbar.audit"
    assert.is_false(audit.on())
    audit.emit("acquire", {})
  end)

  it("does not pass a failing audit function on to the program", function()
    local audit = require "sandbar.audit"
    local host = require("sandbar.host.select").current()
    local report, said = host.report, nil
    host.report = function(message) said = message end
    sandbar.audit { fn = function() error("no", 0) end }
    audit.emit("acquire", {})
    host.report = report
    assert.equal("the audit function failed: no", said)
  end)

  it("raised bad arguments when a lost scope's finalizer used it after its collection", function()
    local said = {}
    local function lose()
      local secret, scope = sandbar.secret(VALUE), sandbar.new_scope()
      scope:defer(function()
        for i, use in ipairs {
          function() return secret:prefixed("x") end,
          function()
            local value = sandbar.secret(secret)
            return value
          end,
        } do
          said[i] = select(2, pcall(use))
        end
      end)
    end
    lose()
    collectgarbage()
    collectgarbage()
    sandbar.sleep(0.001)
    assert.same({ false, true }, { core.is_secret(said[1]) })
    assert.matches("string expected, got a secret that was collected", said[2], 1, true)
    local values = require "sandbar.values"
    assert.equal("env: A: the secret was collected (Closed)", tostring(select(2, values.check_env({ A = said[1] }, 1000))))
    local check = require "sandbar.check"
    check.map("exec", 2, "env", { A = said[1] }, "secret")
    assert.is_nil(check.collected(sandbar.secret(VALUE), "env"))
  end)

  it("one too short to be a secret does not make all text unreadable", function()
    local short = sandbar.secret("e")
    assert.equal("nothing here", core.redact("nothing here"))
    assert.equal("secret([redacted])", tostring(short))
  end)
end)
