-- check: one Lua
-- check: no user
-- Files of hosted sandboxes where the other side cuts, lies or refuses: what is told is what is known.

local busted = require "busted"
local canned = require "spec.support.canned_daemon"
local helper = require "spec.helper"

local core = require "sandbar.core"
local held = require "sandbar.e2b.held"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local kind = helper.kind

describe("files of a hosted sandbox", function()
  local daemon, files

  busted.before_each(function()
    daemon = canned.start()
    files = daemon.handle
  end)

  busted.after_each(function()
    daemon.close()
    daemon, files = nil, nil
  end)

  helper.guard()

  local ENTRY = table.concat({ "f", "/f", "file", "3", "420", "0", "0", "root", "root", "1000000000", "", "" }, "\0")

  local function source()
    local n = 0
    return function()
      n = n + 1
      return n < 4 and ("x"):rep(n) or nil
    end
  end

  local function runs()
    local all = table.concat(daemon.runs, " ")
    daemon.runs = {}
    return all
  end

  local function cut(out)
    out:cut()
  end

  it("asks again for what may be asked twice when the answer was cut, and nothing else", function()
    local n = 0
    daemon.answers.stat = function(out)
      n = n + 1
      if n == 1 then
        return out:cut()
      end
      out:say("+" .. ENTRY)
      out:finish()
    end
    assert.equal(3, sandbar.assert(files:stat("/f")).size)
    assert.equal("stat stat", runs())
    daemon.answers.mkdir, daemon.answers.move, daemon.answers.stat = cut, cut, cut
    kind("OutcomeUnknown", files:mkdir("/d"))
    kind("OutcomeUnknown", files:move("/a", "/b"))
    assert.equal("mkdir move", runs())
    kind("OutcomeUnknown", files:stat("/f"))
    assert.equal("stat stat stat", runs())
  end)

  it("left a worker that had begun and could not say so: it waited for its input until the sandbox ended", function()
    daemon.answers.hold, daemon.answers.write, daemon.answers.mkdir = canned.UNTOLD, canned.UNTOLD, canned.UNTOLD
    kind("OutcomeUnknown", files:open("/f"))
    kind("OutcomeUnknown", files:mkdir("/d"))
    kind("OutcomeUnknown", files:write("/f", "x"))
    assert.equal("hold mkdir write abort", runs())
    assert.is_truthy(helper.eventually(function()
      sandbar.sleep(0.01)
      return #daemon.killed == 3
    end))
    table.sort(daemon.killed)
    assert.same({ 1001, 1002, 1003 }, daemon.killed)
  end)

  it("removed the file of a worker of which nobody was told, before it made that, and the file stayed", function()
    local killed
    daemon.answers.write, daemon.answers.begin = canned.UNTOLD, canned.UNTOLD
    daemon.answers.abort = function(out)
      killed = #daemon.killed
      out:say "+"
      out:finish()
    end
    for i, data in ipairs { "x", ("x"):rep(200000) } do
      daemon.late = 1
      kind("OutcomeUnknown", files:write("/f", data))
      assert.equal(i, killed)
    end
    assert.equal("write abort begin abort", runs())
  end)

  it("took a gateway's word for a proof that nothing had begun behind it", function()
    for i, status in ipairs { 500, 502, 503, 504, 501, 408 } do
      daemon.answers.mkdir = { status, "text/html", "<html>" }
      assert.equal(status, kind("OutcomeUnknown", files:mkdir("/d")).status)
      assert.equal("mkdir", runs())
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.01)
        return #daemon.killed == i
      end))
    end
    daemon.answers.begin, daemon.answers.abort = { 404, "text/html", "<html>" }, "+"
    kind("Protocol", files:write("/f", ("x"):rep(200000)))
    assert.equal("begin abort", runs())
    daemon.answers.mkdir = { 503, "application/json", '{"code":"unavailable","message":"not now"}' }
    kind("Unavailable", files:mkdir("/d")) -- the daemon's own
    assert.equal(7, #daemon.killed)
  end)

  it("takes a half answer, and one that makes no sense, for none", function()
    for _, text in ipairs { "", "x", "+", "+f\0/f\0", "-2\0", "+" .. ENTRY .. ENTRY } do
      daemon.answers.stat = text
      kind("Protocol", files:stat("/f"))
    end
    daemon.answers.stat = function(out)
      out:say("+" .. ENTRY)
      out:over "{}" -- no end of the command
    end
    kind("OutcomeUnknown", files:stat("/f"))
  end)

  it("says that there is no perl, and what it has said otherwise", function()
    daemon.answers.stat = function(out)
      out:finish(127)
    end
    assert.equal("files", kind("Unsupported", files:stat("/f")).clause)
    daemon.answers.stat = function(out)
      out:send { event = { data = { stderr = "Out of memory!" } } }
      out:finish(1)
    end
    assert.truthy(kind("Platform", files:stat("/f")).message:find("Out of memory!", 1, true))
  end)

  it("takes an errno for what it is", function()
    daemon.answers.read = "-13\0\0open\0Permission denied\0/root/x\0"
    local err = kind("PermissionDenied", files:read("/root/x"))
    assert.equal("EACCES", err.code)
    assert.equal("/root/x", err.path)
    assert.equal("files:read", err.op)
  end)

  it("B-40: takes a long file over HTTP, whole and as it is, or not at all", function()
    daemon.answers.read = "+b/f"
    daemon.files = function(request)
      assert.equal("/files?path=%2Ff", request.target)
      assert.equal("the-token", request.headers["x-access-token"])
      assert.equal("identity", request.headers["accept-encoding"])
      request:respond(200, {}, "whole")
    end
    assert.equal("whole", sandbar.assert(files:read("/f")))
    local cuts, gets = 2, 0
    daemon.files = function(request)
      gets = gets + 1
      if gets > cuts then
        return request:respond(200, {}, "whole")
      end
      request:begin(200, { ["Content-Length"] = "1000" })
      request:write(("x"):rep(600), 10)
      request:abort()
    end
    assert.equal("whole", sandbar.assert(files:read("/f"))) -- nothing of the others was handed out
    cuts, gets = 9, 0
    kind("Protocol", files:read("/f"))
    assert.equal(3, gets)
    gets = 0
    daemon.files = function(request)
      gets = gets + 1
      request:respond(200, { ["Content-Encoding"] = "gzip" }, "packed")
    end
    kind("Protocol", files:read("/f"))
    assert.equal(1, gets)
    daemon.files = function(request)
      request:respond(404, {}, '{"code":404,"message":"path \'/f\' does not exist"}')
    end
    kind("NotFound", files:read("/f"))
    daemon.files = function(request)
      request:respond(502, { ["Content-Type"] = "application/json" },
        '{"sandboxId":"canned","message":"The sandbox was not found","code":502}')
    end
    kind("NotRunning", files:read("/f"))
  end)

  it("gives lines as far as they came, and the error where they were cut", function()
    daemon.answers.gate = "+b/f"
    daemon.files = function(request)
      request:begin(200, { ["Content-Length"] = "1000" })
      request:write("one\ntwo\nthr", 10)
      request:abort()
    end
    local lines = files:lines("/f")
    assert.equal("one", lines:next())
    assert.equal("two", lines:next())
    kind("Protocol", lines:next())
    assert.is_nil((lines:next()))
    local gets, piece = 0, daemon.files
    daemon.files = function(request)
      gets = gets + 1
      return (gets < 3 and request.abort or piece)(request)
    end
    lines = files:lines("/f")
    assert.equal("one", lines:next())
    lines:close()
    assert.equal(3, gets)
  end)

  it("B-39: publishes only what arrived, and takes back what did not", function()
    local sent, last
    daemon.answers.begin = "+n\0/d/.sb-0123456789abcdef0123\0/d/f\0/d/f\0"
    daemon.answers.commit = function(out, fields)
      last = fields
      out:say("+" .. ENTRY)
      out:finish()
    end
    daemon.files = function(request)
      assert.equal("POST", request.method)
      assert.equal("/files?path=%2Fd%2F.sb-0123456789abcdef0123", request.target)
      sent = request:read_all(1000000)
      request:respond(200, {}, "[]")
    end
    local long = ("0123456789abcdef"):rep(50000)
    sandbar.assert(files:write("/d/f", long))
    assert.is_true(sent == long)
    assert.equal("800000", last.size)
    assert.equal("begin commit", runs())
    sandbar.assert(files:write("/d/f", source()))
    assert.equal("xxxxxx", sent)
    assert.equal("6", last.size)
    assert.equal("begin commit", runs())
    daemon.files = function(request)
      request:read_all(1000000)
      request:respond(507, {}, '{"code":507,"message":"not enough disk space available"}')
    end
    for _, data in ipairs { long, source() } do
      local err = kind("NoSpace", files:write("/d/f", data))
      assert.equal("ENOSPC", err.code)
      assert.equal("/d/f", err.path) -- was the temporary file's
      assert.equal("begin abort", runs())
    end
    local posts = 0
    daemon.files = function(request)
      posts = posts + 1
      if posts < 3 then
        return request:abort()
      end
      sent = request:read_all(1000000)
      request:respond(200, {}, "[]")
    end
    sandbar.assert(files:write("/d/f", long)) -- nobody else knows the file: its bytes may be sent again
    assert.is_true(sent == long)
    assert.equal("begin commit", runs())
    posts = 0
    assert.equal("/d/f", kind("OutcomeUnknown", files:write("/d/f", source())).path) -- which gives its pieces once
    assert.equal("begin abort", runs())
    local raised = {}
    local ok, why = pcall(files.write, files, "/d/f", function()
      error(raised, 0)
    end)
    assert.is_false(ok)
    assert.equal(raised, why)
    assert.equal("begin abort", runs())
    local name
    daemon.answers.begin = function(out, fields)
      name = fields.name
      out:cut()
    end
    daemon.answers.abort = function(out, fields)
      assert.equal("/d/f", fields.path)
      assert.equal(name, fields.name)
      out:say "+"
      out:finish()
    end
    kind("OutcomeUnknown", files:write("/d/f", long)) -- what it may have made has a name that is known
    assert.equal("begin abort", runs())
  end)

  it("writes what is short through the input of one worker", function()
    local given, asked
    daemon.answers.write = function(out, fields)
      asked = fields
      while not given do
        sandbar.sleep(0.01)
      end
      if given == "cut" then
        return out:cut()
      end
      out:say("+" .. ENTRY)
      out:finish()
    end
    daemon.input = function(text)
      given = text
    end
    assert.equal(3, sandbar.assert(files:write("/f", "a\0b", { mode = "600", flag = "wx" })).size)
    assert.equal("a\0b", given)
    assert.equal("3 384 1", ("%s %s %s"):format(asked.size, asked.mode, asked.exclusive))
    assert.equal("write", runs())
    given = nil
    local name
    daemon.answers.abort = function(out, fields)
      name = fields.name
      out:say "+"
      out:finish()
    end
    for _, data in ipairs { "no time", source() } do -- nothing is sent, so nothing has to be taken back
      kind("Timeout", files:write("/f", data, { timeout = 0 }))
    end
    assert.equal("", runs())
    kind("OutcomeUnknown", files:write("/f", "cut"))
    assert.equal("write abort", runs())
    assert.equal(asked.name, name)
    daemon.answers.write = "-28\0\0write\0No space left on device\0/f\0"
    assert.equal("ENOSPC", kind("NoSpace", files:write("/f", "")).code)
    assert.equal("write", runs())
  end)

  -- A worker of a write that waits for its input until it is told that this is over.
  local function waiting()
    local over = false
    daemon.answers.write = function()
      while not over do
        sandbar.sleep(0.01)
      end
    end
    daemon.answers.abort = "+"
    return function()
      over = true
    end
  end

  it("left a worker whose input was refused, waiting for it, and its file", function()
    for i, status in ipairs { 401, 403, 400 } do
      local stop = waiting()
      daemon.type_in = function(request)
        request:respond(status, { ["Content-Type"] = "application/json" }, "{}")
      end
      assert.is_nil((files:write("/f", "abc")))
      stop()
      assert.equal("write abort", runs())
      assert.equal(i, #daemon.killed)
    end
  end)

  it("waited for ever for a worker of which it was told, wrongly, that it takes no input", function()
    local stop = waiting()
    daemon.type_in = function(request)
      request:respond(404, { ["Content-Type"] = "application/json" }, '{"code":"not_found","message":"no such process"}')
    end
    kind("OutcomeUnknown", files:write("/f", "abc"))
    stop()
    assert.equal("write abort", runs())
    for _ = 1, 500 do -- it is killed, which this program itself has to answer
      sandbar.sleep(0.01)
      if core.outstanding() == 0 and core.mailbox():pending() == 0 then
        break
      end
    end
  end)

  it("loses no change without a word: a watch that is cut says so, once", function()
    daemon.answers.directory = "+/d"
    local function event(out, type, name)
      out:send { filesystem = { type = "EVENT_TYPE_" .. type, name = name } }
    end
    local function watch(fn)
      daemon.watch = function(out)
        out:send { start = {} }
        event(out, "CREATE", "a\nb\\")
        event(out, "WRITE", ".sb-0123456789abcdef0123") -- of a write of ours
        fn(out)
      end
      local w = sandbar.assert(files:watch("/d"))
      assert.same({ type = "create", path = "a\nb\\" }, w:next { timeout = 10 })
      return w
    end
    local function ends(expected, w)
      kind(expected, w:next { timeout = 10 })
      assert.equal(expected, w.reason.kind)
      local none, err = w:next()
      assert.is_nil(none)
      assert.is_nil(err)
    end
    ends("OutcomeUnknown", watch(cut))
    ends("OutcomeUnknown", watch(function(out)
      out:over "{}"
    end))
    ends("LimitExceeded", watch(function(out)
      out:over '{"error":{"code":"resource_exhausted","message":"too many"}}'
    end))
    ends("Protocol", watch(function(out)
      event(out, "UNSPECIFIED", "x")
    end))
    daemon.info = { state = { "paused" } }
    ends("NotRunning", watch(cut))
    daemon.info = { state = { "running" } }
    local w = watch(function(out)
      event(out, "REMOVE", "")
      out:over "{}"
    end)
    assert.same({ type = "remove", path = "." }, w:next { timeout = 10 })
    assert.is_nil(w:next { timeout = 10 })
    assert.equal("NotFound", w.reason.kind)
    -- Nothing for longer than the daemon is ever silent.
    local go = false
    w = watch(function(out)
      while not go do
        sandbar.sleep(0.01)
      end
      out:send { keepalive = {} }
      event(out, "CHMOD", "x")
      while daemon do
        sandbar.sleep(0.01)
      end
    end)
    kind("Timeout", w:next { timeout = 0.05 })
    core.advance(70)
    kind("Timeout", w:next { timeout = 0.05 })
    go = true
    assert.same({ type = "chmod", path = "x" }, w:next { timeout = 10 })
    core.advance(90)
    kind("Timeout", w:next { timeout = 0.05 })
    core.advance(31)
    ends("OutcomeUnknown", w)
  end)

  it("B42: refuses a watch where it cannot begin", function()
    daemon.answers.directory = "-20\0\0open\0Not a directory\0/f\0"
    assert.equal("ENOTDIR", kind("Platform", files:watch("/f")).code)
    daemon.answers.directory = "+/d"
    daemon.watch = function(out)
      out:over '{"error":{"code":"invalid_argument","message":"cannot watch path on network filesystem: /d"}}'
    end
    kind("InvalidArgument", files:watch("/d"))
    daemon.watch = cut
    kind("OutcomeUnknown", files:watch("/d"))
  end)

  it("keeps an open file's requests and answers together, and breaks it when it is cut", function()
    local function framed(text)
      return ("\0\0\0%s%s"):format(string.char(#text), text)
    end
    local out
    daemon.answers.hold = function(to)
      out = to
      to:say(framed "0 +")
      while out do
        sandbar.sleep(0.01)
      end
    end
    local late
    daemon.input = function(text)
      local id, what = text:match("^(%d+) (%a)")
      local answer = framed(id .. " +" .. (what == "r" and "data" .. id or "4"))
      if late == nil then
        late = answer
        return
      end
      out:say(late .. answer)
      late = ""
    end
    local f = sandbar.assert(files:open("/f"))
    local first = sandbar.spawn(function()
      return f:read(5)
    end)
    while not late do
      sandbar.sleep(0.01)
    end
    first:cancel()
    kind("Cancelled", first:wait { timeout = 10 })
    assert.equal("data2", f:read(5, { timeout = 10 })) -- not what the first one asked for
    assert.equal(4, f:seek("end", 0, { timeout = 10 }))
    daemon.input = function()
      out:cut()
      out = nil
    end
    f:seek("set", 0)
    kind("OutcomeUnknown", f:read(100, { timeout = 10 }))
    kind("OutcomeUnknown", f:read(100, { timeout = 10 }))
    f:close()
    kind("Closed", f:read(1))
  end)

  it("left what holds an open file that was cut off before it was closed", function()
    local function ends(text)
      return function(out)
        out:say(text)
        out:cut()
      end
    end
    daemon.answers.hold = ends "\0\0\0\0030 +"
    for i = 1, 2 do
      local f = assert(held.open(daemon.link, "files:open", 10, { path = "/f", oflags = 0 }))
      if i == 1 then
        kind("OutcomeUnknown", f:read(0, 1, 10, "read"))
      else
        wait.op(f.run:wait(), 10, "wait") -- nobody has read that it was
      end
      f:close()
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.01)
        return #daemon.killed == i
      end))
    end
  end)
end)
