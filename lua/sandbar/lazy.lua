-- Modules that few programs need, loaded at the first use of one of their functions: half of what a script of
-- one command took was the reading of modules it never called.

--- Stands for the module `name`: lazy("sandbar.port").new(...) loads it.
return function(name)
  return setmetatable({}, {
    __index = function(self, key)
      local value = require(name)[key]
      rawset(self, key, value) -- what modules export does not change
      return value
    end,
  })
end
