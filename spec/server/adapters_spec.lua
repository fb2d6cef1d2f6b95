-- check: long
-- check: only 5.4
-- check: no asan
-- check: limit 300
-- What is built on the official SDK against `sandbar serve`: the cases are in adapters.mjs.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local NPM = "build/npm-adapters"

describe("on the official SDK,", function()
  helper.guard { each = false }

  if not helper.read_file(NPM .. "/node_modules/e2b/package.json") then
    it("adapters run", function()
      local missing = helper.read_file(NPM .. "/missing") or "run .ci/npm adapters"
      helper.skip("needs npm packages: " .. missing:gsub("\n", ""))
    end)
    return
  end

  local results, rest = {}, nil

  local function run()
    local server = serve.start()
    local out, status = helper.shell(
      ("E2B_API_URL=%s E2B_SANDBOX_URL=%s E2B_API_KEY=%s node spec/server/adapters.mjs $PWD/%s"):format(
        server.url, server.url, server.key, NPM))
    local record = server.stop()
    rest = ("node: %s\n%s\nserver: %s"):format(tostring(status), out, record.stderr)
    for verdict, name in out:gmatch("([^\n]*ok) ([^\n:]+: [^\n:(]+)[ :]") do
      results[name:gsub("%s+$", "")] = verdict == "ok"
    end
  end

  for name in helper.read_file("spec/server/adapters.mjs"):gmatch("\ncases%['([^']+)'%] = ") do
    it(name, function()
      if not rest then -- all of them, once
        run()
      end
      assert(results[name], rest)
    end)
  end
end)
