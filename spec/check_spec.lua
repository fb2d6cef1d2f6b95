local check = require "sandbar.check"
local core = require "sandbar.core"
local helper = require "spec.helper"

helper.guard()

local SCHEMA = { cwd = "string", timeout = "timeout", key = "secret", on_output = "callable", max = "size", id = "!string" }

-- A public function as others write it.
local function exec(cmd, opts)
  check.arg("exec", 1, cmd, "string|list")
  return check.options("exec", 2, opts, SCHEMA)
end

local function message(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  return (err:gsub("^.-:%d+: ", ""))
end

describe("check.arg", function()
  it("speaks as Lua does", function()
    assert.equal("bad argument #1 to 'exec' (string or table expected, got nil)", message(exec))
  end)

  it("raises at the line of the caller", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local ok, err = pcall(function() exec(5) end)
    assert.is_false(ok)
    assert.truthy(err:find("check_spec.lua:" .. line .. ":", 1, true), err)
  end)

  it("takes each of the alternatives", function()
    assert.same({ id = "a" }, exec("ls", { id = "a" }))
    assert.same({ id = "a" }, exec({ "ls" }, { id = "a" }))
  end)

  it("takes nil for optional ones only", function()
    assert.is_nil(check.arg("f", 1, nil, "number?"))
    assert.equal("bad argument #1 to 'f' (number expected, got nil)", message(check.arg, "f", 1, nil, "number"))
  end)
end)

describe("check.options", function()
  it("names an unknown key and the nearest known one", function()
    assert.equal("bad argument #2 to 'exec' (unknown option 'cdw'; the nearest known one is 'cwd')",
      message(exec, "ls", { cdw = "/", id = "a" }))
    assert.equal("bad argument #2 to 'exec' (unknown option 'timout'; the nearest known one is 'timeout')",
      message(exec, "ls", { timout = 1, id = "a" }))
  end)

  it("names no other key for one that is not near any", function()
    assert.equal("bad argument #2 to 'exec' (unknown option 'xyz')", message(exec, "ls", { xyz = "/", id = "a" }))
  end)

  it("names an element that is no option at all", function()
    assert.equal("bad argument #2 to 'exec' (unknown option [1])", message(exec, "ls", { "x", id = "a" }))
  end)

  it("names an option of a wrong type", function()
    assert.equal("bad argument #2 to 'exec' (option 'cwd': string expected, got number)",
      message(exec, "ls", { cwd = 5, id = "a" }))
  end)

  it("names a missing one", function()
    assert.equal("bad argument #2 to 'exec' (option 'id' is missing)", message(exec, "ls"))
  end)

  it("wants a table", function()
    assert.equal("bad argument #2 to 'exec' (table expected, got string)", message(exec, "ls", "x"))
  end)

  it("gives a fresh table when there are none, and never changes the given one", function()
    local opts = { id = "a", cwd = "/" }
    assert.equal(opts, exec("ls", opts))
    assert.same({ id = "a", cwd = "/" }, opts)
    assert.same({}, check.options("f", 1, nil, { a = "string" }))
  end)

  it("takes false, numbers and texts for a timeout", function()
    for _, v in ipairs { 5, "5s" } do
      assert.equal(v, exec("ls", { timeout = v, id = "a" }).timeout)
    end
    assert.is_false(exec("ls", { timeout = false, id = "a" }).timeout)
    assert.equal("bad argument #2 to 'exec' (option 'timeout': number, string or false expected, got boolean)",
      message(exec, "ls", { timeout = true, id = "a" }))
  end)

  it("takes strings and secrets for a secret, and does not show one", function()
    local secret = core.secret("hush-hush")
    assert.equal(secret, exec("ls", { key = secret, id = "a" }).key)
    assert.equal("x", exec("ls", { key = "x", id = "a" }).key)
    assert.equal("bad argument #2 to 'exec' (option 'cwd': string expected, got secret, which goes only into env, headers and "
      .. "bodies of requests)",
      message(exec, "ls", { cwd = secret, id = "a" }))
  end)

  it("takes whatever can be called", function()
    local object = setmetatable({}, { __call = function() end })
    assert.equal(object, exec("ls", { on_output = object, id = "a" }).on_output)
  end)
end)

describe("check.list", function()
  it("takes arrays only", function()
    assert.same({ "a" }, check.list("f", 1, { "a" }, "string"))
    assert.equal("bad argument #1 to 'f' (list expected, got a table with key 'x')",
      message(check.list, "f", 1, { "a", x = 1 }, "string"))
    assert.equal("bad argument #1 to 'f' (element 2: string expected, got number)",
      message(check.list, "f", 1, { "a", 5 }, "string"))
  end)
end)

describe("check.nearest", function()
  it("counts a swap of neighbours as one step", function()
    assert.equal("user", check.nearest("suer", { user = 1, serve = 1 }))
  end)
end)
