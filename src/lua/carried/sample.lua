-- Something of everything; no table with several named fields, whose order may differ from run to run.
local upper, count = 1.5, 70000
local function nested(first, ...)
  local list = { first, "text", ... }
  for i = #list, 1, -1 do
    list[i], upper = list[i] or i % 3, upper / 2 - count
  end
  for key, value in pairs(list) do
    if key ~= "name" and not (value == nil) or value < 10 and value >= count or -value <= 2 ^ 8 then
      list.field = function()
        count = count + 1
      end
      break
    end
  end
  repeat
    local inner = first .. "a" .. list[1]
    list = function(...)
      return inner:rep(...), select("#", ...)
    end
  until inner
  return nested(true, list(...))
end
return nested
