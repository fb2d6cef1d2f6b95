local core = require "sandbar.core"
local errors = require "sandbar.errors"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

describe("an error object", function()
  it("reads as one line with the operation, the message and the kind", function()
    local e = errors.new { kind = "NotFound", op = "connect", message = "no sandbox\nnamed a" }
    assert.equal("connect: no sandbox named a (NotFound)", tostring(e))
    assert.equal("no sandbox named a", e.message)
  end)

  it("concatenates on both sides", function()
    local e = errors.new { kind = "Busy", message = "m" }
    assert.equal("x m (Busy)", "x " .. e)
    assert.equal("m (Busy) x", e .. " x")
  end)

  it("keeps the fields of its kind", function()
    local e = errors.new { kind = "Timeout", message = "m", clock = "timeout", limit = 3, path = "/p" }
    assert.same({ "timeout", 3, "/p" }, { e.clock, e.limit, e.path })
  end)

  it("says whether trying again is worth it, and believes who knows better", function()
    assert.is_true(errors.new({ kind = "Unavailable", message = "m" }).retryable)
    assert.is_false(errors.new({ kind = "NotFound", message = "m" }).retryable)
    assert.is_false(errors.new({ kind = "Unavailable", message = "m", retryable = false }).retryable)
  end)

  it("has the name of its errno", function()
    local e = errors.new { kind = "NotFound", message = "m", errno = 2 }
    assert.equal("ENOENT", e.code)
  end)

  it("shows no secret in any text", function()
    local secret = core.secret("hush-hush") -- luacheck: ignore
    local e = errors.new { kind = "NotFound", op = "x", message = "cannot hush-hush", path = "/hush-hush/a" }
    assert.equal("cannot [redacted]", e.message)
    assert.equal("/[redacted]/a", e.path)
    assert.is_true(core.is_secret(secret))
  end)

  it("carries results untouched", function()
    local result = { stdout = "hush-hush" }
    assert.equal(result, errors.new({ kind = "ExecTimedOut", message = "m", result = result }).result)
  end)

  it("of an unknown kind is Internal and says which", function()
    local e = errors.new { kind = "Nonsense", message = "m" }
    assert.equal("Internal", e.kind)
    assert.equal("Nonsense: m", e.message)
  end)
end)

describe("errors.from", function()
  it("makes an error object of what the core gives", function()
    local e = errors.from({ kind = "NotFound", message = "gone", errno = 2, code = "ENOENT" }, "stat")
    assert.equal("stat: gone (NotFound)", tostring(e))
    assert.equal(2, e.errno)
  end)

  it("returns an error object as it is", function()
    local e = errors.new { kind = "Busy", op = "a", message = "m" }
    assert.equal(e, errors.from(e, "b"))
  end)

  it("adds the operation and fields the error does not have", function()
    local e = errors.from({ kind = "Busy", message = "m", id = "1" }, "read", { id = "2", path = "/p" })
    assert.same({ "read", "1", "/p" }, { e.op, e.id, e.path })
  end)

  it("makes an Internal one of anything else", function()
    local e = errors.from("boom", "read")
    assert.equal("read: boom (Internal)", tostring(e))
  end)
end)

describe("errors.from_errno", function()
  it("gives kind, code and path", function()
    local e = errors.from_errno(13, "open", "/etc/shadow")
    assert.same({ "PermissionDenied", "EACCES", "/etc/shadow" }, { e.kind, e.code, e.path })
    assert.equal("open: /etc/shadow: EACCES (PermissionDenied)", tostring(e))
  end)

  it("gives Platform for what has no kind", function()
    assert.equal("Platform", errors.from_errno(5).kind)
    assert.equal("errno 200 (Platform)", tostring(errors.from_errno(200)))
  end)

  it("means what the core means by it", function()
    for number = 1, 133 do
      local kind, name = core.errno(number)
      assert.equal(kind, errors.kind_of(number))
      assert.equal(name, errors.code(number))
    end
    assert.equal("ENOSPC", errors.code(28))
    assert.equal("NoSpace", errors.kind_of(28))
  end)
end)

describe("sandbar.errors", function()
  it("lists every kind, by place and by name", function()
    assert.equal("NotFound", sandbar.errors.NotFound)
    assert.equal("InvalidArgument", sandbar.errors[1])
    assert.equal(27, #sandbar.errors)
  end)

  it("raises for a misspelt kind", function()
    assert.error_matches(function() return sandbar.errors.NotFund end, "there is no error kind 'NotFund'")
  end)
end)

describe("what a command has written", function()
  it("stands behind an error's text, without blanks and without a lone colon", function()
    assert.equal("it failed: why", errors.with_output("it failed", "\nwhy\n"))
    assert.equal("it failed", errors.with_output("it failed", "\n"))
    assert.equal("it failed", errors.with_output("it failed", ""))
    assert.equal("it failed: a  b", errors.with_output("it failed", " \t a  b\r\n "))
  end)

  it("was cut before secrets were looked for, and half of one was left", function()
    local secret = core.secret("hush/hush hush")
    local half = "sh/hush hush"
    assert.equal("cted] end", errors.last_of("x hush/hush hush end", 9))
    assert.equal("[redacted]" .. ("y"):rep(90), errors.last_of("x hush/hush hush" .. ("y"):rep(90), 100))
    local long = half .. ("z"):rep(errors.LONGEST_SECRET - #half) -- a part, at the front of what is looked at
    for _, output in ipairs { long .. "hush%2Fhush hush, end", "x hu" .. long .. "hush%2Fhush hush, end" } do
      assert.equal("[redacted], end", errors.last_of(output, 100):match("%[.*"))
      assert.is_nil(errors.last_of(output, 21):find("hush", 1, true))
    end
    local many = half .. ("hush/hush hush "):rep(4999) -- redacted, all of it is shorter than what was asked for
    assert.is_nil(errors.last_of(many, #many - errors.LONGEST_SECRET):find("hush", 1, true))
    assert.equal("short", errors.last_of("short", 100))
    assert.is_truthy(secret)
  end)
end)

describe("sandbar.assert", function()
  it("notes where it raised, which only the interpreter's own handler shows", function()
    local e = errors.new { kind = "Busy", op = "exec", message = "m" }
    local ok, shown = xpcall(function() sandbar.assert(nil, e) end, tostring)
    assert.is_false(ok)
    local line = e.where:match("errors_spec%.lua:(%d+)$")
    assert.is_truthy(line, e.where)
    if _VERSION ~= "Lua 5.1" then
      assert.equal(e.where .. ": exec: m (Busy)", shown)
    end
    pcall(sandbar.assert, nil, e)
    assert.equal(line, e.where:match("(%d+)$"))
    assert.equal("exec: m (Busy)", tostring(e))
  end)

  it("passes everything on", function()
    assert.same({ 1, 2, 3 }, { sandbar.assert(1, 2, 3) })
  end)

  it("raises the error object itself", function()
    local e = errors.new { kind = "Busy", message = "m" }
    local ok, raised = pcall(sandbar.assert, nil, e)
    assert.is_false(ok)
    assert.equal(e, raised)
  end)

  it("raises the standard message when there is none", function()
    local _, raised = pcall(sandbar.assert, false)
    assert.equal("assertion failed!", raised)
  end)
end)
