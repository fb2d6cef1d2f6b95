-- The modules in Lua come compiled out of core.so, as long as that is what their files say.
local helper = require "spec.helper"

local tree = os.getenv("SPEC_TREE") or "."
if tree:sub(1, 1) ~= "/" then
  tree = require("lfs").currentdir() .. "/" .. tree
end
local q = helper.quote

-- Where the functions of a module are from: "@sandbar/task.lua" out of core.so, else the path of the file.
local PRELUDE = [[
  local function source(module)
    for _, value in pairs(type(module) == "table" and module or { module }) do
      if type(value) == "function" and debug.getinfo(value, "S").what ~= "C" then
        return debug.getinfo(value, "S").source
      end
    end
  end
]]

-- Runs a program with the library's files from elsewhere.
local function run(lua_dir, program)
  local out, status = helper.shell(("LUA_PATH=%s %s -e %s"):format(
    q(lua_dir .. "/?.lua;" .. lua_dir .. "/?/init.lua;;"), helper.interpreter(), q(PRELUDE .. program)))
  assert.equal(0, status, out)
  return out
end

-- A copy of the library's files, with one piece of one file replaced.
local function edited(file, from, to)
  local dir = helper.dir("edited")
  helper.shell(("cp -r %s/lua/sandbar %s/"):format(q(tree), q(dir)))
  local path = ("%s/sandbar/%s"):format(dir, file)
  local text = helper.read_file(path)
  local at, stop = text:find(from, 1, true)
  assert(at, from)
  helper.write_file(path, text:sub(1, at - 1) .. to .. text:sub(stop + 1))
  return dir
end

describe("a module in Lua", function()
  helper.guard()

  it("comes compiled out of core.so, whichever it is (if not: make, the build is older than the files)", function()
    local out = run(tree .. "/lua", [[
      require "sandbar"
      local names = {}
      require("sandbar.core").carry(names)
      for name in pairs(names) do
        local from = not name:match("openresty$") and source(require(name)) -- those load in nginx only
        if from and not from:match("^@sandbar/") then
          print(name, from)
        end
      end
      local function count(t) local n = 0 for _ in pairs(t) do n = n + 1 end return n end
      print(count(names))
    ]])
    local files = helper.shell(("find %s/lua -name '*.lua' | wc -l"):format(q(tree)))
    assert.equal(tonumber(files) - 1, tonumber(out), out) -- init.lua is not carried
  end)

  it("stayed in the program's memory a second time, as the file it was read from", function()
    if os.getenv("SPEC_SANITIZER") == "asan" then
      helper.skip("the sanitizer looks at what core.so carries")
    end
    local out = run(tree .. "/lua", [[
      require "sandbar"
      for _, name in ipairs { "files", "transfer", "process", "policy" } do
        require("sandbar." .. name)
      end
      local ours, kb = false, 0
      for line in io.lines "/proc/self/smaps" do
        local perms = line:match "^%x+%-%x+ (%S+)"
        if perms then
          ours = perms:find("^r%-%-") and line:find("core.so", 1, true)
        elseif ours then
          kb = kb + (tonumber(line:match "^Rss: +(%d+)") or 0)
        end
      end
      print(kb)
    ]])
    assert.is_true(tonumber(out) < 512, out)
  end)

  it("comes from its file once that was edited, the others stay as they are", function()
    local dir = edited("api.lua", "version = core.VERSION", "version = '0.0.0.000'")
    assert.equal(("0.0.0.000 @%s/sandbar/api.lua @sandbar/check.lua\n"):format(dir), run(dir, [[
      local sandbar = require "sandbar"
      io.write(sandbar.version, " ", source(sandbar.open), " ", source(require "sandbar.check"), "\n")
    ]]))
  end)

  it("is seen to be edited by a byte more, a byte less, a byte in the middle", function()
    local last = "return check\n"
    for _, to in ipairs { last .. "\n", "return check", "return check;" } do
      local dir = edited("check.lua", last, to)
      assert.equal(("@%s/sandbar/check.lua"):format(dir), run(dir, [[
        require "sandbar"
        io.write(source(require "sandbar.check"))
      ]]))
    end
  end)

  it("that cannot be compiled says so", function()
    local dir = edited("duration.lua", "local duration = {}", "local duration = = {}")
    assert.matches("^false %S*" .. dir:gsub("%p", "%%%0") .. "/sandbar/duration.lua:%d+: ", run(dir, [[
      local ok, err = pcall(require, "sandbar")
      io.write(tostring(ok), " ", (tostring(err):gsub("^error loading module.-\n%s*", "")))
    ]]))
  end)

  it("loads when no descriptor is left", function()
    local out = helper.shell(("ulimit -n 40; %s -e %s"):format(helper.interpreter(), q [[
      require "sandbar"
      local held = {}
      repeat
        local f = io.open("/dev/null")
        held[#held + 1] = f
      until not f
      print(pcall(require, "sandbar.port"))
    ]]))
    assert.matches("^true\ttable", out)
  end)

  if helper.lua == "5.4" then
    it("has its lines, and no names of locals", function()
      assert.equal("nil true", run(tree .. "/lua", [[
        require "sandbar"
        local parse = require("sandbar.duration").parse
        local lines = 0
        for _ in pairs(debug.getinfo(parse, "L").activelines) do
          lines = lines + 1
        end
        io.write(tostring(debug.getlocal(parse, 1)), " ", tostring(lines > 10))
      ]]))
    end)
  end

  it("that somebody else provides is left to him", function()
    assert.equal("theirs", run(tree .. "/lua", [[
      package.preload["sandbar.port"] = function() return "theirs" end
      require "sandbar"
      io.write((require "sandbar.port"))
    ]]))
  end)

  it("names itself and the line in errors", function()
    assert.matches("^sandbar/errors.lua:%d+: ", run(tree .. "/lua", [[
      require "sandbar"
      io.write(tostring(select(2, pcall(require("sandbar.errors").new))))
    ]]))
  end)
end)
