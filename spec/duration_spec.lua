local duration = require "sandbar.duration"
local helper = require "spec.helper"

helper.guard()

describe("duration.parse", function()
  it("takes seconds, whole and in parts", function()
    for _, v in ipairs { 0, 0.001, 0.4, 1e-9, 1, 2147483, 2147484, 4294968, 1e12 } do
      assert.equal(v, duration.parse(v))
    end
  end)

  it("takes a number and a unit", function()
    helper.each_of({
      { "90s", 90 }, { "10 minutes", 600 }, { "1h", 3600 }, { "1 hour", 3600 }, { "1.5h", 5400 }, { ".5s", 0.5 },
      { "2 days", 172800 }, { "250ms", 0.25 }, { " 3 min ", 180 },
    }, function(text, seconds)
      assert.equal(seconds, duration.parse(text))
    end)
  end)

  it("refuses what has no stated meaning, and names the parameter", function()
    helper.each_of({
      { -1, "lifetime: -1 is negative (seconds are expected)" },
      { 1 / 0, "lifetime: inf is not a number of seconds" },
      { -1 / 0, "lifetime: -inf is not a number of seconds" },
      { 0 / 0, "lifetime: nan is not a number of seconds" },
      { "60", "lifetime: '60' is not a duration (a number of seconds, or a text like '90s', '10 minutes', '1h')" },
      { "-5s", "lifetime: '-5s' is not a duration (a number of seconds, or a text like '90s', '10 minutes', '1h')" },
      { "5 fortnights", "lifetime: '5 fortnights' has an unknown unit (known are ms, s, sec, m, min, h, d, and millisecond, "
        .. "second, minute, hour, day, also with s)" },
      { "", "lifetime: '' is not a duration (a number of seconds, or a text like '90s', '10 minutes', '1h')" },
      { true, "lifetime: true is not a duration (a number of seconds, or a text like '90s')" },
    }, function(value, text)
      local seconds, err = duration.parse(value, "lifetime")
      assert.is_nil(seconds)
      assert.equal("InvalidArgument", err.kind)
      assert.equal(text, err.message)
    end)
  end)
end)

describe("duration.positive", function()
  it("refuses zero", function()
    local seconds, err = duration.positive(0, "lifetime")
    assert.is_nil(seconds)
    assert.equal("lifetime: 0 is not positive (seconds are expected)", err.message)
    assert.is_nil((duration.positive("0s", "lifetime")))
    assert.equal(1e-9, duration.positive(1e-9, "lifetime"))
  end)
end)

describe("duration.timeout", function()
  it("takes false and nothing for none", function()
    assert.is_false(duration.timeout(nil))
    assert.is_false(duration.timeout(false))
  end)

  it("takes zero for not waiting at all", function()
    assert.equal(0, duration.timeout(0))
  end)

  it("does not turn a huge one into a short one", function()
    assert.equal(4294968, duration.timeout(4294968))
    assert.is_false(duration.timeout(1e12))
  end)

  it("refuses negative ones by name", function()
    local _, err = duration.timeout(-1)
    assert.equal("timeout: -1 is negative (seconds are expected)", err.message)
  end)
end)
