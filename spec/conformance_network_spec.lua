-- check: netlab
-- check: only 5.4
-- check: no asan
-- check: no user
-- check: limit 300
-- The shared suites of the contract where a network can be reached, which the others cannot count on: on local and, as
-- root, on hosted sandboxes. An ordinary user is alone in there, without subordinate ids.

local busted = require "busted"
local helper = require "spec.helper"

local conformance = require "sandbar.conformance"
local hosted = require "spec.support.hosted"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

local SERVER = "198.51.100.10"
local ALONE = "this user is alone in there"

helper.guard { each = false, growth = 32 }

conformance.run {
  name = "local sandboxes with a network", open = helper.open, reaches = SERVER,
  lacks = not helper.is_root() and {
    ["each user has his own rights"] = ALONE, ["users are as they are asked for"] = ALONE,
  } or nil,
}

describe("with a network the E2B provider with sandbar serve", function()
  if not helper.is_root() then
    busted.it("keeps the contract", function()
      helper.skip(ALONE .. ", and helpers of the provider are root's")
    end)
    return
  end
  local server

  busted.teardown(function()
    server.stop()
  end)

  hosted("hosted sandboxes", function()
    server = serve.start()
    return sandbar.assert(sandbar.open {
      provider = "e2b", api_key = server.key, api_url = server.url, sandbox_url = server.url,
    })
  end, { suite = "conformance" }, SERVER)
end)
