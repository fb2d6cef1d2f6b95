-- check: long
-- check: limit 900
-- check: only 5.4
-- check: no asan
-- The suites of the local provider's files, run against a hosted sandbox as well: the E2B provider and `sandbar serve`.

local busted = require "busted"
local helper = require "spec.helper"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

-- What is not the same, and why.
local OTHERWISE = {
  ["B24: knows where it is and who it is"] = "a missing working directory is the daemon's to tell",
  ["means by timeout the whole call, whatever its source does"] = "nothing is there before all has come",
  ["refuses what comes later by name"] = "signed links are there",
  ["takes names as bytes"] = "the protocol's names are UTF-8",
  ["goes on after a pause that keeps memory (B27)"] = "a pause cuts it, and it says so",
  ["goes on where a directory cannot be read, and into it once it can"] = "the daemon reads all",
  ["ends when somebody inside ends or stops its worker"] = "it has none",
  ["says that the kernel has dropped events, and goes on with a fresh look"] = "it ends",
}

local function suite(name)
  local server, boxes

  busted.setup(function()
    server = serve.start()
    boxes = sandbar.assert(sandbar.open {
      provider = "e2b", api_key = server.key, api_url = server.url, sandbox_url = server.url,
    })
  end)

  busted.teardown(function()
    boxes = nil
    collectgarbage()
    collectgarbage()
    server.stop()
  end)

  helper.guard { each = false, growth = 24 }

  -- The provider is there when the tests run.
  local later = setmetatable({}, { __index = function(_, method)
    return function(_, ...)
      return boxes[method](boxes, ...)
    end
  end })
  local own = setmetatable({ open = function()
    return later
  end, guard = function() end }, { __index = helper })
  local env = setmetatable({}, { __index = _ENV }) -- luacheck: ignore 113
  function env.require(module)
    return module == "spec.helper" and own or require(module)
  end
  function env.it(what, fn)
    local why = OTHERWISE[what]
    it(what, why and function()
      return helper.skip(why)
    end or fn)
  end
  assert(loadfile((os.getenv("SPEC_TREE") or ".") .. ("/spec/%s_spec.lua"):format(name), "t", env))()
end

for _, name in ipairs { "files", "faults_files", "glob", "upload", "file_handle", "watch" } do
  describe("hosted:", function()
    suite(name)
  end)
end
