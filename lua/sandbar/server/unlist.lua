--- Takes a value out of a list, wherever it is by now: where it was, or nil.
return function(list, value)
  for i, one in ipairs(list) do
    if one == value then
      table.remove(list, i)
      return i
    end
  end
end
