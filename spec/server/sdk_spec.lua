-- check: only 5.4
-- check: no asan
-- The official SDK for JavaScript against `sandbar serve`: the cases are in sdk.mjs.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local NPM = "build/npm"

describe("the official SDK on Node", function()
  helper.guard { each = false }

  local missing = helper.read_file(NPM .. "/missing")
  if not helper.read_file(NPM .. "/node_modules/e2b/package.json") then
    it("runs", function()
      helper.skip("needs the npm package e2b: " .. (missing or "run .ci/npm"):gsub("\n", ""))
    end)
    return
  end

  local results, names = {}, {}
  for name in helper.read_file("spec/server/sdk.mjs"):gmatch("\ncases%['([^']+)'%] = ") do
    names[#names + 1] = name
  end

  setup(function()
    local server = serve.start()
    local out, status = helper.shell(("E2B_API_URL=%s E2B_SANDBOX_URL=%s E2B_API_KEY=%s E2B_OTHER_KEY=%s node %s %s"):format(
      server.url, server.url, server.key, server.other_key, "spec/server/sdk.mjs", "$PWD/" .. NPM))
    local record = server.stop()
    results.rest = ("node: %s\n%s\nserver: %s"):format(tostring(status), out, record.stderr)
    for _, name in ipairs(names) do
      for verdict, text in out:gmatch("([^\n]*ok) ([^\n]*)") do
        if text:sub(1, #name + 1) == name .. " " or text:sub(1, #name + 1) == name .. ":" then
          results[name] = { ok = verdict == "ok", text = text }
        end
      end
    end
  end)

  it("has cases", function()
    assert.is_true(#names > 20)
  end)

  for _, name in ipairs(names) do
    it(name, function()
      local result = results[name]
      assert(result, results.rest)
      assert(result.ok, result.text)
    end)
  end
end)
