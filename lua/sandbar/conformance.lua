-- The contract as busted suites, for any provider: those of this library, and those of others.
--
--   require("sandbar.conformance").run { name = "mine", open = function() return my_provider end }
--
-- Written in a spec file, this is a block of tests. What the provider does not claim among its capabilities is skipped,
-- with the name of the capability.

local check = require "sandbar.check"
local copied = require "sandbar.copied"
local sandbar = require "sandbar"

local conformance = {}

local SUITES = { "lives", "commands", "processes", "files", "ports" }
local OPTIONS = {
  name = "!string", open = "!function", spec = "table", lacks = "table", patience = "duration", reaches = "string",
}
local PATIENCE = 60 -- seconds for a call that makes, pauses or copies a sandbox
local REACHES = "1.1.1.1"
-- The command lines of all processes, for where there is no pgrep.
local LINES = [[for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$f; echo; done 2>/dev/null]]

--- `options`: name; open() gives a provider, once; spec (of every sandbox, besides what a test needs; labels are laid
--- over each other); lacks ({ [name of a test] = why it is skipped }); patience (60): seconds of a call that makes,
--- pauses or copies a sandbox; reaches ("1.1.1.1"): an address with a web server on port 80, which a sandbox reaches
--- where its network is allowed.
function conformance.run(options)
  check.options("run", 1, options, OPTIONS)
  local busted, assert = require "busted", require "luassert"
  local t = {
    assert = assert, sandbar = sandbar, patience = options.patience or PATIENCE, reaches = options.reaches or REACHES,
  }
  local lacks = options.lacks or {}

  -- Inside of a test busted's own `pending` begins another one; what ends this one is in the test's environment.
  local skip
  busted.subscribe({ "test", "start" }, function(element)
    skip = element.env and element.env.pending
    return nil, true
  end)

  --- Ends the test that runs as skipped.
  function t.skip(why)
    skip(why)
  end

  function t.it(what, fn)
    busted.it(what, function()
      if lacks[what] then
        t.skip(lacks[what])
      end
      fn()
    end)
  end

  t.describe = busted.describe

  --- Goes on where the provider claims this, or skips the test.
  function t.needs(capability)
    local claim = t.provider:capabilities()[capability]
    if not claim then
      t.skip(options.name .. " does not claim " .. capability)
    end
    return claim
  end

  --- The error, which must be of this kind.
  function t.fails(kind, value, err)
    assert.is_nil(value)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  --- A spec of a sandbox: the one of all, with these fields.
  function t.spec(fields)
    local own, labels = options.spec or {}, fields and fields.labels
    local out = copied({ lifetime = 300 }, own)
    out = copied(out, fields)
    out.labels = (labels or own.labels) and copied(own.labels, labels)
    return out
  end

  --- fn(box) with a sandbox of the test's own, which goes afterwards.
  function t.with_box(fields, fn)
    return sandbar.scope(function(scope)
      return fn(sandbar.assert(t.provider:create_scoped(t.spec(fields), scope, { timeout = t.patience })), scope)
    end)
  end

  --- Until fn() gives something true, which is returned.
  function t.eventually(fn)
    local tries = 0
    local got
    repeat
      got = fn()
      tries = tries + 1
    until got or tries > 200 or not sandbar.sleep(0.05)
    return assert.is_truthy(got) and got
  end

  -- How many processes of the sandbox have a command line that begins so.
  local function count(beginning)
    local lines = sandbar.assert(t.box:exec({ "/bin/sh", "-c", LINES, "counting" })).stdout
    assert.truthy(lines:find("counting", 1, true), "the command lines of a sandbox's processes cannot be read")
    return select(2, ("\n" .. lines):gsub("\n" .. beginning, ""))
  end

  --- Until so many processes of the sandbox have a command line that begins so (no pattern).
  function t.eventually_are(number, beginning)
    t.eventually(function()
      return count(beginning) == number
    end)
  end

  busted.describe("the contract on " .. options.name .. ":", function()
    busted.setup(function()
      t.provider = options.open()
      t.box = sandbar.assert(t.provider:create(t.spec {}, { timeout = t.patience }))
    end)
    busted.teardown(function()
      if t.box then
        t.box:destroy()
        t.box:close()
      end
      t.provider, t.box = nil, nil
      collectgarbage()
      collectgarbage()
    end)
    for _, suite in ipairs(SUITES) do
      busted.describe(suite .. ":", function()
        require("sandbar.conformance." .. suite)(t)
      end)
    end
  end)
end

return conformance
