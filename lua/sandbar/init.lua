-- What `require "sandbar"` finds. From its second statement on modules come compiled, out of the C half.
local found, core = pcall(require, "sandbar.core")
if not found and core:find("undefined symbol: lua", 1, true) then
  local file = io.open(core:match("from file '([^']+)'") or "", "rb")
  local built = file and file:read("*a"):match("sandbar core%.so for (Lua %d%.%d)")
  error(("core.so was built for %s, and this is %s: %s"):format(built or "another Lua", _VERSION, core), 0)
elseif not found then
  error(core, 0)
end
core.carry(package.preload)
return require "sandbar.api"
