-- check: only 5.4
-- check: no asan
-- check: no user
-- check: limit 3600
-- The E2B provider on connections that are spoiled, between it and `sandbar serve` with real sandboxes. Cut at any byte of
-- a request or of its answer: each call ends with what is so, or with an error that says what is known; nothing is done
-- twice, nothing is left. Stalled, slowed down, changed, answered by somebody else: each ends in its time, with what is so
-- or a typed error. In the long form at each fifth byte of what is short, and at some of what is long; else at a few.
-- With SPEC_LONG=every at every byte of what is short, which takes half an hour.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local fault_proxy = require "spec.support.fault_proxy"
local faults = require "spec.support.faults"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

local assert_ok = sandbar.assert
local LONG = (os.getenv("SPEC_LONG") or "") ~= ""
local STEP = os.getenv("SPEC_LONG") == "every" and 1 or 5
local TIMEOUT = 10 -- of a call that is cut and never waits that long
local STALLED = 0.3 -- of one that does wait that long
local SHORT, MIDDLE, LARGE = "short", ("0123456789abcdef"):rep(2048), ("0123456789abcdef"):rep(80000)
local WORKER, CONTENTS = "^/process.Process/Start", "^/files"
local PAGE = "<html><body><h1>It works somewhere else</h1></body></html>\n"

