-- Modules that few programs need, loaded at the first use of one of their functions: most of what a script of
-- one command would load it never calls.

local compat = require "sandbar.compat"
local errors = require "sandbar.errors"

--- Stands for the module `name`: lazy("sandbar.port").new(...) loads it. Where it cannot be read just now (a
--- program out of descriptors) its functions answer nil and an error, and the next use tries again.
return function(name)
  return setmetatable({}, {
    __index = function(self, key)
      local module, why = compat.load(name)
      if not module then
        local err = errors.new { kind = "LimitExceeded", message = ("%s cannot be loaded: %s"):format(name, why) }
        return function()
          return nil, err
        end
      end
      local value = module[key]
      rawset(self, key, value) -- what modules export does not change
      return value
    end,
  })
end
