-- check: only 5.4
-- One build serves Lua 5.1, LuaJIT and OpenResty, whichever headers it was made with.
local helper = require "spec.helper"
local lfs = require "lfs"

describe("the build for", function()
  helper.guard()
  local build = os.getenv("SPEC_BUILD") or "build"
  local here = lfs.currentdir()
  if build:sub(1, 1) ~= "/" then
    build = here .. "/" .. build
  end

  for _, made_for in ipairs { "5.1", "luajit" } do
    for _, version in ipairs { "5.1", "luajit" } do
      it(made_for .. " loads into " .. version, function()
        if not lfs.attributes(("%s/%s/sandbar/core.so"):format(build, made_for)) then
          helper.skip("there is no build for " .. made_for)
        end
        local interpreter = helper.need_program(version == "luajit" and "luajit" or "lua5.1")
        local program = [[
          local sandbar = require "sandbar"
          require "sandbar.http"
          local core = require "sandbar.core"
          print(core.isyieldable(), coroutine.wrap(function() return core.isyieldable() end)(), tostring(sandbar.secret("long enough")),
            debug.getinfo(sandbar.sleep, "S").source)
        ]]
        local out, status = helper.shell(("LUA_PATH=%s LUA_CPATH=%s %s -e %s"):format(
          helper.quote(here .. "/lua/?.lua;" .. here .. "/lua/?/init.lua;;"),
          helper.quote(("%s/%s/?.so;;"):format(build, made_for)), interpreter, helper.quote(program)))
        -- what one of them has compiled the other cannot run: it takes the sources
        local from = made_for == version and "@sandbar/api.lua" or ("@%s/lua/sandbar/api.lua"):format(here)
        assert.equal(("false\ttrue\tsecret([redacted])\t%s\n"):format(from), out)
        assert.equal(0, status)
      end)
    end
  end
end)
