-- check: only 5.4
-- check: no asan
-- check: no user
-- check: limit 300
-- Both installations give a working library and program outside the source tree.
local helper = require "spec.helper"

local tree = os.getenv("SPEC_TREE") or "."
local q = helper.quote

-- A one-command script, as a user would write it, and how it is run: nothing of the source tree on any path.
local script = [[
local sandbar = require "sandbar"
local sandboxes = sandbar.assert(sandbar.open { root = (...), linger = 0 })
sandbar.scope(function(scope)
  local box = sandbar.assert(sandboxes:create_scoped({}, scope))
  io.write(sandbar.assert(box:exec({ "echo", "from inside" })).stdout)
  io.write("with ", debug.getinfo(sandbar.sleep, "S").source, "\n") -- compiled when it was built
end)
]]

local inside = "from inside\nwith @sandbar/api.lua\n"

local function outside(dir, command)
  return helper.shell(("cd %s && env -i PATH=/usr/bin:/bin HOME=%s %s"):format(q(dir), q(dir), command))
end

describe("installing", function()
  helper.guard()

  local function works(prefix, lua_dir, c_dir)
    local dir = helper.dir("outside")
    local file = helper.write_file(dir .. "/one.lua", script)
    local out, status = outside(dir, ("LUA_PATH=%s LUA_CPATH=%s lua5.4 %s %s"):format(
      q(lua_dir .. "/?.lua;" .. lua_dir .. "/?/init.lua"), q(c_dir .. "/?.so"), q(file), q(helper.root())))
    assert.equal(inside, out)
    assert.equal(0, status)
    out, status = outside(dir, ("%s/bin/sandbar run %s %s"):format(q(prefix), q(file), q(helper.root())))
    assert.equal(inside, out)
    assert.equal(0, status)
    helper.write_file(file, 'print(#assert(require("sandbar.server.page").load()).html > 50000)')
    assert.equal("true\n", (outside(dir, ("%s/bin/sandbar run %s"):format(q(prefix), q(file))))) -- files beside a module
    out, status = outside(dir, q(prefix) .. "/bin/sandbar --version")
    assert.matches("^sandbar %d+%.%d+%.%d+, Lua 5%.4", out)
    assert.equal(0, status)
  end

  it("with make install gives a library and a program that work elsewhere, and is undone", function()
    local prefix = helper.dir("prefix")
    local out, status = helper.shell(("make -C %s LUA=5.4 install PREFIX=%s"):format(q(tree), q(prefix)))
    assert.equal(0, status, out)
    works(prefix, prefix .. "/share/lua/5.4", prefix .. "/lib/lua/5.4")
    out, status = helper.shell(("make -C %s LUA=5.4 uninstall PREFIX=%s"):format(q(tree), q(prefix)))
    assert.equal(0, status, out)
    assert.equal("", (helper.shell("find " .. q(prefix) .. " -type f")))
  end)

  it("below a ~ that no shell has replaced made a directory of that name", function()
    for _, name in ipairs { "PREFIX", "DESTDIR" } do
      local out, status = helper.shell(("make -n -C %s LUA=5.4 install '%s=~/sb' 2>&1"):format(q(tree), name))
      assert.equal(2, status)
      assert.matches("~/sb: the shell has not replaced the ~; write \"$HOME/...\"", out, 1, true)
    end
  end)

  it("of one Lua is undone without the program of another", function()
    local prefix = helper.dir("prefix")
    local out, status = helper.shell(("make -C %s LUA=5.4 install PREFIX=%s"):format(q(tree), q(prefix)))
    assert.equal(0, status, out)
    out, status = helper.shell(("make -C %s LUA=5.3 uninstall PREFIX=%s"):format(q(tree), q(prefix)))
    assert.equal(0, status, out)
    works(prefix, prefix .. "/share/lua/5.4", prefix .. "/lib/lua/5.4")
  end)

  it("for the demo asks for fewer packages than for the checks, all of which are among those", function()
    local function packages(target)
      local found = {}
      for name in helper.sh("make -C %s -n LUA=5.4 %s", q(tree), target):match("%.ci/deps ([^\n]*)"):gmatch("%S+") do
        found[name] = true
      end
      return found
    end
    local all, few = packages "deps", packages "demo"
    assert.is_true(few.gcc and few["lua5.4"] and all.valgrind and all["nginx-light"])
    assert.is_nil(few.valgrind or few["nginx-light"] or few.luajit2)
    for name in pairs(few) do
      assert.is_true(all[name], name)
    end
  end)

  it("of one Lua is not loaded into another without a word of that", function()
    local lua = helper.interpreter "5.1"
    local env = { LUA_PATH = tree .. "/lua/?.lua;" .. tree .. "/lua/?/init.lua", LUA_CPATH = tree .. "/build/5.4/?.so" }
    local r = helper.run_lua('require "sandbar"', { interpreter = lua, env = env })
    assert.equal(1, r.code)
    assert.matches("core.so was built for Lua 5.4, and this is Lua 5.1: ", r.stderr, 1, true)
    for _, words in ipairs { "--version", "run /dev/null", "template list" } do
      local out, status = helper.shell(("LUA_PATH=%s LUA_CPATH=%s %s %s/src/main/sandbar.lua %s"):format(q(env.LUA_PATH),
        q(env.LUA_CPATH), q(lua), q(tree), words))
      assert.equal(1, status)
      assert.matches("^sandbar: core.so was built for Lua 5.4, and this is Lua 5.1: ", out)
    end
  end)

  it("with DESTDIR puts everything below it and bakes in the final place", function()
    local stage = helper.dir("stage")
    local out, status = helper.shell(("make -C %s LUA=5.4 install PREFIX=/usr DESTDIR=%s"):format(q(tree), q(stage)))
    assert.equal(0, status, out)
    local program = helper.read_file(stage .. "/usr/bin/sandbar")
    assert.matches('lua = "/usr/share/lua/5.4"', program, 1, true)
    assert.is_nil(program:find(stage, 1, true))
  end)

  it("with luarocks make builds from the sources alone and gives the same", function()
    helper.need_program("luarocks")
    local source, rocks = helper.dir("source"), helper.dir("rocks")
    helper.shell(("cd %s && cp -r src lua rockspec Makefile README.md LICENSE %s"):format(q(tree), q(source)))
    local out, status = helper.shell(("cd %s && env -u LUA_PATH -u LUA_CPATH MAKEFLAGS=-j$(nproc) luarocks --lua-version 5.4 make " ..
      "--deps-mode none --tree %s rockspec/sandbar-scm-1.rockspec"):format(q(source), q(rocks)))
    assert.equal(0, status, out)
    works(rocks, rocks .. "/share/lua/5.4", rocks .. "/lib/lua/5.4")
  end)
end)

