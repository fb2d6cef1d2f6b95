-- What `require "sandbar"` finds. From its second statement on modules come compiled, out of the C half.
local found, core = pcall(require, "sandbar.core")
if not found then
  local other = core:find("undefined symbol: lua", 1, true) and "core.so was built for another Lua than this: "
  error((other or "") .. core, 0)
end
core.carry(package.preload)
return require "sandbar.api"
