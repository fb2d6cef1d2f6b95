-- check: one Lua
-- check: no user
-- What is written to a command in a hosted sandbox, and the end of that, where the other side is slow, refuses, or does
-- not say what it has taken. The daemon is in this program, and says what it is told to.

local busted = require "busted"
local helper = require "spec.helper"

local canned = require "spec.support.canned_daemon"
local core = require "sandbar.core"
local exec = require "sandbar.exec"
local http = require "sandbar.http"
local message = require "sandbar.e2b.message"
local sandbar = require "sandbar"
local server = require "sandbar.server.http"
local start = require "sandbar.start"
local wait = require "sandbar.wait"

local PROTO, JSON, HTML = "application/proto", "application/json", "text/html"
local LONG = 1000000 -- seconds of waits: the clock is put forward in between
local NOT_OPEN = '{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":49983,"code":502}'
local NOT_FOUND = '{"sandboxId":"i1","message":"The sandbox was not found","code":502}'

describe("input of a hosted command", function()
  local listener, serving, origin, calls, answers, taken

  -- ---- what the daemon does, call by call ----

  local function answer(status, kind, body, headers)
    return function(request, bytes)
      headers = headers or {}
      headers["Content-Type"] = kind
      taken[#taken + 1] = status == 200 and bytes or nil
      request:respond(status, headers, body or "")
    end
  end

  local function cut(request)
    request:abort()
  end

  -- Answers when it is told to: a function, and the one that tells.
  local function held(then_what)
    local signal = wait.signal()
    return function(request, bytes)
      wait.on(signal)
      then_what(request, bytes)
    end, function()
      wait.fire(signal)
    end
  end

  local TAKEN = answer(200, PROTO)
  local later = function(seconds)
    return answer(429, JSON, '{"code":"resource_exhausted"}', { ["Retry-After"] = tostring(seconds) })
  end

  local function serve(request)
    local method = request.target:match "/process.Process/(%a+)$"
    local given = assert(message.decode("process." .. method .. "Request", assert(request:read_all(1000000)), "proto"))
    local bytes = method == "SendInput" and (given.input.stdin or given.input.pty) or "<end>"
    calls[#calls + 1] = bytes
    local act = table.remove(answers, 1) or TAKEN
    act(request, bytes)
  end

  busted.before_each(function()
    calls, answers, taken = {}, {}, {}
    listener = assert(server.listen { address = "127.0.0.1", port = 0, idle_timeout = LONG, header_timeout = LONG })
    serving = sandbar.spawn(function()
      return server.serve(listener, serve)
    end)
    origin = assert(http.client { url = "http://127.0.0.1:" .. listener:address().port })
  end)

  busted.after_each(function()
    origin:close()
    listener:close()
    serving:cancel()
    serving:wait()
    origin, listener, serving = nil, nil, nil
  end)

  helper.guard()

  local function input(terminal)
    return http.input(origin, "/process.Process/SendInput", "/process.Process/CloseStdin",
      { "Content-Type: application/proto" }, 7, terminal)
  end

  -- How many bytes were accepted, and the kind of error.
  local function outcome(op)
    local r, err, partial = wait.op(op, LONG, "write")
    return (r or partial).number, err and err.kind
  end

  -- Until there are n calls, the clock put forward meanwhile: how many seconds passed.
  local function called(n, step)
    local began = core.now()
    assert(helper.eventually(function()
      sandbar.sleep(0)
      core.advance(step or 0)
      return #calls >= n
    end), ("%d calls are made, not %d"):format(#calls, n))
    assert.equal(n, #calls)
    return core.now() - began
  end

  it("was cut after a minute in which the command did not read", function()
    local act, go_on = held(TAKEN)
    answers = { act }
    local stdin = input()
    local op = stdin:write "slow"
    called(1)
    core.advance(3600)
    go_on()
    assert.same({ 4 }, { outcome(op) })
    assert.same({ 4 }, { outcome(stdin:write "more") })
    assert.same({ "slow", "more" }, taken)
  end)

  it("ended with one answer that said later; it is offered again when it was told to", function()
    answers = { later(30), answer(429, JSON), answer(502, JSON, NOT_OPEN) }
    local stdin = input()
    local op = stdin:write "once"
    called(1)
    assert.is_true(called(2, 1) >= 30)
    called(4, 0.1)
    assert.same({ 4 }, { outcome(op) })
    assert.same({ "once" }, taken)
    assert.equal(4, #calls)
  end)

  it("was offered again after the same pause by all that were refused together", function()
    local least, most = math.huge, 0
    for _ = 1, 12 do
      calls = {}
      for i = 1, 3 do
        answers[i] = answer(429, JSON)
      end
      local op = input():write "x"
      called(3, 0.1)
      local pause = called(4, 0.005) -- 0.2 to 0.4 s, and a little more
      least, most = math.min(least, pause), math.max(most, pause)
      assert.same({ 1 }, { outcome(op) })
    end
    assert.is_true(most - least > 0.05)
  end)

  it("that is not taken for a minute is refused with what was, and what comes later is offered", function()
    answers = { TAKEN, later(40), later(40), TAKEN }
    local stdin = input()
    local first, second = stdin:write(("a"):rep(262144) .. "b"), stdin:write "c"
    called(3, 1)
    assert.same({ 262144, "RateLimited" }, { outcome(first) })
    assert.same({ 0, "RateLimited" }, { outcome(second) }) -- behind what is missing
    assert.same({ 1 }, { outcome(stdin:write "b") })
    assert.same({ ("a"):rep(262144), "b" }, taken)
    answers = { later(3600) }
    assert.same({ 0, "RateLimited" }, { outcome(stdin:write "d") }) -- at once
    assert.equal(5, #calls)
  end)

  it("that is given up comes if it counted as written, and else not", function()
    answers = { later(50) }
    local stdin = input()
    local op = stdin:write "given up"
    called(1)
    op:cancel()
    local n, kind = outcome(op) -- the answer may have been on its way
    assert.equal("Cancelled", kind)
    local next_one = stdin:write "next"
    assert.is_true(called(n == 0 and 2 or 3, 1) >= 50)
    assert.same({ 4 }, { outcome(next_one) })
    assert.equal(n == 0 and "next" or "given upnext", table.concat(taken))
  end)

  it("is never sent twice where nobody knows whether it was taken, and nothing comes behind it but the end", function()
    for _, act in ipairs { cut, answer(502, HTML, "<html>"), answer(503, JSON, '{"code":"unavailable"}'), answer(504, HTML),
      answer(500, HTML), answer(404, HTML), answer(200, HTML, "<html>"), answer(404, JSON, '{"code":404,"message":"no such page"}'),
      answer(500, JSON, "{}") } do
      calls, answers = {}, { act }
      local stdin = input()
      local first, second = stdin:write "first", stdin:write "second"
      assert.same({ 0, "OutcomeUnknown" }, { outcome(first) })
      assert.same({ 0, "OutcomeUnknown" }, { outcome(second) })
      assert.same({ 0, "OutcomeUnknown" }, { outcome(stdin:write "third") })
      stdin:close_write()
      called(2)
      assert.same({ "first", "<end>" }, calls)
    end
  end)

  it("that was refused says why, once; the command that reads no more needs no end", function()
    for kind, act in pairs { Unauthenticated = answer(401, JSON), PermissionDenied = answer(403, JSON),
      NotRunning = answer(502, JSON, NOT_FOUND), Protocol = answer(400, JSON) } do
      calls, answers = {}, { act }
      local stdin = input()
      assert.same({ 0, kind }, { outcome(stdin:write "x") })
      assert.same({ 1 }, { outcome(stdin:write "x") })
    end
    for _, act in ipairs { answer(404, JSON, '{"code":"not_found"}'), answer(500, JSON, '{"code":"internal"}') } do
      calls, answers = {}, { act }
      local stdin = input()
      assert.same({ 0, "Closed" }, { outcome(stdin:write "x") })
      stdin:close_write()
      assert.same({ 0, "Closed" }, { outcome(stdin:write "y") })
      assert.same({ "x" }, calls)
    end
  end)

  it("lost bytes that counted as written, and the next ones closed the gap", function()
    answers = { answer(403, JSON) }
    local stdin = input()
    assert.equal(5, stdin:try_write "taken")
    called(1)
    assert.same({ 0, "PermissionDenied" }, { outcome(stdin:write "next") })
    assert.same({ "taken" }, calls)
  end)

  it("did not end where its end was answered badly, and the command waited for ever", function()
    answers = { TAKEN, later(1), answer(502, HTML, "<html>"), cut, answer(503, JSON, '{"code":"unavailable"}'), TAKEN }
    local stdin = input()
    local op = stdin:write "x"
    stdin:close_write()
    assert.same({ 1 }, { outcome(op) })
    called(2)
    assert.is_true(called(3, 0.02) >= 1) -- far from the time after which an answer counts as lost
    called(6, 0.02)
    assert(helper.eventually(function()
      sandbar.sleep(0)
      return taken[2]
    end))
    assert.same({ "x", "<end>" }, taken)
  end)

  it("ends a terminal behind what is typed, once, however much waits", function()
    local act, go_on = held(TAKEN)
    answers = { act, TAKEN, later(1), cut }
    local stdin = input(true)
    local op = stdin:write(("a"):rep(262144) .. "b")
    stdin:close_write()
    stdin:close_write()
    called(1)
    go_on()
    assert.same({ 262145 }, { outcome(op) })
    called(4, 0.02)
    assert.same({ "b", "\4", "\4" }, { calls[2], calls[3], calls[4] })
    core.advance(100)
    assert.same({ 0, "Closed" }, { outcome(stdin:write "c") })
    assert.equal(4, #calls) -- nobody knows whether it was typed
  end)

  it("that waits for its turn ends with the connection", function()
    answers = { later(50) }
    local op = input():write "x"
    called(1)
    origin:close()
    assert.same({ 0, "Closed" }, { outcome(op) })
  end)
end)

describe("what a hosted command is given", function()
  local daemon, ended

  local function kind(expected, value, err)
    assert.is_nil(value)
    assert.equal(expected, err and err.kind, tostring(err))
    return err
  end

  local function lose(request)
    request:abort()
  end

  busted.before_each(function()
    daemon = canned.start()
    ended = false
    local over
    daemon.command = function(out, config)
      if table.concat(config.args, " "):find("cat", 1, true) then -- until its input ends, or it is killed
        daemon.listed = { { pid = 800, config = config } }
        over = wait.signal()
        wait.on(over)
        daemon.listed = {}
      elseif tonumber(config.args[5]) then -- what kills it
        wait.fire(over)
      else -- which run of the sandbox it is
        out:say("boot 1\n")
      end
      out:finish()
    end
    daemon.end_input = function()
      ended = true
      wait.fire(over)
    end
    daemon.type_in = lose
  end)

  busted.after_each(function()
    daemon.close()
    daemon = nil
  end)

  helper.guard()

  it("was cut in the middle, and exec waited for the end of a command that waited for more", function()
    local err = kind("OutcomeUnknown", exec.run(daemon.link, "cat", { stdin = "whole", timeout = 20 }))
    assert.truthy(err.result)
    local n = 0
    err = kind("OutcomeUnknown", exec.run(daemon.link, "cat", { timeout = 20, stdin = function()
      n = n + 1
      return "piece"
    end }))
    assert.truthy(err.result)
    assert.equal(1, n)
  end)

  it("was cut in the middle, and a started command waited for more, or had ended well", function()
    local p = assert(start.run(daemon.link, "cat", { stdin = "whole" }))
    local err = kind("OutcomeUnknown", p:wait { timeout = 20 })
    assert.equal(0, err.result.exit_code)
    assert.is_true(ended)
    ended = false
    sandbar.scope(function(scope)
      p = assert(start.run(daemon.link, "cat", { scope = scope, stdin = function()
        return "piece"
      end }))
      assert.equal(0, assert(p:wait { timeout = 20 }).exit_code)
      assert.is_true(ended)
      return true
    end)
  end)

  it("may be written by hand, and says how much of it was accepted", function()
    daemon.type_in = function(request)
      request:respond(429, {}, "")
    end
    local p = assert(start.run(daemon.link, "cat", { stdin = "pipe" }))
    local n, err = p.stdin:write("x", { timeout = 0.2 })
    assert.equal("Timeout", err.kind)
    daemon.type_in = lose
    if n == 0 then
      err = kind("OutcomeUnknown", p.stdin:write "x")
      assert.equal(0, err.accepted)
    end
    p.stdin:close()
    assert.equal(0, assert(p:wait { timeout = 20 }).exit_code)
    assert.is_true(ended)
  end)
end)
