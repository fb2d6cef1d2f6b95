-- check: limit 300
-- check: only 5.4
-- check: no asan
-- check: no user
-- Somebody else listens where the supervisor does, or the supervisor lies: every call ends in time with a typed error,
-- nothing stays open, and once the impostor is gone the same program goes on. (The same of a pid 1: lying_init_spec.)
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

local LONG = inside.times(1) > 1

-- python3 impostor.py PATH LIE: what it answers, see engine/proto.h. A lie that begins with "later" greets as it should.
local IMPOSTOR = [==[
import os, socket, struct, sys, threading, time
path, lie = sys.argv[1:]
REPLY, ERROR, PART, HELLO, NEXT = 1, 2, 3, 32, 12
def u64(tag, n): return struct.pack("<HHIQ", tag, 0, 8, n)
def text(tag, b): return struct.pack("<HHI", tag, 0, len(b)) + b
def msg(kind, req, fields=b"", magic=0x31524253, flags=0): return struct.pack("<IHHII", magic, kind, flags, req, 0) + fields
greeting = u64(1, 1) + u64(200, 1 << 40)
def many(): return [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
def answer(s, kind, req):
    if lie.startswith("later") and kind == HELLO: s.send(msg(REPLY, req, greeting)); return
    what = lie.replace("later ", "")
    if what == "silent": return
    if what == "ends": raise OSError
    if what == "noise": s.send(os.urandom(500))
    if what == "empty": s.send(b"")
    if what == "short": s.send(msg(REPLY, req)[:11])
    if what == "long": s.send(msg(REPLY, req, bytes(70000)))
    if what == "magic": s.send(msg(REPLY, req, greeting, magic=1))
    if what == "flags": s.send(msg(REPLY, req, greeting, flags=0xffff))
    if what == "fields": s.send(msg(REPLY, req, greeting + struct.pack("<HHI", 20, 0, 0xfffffff0)))
    if what == "cut": s.send(msg(REPLY, req, (greeting + text(20, b"x" * 100))[:-50]))
    if what == "types": s.send(msg(REPLY, req, text(1, b"one") + text(200, b"") + u64(20, 7) + u64(32, 1)))
    if what == "stranger": s.send(msg(REPLY, req + 7, greeting))
    if what == "question": s.send(msg(HELLO, req, greeting))
    if what == "twice": s.send(msg(REPLY, req, greeting)); s.send(msg(REPLY, req, greeting))
    if what == "nothing": s.send(msg(REPLY, req))
    if what == "error": s.send(msg(ERROR, req))
    if what == "kinds": s.send(msg(ERROR, req, text(2, b"nonsense\0\xff") + u64(3, 1 << 60) + text(5, b"\x1b[31m" + b"x" * 60000)))
    if what == "old": s.send(msg(REPLY, req, u64(1, 0)))
    if what == "new": s.send(msg(REPLY, req, u64(1, 1 << 63) + u64(200, (1 << 64) - 1)))
    if what == "descriptors": socket.send_fds(s, [msg(REPLY, req, greeting + text(20, b"x"))], many())
    if what == "parts":
        while True: s.send(msg(PART, req, text(20, b"x") + text(32, b"running")))
    if what == "slow":
        for i in range(1000):
            s.send(msg(PART, req, text(20, b"x") + text(32, b"running"))); time.sleep(0.05)
    if what == "bulk":
        while True: s.send(msg(PART, req, text(20, b"x" * 50000)))
    if what == "circle": s.send(msg(PART, req, text(20, b"x") + text(32, b"running"))); s.send(msg(REPLY, req, text(NEXT, b"x")))
    if what == "caught": socket.send_fds(s, [msg(PART, req, text(20, b"x"))], many())
    if what == "unasked":
        while True: s.send(msg(REPLY, 0, greeting))
def serve(s):
    try:
        while True:
            data = s.recv(1 << 20)
            if not data: break
            _, kind, _, req, _ = struct.unpack("<IHHII", data[:16])
            answer(s, kind, req)
    except OSError: pass
    s.close()
l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
l.bind(path); l.listen(50)
print("up", flush=True)
while True:
    s, _ = l.accept()
    threading.Thread(target=serve, args=(s,), daemon=True).start()
]==]

-- Half a second each; a few of them say whether the rest is worth a look.
local LIES = not LONG and { "kinds" } or {
  "silent", "noise", "empty", "short", "long", "magic", "flags", "fields", "cut", "types", "stranger", "question",
  "error", "kinds", "old", "new", "descriptors", "unasked",
}
local LATER = not LONG and { "types" } or { "silent", "noise", "long", "types", "stranger", "question", "twice", "nothing", "error", "kinds", "new",
  "descriptors", "parts", "slow", "bulk", "circle", "caught", "unasked" }

describe("an impostor at the supervisor's socket", function()
  helper.guard { seconds = 25 }

  local file
  setup(function()
    file = helper.write_file(helper.scratch() .. "/impostor.py", IMPOSTOR)
  end)
  teardown(function()
    os.remove(file)
  end)

  -- Runs fn(provider) while the impostor listens in the provider's root; then it is gone.
  local function with(lie, fn)
    faults.with_root(function(root, own)
      helper.sh("mkdir -m 700 %s/v1", root)
      local impostor = assert(io.popen(("python3 %s %s/v1/sock '%s' & echo $!; wait"):format(file, root, lie)))
      local pid = tonumber(impostor:read("l"))
      assert.equal("up", impostor:read("l"))
      local ok, why = pcall(fn, own, root)
      helper.shell("kill -9 " .. pid)
      impostor:close()
      assert(ok, why)
      -- Whoever was there, a supervisor of ours takes the place.
      local box = sandbar.assert(own:create_scoped({}, nil, { timeout = 20 }), lie)
      assert.equal("here\n", sandbar.assert(box:exec("echo here")).stdout)
      sandbar.assert(box:destroy())
    end)
  end

  local function calls_of(own)
    return {
      list = function(t) return own:list { timeout = t } end,
      info = function(t) return own:info("x", { timeout = t }) end,
      create = function(t) return own:create({ id = "x" }, { timeout = t }) end,
      connect = function(t) return own:connect("x", { timeout = t }) end,
      destroy = function(t) return own:destroy("x", { timeout = t }) end,
      capabilities = function(t) return own:capabilities { timeout = t } end,
      snapshots = function(t) return own.snapshots:list { timeout = t } end,
      templates = function(t) return own.templates:list { timeout = t } end,
      delete = function(t) return own.templates:delete("x", { timeout = t }) end,
    }
  end

  local KINDS = { Protocol = true, Unavailable = true, Timeout = true, Unsupported = true, OutcomeUnknown = true }

  -- All calls, one after the other: each is over in time, and an error is one that can be shown.
  local function tried(lie, own)
    for name, call in pairs(calls_of(own)) do
      if LONG or name == "list" or name == "create" or name == "connect" then
        local took = helper.timed(function()
          local r, err = call(0.3)
          if r == nil then
            local text = tostring(err)
            assert.is_nil(text:find("[%z\1-\31\127]"), lie .. ", " .. name)
            assert.is_true(#text < 1000, lie .. ", " .. name)
            local unknown = err.kind == "Internal" and (lie == "later error" or lie == "later kinds" or lie == "error"
              or lie == "kinds") -- an error of a kind that nobody knows
            assert.is_true(KINDS[err.kind] or unknown, lie .. ", " .. name .. ": " .. text)
          end
        end)
        assert.is_true(took < 3, ("%s, %s took %.1f s"):format(lie, name, took))
      end
    end
  end

  it("who does not greet as a supervisor does is found out at once, or waited for no longer than a call may take", function()
    for _, lie in ipairs(LIES) do
      with(lie, function(own)
        local before = helper.anonymous_fds()
        tried(lie, own)
        assert.is_truthy(helper.eventually(function()
          collectgarbage()
          return helper.anonymous_fds() <= before + 4
        end), lie .. " costs descriptors")
      end)
    end
  end)

  it("who lies later is found out as well", function()
    for _, lie in ipairs(LATER) do
      with("later " .. lie, function(own)
        local before = helper.anonymous_fds()
        tried("later " .. lie, own)
        assert.is_truthy(helper.eventually(function()
          collectgarbage()
          return helper.anonymous_fds() <= before + 4
        end), lie .. " costs descriptors")
      end)
    end
  end)

  it("who sends answers without end filled the memory of a caller that gave no limit", function()
    for lie, calls in pairs {
      ["later parts"] = { "list", "info" }, ["later bulk"] = { "snapshots", "destroy" }, ["later circle"] = { "list" },
    } do
      with(lie, function(own)
        for _, name in ipairs(calls) do
          local r, err = calls_of(own)[name](false)
          assert.is_nil(r, lie .. ", " .. name)
          assert.equal("Protocol", err.kind, lie .. ", " .. name .. ": " .. tostring(err))
        end
      end)
    end
    with("later parts", function(own)
      assert.equal("OutcomeUnknown", select(2, own:create { id = "x" }).kind) -- it may have been made
    end)
  end)

  it("who belongs to another user is not spoken to", function()
    helper.need_root()
    helper.sh("chmod a+x %s; chmod a+r %s", helper.scratch(), file)
    faults.with_root(function(root, own)
      helper.sh("mkdir -m 700 %s/v1; chmod 777 %s %s/v1", root, root, root)
      local impostor = assert(io.popen(("setpriv --reuid 65534 --regid 65534 --clear-groups /usr/bin/python3 %s %s/v1/sock noise & "
        .. "echo $!; wait"):format(file, root)))
      local pid = tonumber(impostor:read("l"))
      assert.equal("up", impostor:read("l"))
      assert.equal("PermissionDenied", select(2, own:list()).kind) -- nor is such a root used
      helper.sh("chmod 700 %s %s/v1", root, root)
      local _, err = own:list()
      assert.equal("PermissionDenied", err.kind)
      assert.is_truthy(err.message:find("belongs to somebody else", 1, true), err.message)
      helper.shell("kill -9 " .. pid)
      impostor:close()
      assert.same({}, sandbar.assert(own:list { timeout = 20 }))
    end)
  end)

  it("who never greets is waited for 15 seconds by who gave no limit", function()
    if not LONG then
      helper.skip("long")
    end
    with("silent", function(own)
      local began = helper.now()
      local r, err = own:list { timeout = false }
      assert.is_nil(r)
      assert.equal("Unavailable", err.kind)
      assert.is_true(helper.now() - began < 20)
    end)
  end)
end)
