-- check: only 5.4
-- check: no asan
-- The shared suites of the contract on the local provider.

local busted = require "busted"
local helper = require "spec.helper"

local conformance = require "sandbar.conformance"

helper.guard { each = false }

conformance.run { name = "local sandboxes", open = helper.open }

describe("conformance", function()
  busted.it("takes a provider and a name, and nothing that it does not know", function()
    assert.has_error(function()
      conformance.run { name = "x" }
    end)
    assert.has_error(function()
      conformance.run { name = "x", open = helper.open, opened = true }
    end)
  end)
end)
