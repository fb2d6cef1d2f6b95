--- A new table with what is in the given ones, the later one's where several have it. Not deep; nil counts as empty.
return function(...)
  local to = {}
  for i = 1, select("#", ...) do
    for key, value in pairs((select(i, ...)) or {}) do
      to[key] = value
    end
  end
  return to
end
