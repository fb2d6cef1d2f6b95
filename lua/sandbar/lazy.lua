-- Modules that few programs need, loaded at the first use of one of their functions: most of what a script of
-- one command would load it never calls.

local errors = require "sandbar.errors"

--- Stands for the module `name`: lazy("sandbar.port").new(...) loads it. Where it cannot be read just now (a
--- program out of descriptors) its functions answer nil and an error, and the next use tries again.
return function(name)
  return setmetatable({}, {
    __index = function(self, key)
      local ok, module = pcall(require, name)
      if not ok then
        if type(package.loaded[name]) ~= "table" then
          package.loaded[name] = nil -- 5.1 remembers the attempt
        end
        if tostring(module):find("interrupted!$") then -- Ctrl-C
          error(module, 0)
        end
        local err = errors.new {
          kind = "LimitExceeded",
          message = ("%s cannot be loaded: %s"):format(name, tostring(module):match("^[^\n]*")),
        }
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
