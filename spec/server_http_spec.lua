-- check: no user
-- The HTTP server: what clients of every kind get, in how many ways they can be slow, wrong or gone.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local http = require "sandbar.server.http"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local CLIENT = (os.getenv("SPEC_BUILD") or "build") .. "/spec/raw_client"
local unpack = table.unpack or unpack -- luacheck: ignore 143

local function command(where, ...)
  local words = { helper.quote(CLIENT), helper.quote(where) }
  for _, step in ipairs { ... } do
    words[#words + 1] = helper.quote(step)
  end
  return table.concat(words, " ")
end

-- What the client prints, once it has ended. It runs beside us from now on.
local function client(...)
  local pipe = assert(io.popen("exec " .. command(...), "r"))
  return function()
    local all = pipe:read("*a")
    pipe:close()
    return all
  end
end

-- The same, for clients whose end the clock brings about: it is moved on until then.
local function slow_client(...)
  local out = helper.dir() .. "/out"
  helper.sh("{ %s > %s.new; mv %s.new %s; } > /dev/null 2>&1 &", command(...):gsub("%%", "%%%%"), out, out, out)
  return function()
    return assert(helper.eventually(function()
      core.advance(3000)
      return helper.read_file(out)
    end, 20))
  end
end

-- What a task gives whose end the clock brings about, in steps of so many seconds.
local function advanced(waiting, step)
  assert(helper.eventually(function()
    core.advance(step or 3000)
    sandbar.sleep(0)
    return waiting.state ~= "running"
  end, 20))
  return waiting:wait()
end

local function get(target, more)
  return ("send=GET %s HTTP/1.1\\r\\nHost: x\\r\\n%s\\r\\n"):format(target, more or "")
end

-- The answer without what is different every time.
local function plain(text)
  return (text:gsub("Date: [^\r]*GMT\r\n", ""))
end

describe("http server", function()
  helper.guard()

  local listener, port

  -- Made anew with other limits where they are what a test is about.
  local function listen(opts)
    opts = opts or {}
    opts.address = "127.0.0.1"
    listener = sandbar.assert(http.listen(opts))
    port = listener:address().port
  end

  local function stop()
    listener:cut()
    sandbar.assert(listener:drain(5))
  end

  busted.before_each(function()
    listen()
  end)

  busted.after_each(function()
    stop()
  end)

  local function accept()
    return sandbar.assert(listener:accept(10))
  end

  local function fails(kind, value, err)
    assert.is_nil(value)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  it("says which port somebody else has", function()
    local err = fails("Busy", http.listen { address = "127.0.0.1", port = port })
    assert.matches(("cannot listen on 127.0.0.1 port %d: "):format(port), tostring(err), 1, true)
  end)

  local function status_of(text)
    return text:match("^HTTP/1.1 (%d+) ")
  end

  it("gives a request as it came, and answers it", function()
    local answer = client(port, "send=POST /a%20b?c=%2F HTTP/1.1\\r\\nHost: here:1\\r\\nX-One: 1\\r\\nx-one:\\t 2 \\r\\n"
      .. "Content-Length: 5\\r\\nConnection: close\\r\\n\\r\\nhello", "end")
    local request = accept()
    assert.equal("POST", request.method)
    assert.equal("/a%20b?c=%2F", request.target)
    assert.equal("1.1", request.version)
    assert.equal("here:1", request.host)
    assert.equal(5, request.length)
    assert.is_false(request.secure)
    assert.truthy(request.peer:find("^127%.0%.0%.1:%d+$"))
    assert.equal("1", request.headers["X-ONE"])
    assert.same({ "1", "2" }, request.headers:all("x-one"))
    assert.same({ "X-One", "1" }, { request.headers[2][1], request.headers[2][2] })
    assert.equal("hello", request:read_all(5, 5))
    assert.is_nil((request:read()))
    assert.is_true(request:respond(201, { ["X-Answer"] = "yes", [1] = { "X-List", 7 } }, "done\n"))
    assert.equal("HTTP/1.1 201 Created\r\nX-List: 7\r\nX-Answer: yes\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
      .. "done\n[end]", plain(answer()))
    fails("Closed", request:respond(200, nil, "again"))
    fails("Closed", request:read())
  end)

  it("serves a connection's requests one after another, also when they come all at once", function()
    local answer = client(port, get("/1") .. "GET /2 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
      .. "GET /3 HTTP/1.0\\r\\n\\r\\nGET /4 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", "end")
    for i = 1, 3 do
      local request = accept()
      assert.equal("/" .. i, request.target)
      fails("Timeout", listener:accept(0))
      sandbar.assert(request:respond(200, nil, "n" .. i))
    end
    assert.equal("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nn1HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nn2"
      .. "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nn3[end]", plain(answer()))
  end)

  it("reads bodies in chunks, with extensions and trailers, however they are cut", function()
    local body = "4\\r\\nWiki\\r\\n5;a=\"b\"\\r\\npedia\\r\\nE\\r\\n in\\r\\n\\r\\nchunks.\\r\\n0\\r\\nX: y\\r\\n\\r\\n"
    local head = "POST / HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
    local steps = { "send=" .. head .. body .. head .. "1\\r\\nx", "wait=20", "send=\\r", "wait=20",
      "send=\\n0\\r\\n", "wait=20", "send=\\r\\nGET / HTTP/1.0\\r\\n\\r\\n", "end" }
    local answer = client(port, unpack(steps))
    local request = accept()
    assert.is_nil(request.length)
    assert.equal("Wikipedia in\r\n\r\nchunks.", request:read("a", 5))
    sandbar.assert(request:respond(200))
    request = accept()
    assert.equal("x", request:read(10, 5))
    assert.is_nil((request:read(10, 5)))
    sandbar.assert(request:respond(204))
    sandbar.assert(accept():respond(200, nil, ""))
    assert.equal("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
      .. "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n[end]", plain(answer()))
  end)

  it("writes bodies in chunks, to HTTP/1.0 to the end, or as long as announced", function()
    local function stream(first, given)
      local answer = client(port, first, "shut", "end")
      local request = accept()
      sandbar.assert(request:begin(200, given))
      fails("InvalidArgument", request:begin(200))
      for _, piece in ipairs { "one", "", "three\n" } do
        sandbar.assert(request:write(piece, 5))
      end
      sandbar.assert(request:finish())
      fails("Closed", request:write("more"))
      return plain(answer())
    end
    assert.equal("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n6\r\nthree\n\r\n0\r\n\r\n[end]",
      stream(get("/")))
    assert.equal("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonethree\n[end]",
      stream("send=GET / HTTP/1.0\\r\\nConnection: keep-alive\\r\\n\\r\\n"))
    assert.equal("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nonethree\n[end]",
      stream(get("/"), { ["Content-Length"] = 9 }))
  end)

  it("sends no body where none may be", function()
    local answer = client(port, "send=HEAD / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", get("/"), get("/"),
      "send=HEAD / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", "shut", "end")
    sandbar.assert(accept():respond(200, nil, "seven b"))
    sandbar.assert(accept():respond(204))
    sandbar.assert(accept():respond(304, nil, "not sent"))
    local request = accept()
    sandbar.assert(request:begin(200))
    sandbar.assert(request:write("not sent either"))
    sandbar.assert(request:finish())
    assert.equal("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
      .. "HTTP/1.1 304 Not Modified\r\n\r\nHTTP/1.1 200 OK\r\n\r\n[end]", plain(answer()))
  end)

  it("refuses every head that two servers could read in two ways, before anybody sees it", function()
    local function refused(status, head)
      local answer = client(port, "send=" .. head, "end")()
      assert.equal(status, status_of(answer), head .. " -> " .. answer)
      assert.truthy(answer:find("Connection: close", 1, true))
    end
    local post = "POST / HTTP/1.1\\r\\nHost: x\\r\\n"
    for _, lines in ipairs {
      "Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n", -- two ways to end
      "Transfer-Encoding: chunked\\r\\nContent-Length: 3\\r\\n",
      "Content-Length: 3\\r\\nContent-Length: 3\\r\\n",
      "Content-Length: 3\\r\\ncontent-length: 4\\r\\n",
      "Content-Length: 3, 3\\r\\n",
      "Content-Length: +3\\r\\n",
      "Content-Length: 0x3\\r\\n",
      "Content-Length: -1\\r\\n",
      "Content-Length:\\r\\n",
      "Content-Length: 99999999999999999999\\r\\n",
      "Transfer-Encoding: chunked\\r\\nTransfer-Encoding: chunked\\r\\n",
      "Content-Length : 3\\r\\n", -- a blank before the colon
      "Transfer-Encoding\\t: chunked\\r\\n",
      " X: folded\\r\\n", -- obsolete folding
      "X: y\\r\\n\\tz\\r\\n",
      "X: y\\nContent-Length: 3\\r\\n", -- bare line feed
      "X: y\\rContent-Length: 3\\r\\n", -- bare return
      "X: a\\0b\\r\\n",
      "X: a\\x01b\\r\\n",
      "X: a\\x7fb\\r\\n",
      ": nothing\\r\\n",
      "no colon\\r\\n",
      "X(y): z\\r\\n",
      "Host: y\\r\\n", -- a second one
    } do
      refused("400", post .. lines .. "\\r\\nabc")
    end
    refused("501", post .. "Transfer-Encoding: gzip, chunked\\r\\n\\r\\n")
    refused("501", post .. "Transfer-Encoding: xchunked\\r\\n\\r\\n")
    refused("417", post .. "Expect: 200-ok\\r\\n\\r\\n")
    refused("400", "POST / HTTP/1.0\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    refused("400", "GET / HTTP/1.1\\r\\n\\r\\n") -- no Host
    refused("400", "GET  / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("400", "GET /a b HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("400", "GET /\\xff HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("400", "GET / HTTP/1.1 \\r\\nHost: x\\r\\n\\r\\n")
    refused("400", "GET / http/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("400", "GET /\\r\\n\\r\\n")
    refused("400", "\\x16\\x03\\x01\\x02") -- a ClientHello
    refused("505", "GET / HTTP/2.0\\r\\nHost: x\\r\\n\\r\\n")
    refused("501", "BREW / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("501", "CONNECT x:1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    refused("431", "GET / HTTP/1.1\\r\\nHost: x\\r\\n" .. ("A: b\\r\\n"):rep(256) .. "\\r\\n")
    refused("431", "GET /" .. ("a"):rep(65536))
    fails("Timeout", listener:accept(0))
  end)

  it("takes no chunks that are not", function()
    for _, body in ipairs { "5\\nhello\\r\\n0\\r\\n\\r\\n", "5\\r\\nhelloo\\r\\n", "5\\r\\nhello\\n0\\r\\n\\r\\n", "g\\r\\n",
      "\\r\\n", "-1\\r\\n", "0x5\\r\\nhello\\r\\n", "5\\rxhello", "1;\\0\\r\\nx\\r\\n", "5;a\\nb\\r\\nhello\\r\\n",
      "fffffffffffffffff\\r\\n", "0\\r\\nX: y\\n\\r\\n", "0\\r\\n: y\\r\\n\\r\\n", "0\\r\\n X: y\\r\\n\\r\\n",
      "1;" .. ("x"):rep(1100) .. "\\r\\n", "0\\r\\n" .. ("X: yyyyyyyyyyyyyy\\r\\n"):rep(500) } do
      local answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n" .. body,
        "shut", "end")
      local request = accept()
      fails("Protocol", request:read_all(100, 5))
      sandbar.assert(request:respond(400, nil, "no"))
      assert.equal("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno[end]", plain(answer()),
        body)
    end
  end)

  it("stops a body that is longer than its reader wants, and keeps what had come", function()
    local answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 100000\\r\\n\\r\\n", "fill=100000",
      get("/next"), "shut", "end")
    local request = accept()
    fails("LimitExceeded", request:read_all(99999, 5))
    local data = sandbar.assert(request:read_all(100000, 5))
    assert.is_true(data == ("x"):rep(100000))
    sandbar.assert(request:respond(200))
    sandbar.assert(accept():respond(200))
    assert.equal(2, select(2, answer():gsub("200 OK", "")))
  end)

  it("throws away a short body that nobody read, and ends with a long one", function()
    local answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 100000\\r\\n\\r\\n", "fill=100000",
      get("/next"), "shut", "end")
    sandbar.assert(accept():respond(200, nil, "short"))
    sandbar.assert(accept():respond(200, nil, "next"))
    assert.truthy(answer():find("next[end]", 1, true))

    answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 10000000\\r\\n\\r\\n", "end")
    sandbar.assert(accept():respond(200, nil, "long"))
    assert.equal("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong[end]", plain(answer()))
  end)

  it("tells a client that asks first to go on, when its body is wanted", function()
    local post = "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\nExpect: 100-continue\\r\\n\\r\\n"
    local answer = client(port, post, "until=100 Continue\\r\\n\\r\\n", "send=ok", "shut", "end")
    local request = accept()
    assert.equal("ok", request:read_all(2, 5))
    sandbar.assert(request:respond(200))
    assert.equal("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n[end]", plain(answer()))

    answer = client(port, post, "end") -- not wanted: whether it comes is not known, so nothing may come after it
    sandbar.assert(accept():respond(403))
    assert.equal("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n[end]", plain(answer()))
  end)

  it("waits for a client that does not read, and loses nothing", function()
    local size = 8388608
    local answer = client(port, "small", get("/"), "wait=100", "until=\\r\\n\\r\\n", "sink=" .. size, "shut", "end")
    local request = accept()
    sandbar.assert(request:begin(200, { ["Content-Length"] = size }))
    local piece, waited = ("x"):rep(65536), false
    for _ = 1, size / 65536 do
      local ok, err = request:write(piece, 0)
      if not ok then
        assert.equal("Timeout", err.kind)
        waited = true
        sandbar.assert(request:write("", 10)) -- the piece was on its way
      end
    end
    assert.is_true(waited)
    sandbar.assert(request:finish())
    assert.equal(("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n[end]"):format(size), plain(answer()))
  end)

  it("cuts an answer that is given up, so that nobody takes it for a whole one", function()
    local answer = client(port, get("/"), "end")
    local request = accept()
    sandbar.assert(request:begin(200))
    sandbar.assert(request:write("half"))
    request:abort()
    assert.truthy(answer():find("%[reset%]$"))

    answer = client(port, get("/"), "end")
    request = accept()
    sandbar.assert(request:begin(200, { ["Content-Length"] = 5 }))
    fails("InvalidArgument", request:write("longer"))
    sandbar.assert(request:write("four"))
    fails("InvalidArgument", request:finish())
    assert.truthy(answer():find("%[reset%]$"))
  end)

  it("answers for a request that was collected", function()
    local answer = client(port, get("/"), "end")
    assert.equal("/", accept().target)
    collectgarbage()
    collectgarbage()
    assert.equal("500", status_of(answer()))

    answer = client(port, get("/"), "end")
    sandbar.assert(accept():begin(200))
    collectgarbage()
    collectgarbage()
    assert.truthy(answer():find("%[reset%]$"))
  end)

  it("says when a client has gone away", function()
    for _, leave in ipairs { "shut", "reset" } do
      local answer = client(port, get("/"), "until=go\n", leave)
      local request = accept()
      fails("Timeout", request:gone(0))
      sandbar.assert(request:begin(200))
      sandbar.assert(request:write("go\n"))
      assert.is_true(request:gone(10))
      answer()
    end
    local answer = client(port, get("/"), "until=go", "shut")
    local request = accept()
    sandbar.scope(function(scope)
      local watching = scope:spawn(function()
        return request:gone(10)
      end)
      sandbar.sleep(0)
      sandbar.assert(request:respond(200, nil, "go"))
      assert.is_false(watching:wait())
    end)
    assert.is_false(request:gone())
    answer()
  end)

  it("took a client that had gone for there as long as nobody read its body", function()
    for _, leave in ipairs { "shut", "reset" } do
      for _, size in ipairs { 5, 100000 } do
        local answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 200000\\r\\n\\r\\n",
          "fill=" .. size, "until=go\n\r\n", leave, leave == "shut" and "end" or nil)
        local request = accept()
        fails("Timeout", request:gone(0))
        sandbar.assert(request:begin(200))
        sandbar.assert(request:write("go\n"))
        assert.is_true(request:gone(10), leave .. size)
        request:abort()
        answer()
      end
    end
  end)

  it("is there for a client that will send no more behind its next request", function()
    local post = "POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 1\\r\\n\\r\\nx"
    local answer = client(port, "send=" .. post .. post, "shut", "end")
    local request = accept()
    assert.equal("x", request:read_all(1, 5))
    fails("Timeout", request:gone(0))
    sandbar.assert(request:respond(200))
    request = accept()
    assert.equal("x", request:read_all(1, 5))
    sandbar.assert(request:respond(200))
    assert.equal(2, select(2, answer():gsub("200 OK", "")))
  end)

  it("ends what it does for a client when that has gone, or its time is over", function()
    for _, leave in ipairs { "shut", "reset" } do
      local answer = client(port, get("/"), "until=go\n", leave)
      local request = accept()
      local seen
      local over, err = request:attend(10, function(text)
        sandbar.assert(request:begin(200))
        sandbar.assert(request:write(text))
        seen = { sandbar.sleep(20) }
      end, "go\n")
      fails("Cancelled", over, err)
      fails("Cancelled", seen[1], seen[2])
      answer()
    end
    local answer = client(port, get("/"), "until=go", "shut")
    local request = accept()
    local ended
    fails("Timeout", request:attend(0.05, function()
      fails("Cancelled", sandbar.sleep(20))
      ended = true
    end))
    assert.is_true(ended)
    assert.same({ true, nil, "why" }, { request:attend(10, function()
      return nil, "why"
    end) })
    assert.has_error(function()
      request:attend(10, error, "it raises")
    end, "it raises")
    assert.same({ true, true }, { request:attend(10, request.respond, request, 200, nil, "go") })
    answer()
  end)

  it("left what it does for a client behind when its own task was cancelled", function()
    local answer = client(port, get("/"), "until=go", "shut")
    local request = accept()
    local begun, ended, over, err = wait.signal(), false, nil, nil
    sandbar.scope(function(scope)
      local handler = scope:spawn(function()
        over, err = request:attend(10, function()
          wait.fire(begun)
          fails("Cancelled", sandbar.sleep(20))
          sandbar.shield(sandbar.sleep, 0)
          ended = true
        end)
        assert.is_true(ended)
      end)
      sandbar.assert(wait.on(begun, 10, "spec"))
      handler:cancel "enough"
      handler:wait()
    end)
    fails("Cancelled", over, err)
    sandbar.assert(request:respond(200, nil, "go"))
    answer()
  end)

  it("tells a reader that its client went away inside a body", function()
    local post = "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 10\\r\\n\\r\\nhalf"
    for _, leave in ipairs { "shut", "reset" } do
      client(port, post, "wait=10", leave, leave == "shut" and "end" or nil)
      local request = accept()
      local data, err = request:read(10, 5)
      if data then
        assert.equal("half", data)
        data, err = request:read(10, 5)
      end
      fails("Closed", data, err)
      request:abort()
    end
  end)

  it("gives nobody time who takes too much of it", function()
    stop()
    listen { header_timeout = 3000, idle_timeout = 3000, body_timeout = 3000, write_timeout = 3000 }
    -- A head that does not end; it came with a whole one, so it is there.
    local answer = slow_client(port, get("/") .. "GET / HTTP/1.1\\r\\nX: ", "end")
    sandbar.assert(accept():respond(200))
    assert.truthy(answer():find("HTTP/1.1 408 ", 1, true))
    -- Empty lines are no excuse.
    answer = slow_client(port, "send=\\r\\n", "wait=10", "send=\\r\\n", "end")
    assert.equal("[end]", answer())
    -- Nothing at all.
    assert.equal("[end]", slow_client(port, "end")())
    -- Nothing after the first request.
    answer = slow_client(port, get("/"), "end")
    sandbar.assert(accept():respond(200))
    assert.truthy(answer():find("\r\n\r\n%[end%]$"))
    -- A body that does not come: its reader is told, and may answer.
    answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 10\\r\\n\\r\\nhalf", "end")
    local request = accept()
    assert.equal("half", request:read(10, 5))
    fails("Timeout", request:read(10, 0.05))
    fails("Timeout", advanced(sandbar.spawn(request.read, request, 10)))
    sandbar.assert(request:respond(408, nil, "late"))
    assert.truthy(answer():find("late[end]", 1, true))
    -- An answer nobody takes.
    answer = client(port, "small", get("/"), "hang")
    request = accept()
    fails("Timeout", advanced(sandbar.spawn(request.respond, request, 200, nil, ("x"):rep(8388608))))
    assert.equal("[reset]", answer())
  end)

  it("lets who reads a stream wait for longer than who reads a whole answer", function()
    stop()
    listen { write_timeout = 3, stream_timeout = 300000 }
    local answer = client(port, "small", get("/"), "hang")
    local request = accept()
    sandbar.assert(request:begin(200))
    local streaming = sandbar.spawn(function()
      while true do
        local ok, err = request:write(("x"):rep(65536))
        if not ok then
          return nil, err
        end
      end
    end)
    local other = client(port, "small", get("/"), "hang")
    local whole = accept()
    fails("Timeout", advanced(sandbar.spawn(whole.respond, whole, 200, nil, ("x"):rep(8388608)), 3))
    assert.equal("[reset]", other())
    assert.equal("running", streaming.state)
    fails("Timeout", advanced(streaming, 300000))
    assert.equal("[reset]", answer())
  end)

  it("takes no connection for idle whose client is still reading an answer", function()
    stop()
    listen { idle_timeout = 3000, write_timeout = 30000000 }
    local gate, size = helper.dir() .. "/gate", 8388608
    helper.sh("mkfifo %s", helper.quote(gate))
    local slow = client(port, "small", get("/"), "gate=" .. gate, "until=\r\n\r\n", "sink=" .. size, "shut", "end")
    local request = accept()
    local answering = sandbar.spawn(request.respond, request, 200, nil, ("x"):rep(size))
    sandbar.sleep(0)
    local idle = slow_client(port, get("/"), "end")
    sandbar.assert(accept():respond(200))
    assert.truthy(idle():find("\r\n\r\n%[end%]$"))
    helper.sh("timeout 20 sh -c ': > %s'", gate)
    sandbar.assert(answering:wait())
    assert.truthy(slow():find("\r\n\r\n%[end%]$"))
  end)

  it("lets in so many connections and no more; idle ones go for new ones", function()
    stop()
    listen { max_connections = 2 }
    local first = client(port, get("/1"), "until=\r\n\r\n", "end")
    sandbar.assert(accept():respond(200))
    local second = client(port, get("/2"), "end")
    local held = accept()
    local third = client(port, get("/3"), "end")
    local other = accept()
    assert.equal("/3", other.target)
    assert.truthy(first():find("%[end%]$"))
    local fourth = client(port, get("/4", "Connection: close\\r\\n"), "end")
    fails("Timeout", listener:accept(0.05))
    sandbar.assert(held:respond(200, { Connection = "close" }, "2"))
    assert.truthy(second():find("2[end]", 1, true))
    held = accept()
    assert.equal("/4", held.target)
    sandbar.assert(held:respond(200))
    sandbar.assert(other:respond(200, { Connection = "close" }))
    third()
    fourth()
  end)

  it("listens on a unix socket of this user's own, which goes with the listener", function()
    local path = helper.dir() .. "/socket"
    local one = sandbar.assert(http.listen { path = path })
    assert.same({ path = path }, one:address())
    assert.equal("srw-------", helper.sh("stat -c %%A %s", helper.quote(path)):match("%S+"))
    fails("Busy", http.listen { path = path })
    local answer = client(path, get("/"), "shut", "end")
    local request = sandbar.assert(one:accept(5))
    assert.equal("unix", request.peer)
    sandbar.assert(request:respond(200, nil, "hello"))
    assert.truthy(answer():find("hello[end]", 1, true))
    one:close()
    sandbar.assert(one:drain(5))
    fails("Closed", one:accept(5))
    assert.truthy(helper.eventually(function()
      return client(path, "end")() == "[refused]" and not helper.read_file(path)
    end))
  end)

  it("stops: no new connections, what is being answered goes on, the rest hears why", function()
    local idle = client(port, get("/"), "until=\r\n\r\n", "end")
    sandbar.assert(accept():respond(200))
    local busy = client(port, get("/busy"), "end")
    local request = accept()
    sandbar.assert(request:begin(200))
    -- The second of two that came together is there when the first has been answered.
    local waiting = client(port, get("/first") .. "GET /waiting HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", "end")
    sandbar.assert(accept():respond(200))
    listener:close()
    fails("Closed", listener:accept(5))
    fails("Timeout", listener:drain(0.01))
    assert.truthy(idle():find("%[end%]$"))
    assert.equal("503", status_of(waiting():match("\r\n\r\n(.*)")))
    assert.equal("[refused]", client(port, "end")())
    sandbar.assert(request:write("last"))
    sandbar.assert(request:finish())
    assert.truthy(busy():find("last\r\n0\r\n\r\n[end]", 1, true))
    sandbar.assert(listener:drain(5))
  end)

  it("runs a handler in a task for each request; what it raises is a 500", function()
    local heard = {}
    sandbar.scope(function(scope)
      local serving = scope:spawn(function()
        return http.serve(listener, function(request)
          if request.target == "/slow" then
            sandbar.sleep(0.05)
          elseif request.target == "/raises" then
            error("broken")
          elseif request.target == "/half" then
            request:begin(200)
            error("half")
          elseif request.target == "/none" then
            return
          end
          request:respond(200, nil, request.target)
        end, function(err, request)
          heard[request.target] = tostring(err)
        end)
      end)
      local answers, targets = {}, { "/slow", "/raises", "/half", "/none", "/ok" }
      for i, target in ipairs(targets) do
        answers[i] = client(port, get(target), "shut", "end")
      end
      sandbar.sleep(0.3)
      local got = {}
      for i, target in ipairs(targets) do
        got[target] = answers[i]():gsub("^HTTP/1.1 (%d+) .*(%[%w+%])$", "%1 %2")
      end
      assert.same({ ["/slow"] = "200 [end]", ["/raises"] = "500 [end]", ["/half"] = "200 [reset]",
        ["/none"] = "500 [end]", ["/ok"] = "200 [end]" }, got)
      listener:close()
      assert.is_true(serving:wait())
    end)
    assert.truthy(heard["/raises"]:find("broken"))
    assert.truthy(heard["/half"]:find("half"))
  end)

  it("refuses answers that would not be what they say", function()
    local answer = client(port, get("/"), "shut", "end")
    local request = accept()
    for _, headers in ipairs { { ["X-A"] = "b\r\nX-C: d" }, { ["X-A"] = "b\0" }, { ["X A"] = "b" },
      { ["Content-Length"] = "5" }, { ["Content-Length"] = "x" }, { ["Transfer-Encoding"] = "chunked" },
      { Connection = "keep-alive" }, { ["X-A"] = true }, { 7 } } do
      fails("InvalidArgument", request:respond(200, headers, "four"))
    end
    for _, status in ipairs { 100, 101, 199, 600, -1 } do
      fails("InvalidArgument", request:respond(status))
    end
    fails("InvalidArgument", request:write("x"))
    fails("InvalidArgument", request:finish())
    assert.has_error(function()
      request:respond("200")
    end)
    sandbar.assert(request:respond(200, { ["X-A"] = sandbar.secret("s3cret") }, sandbar.secret("body")))
    assert.equal("HTTP/1.1 200 OK\r\nX-A: s3cret\r\nContent-Length: 4\r\n\r\nbody[end]", plain(answer()))
  end)

  it("refuses places and limits that make no sense", function()
    for _, opts in ipairs { {}, { address = "127.0.0.1", path = "/x" }, { path = "/x", port = 1 }, { path = "" },
      { address = "example.com" }, { address = "127.0.0.1", port = 65536 }, { address = "::1", max_connections = 0 },
      { address = "::1", header_limit = 70000 }, { address = "::1", idle_timeout = 0 }, { path = ("x"):rep(200) } } do
      fails("InvalidArgument", http.listen(opts))
    end
    fails("Busy", http.listen { address = "127.0.0.1", port = port })
    fails("NotFound", http.listen { path = "/nonexistent/socket" })
    assert.has_error(function()
      http.listen { adress = "127.0.0.1" }
    end)
  end)
end)
