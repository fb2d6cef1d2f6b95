-- Commands over a Connect stream, against a server that answers as it is told (support/connect_server.c): what the end
-- of a stream means, and that nothing is sent twice.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local http = require "sandbar.http"
local message = require "sandbar.e2b.message"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local PROGRAM = (os.getenv("SPEC_BUILD") or "build") .. "/spec/connect_server"

describe("a command over a stream", function()
  local origin, pipe, pid, number

  busted.setup(function()
    pipe = assert(io.popen("exec " .. helper.quote(PROGRAM), "r"))
    number, pid = assert(pipe:read("*l")):match("(%d+) (%d+)")
    origin = assert(http.client { url = "http://127.0.0.1:" .. number })
  end)

  helper.guard { growth = 24 }

  busted.teardown(function()
    origin:close()
    origin = nil
    helper.shell("kill -9 " .. pid)
    pipe:close()
  end)

  local function hex(bytes)
    return (bytes:gsub(".", function(c)
      return ("%02x"):format(c:byte())
    end))
  end

  -- One step of a script: an envelope with this event, or with these flags and payload.
  local function event(fields)
    return "e00" .. hex(assert(message.encode("process.StartResponse", { event = fields }, "proto"))) .. ";"
  end

  local function trailer(json)
    return "e02" .. hex(json) .. ";"
  end

  local START = event { start = { pid = 7 } }
  local OVER = trailer "{}"

  local function out(text)
    return event { data = { stdout = text } }
  end

  local function ended(code, status)
    return event { ["end"] = { exitCode = code, exited = not status, status = status or "exit status " .. code } }
  end

  local function begin(script, max, silence, request)
    return http.run(origin, "/process.Process/Start", {
      "Content-Type: application/connect+proto", "Connect-Protocol-Version: 1", "script: " .. script,
    }, "process.StartRequest", request or { process = { cmd = "true" } }, silence or 20, max)
  end

  -- The whole of it: r, or nil, error, what there was.
  local function capture(script, max, silence)
    return wait.op(begin(script, max or 1000000, silence), 20, "exec")
  end

  -- How often something was sent, how many have hung up, the last body, and how many connections there were.
  local function counts()
    local other = assert(http.client { url = "http://127.0.0.1:" .. number })
    local answer = assert(http.request(other, { path = "/" }, 10, "fetch"))
    other:close()
    local posts, gone, connections, body = answer.body:match("^(%d+) (%d+) (%d+) (%x*)$")
    return tonumber(posts), tonumber(gone), body, tonumber(connections)
  end

  it("sends its request as one message in an envelope, secrets as what they are", function()
    local secret = core.secret "hidden-value"
    assert(wait.op(begin("h;" .. START .. ended(0) .. OVER .. "z;", 10, nil, {
      process = { cmd = "sh", envs = { KEY = secret } }, stdin = false,
    }), 10, "exec"))
    local _, _, body = counts()
    local expected = assert(message.encode("process.StartRequest", {
      process = { cmd = "sh", envs = { KEY = "hidden-value" } }, stdin = false,
    }, "proto"))
    assert.equal(hex(message.envelope(0, expected)), body)
  end)

  it("gives both outputs and the exit", function()
    local r = assert(capture("h;" .. START .. out "one " .. event { data = { stderr = "bad" } } .. event { keepalive = {} }
      .. out "two\n" .. event { data = { pty = "!" } } .. ended(3) .. OVER .. "z;"))
    assert.equal("one two\n!", r.bytes)
    assert.equal("bad", r.bytes2)
    assert.equal(7, r.fields.pid)
    assert.equal(3 * 256, r.fields.status)
    assert.equal("exit status 3", r.fields.message)
  end)

  it("knows the signal that ended it", function()
    helper.each_of({
      { "signal: killed", 9 }, { "signal: terminated", 15 }, { "signal: segmentation fault (core dumped)", 11 },
      { "signal: hangup", 1 }, { "signal: user defined signal 1", 10 }, { "signal: signal 34", 34 },
      { "signal: unheard of", 255 * 256 },
    }, function(words, status)
      assert.equal(status, assert(capture("h;" .. START .. ended(-1, words) .. OVER .. "z;")).fields.status)
    end)
  end)

  it("keeps the head of stdout and the tail of stderr, and counts what it drops", function()
    local r = assert(capture("h;" .. START .. out "0123456789" .. out "abcdef" .. event { data = { stderr = "0123456789" } }
      .. event { data = { stderr = "abcdef" } } .. ended(0) .. OVER .. "z;", 8))
    assert.equal("01234567", r.bytes)
    assert.equal("89abcdef", r.bytes2)
    assert.equal(8, r.fields.dropped)
    assert.equal(8, r.fields.dropped_err)
  end)

  it("takes an end event and a clean end of the stream for success, whatever the connection does then", function()
    for _, after in ipairs { "z;", "c;", "x30;c;", "" } do
      local script = "h;" .. START .. ended(0) .. OVER .. after
      if after == "" then
        script = script .. "w50;c;"
      end
      assert.equal(0, assert(capture(script)).fields.status)
    end
  end)

  it("B04: takes nothing else for success: OutcomeUnknown with what there was", function()
    for _, script in ipairs {
      "h;" .. START .. out "part" .. "z;", -- whole as HTTP has it
      "h;" .. START .. out "part" .. "c;",
      "h;" .. START .. out "part" .. "w100;r;",
      "h;" .. START .. out "part" .. "x31;c;",
      "h;" .. START .. out "part" .. "x6;c;",
      "h;" .. START .. out "part" .. ended(0) .. "z;", -- an end, but not of the stream
      "h;" .. START .. out "part" .. ended(0) .. "c;",
      "h;" .. START .. out "part" .. OVER .. "z;", -- the stream's end, but not the command's
      "h;" .. START .. out "part" .. ended(0) .. trailer '{"error":{"code":"internal"}}' .. "z;",
      "h;" .. START .. out "part" .. ended(0) .. trailer "nonsense" .. "z;",
    } do
      local r, err, partial = capture(script)
      assert.is_nil(r)
      assert.equal("OutcomeUnknown", err.kind, script .. tostring(err))
      assert.equal("part", partial.bytes)
      assert.equal(7, partial.fields.pid)
    end
  end)

  it("refuses what is not a stream of events", function()
    for _, script in ipairs {
      "h;e01" .. hex "x" .. ";", -- compressed, which was not asked for
      "h;" .. out "x", -- does not begin with the start
      "h;" .. START .. START,
      "h;" .. START .. ended(0) .. out "x",
      "h;" .. START .. ended(0) .. OVER .. out "x",
      "h;" .. START .. "e00ff;",
      "h;x350d0a00ffffffff0d0a;", -- four gigabytes
    } do
      local r, err = capture(script .. "q;")
      if script:find(OVER, 1, true) then
        assert.equal(0, assert(r).fields.status)
      else
        assert.is_nil(r)
        assert.equal("Protocol", err.kind, script .. tostring(err))
      end
    end
  end)

  it("hands on what an answer that is no stream says, with its status", function()
    local body = '{"sandboxId":"i1","code":502}'
    local r, err, partial = capture(("x%s;c;"):format(hex(("HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\n"
      .. "Connection: close\r\nContent-Length: %d\r\n\r\n%s"):format(#body, body))))
    assert.is_nil(r)
    assert.equal("Protocol", err.kind)
    assert.equal(502, partial.fields.count)
    assert.equal(body, partial.fields.data)
    r, err, partial = capture(("x%s;c;"):format(hex "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>"))
    assert.is_nil(r)
    assert.equal("OutcomeUnknown", err.kind)
    assert.equal(200, partial.fields.count)
    r, err = capture(("x%s;c;"):format(hex "HTTP/1.1 200 OK\r\nContent-Ty"))
    assert.is_nil(r)
    assert.equal("OutcomeUnknown", err.kind)
    r, err, partial = capture("x" .. hex "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n" .. ";")
    assert.is_nil(r)
    assert.equal("Protocol", err.kind)
    assert.equal(401, partial.fields.count)
    r, err, partial = capture("h;" .. trailer '{"error":{"code":"not_found","message":"no"}}' .. "z;")
    assert.is_nil(r)
    assert.equal("OutcomeUnknown", err.kind)
    assert.equal('{"error":{"code":"not_found","message":"no"}}', partial.fields.data)
  end)

  it("B14: is cut when nothing comes for too long, keepalives not counted as silence", function()
    local _, err, partial = capture("h;" .. START .. out "part" .. "q;", nil, 1)
    assert.equal("OutcomeUnknown", err.kind)
    assert.equal("part", partial.bytes)
    local pings = ("w150;" .. event { keepalive = {} }):rep(11)
    assert.equal(0, assert(capture("h;" .. START .. pings .. ended(0) .. OVER .. "z;", nil, 1.5)).fields.status)
  end)

  it("is Unavailable only when it was certainly not sent", function()
    local free = assert(http.client { url = "http://127.0.0.1:1" })
    local _, err = wait.op(http.run(free, "/x", {}, "process.StartRequest", {}, 5, 10), 10, "exec")
    free:close()
    assert.equal("Unavailable", err.kind)
    for _, script in ipairs { "c;", "r;", "w50;r;" } do
      _, err = capture(script)
      assert.equal("OutcomeUnknown", err.kind)
    end
  end)

  it("is not sent again when a kept connection dies before the answer", function()
    for _, how in ipairs { "c;", "r;" } do
      local before = counts()
      assert(capture("h;" .. START .. ended(0) .. OVER .. "z;"))
      local _, err = capture(how)
      assert.equal("OutcomeUnknown", err.kind)
      assert.equal(before + 2, (counts()))
    end
  end)

  it("keeps its connection for the next one", function()
    assert(capture("h;" .. START .. ended(0) .. OVER .. "z;"))
    local _, _, _, before = counts()
    for _ = 1, 20 do
      assert(capture("h;" .. START .. out "x" .. ended(0) .. OVER .. "z;"))
    end
    local _, _, _, now = counts()
    assert.equal(1, now - before) -- the one that asked
  end)

  it("keeps connections for as many as are under way at a time", function()
    local others = origin
    origin = assert(http.client { url = "http://127.0.0.1:" .. number })
    local function round()
      local ops = {}
      for i = 1, 40 do
        ops[i] = begin("h;" .. START .. "w100;" .. ended(0) .. OVER .. "z;", 100)
      end
      for i = 1, 40 do
        assert(wait.op(ops[i], 20, "exec"))
      end
    end
    round()
    local _, _, _, before = counts()
    round()
    local _, _, _, now = counts()
    assert.equal(1, now - before) -- the one that asked
    origin:close()
    origin = others
  end)

  it("lets go of the stream when its wait ends early", function()
    local _, before = counts()
    local _, err, partial = wait.op(begin("h;" .. START .. out "part" .. "q;", 100), 1, "exec")
    assert.equal("Timeout", err.kind)
    assert.equal("part", partial.bytes)
    assert.is_truthy(helper.eventually(function()
      local _, now = counts()
      return now == before + 1
    end))
  end)

  describe("held", function()
    local function start(script, silence)
      local r, err = wait.op(begin(script, nil, silence), 10, "start")
      return r and r.object, err, r
    end

    local function read(body, mode, n)
      return wait.bytes(body:read(mode, n), 10, "read")
    end

    it("is there from the start event on", function()
      local run, _, r = start("h;" .. START .. "d;")
      assert.equal(7, run:pid())
      assert.equal(7, r.fields.pid)
      assert.is_nil(run:exited())
      run:close()
      local _, err = wait.op(run:wait(), 10, "wait")
      assert.equal("Closed", err.kind)
      _, err = read(run:stdout(), "some", 10)
      assert.equal("Closed", err.kind)
    end)

    it("gives the outputs as streams, then the exit", function()
      local run = assert(start("h;" .. START .. out "line\nrest" .. event { data = { stderr = "bad" } } .. ended(4) .. OVER .. "z;"))
      assert.equal("line\n", read(run:stdout(), "line", 100))
      assert.equal("rest", read(run:stdout(), "all", 100))
      assert.is_nil(read(run:stdout(), "some", 100))
      assert.equal("bad", read(run:stderr(), "all", 100))
      assert.equal(4 * 256, assert(wait.op(run:wait(), 10, "wait")).fields.status)
      assert.equal(4 * 256, run:exited().status)
    end)

    it("holds the connection when a reader does not follow, and loses nothing", function()
      local total = 8000000
      local run = assert(start(("h;%so%d;%s%sz;"):format(START, total, ended(0), OVER), 1.5))
      assert(wait.sleep(1.8)) -- longer than the bound on silence, which is the reader's doing
      assert.is_nil(run:exited())
      local n, check = 0, true
      while true do
        local data, err = read(run:stdout(), "some", 100000)
        assert.is_nil(err)
        if not data then
          break
        end
        for _, i in ipairs { 1, #data } do
          check = check and data:byte(i) == (n + i - 1) % 251
        end
        n = n + #data
      end
      assert.equal(total, n)
      assert.is_true(check)
      assert.equal(0, assert(wait.op(run:wait(), 10, "wait")).fields.status)
    end)

    it("gives what came before a cut, then the cut", function()
      local run = assert(start("h;" .. START .. out "part" .. "c;"))
      assert.equal("part", read(run:stdout(), "exact", 4))
      local _, err = read(run:stdout(), "some", 4)
      assert.equal("OutcomeUnknown", err.kind)
      _, err = wait.op(run:wait(), 10, "wait")
      assert.equal("OutcomeUnknown", err.kind)
      assert.is_nil(run:exited())
    end)

    it("goes on when nobody wants one of its outputs", function()
      local run = assert(start(("h;%so%d;%s%sz;"):format(START, 3000000, ended(0), OVER)))
      run:stdout():close()
      assert.equal(0, assert(wait.op(run:wait(), 10, "wait")).fields.status)
    end)

    it("lets go of its stream when it is collected", function()
      local _, before = counts()
      assert(start("h;" .. START .. "q;"))
      assert.is_truthy(helper.eventually(function()
        collectgarbage()
        local _, now = counts()
        return now == before + 1
      end))
    end)

    it("ends with its origin", function()
      local other = assert(http.client { url = "http://127.0.0.1:" .. number })
      local op = http.run(other, "/x", { "Content-Type: application/connect+proto", "script: h;" .. START .. "q;" },
        "process.StartRequest", {}, 20)
      local run = assert(wait.op(op, 10, "start")).object
      other:close()
      local _, err = wait.op(run:wait(), 10, "wait")
      assert.equal("Closed", err.kind)
    end)

    it("gives nil and why for a request that is none", function()
      local op, why = begin("c;", nil, nil, { process = { cmd = 1 } })
      assert.is_nil(op)
      assert.truthy(why:find("cmd", 1, true))
    end)
  end)

  describe("input", function()
    local TAKEN = "x" .. hex "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n" .. ";"
    local ENDED = "x" .. hex "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
      .. hex '{"code":"not_found"}' .. ";"

    local function input(script, terminal)
      return http.input(origin, "/process.Process/SendInput", "/process.Process/CloseStdin",
        { "Content-Type: application/proto", "script: " .. script }, 7, terminal)
    end

    local function sent(body, type_name)
      local bytes = body:gsub("%x%x", function(pair)
        return string.char(tonumber(pair, 16))
      end)
      return assert(message.decode("process." .. type_name, bytes, "proto"))
    end

    it("is sent as it is, and its end behind it", function()
      local stdin = input(TAKEN)
      assert.equal(4, assert(wait.op(stdin:write "\0\255\nx", 10, "write")).number)
      local posts, _, body = counts()
      assert.same({ process = { pid = 7 }, input = { stdin = "\0\255\nx" } }, sent(body, "SendInputRequest"))
      local op = stdin:write "last"
      stdin:close_write()
      assert.equal(4, assert(wait.op(op, 10, "write")).number)
      assert.is_truthy(helper.eventually(function()
        local now, _, last = counts()
        body = last
        return now == posts + 2
      end))
      assert.same({ process = { pid = 7 } }, sent(body, "CloseStdinRequest"))
      local _, err = wait.op(stdin:write "more", 10, "write")
      assert.equal("Closed", err.kind)
    end)

    it("goes in order, in pieces", function()
      local stdin = input(TAKEN)
      local before = counts()
      local one, two = stdin:write(("a"):rep(50000)), stdin:write "b"
      assert.equal(50000, assert(wait.op(one, 10, "write")).number)
      assert.equal(1, assert(wait.op(two, 10, "write")).number)
      local now, _, body = counts()
      assert.equal(before + 2, now)
      assert.equal("b", sent(body, "SendInputRequest").input.stdin)
    end)

    it("is typed where there is a terminal", function()
      local stdin = input(TAKEN, true)
      assert(wait.op(stdin:write "ls\n", 10, "write"))
      local posts, _, body = counts()
      assert.same({ pty = "ls\n" }, sent(body, "SendInputRequest").input)
      stdin:close_write()
      assert.is_truthy(helper.eventually(function()
        local now, _, last = counts()
        body = last
        return now == posts + 1
      end))
      assert.same({ pty = "\4" }, sent(body, "SendInputRequest").input)
    end)

    it("waits as long as the other side does not take it, and can be given up", function()
      local stdin = input "q;"
      local first, second = stdin:write "on its way", stdin:write "not yet"
      local _, err, partial = wait.op(second, 0.1, "write")
      assert.equal("Timeout", err.kind)
      assert.equal(0, partial.number)
      _, err, partial = wait.op(first, 0.1, "write")
      assert.equal("Timeout", err.kind)
      assert.equal(10, partial.number)
      assert.equal(262144 - 10, stdin:try_write(("x"):rep(1000000)))
      assert.equal(0, stdin:try_write "x")
      stdin:close()
    end)

    it("is closed when the command has ended, unknown when the connection was cut", function()
      local stdin = input(ENDED)
      local ops = { stdin:write "a", stdin:write "b" }
      for _, op in ipairs(ops) do
        local _, err, partial = wait.op(op, 10, "write")
        assert.equal("Closed", err.kind)
        assert.equal(0, partial.number)
      end
      local _, err = wait.op(input("c;"):write "a", 10, "write")
      assert.equal("OutcomeUnknown", err.kind)
    end)

    it("A-72: went to whoever had the number after its command's stream had been cut", function()
      local r = assert(wait.op(begin("h;" .. START .. "c;"), 5, "start"))
      local stdin = http.input(origin, "/process.Process/SendInput", "/process.Process/CloseStdin",
        { "Content-Type: application/proto", "script: " .. TAKEN }, 7, false, r.object)
      local _, err = wait.op(r.object:wait(), 5, "wait")
      assert.equal("OutcomeUnknown", err.kind)
      local before = counts()
      _, err = wait.op(stdin:write "a", 5, "write")
      assert.equal("Closed", err.kind)
      assert.equal(before, (counts()))
    end)

    it("goes on when its handle is collected", function()
      local op = input("w50;" .. TAKEN):write "abc"
      collectgarbage()
      collectgarbage()
      assert.equal(3, assert(wait.op(op, 10, "write")).number)
    end)
  end)

  it("carries a lot of output, whole", function()
    local r = assert(capture(("h;%so%d;%s%sz;"):format(START, 30000000, ended(0), OVER), 2 ^ 31))
    assert.equal(30000000, #r.bytes)
    assert.equal((30000000 - 1) % 251, r.bytes:byte(-1))
  end)

  it("that had a long output took its memory page by page", function()
    if os.getenv("SPEC_SANITIZER") == "asan" then
      helper.skip("the sanitizer's memory comes in pages of its own")
    end
    if (helper.read_file("/sys/kernel/mm/transparent_hugepage/enabled") or "[never]"):find("[never]", 1, true) then
      helper.skip("the kernel has no large pages for those who ask")
    end
    local function faults()
      return tonumber(helper.read_file("/proc/self/stat"):match("^.*%) %S+ " .. ("%S+ "):rep(6) .. "(%d+)"))
    end
    local before = faults()
    local r = assert(capture(("h;%so%d;%s%sz;"):format(START, 2 ^ 26, ended(0), OVER), 2 ^ 31))
    assert.equal(2 ^ 26, #r.bytes)
    local pages = 2 * 2 ^ 26 / 4096 -- where it was put together, and where the string is
    local had = faults() - before
    assert.is_true(had < pages / 2, had .. " faults")
  end)

  describe("that is to be killed", function()
    local e2b_helper = require "sandbar.e2b.helper"

    local function answer(status, body)
      return "x" .. hex(("HTTP/1.1 %s\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n%s"):format(
        status, #body, body)) .. ";"
    end

    -- What finds processes by a list, and kills one.
    local function killer(list, left)
      local body, at = e2b_helper.killer()
      local other, other_at
      if left then
        other, other_at = e2b_helper.killer("a.run", "-")
      end
      return http.killer(origin, "box", "/process.Process/List", { "Content-Type: application/proto", "script: " .. list },
        "/process.Process/Start", { "Content-Type: application/connect+proto", "script: h;" .. START .. ended(0) .. OVER
        .. "z;" }, body, at, other, other_at)
    end

    local function run(script, list, max, left)
      return http.run(origin, "/process.Process/Start", {
        "Content-Type: application/connect+proto", "Connect-Protocol-Version: 1", "script: " .. script,
      }, "process.StartRequest", { process = { cmd = "true" } }, 20, max, killer(list, left), "a-token")
    end

    local LIST = answer("200 OK", assert(message.encode("process.ListResponse", { processes = {
      { pid = 40, config = { cmd = "sh", args = { "-c", "x #another" } } },
      { pid = 41, config = { cmd = "sh", args = { "-c", "x #a-token" } }, tag = "t" },
    } }, "proto")))

    -- The number that the helper was sent with.
    local function killed()
      local _, _, body = counts()
      return body:match("30303030" .. ("%x%x"):rep(6)):gsub("%x%x", function(pair)
        return string.char(tonumber(pair, 16))
      end)
    end

    it("is found by its token, before its start was told of and after", function()
      for _, max in ipairs { 10, false } do
        local before = counts()
        local r, err, partial = wait.op(run("q;", LIST, max or nil), 0.3, "exec")
        assert.is_nil(r)
        assert.equal("Timeout", err.kind)
        assert(wait.op(partial.release:op(), 5, "exec"))
        assert.equal("0000000041", killed())
        assert.equal(before + 3, (counts()))
      end
      local before = counts()
      local _, _, partial = wait.op(run("h;" .. START .. "q;", LIST, 10), 0.3, "exec")
      assert(wait.op(partial.release:op(), 5, "exec"))
      assert.equal("0000000041", killed())
      assert.equal(before + 3, (counts()))
    end)

    it("A-72: was killed by its number when somebody else had that", function()
      local other = answer("200 OK", assert(message.encode("process.ListResponse", { processes = {
        { pid = 7, config = { cmd = "sh", args = { "-c", "x #another", "a-token" } } },
      } }, "proto")))
      local before = counts()
      local _, _, partial = wait.op(run("h;" .. START .. "q;", other, 10), 0.3, "exec")
      assert(wait.op(partial.release:op(), 5, "exec"))
      assert.equal(before + 2, (counts())) -- it was looked for
      _, _, partial = wait.op(run("h;" .. START .. "q;", other, 10, true), 0.3, "exec")
      assert(wait.op(partial.release:op(), 5, "exec"))
      assert.equal("0000000007", killed()) -- what is left of its group, in that run
      local _, _, body = counts()
      assert.truthy(body:find(hex "a.run", 1, true))
    end)

    it("is left alone when it has ended by itself, or its sandbox is gone", function()
      local before = counts()
      local op = run("h;" .. START .. ended(0) .. OVER .. "z;", LIST, 10)
      assert.is_nil(assert(wait.op(op, 5, "exec")).release)
      assert.equal(before + 1, (counts()))
      local _, _, partial = wait.op(run("q;", answer("502 Bad Gateway",
        '{"sandboxId":"i","message":"The sandbox was not found","code":502}'), 10), 0.2, "exec")
      assert(wait.op(partial.release:op(), 5, "exec"))
      assert.equal(before + 3, (counts()))
    end)

    it("counted as gone when something on the way answered, with a page or with nothing", function()
      sandbar.config { drain = 0.2 }
      for _, said in ipairs {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 38\r\n\r\n<html>The sandbox was not found</html>",
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 3\r\n\r\n\n\5x",
      } do
        local _, _, partial = wait.op(run("q;", "x" .. hex(said) .. ";", 10), 0.1, "exec")
        local ok, err = wait.op(partial.release:op(), 20, "exec")
        assert.is_nil(ok, said)
        assert.equal("Unavailable", err.kind)
      end
      sandbar.config { drain = 5 }
    end)

    it("is owned by the release that its start comes with", function()
      local r = assert(wait.op(run("h;" .. START .. "q;", LIST), 5, "start"))
      local before = counts()
      assert(wait.op(r.release:op(), 5, "close"))
      assert.equal("0000000041", killed())
      assert.equal(before + 2, (counts()))
      r.object:close()
    end)
  end)

  it("whose output nobody reads any more goes on, and what had come can be read", function()
    local r = assert(wait.op(begin("h;" .. START .. out "first" .. "d;o2000000;" .. ended(0) .. OVER .. "z;"), 5, "start"))
    local body = r.object:stdout()
    assert.equal("fir", assert(wait.bytes(body:read("exact", 3), 5, "read")))
    body:end_reading()
    assert.equal("st", (wait.bytes(body:read("all"), 5, "read")))
    assert.is_nil((wait.bytes(body:read("some"), 5, "read")))
    r.object:close()
    r = assert(wait.op(begin("h;" .. START .. "o2000000;" .. ended(0) .. OVER .. "z;"), 5, "start"))
    assert.equal("\0\1", assert(wait.bytes(r.object:stdout():read("exact", 2), 5, "read")))
    r.object:stdout():end_reading()
    assert.equal(0, assert(wait.op(r.object:wait(), 10, "wait")).fields.status)
  end)

  it("keeps the tail of an output that is not to be read, and holds nothing up", function()
    local r = assert(wait.op(http.run(origin, "/process.Process/Start", {
      "Content-Type: application/connect+proto", "Connect-Protocol-Version: 1",
      "script: h;" .. START .. "o2000000;" .. event { data = { stderr = "bad" } } .. ended(0) .. OVER .. "z;",
    }, "process.StartRequest", { process = { cmd = "true" } }, 20, nil, nil, nil, 1), 5, "start"))
    assert.is_nil(r.object:stdout())
    local fields = assert(wait.op(r.object:wait(), 10, "wait")).fields
    assert.equal(2000000 - 65536, fields.dropped)
    local tail = r.object:tail(1)
    assert.equal(65536, #tail)
    assert.equal((2000000 - 1) % 251, tail:byte(-1))
    assert.equal("bad", (wait.bytes(r.object:stderr():read("all"), 5, "read")))
  end)
end)
