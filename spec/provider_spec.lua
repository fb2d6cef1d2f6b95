local helper = require "spec.helper"
local inside = require "spec.support.inside"

local driver = require "sandbar.local.driver"
local sandbar = require "sandbar"

describe("the local provider", function()
  helper.guard()

  local sandboxes = helper.open()

  local function refused(kind, what, ...)
    local value, err = ...
    assert.is_nil(value)
    assert.equal(kind, err.kind, tostring(err))
    assert.is_truthy(tostring(err):find(what, 1, true), tostring(err))
  end

  it("opens without I/O", function()
    local other = sandbar.assert(sandbar.open { root = "/nonexistent/at/all" })
    assert.is_truthy(tostring(other):find("local", 1, true))
    assert.is_nil(io.open("/nonexistent"))
    refused("InvalidArgument", "api_key", sandbar.open { provider = "e2b" })
    refused("InvalidArgument", "docker", sandbar.open { provider = "docker" })
    refused("InvalidArgument", "root", sandbar.open { root = "relative" })
    assert.error_matches(function() sandbar.open { rot = "/x" } end,
      "provider local: unknown option 'rot'; the nearest known one is 'root'")
    assert.error_matches(function() sandbar.open { provider = "e2b", root = "/x" } end,
      "provider e2b: unknown option 'root'")
  end)

  it("went on making sandboxes after it was closed", function()
    local other = sandbar.assert(sandbar.open { root = helper.root() })
    local box = sandbar.assert(other:create_scoped { id = "outlives" })
    for _ = 1, 2 do
      assert.is_true(other:close())
    end
    assert.equal("sandbar.Provider local (closed)", tostring(other))
    refused("Closed", "create: the provider is closed", other:create())
    refused("Closed", "closed", other:create_scoped())
    for _, name in ipairs { "connect", "info", "destroy" } do
      refused("Closed", name .. ": ", other[name](other, "outlives"))
    end
    local info, why = other:each():next()
    refused("Closed", "each: ", info, why)
    for _, name in ipairs { "list", "capabilities", "explain" } do
      refused("Closed", name .. ": ", other[name](other))
    end
    assert.equal("on", sandbar.assert(box:exec "printf on").stdout)
    sandbar.assert(box:close())
    assert.same({}, sandbar.assert(sandboxes:list()))
  end)

  it("limits the open files of commands, not of pid 1, which many commands once made run out of them", function()
    refused("InvalidArgument", "limits.files: at least 16", sandboxes:create { limits = { files = 15 } })
    local box = sandbar.assert(sandboxes:create_scoped { limits = { files = 16 } })
    assert.equal("16 16\n", sandbar.assert(box:exec("echo $(ulimit -Sn) $(ulimit -Hn)")).stdout)
    for _ = 1, 60 do
      sandbar.assert(box:start { "sleep", "349" })
    end
    sandbar.assert(box.files:write("x", "y"))
    assert.equal("y", sandbar.assert(box.files:read("x")))
    assert.is_true(sandbar.assert(box:exec("cat x")).ok)
    local r = sandbar.assert(box:exec("exec 20</dev/null"))
    assert.is_false(r.ok)
    local roomy = sandbar.assert(sandboxes:create_scoped {})
    assert.equal("1024\n", sandbar.assert(roomy:exec("ulimit -Sn")).stdout)
    roomy:destroy()
    box:destroy()
  end)

  it("takes any object that fills the contract", function()
    local object = {}
    for _, name in ipairs { "create", "create_scoped", "connect", "each", "list", "info", "destroy", "capabilities" } do
      object[name] = function() return name end
    end
    assert.equal(object, sandbar.open { provider = object })
    object.list = nil
    refused("InvalidArgument", "list", sandbar.open { provider = object })
  end)

  it("creates, finds from another program, and destroys (A-13, A-16, B-58)", function()
    local box = sandbar.assert(sandboxes:create { id = "found", labels = { user = "42", ["k y"] = "a=b\n%" } })
    assert.equal("found", box.id)
    assert.equal("running", box.state)
    assert.is_false(box.owned)
    sandbar.assert(box.files:write("note", "left here"))
    box:close()
    local r = helper.run_lua([[
      local capabilities = require "sandbar.capabilities"
local driver = require "sandbar.local.driver"
local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
      local box = sandbar.assert(sandboxes:connect("found", { expect_labels = { user = "42" } }))
      io.write(sandbar.assert(box.files:read("note")), "|", box.labels["k y"])
      sandbar.assert(sandboxes:destroy("found"))
    ]], { args = { helper.root() } })
    assert.equal("left here|a=b\n%", r.stdout, r.stderr)
    refused("NotFound", "found", sandboxes:connect("found"))
    refused("NotFound", "found", sandboxes:info("found"))
    assert.is_true(sandbar.assert(sandboxes:destroy("found")))
  end)

  it("never lets two have one id (A-15)", function()
    local box = sandbar.assert(sandboxes:create { id = "one" })
    refused("AlreadyExists", "one", sandboxes:create { id = "one" })
    assert.is_true(sandbar.assert(box:exec("true")).ok)
    local results = sandbar.assert(sandbar.all {
      function() return sandboxes:create { id = "race" } or false end,
      function() return sandboxes:create { id = "race" } or false end,
      function() return sandboxes:create { id = "race" } or false end,
    })
    local won = 0
    for i = 1, 3 do
      won = won + (results[i] and 1 or 0)
    end
    assert.equal(1, won)
    for _, id in ipairs { "one", "race" } do
      sandbar.assert(sandboxes:destroy(id))
    end
    box:close()
  end)

  it("lists over all pages, by labels and state (A-11, A-12, B-10)", function()
    for i = 1, 7 do
      sandbar.assert(sandboxes:create { id = "l" .. i, labels = { odd = tostring(i % 2 == 1), n = tostring(i) } })
    end
    sandbar.assert(sandbar.assert(sandboxes:connect("l1")):pause { keep = "disk" })
    local function ids(list)
      local out = {}
      for i, info in ipairs(sandbar.assert(list)) do
        out[i] = info.id
      end
      table.sort(out)
      return table.concat(out, " ")
    end
    assert.equal("l1 l2 l3 l4 l5 l6 l7", ids(sandboxes:list { page_size = 2 }))
    assert.equal("l1 l3 l5 l7", ids(sandboxes:list { labels = { odd = "true" }, page_size = 1 }))
    assert.equal("l3", ids(sandboxes:list { labels = { odd = "true", n = "3" } }))
    assert.equal("", ids(sandboxes:list { labels = { odd = "maybe" } }))
    assert.equal("l1", ids(sandboxes:list { state = "paused" }))
    assert.equal("l2 l3 l4 l5 l6 l7", ids(sandboxes:list { state = { "running" } }))
    assert.equal(3, #sandbar.assert(sandboxes:list { limit = 3, page_size = 2 }))
    assert.equal(7, #sandbar.assert(sandboxes:list { limit = 2 ^ 53, page_size = 1000 }))
    refused("InvalidArgument", "sleeping", sandboxes:list { state = "sleeping" })
    -- Nothing is guessed: the caller's whole fleet is no answer to a filter that says nothing (B33).
    for option, values in pairs {
      limit = { 0, -1 }, page_size = { 0, -1, 1001 },
      state = { "", {}, { "running", "asleep" }, { "running", [3] = "paused" }, { only = "paused" }, { true } },
    } do
      for _, value in ipairs(values) do
        refused("InvalidArgument", option .. ":", sandboxes:list { [option] = value })
      end
    end
    for _, bad in ipairs { { limit = 1.5 }, { limit = 1 / 0 }, { limit = "1" }, { page_size = 0.5 }, { state = 1 } } do
      assert.has_error(function() sandboxes:list(bad) end)
    end
    refused("InvalidArgument", "not a place in a list",
      driver.new { root = helper.root(), linger = 0 }:page({ page_size = 1 }, "../l1", 5))
    local n = 0
    for info in sandboxes:each { page_size = 3 } do
      assert.is_truthy(info.labels.n)
      n = n + 1
      sandbar.assert(sandboxes:destroy(info.id))
    end
    assert.equal(7, n)
  end)

  it("connects only where the labels match, touching nothing else", function()
    local box = sandbar.assert(sandboxes:create { id = "c", labels = { a = "1" } })
    refused("WrongOwner", "c", sandboxes:connect("c", { expect_labels = { a = "2" } }))
    refused("WrongOwner", "c", sandboxes:connect("c", { expect_labels = { b = "1" } }))
    sandbar.assert(box:pause { keep = "disk" })
    local again = sandbar.assert(sandboxes:connect("c"))
    assert.equal("paused", again.state)
    assert.equal("disk", again.kept)
    refused("NotRunning", "c", again:exec("true"))
    again:close()
    -- Labels that change between the look and the resume do not let a wrong one through: both are one step.
    local to = driver.new { root = helper.root(), linger = 0 }
    refused("WrongOwner", "labels", to:resume("c", nil, 5, { "a=2" }))
    assert.equal("paused", sandbar.assert(sandboxes:info("c")).state)
    again = sandbar.assert(sandboxes:connect("c", { resume = true }))
    assert.equal("running", again.state)
    assert.is_true(sandbar.assert(again:exec("true")).ok)
    again:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("destroys a scoped sandbox at the end of its scope and with its handle (A-17, B-07)", function()
    local id
    inside.with_box(sandboxes, function(box)
      id = box.id
      assert.is_true(box.owned)
      assert.is_truthy(id:match("^%x+%-%x+%-4%x+%-%x+%-%x+$"))
    end)
    refused("NotFound", id, sandboxes:info(id))
    local box = sandbar.assert(sandboxes:create_scoped {})
    id = box.id
    box:close()
    assert.is_true(box:close())
    refused("NotFound", id, sandboxes:info(id))
    refused("Closed", id, box:exec("true"))
    sandbar.assert(sandboxes:create_scoped {})
    collectgarbage()
    collectgarbage()
    assert.is_truthy(helper.eventually(function()
      return #sandbar.assert(sandboxes:list()) == 0
    end))
  end)

  -- What a handle needs is loaded while the supervisor makes the sandbox, so when that fails there may be one.
  it("leaves no sandbox whose handle cannot be loaded, or was being loaded when an interrupt came", function()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
      local name = "sandbar.sandbox"
      local found = package.preload[name]
      for _, why in ipairs { "no descriptor is left", "interrupted!" } do
        for _, method in ipairs { "create", "create_scoped" } do
          package.preload[name] = function() error(why, 0) end
          local ok, box, err = pcall(sandboxes[method], sandboxes, { id = "nobodys" })
          package.preload[name] = found
          print(method, ok, ok and tostring(err) or box)
          local till = os.time() + 10
          while sandboxes:info("nobodys") do
            assert(os.time() < till, "it is still there")
            sandbar.sleep(0.005)
          end
        end
      end
      local box = sandbar.assert(sandboxes:create_scoped { id = "nobodys" })
      print(sandbar.assert(box:exec "echo works").stdout)
      sandbar.assert(box:close())
    ]], { args = { helper.root() } })
    assert.equal("", r.stderr)
    assert.equal("create\ttrue\tcreate: sandbox handles cannot be loaded: no descriptor is left (LimitExceeded)\n"
      .. "create_scoped\ttrue\tcreate_scoped: sandbox handles cannot be loaded: no descriptor is left (LimitExceeded)\n"
      .. "create\tfalse\tinterrupted!\ncreate_scoped\tfalse\tinterrupted!\nworks\n\n", r.stdout)
  end)

  it("destroys scoped sandboxes of a program that was killed", function()
    local child = helper.start_lua([[
      local capabilities = require "sandbar.capabilities"
local driver = require "sandbar.local.driver"
local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
      local scoped = sandbar.assert(sandboxes:create_scoped { id = "scoped" })
      local kept = sandbar.assert(sandboxes:create { id = "kept" })
      print("ready")
      io.stdout:flush()
      sandbar.sleep(60)
    ]], { args = { helper.root() } })
    assert.equal("ready", child:line())
    child:signal("KILL")
    child:wait()
    assert.is_truthy(helper.eventually(function()
      return select(2, sandboxes:info("scoped")) ~= nil
    end))
    assert.equal("running", sandbar.assert(sandboxes:info("kept")).state)
    sandbar.assert(sandboxes:destroy("kept"))
  end)

  it("keeps the limits of a sandbox for whoever connects to it", function()
    local made = sandbar.assert(sandboxes:create { id = "small", limits = { max_output = 10, max_env = 100 } })
    made:close()
    local box = sandbar.assert(sandboxes:connect "small")
    local r = sandbar.assert(box:exec "echo 0123456789012345")
    assert.equal(10, #r.stdout)
    assert.is_true(r.truncated)
    local _, err = box:exec("true", { env = { A = ("x"):rep(200) } })
    assert.equal("LimitExceeded", err.kind)
    assert.equal("max_env", err.limit)
    sandbar.assert(box:destroy())
  end)

  it("checks a spec clause by clause, before anything is allocated", function()
    for clause, spec in pairs {
      public_ports = { public_ports = true },
    } do
      local copy = {}
      for k, v in pairs(spec) do copy[k] = v end
      refused("Unsupported", clause, sandboxes:create(spec))
      assert.same(copy, spec)
      local told = sandbar.assert(sandboxes:explain(spec))
      assert.is_false(told.ok)
      local found = false
      for _, c in ipairs(told.clauses) do
        found = found or (c.clause == clause and c.verdict == "refused" and c.kind == "Unsupported")
      end
      assert.is_true(found, clause)
    end
    local limits = {}
    for _, c in ipairs(sandbar.assert(sandboxes:explain { limits = { memory = 1, disk = 1, files = 64 } }).clauses) do
      limits[c.clause] = c.verdict
    end
    assert.equal("refused", limits["limits.memory"])
    assert.equal("refused", limits["limits.disk"])
    assert.equal("enforced", limits["limits.files"])
    for what, spec in pairs {
      id = { id = "-x" },
      lifetime = { lifetime = 0 },
      labels = { labels = { a = "x\0y" } },
      env = { env = { ["A=B"] = "1" } },
      network = { network = "open" },
      ["limits.processes"] = { limits = { processes = -1 } },
      ["limits.max_output"] = { limits = { max_output = 2 ^ 31 + 1 } },
      ["limits.max_env"] = { limits = { max_env = 0.5 } },
      auto_resume = { auto_resume = true },
      ["auto_resume: "] = { auto_resume = true, on_expiry = "destroy" },
      on_expiry = { on_expiry = "explode" },
      template = { template = { rootfs = "relative" } },
    } do
      refused("InvalidArgument", what, sandboxes:create(spec))
    end
    refused("InvalidArgument", "id", sandboxes:create { id = ("x"):rep(129) })
    for _, network in ipairs {
      { allow = { "10.0.0.0/33" } }, { allow = { "10.0.0.1/8" } }, { allow = { "010.0.0.1" } }, { allow = { "127.1" } },
      { allow = { "0x7f.1" } }, { allow = { "a..b" } }, { allow = { "*" } }, { allow = { "a.*" } }, { allow = { "" } },
      { allow = { "a b" } }, { allow = { ("x"):rep(64) } }, { allow = { 1 } }, { allow = "a.b" }, { deny = {} }, {},
      { allow = {}, deny = { "a.b" } }, { allow = {}, denied = {} },
    } do
      refused("InvalidArgument", "network", sandboxes:create { network = network })
      assert.is_false(sandbar.assert(sandboxes:explain { network = network }).ok)
    end
    refused("InvalidArgument", "network = { allow = { ... } }", sandboxes:create { network = { "pypi.org" } })
    refused("InvalidArgument", "there is no key \"alow\"; the nearest known one is 'allow'",
      sandboxes:create { network = { alow = {} } })
    for _, network in ipairs { "allow", { allow = {} }, { allow = { "A.b.", "*.c", "10.0.0.0/8", "::1", "fd00::/8", "1.2.3.4" },
      deny = { "0.0.0.0/0", "::/0" } } } do
      assert.is_true(sandbar.assert(sandboxes:explain { network = network }).ok)
    end
    refused("NotFound", "nope", sandboxes:create { template = "nope" })
    refused("Unsupported", "memory_survives_reboot", sandboxes:create { expect = { memory_survives_reboot = true } })
    assert.has_error(function() sandboxes:create { lable = {} } end)
    assert.has_error(function() sandboxes:create { limits = { memroy = 3 } } end)
    assert.same({}, sandbar.assert(sandboxes:list()))
    assert.is_true(sandbar.assert(sandboxes:explain {}).ok)
  end)

  it("showed refused texts of some megabytes whole, which took seconds", function()
    local long = ("x"):rep(10485760)
    for clause, spec in pairs {
      id = { id = long }, snapshot = { snapshot = long }, template = { template = long },
      ["template.rootfs"] = { template = { rootfs = "/" .. long } }, on_expiry = { on_expiry = long },
      env = { env = { [long .. "="] = "1" } }, network = { network = long }, ["network.allow"] = { network = { allow = { long } } },
      user = { user = long }, cwd = { cwd = long },
    } do
      refused("InvalidArgument", clause, sandboxes:create(spec))
      for _, c in ipairs(sandbar.assert(sandboxes:explain(spec)).clauses) do
        assert.is_true(#c.message < 1000, clause)
      end
    end
    refused("InvalidArgument", "(10485760 bytes)", sandboxes:connect(long))
    refused("InvalidArgument", "(10485760 bytes)", sandboxes.snapshots:delete(long))
    assert.has_error(function() sandboxes:create { [long] = true } end)
    refused("InvalidArgument", ("x"):rep(129), sandboxes:create { id = ("x"):rep(129) })
  end)

  it("guessed what a table meant, and lost numbers on the way (B50)", function()
    local function names(list)
      return table.concat(list, " ")
    end
    -- Empty is empty: no labels, no variables, and nothing allowed.
    local box = sandbar.assert(sandboxes:create { id = "tables", labels = {}, env = {}, network = { allow = {} } })
    local info = sandbar.assert(box:info())
    assert.same({}, info.labels)
    assert.same({}, info.exposed or {})
    assert.same({}, info.denied or {})
    assert.is_true(info.network == "deny" or type(info.network) == "table" and next(info.network.allow) == nil)
    -- What is not there is nil, never something that looks like null.
    for _, answer in ipairs { info, sandbar.assert(sandboxes:list())[1], sandbar.assert(box:exec("true")),
      sandbar.assert(box.files:stat("/etc")) } do
      for key, value in pairs(answer) do
        assert.is_true(type(value) ~= "userdata" and type(value) ~= "function", key)
      end
    end
    assert.is_nil(info.cause)
    assert.is_nil(info.kept)
    assert.is_nil(sandbar.assert(box.files:stat("/etc")).target)
    sandbar.assert(box:update_network { allow = { "one.example" } })
    assert.equal("one.example", names(sandbar.assert(box:info()).network.allow))

    for _, allow in ipairs { { "a.example", nil, "c.example" }, { [2] = "a.example" }, { x = "a.example" }, { { "a.example" } } } do
      refused("InvalidArgument", "network", box:update_network { allow = allow })
    end
    -- What comes behind a hole was lost without a word: denied addresses, stages, commands, steps, headers.
    refused("InvalidArgument", "hole", box:update_network { allow = {}, deny = { "10.0.0.0/8", nil, "192.0.2.0/24" } })
    refused("InvalidArgument", "hole", box:exec { { "echo" }, nil, { "cat" } })
    refused("InvalidArgument", "hole", box:port(3000):fetch { headers = { { "A", "1" }, nil, { "B", "2" } } })
    refused("InvalidArgument", "hole", box:port(3000):fetch { headers = { A = { "1", nil, "2" } } })
    for _, fn in ipairs {
      function() return (sandboxes:create { prepare = { "true", nil, "false" } }) end,
      function() return (sandboxes.templates:build { name = "x", steps = { { run = "true" }, nil, { run = "false" } } }) end,
    } do
      local ok, err = pcall(fn)
      assert.is_false(ok)
      assert.matches("provider_spec.lua:%d+: .*hole", err)
    end
    for what, labels in pairs { ["'n': string expected"] = { n = 1 }, ["'b': string expected"] = { b = true },
      ["strings expected as keys"] = { "one" }, ["'deep': string expected"] = { deep = { "x" } } } do
      local ok, err = pcall(function() local r = sandboxes:create { labels = labels } return r end)
      assert.is_false(ok)
      assert.is_truthy(err:find(what, 1, true), err)
    end

    -- Sizes, times and pids beyond what a float of 32 bits, or text of %g, would keep.
    local r = sandbar.assert(box:exec("truncate -s 3221225473 big && touch -d '2026-01-02 03:04:05.123456789 UTC' big"))
    assert.equal(0, r.exit_code, r.stderr)
    local big = sandbar.assert(box.files:stat("big"))
    assert.equal(3221225473, big.size)
    assert.is_true(math.abs(big.mtime - 1767323045.123456789) < 1e-6, ("%.9f"):format(big.mtime))
    assert.equal(3221225473, sandbar.assert(box.files:list("."))[1].size)
    local n = 3 * 2 ^ 30
    for _, c in ipairs(sandbar.assert(sandboxes:explain { limits = { memory = n } }).clauses) do
      assert.is_true(c.clause ~= "limits.memory" or c.kind ~= "InvalidArgument", c.message)
    end
    local _, err = box:attach(4194304)
    assert.equal("NotFound", err.kind)
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("names the method and the line when it is called on no provider", function()
    local ok, err = pcall(function()
      local list = sandboxes.list {}
      return list
    end)
    assert.is_false(ok)
    assert.matches("provider_spec.lua:%d+: ", err)
    assert.matches("sandbar.Provider expected, got table", err, 1, true)
    assert.is_nil(err:find("state_of", 1, true))
  end)

  it("raises for wrong types wherever they are, at the caller's line", function()
    for what, spec in pairs {
      ["'lifetime'"] = { lifetime = {} },
      ["'labels': 'a': string"] = { labels = { a = 1 } },
      ["'env': 'A': string or secret"] = { env = { A = 1 } },
      ["'wall_time'"] = { limits = { wall_time = {} } },
      ["'providers': 'local': table"] = { providers = { ["local"] = 1 } },
      ["'cwd'"] = { providers = { ["local"] = { cwd = 1 } } },
      ["'lable'"] = { providers = { ["local"] = { lable = {} } } },
      ["'memroy'"] = { providers = { ["local"] = { limits = { memroy = 1 } } } },
      ["unknown option 'timeout'; how long the sandbox lives is 'lifetime'"] = { timeout = 1 },
      ["unknown option 'memory'; it is in 'limits'"] = { memory = 1 },
      ["unknown option 'image'; what a sandbox begins with is its 'template'"] = { image = "debian" },
      ["option 'memory': number of bytes expected, got string"] = { limits = { memory = "1G" } },
      ["unknown option 'providers'"] = { providers = { ["local"] = { providers = {} } } },
    } do
      for _, name in ipairs { "create", "create_scoped", "explain" } do
        local ok, err = pcall(function()
          sandboxes[name](sandboxes, spec)
          return nil
        end)
        assert.is_false(ok, what)
        assert.is_truthy(err:find("provider_spec.lua:%d+: bad argument #1 to '" .. name), err)
        assert.is_truthy(err:find(what, 1, true), err)
      end
    end
    assert.has_error(function() sandboxes:connect("x", { expect_labels = { a = 1 } }) end)
    assert.has_error(function() sandboxes:list { labels = { a = 1 } } end)
  end)

  it("hid the caller's line from messages about methods that end in a call of a shared function", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local port = sandbar.assert(box:port(80))
    local function misused(name, object, ...)
      local method, one, two = object[name], ...
      local ok, err = pcall(function()
        local result = method(object, one, two)
        return result
      end)
      assert.is_false(ok, name)
      assert.is_truthy(err:find("provider_spec.lua:%d+: bad argument #%d to '" .. name .. "' %(.*'bogus'"), err)
    end
    local bogus = { bogus = 1 }
    for _, name in ipairs { "info", "ports", "pause", "resume", "destroy", "processes" } do
      misused(name, box, bogus)
    end
    for _, name in ipairs { "expose", "unexpose", "upstream", "wait" } do
      misused(name, port, bogus)
    end
    for _, name in ipairs { "connect", "info", "destroy" } do
      misused(name, sandboxes, box.id, bogus)
    end
    for _, opts in ipairs { bogus, { defaults = bogus }, { provider = sandboxes, bogus = 1 } } do
      local ok, err = pcall(function()
        local result = sandbar.open(opts)
        return result
      end)
      assert.is_false(ok)
      assert.is_truthy(err:find("provider_spec.lua:%d+: bad argument #1 to 'open' %(.*'bogus'"), err)
    end
    sandbar.assert(box:close())
  end)

  it("said of more processes than a kernel has that they are fewer than 2", function()
    refused("Unsupported", "a kernel has 4194304 processes at most", sandboxes:create { limits = { processes = 2 ^ 30 } })
    refused("InvalidArgument", "from 2 to", sandboxes:create { limits = { processes = 1 } })
  end)

  it("takes what the spec says for this provider last, labels, env and limits key by key", function()
    local other = helper.open { defaults = {
      labels = { a = "1", b = "1" }, providers = { ["local"] = { labels = { b = "d" }, env = { Y = "y" } } },
    } }
    local box = sandbar.assert(other:create_scoped {
      labels = { c = "1", e = "1" }, env = { X = "x" },
      providers = { ["local"] = { labels = { c = "2" }, env = { X = "local" } } },
    })
    assert.same({ a = "1", b = "d", c = "2", e = "1" }, box.labels)
    assert.equal("local y\n", sandbar.assert(box:exec("echo $X $Y")).stdout)
    box:close()
  end)

  it("lays the spec over the provider's defaults", function()
    local other = helper.open { defaults = { labels = { a = "1", b = "1" }, env = { X = "d" }, cwd = "/tmp" } }
    local box = sandbar.assert(other:create_scoped {
      labels = { b = "2" }, providers = { ["local"] = { cwd = "/usr" }, e2b = { template = "none" } },
    })
    assert.same({ a = "1", b = "2" }, box.labels)
    assert.equal("d /usr\n", sandbar.assert(box:exec("echo $X $PWD")).stdout)
    box:close()
  end)

  it("gives a sandbox's env, user and cwd to every command", function()
    inside.with_box(sandboxes, function(box)
      local r = sandbar.assert(box:exec("echo $GREETING $(pwd)"))
      assert.equal("hello /tmp\n", r.stdout)
      r = sandbar.assert(box:exec("echo $GREETING", { env = { GREETING = "other" } }))
      assert.equal("other\n", r.stdout)
    end, { env = { GREETING = sandbar.secret("hello") }, cwd = "/tmp" })
  end)

  it("claims capabilities, and measures them on request", function()
    local have = sandbar.assert(sandboxes:capabilities())
    assert.is_true(have.pause_disk)
    assert.is_true(have.pause_memory)
    assert.is_true(have.watch)
    for _, name in ipairs { "egress_restricted", "name_rules", "deny_over_allow", "udp", "inject_http" } do
      assert.is_true(have[name], name)
    end
    assert.is_true(have.inject_https)
    assert.equal("all", have.signals)
    inside.with_box(sandboxes, function(box)
      local measured = sandbar.assert(sandboxes:capabilities { measure = box }).measured
      for _, name in ipairs {
        "workspace_coherent", "process_isolated", "network_isolated", "privilege_isolated", "append", "xattrs",
      } do
        assert.is_true(measured[name].value, name .. ": " .. measured[name].evidence)
        assert.is_truthy(measured[name].at)
        assert.is_true(have[name] or name == "append")
      end
      local kill = measured.tree_kill -- what is claimed holds; what was seen once may be better
      assert.is_true(kill.value == "exact" or kill.value == have.tree_kill, kill.evidence)
    end)
  end)

  it("builds templates by name and takes snapshots, not the other way", function()
    sandbar.assert(sandboxes.templates:build { name = "named", network = "deny", steps = { { env = { A = "1" } } } })
    assert.equal("named", sandbar.assert(sandboxes.templates:list())[1].name)
    sandbar.assert(sandboxes.templates:delete "named")
    refused("Unsupported", "snapshots", sandboxes.snapshots:build {})
    inside.with_box(sandboxes, function(box)
      refused("InvalidArgument", "keep", box:pause { keep = "nothing" })
    end)
  end)

  it("tells info with the cause of an end and knows its fields", function()
    inside.with_box(sandboxes, function(box)
      local info = sandbar.assert(box:info())
      assert.equal("running", info.state)
      assert.equal("base", info.template)
      assert.equal("deny", info.network)
      assert.equal("destroy", info.on_expiry)
      assert.is_true(info.owned)
      assert.is_true(info.ends_at > info.started_at)
      assert.same({}, info.ports)
    end)
  end)
end)
