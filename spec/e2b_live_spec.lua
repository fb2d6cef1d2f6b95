-- check: only 5.4
-- check: no asan
-- check: no user
-- check: live
-- check: limit 1800
-- A-106 A-107: the shared suites, and what has gone wrong before, on E2B's own machines. Only where SANDBAR_TEST_E2B=1 and
-- E2B_API_KEY are both set; E2B_DOMAIN is another deployment's. With SANDBAR_TEST_E2B_URL it is a server with this address
-- instead, which has all behind it.
--
-- A-109: it costs money: some 25 sandboxes of the base template, two at a time at most, each for as long as a test takes
-- and with a lifetime of five minutes; snapshots, which are deleted. What a run leaves has the label suite = "sandbar-live".
-- A-110: pauses to disk are not in every region. Where they are refused, three tests fail with the vendor's words.

local helper = require "spec.helper"

local hosted = require "spec.support.hosted"
local sandbar = require "sandbar"

-- One of these variables, from where spec/run puts them; empty counts as not set.
local function given(name)
  local text = helper.read_file(os.getenv "SPEC_KEYS" or "") or ""
  return ("\n" .. text):match("\n" .. name .. "=([^\n]+)")
end

describe("E2B itself", function()
  if given "SANDBAR_TEST_E2B" ~= "1" or not given "E2B_API_KEY" then
    it("fulfils the contract", function()
      helper.skip "it allocates paid machines: set SANDBAR_TEST_E2B=1 and E2B_API_KEY"
    end)
    return
  end

  helper.guard { each = false, growth = 32 }

  hosted("E2B", function()
    local url = given "SANDBAR_TEST_E2B_URL"
    return sandbar.assert(sandbar.open {
      provider = "e2b", api_key = given "E2B_API_KEY", domain = given "E2B_DOMAIN", api_url = url, sandbox_url = url,
    })
  end, { suite = "sandbar-live" })
end)
