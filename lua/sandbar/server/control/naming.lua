-- What calls of the control plane share that are about one thing which their path names.

local naming = {}

--- A handler: find(ctx) is the thing or nil and a failure, run(ctx, thing) answers for it.
function naming.with(find, run)
  return function(ctx)
    local one, err = find(ctx)
    if not one then
      return nil, err
    end
    return run(ctx, one)
  end
end

return naming
