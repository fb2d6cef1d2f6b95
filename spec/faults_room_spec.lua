-- check: only 5.4
-- check: crowds
-- check: limit 400
-- What surrounds a command: the loopbacks a server may be on, what the room has in it, and which descriptors
-- of the host come along (none).
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local sandbar = require "sandbar"

local LOOPBACKS = { "127.0.0.1", "0.0.0.0", "::1", "::" }

describe("the room:", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn, spec)
    inside.with_box(sandboxes, fn, spec)
  end

  local function answering(box)
    local program = inside.program(box, "answer")
    return function(address, port, text, how)
      local p = sandbar.assert(box:start { program, address, tostring(port), text, how })
      assert.equal("up", p.stdout:read("l", { timeout = 10 }), address)
      return p
    end
  end

  local function body(box, port)
    local r, err = box:port(port):fetch { timeout = 10 }
    return r and r.body or err.kind
  end

  it("is short of descriptors in flight: a port's connection waits for the supervisor's answer", function()
    helper.need_user()
    faults.with_root(function(root, own)
      local box = sandbar.assert(own:create {})
      local server = sandbar.assert(box:start({ inside.program(box, "answer"), "127.0.0.1", "3200", "here", "both" }))
      assert.equal("up", server.stdout:read("l", { timeout = 10 }))
      local port = sandbar.assert(box:port(3200))
      sandbar.assert(port:connect { timeout = 10 }):close()
      -- A user may have as many in flight as the one who sends may have open.
      helper.sh("prlimit --pid %d --nofile=500:", assert(faults.supervisor(root)))
      local file = helper.scratch() .. "/crowd"
      local crowd = assert(io.popen(("python3 -c '%s' %s & echo $!; wait"):format(
        "import os, socket, sys, time; a, b = socket.socketpair(); " ..
        "[socket.send_fds(a, [b\"x\"], [0] * 250) for _ in range(3)]; open(sys.argv[1], \"w\").close(); time.sleep(60)", file)))
      local pid = crowd:read("l")
      finally(function()
        helper.shell("kill -9 " .. pid)
        crowd:close()
        os.remove(file)
      end)
      assert.is_truthy(helper.eventually(function() return lfs.attributes(file) end, 20), "no crowd")
      assert.equal("Timeout", select(2, port:connect { timeout = 0.3 }).kind)
      local results = sandbar.assert(sandbar.all {
        function() return { port:connect { timeout = 20 } } end,
        function()
          sandbar.sleep(0.1)
          helper.shell("kill -9 " .. pid)
          return {}
        end,
      })
      local connection = sandbar.assert(results[1][1], results[1][2])
      sandbar.assert(connection:write("GET / HTTP/1.0\r\n\r\n"))
      assert.is_truthy(sandbar.assert(connection:read("a", { timeout = 10 })):find("here", 1, true))
      connection:close()
      sandbar.assert(box:destroy())
      box:close()
    end)
  end)

  describe("the server listens, but on the wrong loopback (B42)", function()
    it("is reached on each of the four addresses, with v6-only on and off", function()
      with_box(function(box)
        local serve = answering(box)
        for i, address in ipairs(LOOPBACKS) do
          for j, how in ipairs { "both", "v6only" } do
            local port = 3000 + 10 * i + j
            serve(address, port, address .. how, how)
            assert.equal(address .. how, body(box, port))
            local connection = sandbar.assert(box:port(port):connect())
            sandbar.assert(connection:write("GET / HTTP/1.0\r\n\r\n"))
            assert.is_truthy(sandbar.assert(connection:read("a", { timeout = 10 })):find(address .. how, 1, true))
            connection:close()
          end
        end
      end)
    end)

    it("is the IPv4 one when both loopbacks have another", function()
      with_box(function(box)
        local serve = answering(box)
        for i, order in ipairs { { "127.0.0.1", "::1" }, { "::1", "127.0.0.1" } } do
          for _, address in ipairs(order) do
            serve(address, 3100 + i, address, "v6only")
          end
          for _ = 1, inside.times(20) do
            assert.equal("127.0.0.1", body(box, 3100 + i))
          end
        end
      end)
    end)

    it("is found again on the other family, and back", function()
      with_box(function(box)
        local serve = answering(box)
        for _ = 1, inside.times(3) do
          for _, address in ipairs(LOOPBACKS) do
            local p = serve(address, 3200, address, "v6only")
            assert.equal(address, body(box, 3200))
            sandbar.assert(p:kill { signal = "KILL" })
            assert.equal("Unavailable", body(box, 3200))
          end
        end
      end)
    end)
  end)

  describe("the room is too bare (B46)", function()
    local function run(box, line, opts)
      local r = sandbar.assert(box:exec(line, opts))
      assert.equal(0, r.exit_code, line .. ": " .. r.stdout .. r.stderr)
      return r.stdout
    end

    it("has both loopbacks up, reachable from inside", function()
      with_box(function(box)
        local serve = answering(box)
        serve("127.0.0.1", 3000, "four")
        serve("::1", 3000, "six", "v6only")
        for address, text in pairs { ["127.0.0.1"] = "four", ["::1"] = "six" } do
          local r = sandbar.assert(box:exec(
            ("exec 3<>/dev/tcp/%s/3000 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"):format(address),
            { shell = "/bin/bash" }))
          assert.is_truthy(r.stdout:find(text, 1, true), address .. ": " .. r.stderr)
        end
      end)
    end)

    it("resolves localhost and its own name, and says at once that it knows no others", function()
      with_box(function(box)
        for _, name in ipairs { "localhost", "$(hostname)" } do
          assert.is_truthy(run(box, "getent ahosts " .. name):find("127.0.0.1", 1, true))
        end
        assert.is_truthy(run(box, "getent ahosts localhost"):find("::1", 1, true))
        local seconds, r = helper.timed(box.exec, box, "getent hosts no-such-name.example", { timeout = 20 })
        assert.is_true(r ~= nil and not r.ok)
        assert.is_true(seconds < 3, "it took " .. seconds)
        -- Nothing of the host's resolver, whatever the host's /etc/resolv.conf is or points to: the address at which a
        -- network policy answers, where there is one.
        assert.equal("nameserver 192.0.0.1\n", run(box, "cat /etc/resolv.conf"))
      end)
    end)

    it("has every device, and they do what they should", function()
      with_box(function(box)
        run(box, "cd /dev && test -c null -a -c zero -a -c full -a -c random -a -c urandom -a -c tty -a -c ptmx")
        run(box, "cd /dev && test -d pts -a -d shm -a -d fd -a -e stdin -a -e stdout -a -e stderr")
        assert.equal("4\n", run(box, "head -c 4 /dev/zero | wc -c"))
        assert.equal("4\n", run(box, "head -c 4 /dev/urandom | wc -c"))
        assert.equal("4\n", run(box, "head -c 4 /dev/random | wc -c"))
        assert.equal("", run(box, "echo x >/dev/null; cat /dev/null"))
        assert.is_false(sandbar.assert(box:exec("echo x >/dev/full")).ok)
        local r = sandbar.assert(box:exec("head -c 1 /dev/zero >/dev/full"))
        assert.is_false(r.ok)
        assert.is_truthy(r.stderr:lower():find("no space", 1, true), r.stderr)
        run(box, "ls -l /dev/fd/0")
        assert.equal("in\n", run(box, "cat /dev/stdin; echo out >/dev/stdout >/dev/stderr", { stdin = "in\n" }))
        -- A terminal pair can be made.
        if sandbar.assert(box:exec("command -v python3")).ok then
          assert.equal("/dev/pts/0\n", run(box, "python3 -c 'import os; print(os.ttyname(os.openpty()[1]))'"))
          run(box, "python3 -c 'import multiprocessing as m; m.Semaphore(1).acquire()'")
        end
      end)
    end)

    it("has shared memory of 512 MiB", function()
      with_box(function(box)
        local size = inside.times(1) > 1 and 256 or 80 -- past 64 MiB in any case
        local line = ("head -c %dM /dev/zero >/dev/shm/f && wc -c </dev/shm/f"):format(size)
        assert.equal(size * 1048576 .. "\n", run(box, line))
        assert.equal("1777\n", run(box, "rm /dev/shm/f; stat -c %a /dev/shm"))
        local r = sandbar.assert(box:exec("truncate -s 600M /dev/shm/f && fallocate -l 600M /dev/shm/f"))
        assert.is_false(r.ok)
        run(box, "rm -f /dev/shm/f")
      end)
    end)

    it("has a sticky /tmp for everybody and a /proc of its own", function()
      with_box(function(box)
        assert.equal("1777\n", run(box, "echo x >/tmp/f && rm /tmp/f && stat -c %a /tmp"))
        local n = tonumber(run(box, "ls -d /proc/[0-9]* | wc -l"))
        assert.is_true(n >= 2 and n <= 5, n .. " processes are seen")
        assert.is_nil(run(box, "cat /proc/self/mounts"):find(helper.scratch(), 1, true))
      end)
    end)

    it("is as it is whatever the host's resolver file is", function()
      helper.need_root()
      -- A mount namespace of our own in which /etc/resolv.conf is a link, a stub, or nothing.
      for _, content in ipairs { "ln -s /run/nowhere/resolv.conf", "printf 'nameserver 127.0.0.53\\n' >", ": >" } do
        local dir = helper.dir("etc")
        local code = helper.write_file(dir .. "/child.lua", [[
          local sandbar = require "sandbar"
          local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
          local box = sandbar.assert(sandboxes:create_scoped {})
          io.write(sandbar.assert(box:exec("cat /etc/resolv.conf; getent hosts localhost | wc -l")).stdout)
          box:close()
        ]])
        local out, status = helper.shell(([[unshare -m sh -ec '
            cp -a /etc %s/etc && cd %s && rm -f etc/resolv.conf && %s etc/resolv.conf
            mount --bind etc /etc && exec timeout 30 %s %s %s']]):format(
          dir, dir, (content:gsub("'", "'\\''")), helper.interpreter(), code, helper.dir("root")))
        if status ~= 0 and out:find("unshare", 1, true) then
          helper.skip("no mount namespace can be made here: " .. out)
        end
        assert.equal("nameserver 192.0.0.1\n1\n", out)
        helper.remove(dir .. "/etc")
      end
    end)
  end)

  describe("children that keep the host's sockets (B49)", function()
    local PRELUDE = [[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
    ]]

    -- Runs Lua code under hoard; returns output and status.
    local function hoarding(port, count, code)
      local dir = helper.dir("hoard")
      local file = helper.write_file(dir .. "/child.lua", PRELUDE .. code)
      local out, status = helper.shell(("timeout 60 %s %d %d %s/file %s %s %s"):format(
        helper.quote(inside.built("hoard")), port, count, dir, helper.quote(helper.interpreter()), file,
        helper.quote(helper.root())))
      return out, status
    end

    it("gives a command 0, 1, 2 and nothing else, whatever the host has open", function()
      local out = hoarding(0, 20, [[
        local box = sandbar.assert(sandboxes:create_scoped {})
        for _, opts in ipairs { {}, { stdin = "x" }, { stdout = "ignore", stderr = "stdout" } } do
          local r = sandbar.assert(box:exec("ls /proc/self/fd | tr '\\n' ' ' >&2", opts))
          io.write(r.stderr, r.stdout, "|")
        end
        local p = sandbar.assert(box:start({ "sleep", "60" }, { stdin = "pipe" }))
        io.write(sandbar.assert(box:exec { "ls", "/proc/" .. p.pid .. "/fd" }).stdout, "|")
        io.write(sandbar.assert(box:exec { { "true" }, { "ls", "/proc/self/fd" } }).stdout)
        box:close()
      ]])
      assert.equal("0 1 2 3 |0 1 2 3 ||0\n1\n2\n|0\n1\n2\n3\n", out)
    end)

    it("keeps them from pid 1 and the supervisor as well", function()
      local out = hoarding(0, 20, [[
        local box = sandbar.assert(sandboxes:create_scoped {})
        local marks = {}
        for _, pid in ipairs { "self", arg[1] } do marks[pid] = true end
        local port = os.getenv("HOARD_PORT")
        -- The listening socket's inode, and who else of the machine has it.
        local inode
        for line in io.lines("/proc/net/tcp") do
          local at, state, found = line:match("^%s*%d+: %x+:(%x+) %x+:%x+ (%x+) .- (%d+) %d+ %x+ ")
          local words = {}
          for word in line:gmatch("%S+") do words[#words + 1] = word end
          if at and tonumber(at, 16) == tonumber(port) and words[4] == "0A" then inode = words[10] end
        end
        assert(inode, "no listening socket")
        local f = io.popen("for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q 'socket:.\\(" .. inode
          .. "\\)' && tr '\\0' ' ' <$p/cmdline | cut -c1-40; done")
        io.write(f:read("a"))
        f:close()
        box:close()
      ]])
      for line in out:gmatch("[^\n]+") do
        assert.is_nil(line:find("^sandbar") or line:find("^init"), "it is held by " .. line)
        assert.is_truthy(line:find("lua", 1, true) or line:find("sh ", 1, true), out)
      end
      assert.is_truthy(out:find("lua", 1, true), out)
    end)

    it("lets the host listen on its port again after its end, with a command running on", function()
      local root = helper.root()
      local out = hoarding(0, 0, [[
        local box = sandbar.assert(sandboxes:create { id = "long" })
        local p = sandbar.assert(box:start({ "sleep", "4949" }, { detached = true }))
        io.write(os.getenv("HOARD_PORT"))
        io.stdout:flush()
        os.exit(0, false)
      ]])
      local port = assert(tonumber(out), out)
      local again, status = hoarding(port, 0, [[
        local box = sandbar.assert(sandboxes:connect("long"))
        io.write(sandbar.assert(box:exec("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '4[9]49'")).stdout)
        sandbar.assert(box:destroy())
      ]])
      assert.equal(0, status, again)
      assert.equal("1\n", again)
      assert.is_truthy(root)
    end)

    it("does not mix the pipes of concurrent starts", function()
      with_box(function(box)
        for _ = 1, inside.times(10) do
          local reader, sleeper, other
          sandbar.assert(sandbar.all {
            function() reader = sandbar.assert(box:start({ "cat" }, { stdin = "pipe" })) return true end,
            function() sleeper = sandbar.assert(box:start { "sleep", "60" }) return true end,
            function() other = sandbar.assert(box:start { "sleep", "60" }) return true end,
          })
          reader.stdin:close()
          assert.equal("", sandbar.assert(reader.stdout:read("a", { timeout = 2 })))
          assert.is_true(sandbar.assert(reader:wait { timeout = 2 }).ok)
          assert.is_true(reader.stdin:close())
          sleeper:kill { signal = "KILL" }
          other:kill { signal = "KILL" }
        end
      end)
    end)

    it("starts as fast with 4000 descriptors open", function()
      local code = [[
        local core = require "sandbar.core"
        local began = core.now()
        local box = sandbar.assert(sandboxes:create_scoped {})
        sandbar.assert(box:exec("true"))
        local first = core.now() - began
        local times = {}
        for i = 1, 41 do
          began = core.now()
          sandbar.assert(box:exec { "true" })
          times[i] = core.now() - began
        end
        table.sort(times)
        print(first, times[21])
        box:close()
      ]]
      local function measure(count)
        local out = hoarding(0, count, code)
        if out:find("Too many open files", 1, true) then
          helper.skip("the limit of open files is below 4000 here")
        end
        local first, median = out:match("(%S+)%s+(%S+)")
        assert.is_truthy(tonumber(median), out)
        return tonumber(first), tonumber(median)
      end
      local few_first, few = measure(0)
      local many_first, many = measure(4000)
      assert.is_true(many < 2 * few + 0.005, ("%.4f s instead of %.4f s"):format(many, few))
      assert.is_true(many_first < few_first + 1, ("%.3f s instead of %.3f s"):format(many_first, few_first))
    end)
  end)
end)