describe("a hosted call on a bad connection", function()
  local server, proxy, boxes, direct, box, there, outstanding

  busted.setup(function()
    server = serve.start()
    proxy = fault_proxy.start(server.url)
    local function open(url)
      return assert_ok(sandbar.open { provider = "e2b", api_key = server.key, api_url = url, sandbox_url = url })
    end
    boxes, direct = open(proxy.url), open(server.url)
    box = assert_ok(boxes:create { id = "cut", lifetime = 3000, labels = { part = "own" } })
    there = assert_ok(direct:connect "cut")
    assert_ok(there:exec "mkdir -p /tmp/w /tmp/ran /tmp/in")
    outstanding = core.outstanding()
  end)

  busted.teardown(function()
    box:close()
    there:close()
    boxes, direct, box, there = nil, nil, nil, nil
    collectgarbage()
    collectgarbage()
    proxy:stop()
    server.stop()
  end)

  helper.guard { each = false, growth = 24 }

  -- What a shell line prints in the sandbox, asked for on a connection that nobody spoils.
  local function look(line, ...)
    return assert_ok(there:exec(line:format(...))).stdout
  end

  -- The error is one of these kinds, or of a page.
  local function one_of(err, where, ...)
    for _, kind in ipairs { "Protocol", ... } do
      if err.kind == kind then
        return
      end
    end
    error(("%s: %s, not %s"):format(where, tostring(err), table.concat({ ... }, " or ")), 0)
  end

  local function whole(value, err, where)
    assert.is_truthy(value, where .. ": " .. tostring(err))
  end

  -- Nobody runs in the sandbox any more that has this in its command line.
  local function assert_ended(pattern, where)
    assert.is_true(serve.has_ended(there, pattern), where .. ": " .. pattern .. " goes on")
  end

  -- ---- the calls: what each is spoiled at, what it does, and what has to be so after a cut ----

  -- `method`, `path`, `skip`: the request that is meant. `run(n, timeout, with)`: a value, or nil and an error; n is different
  -- each time, `with` is what `prepare()` gave on a good connection. `check(n, value, err, where, with)` after a cut or a
  -- page, `after(n, with, value)` after all else; `first()` before all, `last()` after all. `sure`: a cut does not keep it
  -- from its end. `limit`: seconds it is given where it is cut. `few`: the side of which a cut takes seconds, since it
  -- has to be seen that nothing has begun. `unlike`: the page that it is not answered with.
  local calls = {}

  calls["a list"] = {
    method = "GET", path = "^/v2/sandboxes", sure = true,
    run = function(_, timeout)
      return boxes:list { timeout = timeout, labels = { part = "own" } }
    end,
    check = function(_, list, _, where)
      assert.equal(1, #list, where)
      assert.equal("cut", list[1].id, where)
    end,
  }

  calls["what is told of one"] = {
    method = "GET", path = "^/sandboxes/", sure = true,
    run = function(_, timeout)
      return box:info { timeout = timeout }
    end,
    check = function(_, info, _, where)
      assert.equal("running", info.state, where)
      assert.same({ part = "own" }, info.labels, where)
    end,
  }

  local function list_made(n)
    return assert_ok(direct:list { labels = { part = "made" .. n } })
  end

  calls["a create: the program has the sandbox, or there is none"] = {
    method = "POST", path = "^/v2/sandboxes$", limit = 2, few = "request",
    run = function(n, timeout)
      return boxes:create({ lifetime = 120, labels = { part = "made" .. n } }, { timeout = timeout })
    end,
    check = function(n, made, err, where)
      if made then
        local list = list_made(n)
        assert.equal(1, #list, where)
        assert.equal(made.provider_id, list[1].provider_id, where)
        made:close()
        assert_ok(direct:destroy(list[1].id))
      else
        one_of(err, where, "OutcomeUnknown", "Unavailable", "Timeout")
        assert.is_true(helper.eventually(function()
          return #list_made(n) == 0
        end), where .. ": it is there")
      end
    end,
    after = function(n, _, made)
      if made then
        made:close()
      end
      for _, info in ipairs(list_made(n)) do
        assert_ok(direct:destroy(info.id))
      end
    end,
  }

  local ran = {}
  calls["a command: it runs once or not at all"] = {
    path = WORKER,
    run = function(n, timeout)
      return box:exec(("echo x >>/tmp/ran/%d; echo out%d; exit 7"):format(n, n), { timeout = timeout })
    end,
    check = function(n, r, err, where)
      if r then
        assert.equal(7, r.exit_code, where)
        assert.equal(("out%d\n"):format(n), r.stdout, where)
      else
        one_of(err, where, "OutcomeUnknown", "Unavailable")
      end
      ran[n] = { r and "ok" or err.kind, where }
    end,
    last = function()
      assert_ended("echo x >>", "at the end")
      for n, outcome in pairs(ran) do
        local times = #look("cat /tmp/ran/%d 2>/dev/null", n) / 2
        local fits = { ok = times == 1, Unavailable = times == 0, OutcomeUnknown = times <= 1, Protocol = times <= 1 }
        assert.is_true(fits[outcome[1]], ("%s: %s, and it ran %d times"):format(outcome[2], outcome[1], times))
      end
    end,
  }

  for _, method in ipairs { "Start", "SendInput", "CloseStdin" } do
    local name = "/tmp/in/" .. method
    calls[("input (%s): it arrives once or is not known to have"):format(method)] = {
      path = "^/process.Process/" .. method,
      run = function(n, timeout)
        local p, err = box:start(("cat >>%s%d"):format(name, n), { stdin = "pipe", timeout = timeout })
        if not p then
          return nil, err
        end
        local sent
        sent, err = p.stdin:write("hello", { timeout = timeout })
        if sent == 5 then
          p.stdin:close()
          sent, err = p:wait { timeout = timeout }
        else
          sent = nil
        end
        p:close()
        return sent, err
      end,
      check = function(n, r, err, where)
        if not r then
          one_of(err, where, "OutcomeUnknown", "Unavailable", "Closed") -- Closed: its stream is over, nothing was sent
          assert.is_true(helper.eventually(function() -- it may begin late
            return look "pkill -x cat; pgrep -f 'cat >>/tmp/i[n]/'; true" == ""
          end), where .. ": it goes on")
        end
        local got = look("cat %s%d 2>/dev/null", name, n)
        assert.is_true(got == "hello" or not r and got == "", where .. ": " .. got)
      end,
      after = function()
        look "pkill -x cat; true"
      end,
    }
  end

  for what, of in pairs {
    ["a short file, read"] = { path = WORKER, data = SHORT },
    ["a long file, looked at"] = { path = WORKER, data = LARGE },
    ["a long file, read"] = { method = "GET", path = CONTENTS, data = LARGE, unlike = 3 },
  } do
    calls[what .. ": it is whole"] = {
      method = of.method, path = of.path, unlike = of.unlike,
      first = function()
        assert_ok(there.files:write("/tmp/file", of.data))
      end,
      run = function(_, timeout)
        return box.files:read("/tmp/file", { timeout = timeout })
      end,
      check = function(_, data, err, where)
        if data then
          assert.is_true(data == of.data, where .. ": not what is in the file")
        else
          one_of(err, where, "OutcomeUnknown", "Unavailable")
        end
      end,
    }
  end

  for what, of in pairs {
    ["a short file, written"] = { path = WORKER, data = SHORT, few = "request" },
    ["a short file, sent"] = { path = "^/process.Process/SendInput", data = MIDDLE },
    ["a long file, begun"] = { path = WORKER, data = LARGE, few = "request" },
    ["a long file, filled"] = { method = "POST", path = CONTENTS, data = LARGE },
    ["a long file, published"] = { path = WORKER, data = LARGE, skip = 1 },
  } do
    calls[what .. ": it is whole or was not, and nothing lies beside it"] = {
      method = of.method, path = of.path, skip = of.skip, few = of.few,
      run = function(n, timeout)
        return box.files:write("/tmp/w/" .. n, of.data, { timeout = timeout })
      end,
      check = function(n, ok, err, where)
        local data = there.files:read("/tmp/w/" .. n)
        if ok then
          assert.is_true(data == of.data, where .. ": not what was written")
        else
          one_of(err, where, "OutcomeUnknown", "Unavailable")
          assert.is_true(data == nil or data == of.data, where .. ": half of it is there")
        end
        local left
        assert.is_true(helper.eventually(function()
          left = look("ls -A /tmp/w | grep -vx %d; rm -f /tmp/w/%d", n, n)
          return left == ""
        end), where .. ": left over: " .. tostring(left))
      end,
      after = function()
        look "rm -f /tmp/w/* /tmp/w/.sb-*"
      end,
      last = function()
        assert_ended("perl", "at the end")
      end,
    }
  end

  calls["an open file: nobody holds it whom nobody knows"] = {
    path = WORKER,
    first = function()
      assert_ok(there.files:write("/tmp/file", SHORT))
    end,
    run = function(_, timeout)
      local file, err = box.files:open("/tmp/file", "r", { timeout = timeout })
      if not file then
        return nil, err
      end
      local data
      data, err = file:read("a", { timeout = timeout })
      file:close()
      return data, err
    end,
    check = function(_, data, err, where)
      if data then
        assert.equal(SHORT, data, where)
      else
        one_of(err, where, "OutcomeUnknown", "Unavailable")
      end
      assert_ended("perl", where)
    end,
  }

  calls["names of files"] = {
    path = WORKER, sure = true,
    first = function()
      look "mkdir -p /tmp/l; touch /tmp/l/a /tmp/l/b"
    end,
    run = function(_, timeout)
      return box.files:list("/tmp/l", { timeout = timeout })
    end,
    check = function(_, list, _, where)
      assert.equal(2, #list, where)
    end,
  }

  calls["a kill: who is told to be dead is"] = {
    path = WORKER,
    prepare = function()
      return assert_ok(box:start { "sleep", "7300" })
    end,
    run = function(_, timeout, p)
      return p:kill { grace = 0, timeout = timeout }
    end,
    check = function(_, r, err, where, p)
      if r then
        assert.is_truthy(r.signal == "SIGTERM" or r.signal == "SIGKILL", where)
      else
        one_of(err, where, "OutcomeUnknown", "Unavailable")
        look("kill -9 %d; true", p.pid)
      end
      assert_ended("sleep 7300", where)
      p:close()
    end,
    after = function(_, p)
      look("kill -9 %d; true", p.pid)
      p:close()
    end,
  }

  calls["a pause"] = {
    method = "POST", path = "/pause$", sure = true,
    prepare = function()
      return box:info().state == "paused" and assert_ok(box:resume())
    end,
    run = function(_, timeout)
      return box:pause { keep = "memory", timeout = timeout }
    end,
    check = function(_, _, _, where)
      assert.equal("paused", there:info().state, where)
    end,
    last = function()
      assert_ok(box:resume())
    end,
  }

  calls["a destroy"] = {
    method = "DELETE", path = "^/sandboxes/", sure = true,
    prepare = function()
      return assert_ok(direct:create { lifetime = 120 })
    end,
    run = function(_, timeout, other)
      return boxes:destroy(other.id, { timeout = timeout })
    end,
    check = function(_, _, _, where, other)
      assert.equal("NotFound", select(2, direct:info(other.id)).kind, where)
      other:close()
    end,
    after = function(_, other)
      other:close()
      assert_ok(direct:destroy(other.id))
    end,
  }

  -- ---- spoiling them ----

  local counter = 0

  -- One call on a connection that is spoiled by `list`: its outcome, its number, what it was given.
  local function once(call, list, timeout)
    proxy:faults {}
    counter = counter + 1
    local with = call.prepare and call.prepare()
    proxy:log()
    proxy:faults(list)
    local value, err = call.run(counter, timeout, with)
    proxy:faults {}
    return value, err, counter, with
  end

  -- What its request and the answer look like to the proxy when nobody spoils them.
  local function uncut(call)
    local value, err, n, with = once(call, {}, TIMEOUT)
    call.check(n, assert_ok(value, err), nil, "uncut", with)
    local skip = call.skip or 0
    for _, entry in ipairs(proxy:log()) do
      if entry.method == (call.method or "POST") and entry.path:find(call.path) then
        if skip == 0 then
          return entry
        end
        skip = skip - 1
      end
    end
    error("no request fits " .. call.path)
  end

  -- How many bytes of a message are let through: of `length`, `head` of them before its body. `few`: each of them takes
  -- seconds.
  local function positions(length, head, few)
    if not LONG then
      return few and { length - 1 } or { head // 2, head, (head + length) // 2, length - 1 }
    end
    local wanted, at = {}, 0
    while at <= length do
      wanted[#wanted + 1] = at
      at = at + (few and math.max(length // (20 // STEP), 1)
        or at < head + 100 and STEP or math.max(length // (100 // STEP), 1))
    end
    return wanted
  end

  local function fault_of(call, side, at, what, more)
    local fault = { method = call.method, path = call.path, skip = call.skip, side = side, at = at, ["do"] = what }
    for key, value in pairs(more or {}) do
      fault[key] = value
    end
    return fault
  end

  local names = {}
  for name in pairs(calls) do
    names[#names + 1] = name
  end
  table.sort(names)

  for _, name in ipairs(names) do
    local call = calls[name]
    it("cut, " .. name, function()
      if call.first then
        call.first()
      end
      local seen = uncut(call)
      for _, side in ipairs { "request", "answer" } do
        local length = seen[side]
        for i, at in ipairs(positions(length, seen[side .. "_head"], call.few == side)) do
          local cut = i % 2 == 1 and "cut" or "reset"
          local where = ("%s after %d of %d bytes of the %s"):format(cut, at, length, side)
          local value, err, n, with = once(call, { fault_of(call, side, at, cut) }, call.limit or TIMEOUT)
          if value == nil then
            faults.typed(err, where)
          end
          if call.sure then
            whole(value, err, where)
          end
          call.check(n, value, err, where, with)
        end
      end
      if call.last then
        call.last()
      end
    end)
  end

  local function answer_of(status, kind, text)
    return ("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"):format(status, kind, #text, text)
  end

  -- What is put in the place of an answer: pages of something on the way, and what makes no sense.
  local PAGES = {
    answer_of("500 Internal Server Error", "text/html", PAGE), answer_of("503 Service Unavailable", "text/html", PAGE),
    answer_of("200 OK", "text/html", PAGE), -- not for contents of files: they look like that
    answer_of("404 Not Found", "text/html", PAGE),
  }
  local STRANGE = {
    answer_of("200 OK", "application/json", "{}"), answer_of("200 OK", "application/json", "[[[["),
    answer_of("403 Forbidden", "application/json", '{"code":403,"message":"no"}'),
    answer_of("429 Too Many Requests", "application/json", '{"code":429,"message":"slow down"}'),
    answer_of("302 Found", "text/plain", ""), answer_of("999 ", "", ""), "HTTP/1.1 200 OK\r\n\r\n", PAGE, "\0\1\2\r\n\r\n",
  }

  for number, name in ipairs(names) do
    local call = calls[name]
    -- In the short form each call has its share of a list.
    local function share(i, parts)
      return LONG or (i + number) % parts == 0
    end
    it("changed, " .. name, function()
      if call.first then
        call.first()
      end
      local seen = uncut(call)
      local head, length = seen.answer_head, seen.answer
      local function try(list, timeout, where, check)
        local value, err, n, with = once(call, list, timeout)
        if value == nil then
          faults.typed(err, where)
        end
        if check and (value or not call.sure) then
          call.check(n, value, err, where, with)
        elseif call.after then
          call.after(n, with, value)
        end
        return value, err
      end
      for _, side in ipairs { "request", "answer" } do
        local where = "byte by byte, the " .. side
        if seen[side] < 20000 then
          whole(try({ fault_of(call, side, 0, "trickle") }, TIMEOUT, where), nil, where)
        end
        if LONG or side == "answer" then
          local at = seen[side .. "_head"] + 2
          where = ("stalled after %d bytes of the %s"):format(at, side)
          try({ fault_of(call, side, at, "stall") }, STALLED, where)
        end
      end
      for i, text in ipairs(PAGES) do
        if i ~= call.unlike then
          try({ fault_of(call, "answer", 0, "say", { text = text }) }, 5, "page " .. i, true)
        end
      end
      for i, text in ipairs(STRANGE) do
        if share(i, 4) then
          try({ fault_of(call, "answer", 0, "say", { text = text }) }, 5, "strange answer " .. i)
          -- The service's own no is believed: what was begun all the same goes on.
          if call.path == WORKER and text:find('"code"', 1, true) then
            look "pkill -9 perl || true"
          end
        end
      end
      for i, at in ipairs { 3, head + 4, length - 3, 10, head // 2, head - 3, head + 1, head + 9, (head + length) // 2 } do
        for k, change in ipairs { "flip", "drop", "twice", "swap" } do
          if at < length and share(4 * i + k, 17) then
            try({ fault_of(call, "answer", at, change, { len = 2 }) }, STALLED, ("%s at %d of the answer"):format(change, at))
          end
        end
      end
      if call.last then
        call.last()
      end
    end)
  end

  it("leaves no sandbox, no command and no worker behind", function()
    assert.is_true(helper.eventually(function()
      return core.outstanding() == outstanding
    end, 20), "releases are not done")
    local list = assert_ok(direct:list())
    assert.equal(1, #list)
    assert.equal("cut", list[1].id)
    assert.equal(0, #assert_ok(there:processes()))
    assert_ended("perl", "at the end")
  end)
end)
