-- check: only 5.4
-- check: no asan
-- check: limit 300
-- A-01 A-02 A-107: the shared suites of the contract on hosted sandboxes, by the E2B provider and `sandbar serve`.

local busted = require "busted"
local helper = require "spec.helper"

local hosted = require "spec.support.hosted"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

describe("the E2B provider with sandbar serve", function()
  local server

  busted.teardown(function()
    server.stop()
  end)

  helper.guard { each = false, growth = 32 }

  hosted("hosted sandboxes", function()
    server = serve.start()
    return sandbar.assert(sandbar.open {
      provider = "e2b", api_key = server.key, api_url = server.url, sandbox_url = server.url,
    })
  end, { suite = "conformance" })
end)