describe("the program", function()
  helper.guard()

  local function program(arguments)
    local dir = helper.dir("program")
    return helper.shell(("cd %s && LUA_PATH=%s LUA_CPATH=%s lua5.4 %s %s"):format(q(dir),
      q(os.getenv("LUA_PATH") or ""), q(os.getenv("LUA_CPATH") or ""), q(tree .. "/src/main/sandbar.lua"), arguments))
  end

  it("says what it did not understand, and fails", function()
    local MISTAKES = {
      ["walk"] = "unknown command walk", ["run"] = "run: which script?",
      ["serve --lisen 1"] = "serve: unknown option --lisen", ["serve extra"] = "serve: unexpected extra",
      ["serve --listen"] = "serve: --listen without a value",
      ["serve --listen=127.0.0.1:0 --lisen=1"] = "serve: unknown option --lisen=1",
      ["template --root=/tmp list extra"] = "template list: it takes nothing",
      ["template --no-cache=1 build d"] = "template: unknown option --no-cache=1",
      ["template"] = "template: build, list or delete?", ["template frob"] = "template: unexpected frob",
      ["template build --no-chache d"] = "template: unknown option --no-chache",
      ["template list --root"] = "template: --root without a directory",
      ["template list extra"] = "template list: it takes nothing",
    }
    for arguments, why in pairs(MISTAKES) do
      local out, status = program(arguments)
      assert.equal(("sandbar: %s; sandbar --help says how it is used\n"):format(why), out)
      assert.equal(2, status)
    end
    local out, status = program("")
    assert.matches("usage: sandbar run", out, 1, true)
    assert.equal(2, status)
  end)

  it("did not know a value that stands in its option", function()
    for _, arguments in ipairs { "serve --listen=no=where", "serve --listen no=where" } do
      local out, status = program(arguments)
      assert.matches('listen: "no=where" is not an address and a port', out, 1, true)
      assert.equal(1, status)
    end
  end)

  it("says how it is used to whoever asks", function()
    for _, arguments in ipairs { "--help", "-h", "help", "run --help", "serve --help", "template -h" } do
      local out, status = program(arguments .. " 2>/dev/null")
      assert.matches("usage: sandbar run", out, 1, true)
      assert.equal(0, status)
    end
  end)

  it("runs what comes on its standard input", function()
    local out, status = program([[run - one <<'EOF'
print(type(sandbar.open), ...)
EOF]])
    assert.equal("function\tone\n", out)
    assert.equal(0, status)
  end)

  it("is found in the tree that it was built in", function()
    local file = helper.write_file(helper.dir("s") .. "/a.lua", 'print(require("sandbar.core").VERSION ~= nil)')
    local out, status = outside(tree, "lua5.4 src/main/sandbar.lua run " .. q(file))
    assert.equal("true\n", out)
    assert.equal(0, status)
    out = outside("/", ("lua5.4 %s/src/main/sandbar.lua run %s"):format(q(tree), q(file)))
    assert.equal("true\n", out)
  end)

  it("takes no error of a script for an interruption", function()
    local file = helper.write_file(helper.dir("s") .. "/a.lua", 'error("the download was interrupted! see log")')
    local out, status = program("run " .. q(file))
    assert.matches("a.lua:1: the download was interrupted! see log", out, 1, true)
    assert.equal(1, status)
  end)

  it("gives a script its arguments, the library and a root scope", function()
    local file = helper.write_file(helper.dir("s") .. "/a.lua", [[
      assert(arg[1] == "x y" and ... == "x y" and select("#", ...) == 2)
      assert(type(sandbar.open) == "function" and scope:state() == "open")
      scope:defer(function(exit) print("closed", exit.ok) end)
    ]])
    local out, status = program("run " .. q(file) .. " 'x y' z")
    assert.equal("closed\ttrue\n", out)
    assert.equal(0, status)
  end)

  it("closes the root scope and fails when the script raises", function()
    local file = helper.write_file(helper.dir("s") .. "/a.lua", [[
      scope:defer(function(exit) print("closed", exit.ok) end)
      local function inner()
        error("on purpose")
      end
      inner()
    ]])
    local out, status = program("run " .. q(file))
    assert.matches("closed\tfalse\n", out, 1, true)
    assert.matches("a.lua:3: on purpose", out, 1, true)
    assert.matches("a.lua:5: in main chunk", out, 1, true) -- the script's own frames
    assert.equal(1, status)
  end)

  it("closes the root scope when it is interrupted", function()
    local dir = helper.dir("s")
    local file = helper.write_file(dir .. "/a.lua", [[
      scope:defer(function(exit) print("closed", exit.ok) end)
      print("up")
      io.stdout:flush()
      sandbar.sleep(60)
    ]])
    local child = helper.start_lua(nil, { file = tree .. "/src/main/sandbar.lua", args = { "run", file } })
    assert.equal("up", child:line())
    child:signal("INT")
    local r = child:wait()
    assert.equal("up\nclosed\tfalse\n", r.stdout)
    assert.equal(130, r.code)
    assert.is_true(r.seconds < 20)
  end)
end)
