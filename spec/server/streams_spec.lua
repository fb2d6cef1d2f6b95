-- check: only 5.4
-- check: no asan
-- What commands write, on its way to the clients of a `sandbar serve`: who listens, who stops, how many there are.
local busted = require "busted"
local helper = require "spec.helper"
local serve = require "spec.support.serve"

local commands = require "spec.support.commands"
local sandbar = require "sandbar"

describe("output of commands through sandbar serve", function()
  local server, client

  setup(function()
    server = serve.start()
  end)

  teardown(function()
    server.stop()
  end)
  helper.guard { each = false }

  busted.before_each(function()
    client = commands.client(server)
  end)

  busted.after_each(function()
    client:close()
  end)

  it("comes whole and in order, in both codecs, both streams beside each other", function()
    local expected = helper.sh("seq 1 200000")
    for _, codec in ipairs { "json", "proto" } do
      local out, ended = client:run("seq 1 200000", codec)
      assert.is_true(out == expected, codec)
      assert.is_true(ended.exited)
      out = client:run("head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait", codec)
      assert.equal(6000000, #out)
    end
  end)

  it("goes to another one who listens from then on, and the first misses nothing", function()
    for _, codec in ipairs { "json", "proto" } do
      local first = client:start("cat", codec, true)
      client:input(first.pid, "one,")
      assert.equal("one,", first:output(4))
      local second = client:connect(first.pid, codec)
      client:input(first.pid, "two,")
      assert.equal("two,", first:output(4))
      assert.equal("two,", second:output(4))
      second:close()
      client:input(first.pid, "three,")
      assert.equal("three,", first:output(6))
      second = client:connect(first.pid, codec)
      first:close()
      client:input(second.pid, "four,")
      assert.equal("four,", second:output(5))
      client:end_input(second.pid)
      local out, ended = second:output()
      assert.equal("", out)
      assert.is_true(ended.exited)
      second:close()
    end
  end)

  it("loses nothing when who listens changes while it flows", function()
    local expected = helper.sh("seq 1 300000")
    local first = client:start("read x; seq 1 300000", "proto", true)
    local others = {}
    client:input(first.pid, "go\n")
    local out = {}
    for i = 1, 10 do
      out[#out + 1] = first:output(20000)
      others[i] = client:connect(first.pid, i % 2 == 0 and "json" or "proto")
      if i > 2 then
        others[i - 2]:close()
      end
    end
    others[9]:close()
    others[10]:close()
    local rest, ended = first:output()
    out[#out + 1] = rest
    assert.is_true(ended.exited)
    assert.is_true(table.concat(out) == expected)
    first:close()
  end)

  it("waits for a client that does not read, and so does its command; nobody else does", function()
    local bytes = 60000000
    local stuck = client:start(("head -c %d /dev/zero; : >/tmp/done"):format(bytes), "proto")
    for i = 1, 20 do
      assert.equal(i .. "\n", (client:run("echo " .. i)))
    end
    assert.equal(404, client:ask("GET", "/files?path=/tmp/done").status)
    local count = 0
    while count < bytes do
      local event = stuck:next()
      assert.is_table(event.data)
      count = count + #event.data.stdout
    end
    assert.equal(bytes, count)
    assert.is_true(stuck:next()["end"].exited)
    assert.equal(200, client:ask("GET", "/files?path=/tmp/done").status)
    stuck:close()
  end)

  it("has signs of life beside it", function()
    client.ping = "0.02"
    local events = client:start("read x; seq 1 20000; read x", "proto", true)
    while not events:next().keepalive do end -- luacheck: ignore 542
    local other = client:connect(events.pid)
    while not other:next().keepalive do end -- luacheck: ignore 542
    client:input(events.pid, "go\n")
    assert.is_true(events:output(108894) == helper.sh("seq 1 20000"))
    client:input(events.pid, "go\n")
    assert.is_true(events:output() == "")
    assert.equal(108894, #other:output())
    events:close()
    other:close()
  end)

  it("stood still for a client that wants signs of life without a pause", function()
    client.ping = "1e-300"
    local events = client:start("read x", "proto", true)
    for i = 1, 5 do
      assert.equal(i .. "\n", (client:run("echo " .. i)))
    end
    events:close()
  end)

  -- Its task asked again and again, without a pause, whether it may send a sign of life.
  it("a client that does not read for longer than a sign of life takes costs nothing", function()
    client.ping = "0.02"
    local first = client:start("head -c 60000000 /dev/zero", "proto")
    local second = client:connect(first.pid)
    for i = 1, 5 do
      assert.equal(i .. "\n", (client:run("echo " .. i)))
    end
    local function ticks()
      local text = helper.read_file(("/proc/%d/stat"):format(server.pid)):match("%) (.*)")
      local user, system = text:match(("%S+ "):rep(11) .. "(%d+) (%d+)")
      return user + system
    end
    local before = ticks()
    sandbar.sleep(0.4)
    assert.is_true(ticks() - before < 20, "of 40")
    first:close()
    second:close()
  end)

  it("has room for many clients that wait, and tells them all", function()
    local first = client:start("cat", "json", true)
    local others = {}
    for i = 1, 40 do
      others[i] = client:connect(first.pid, i % 2 == 0 and "json" or "proto")
    end
    client:input(first.pid, "hello")
    assert.equal("hello", first:output(5))
    client:end_input(first.pid)
    for _, other in ipairs(others) do
      local out, ended = other:output()
      assert.equal("hello", out)
      assert.is_true(ended.exited)
      other:close()
    end
    first:close()
  end)

  it("is each client's own with many at once", function()
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = sandbar.spawn(function()
        for round = 1, 5 do
          assert.equal(("%d %d\n"):format(i, round), (client:run(("echo %d %d"):format(i, round))))
        end
        return true
      end)
    end
    for _, task in ipairs(tasks) do
      sandbar.assert(task:wait())
    end
  end)
end)
