-- Pages of any origin may use a sandbox whose token they have: every answer of the daemon to one says so.

local EXPOSED = "Location, Cache-Control, X-Content-Type-Options, Content-Encoding, Connect-Content-Encoding"

local ALLOWED = { ["access-control-allow-origin"] = "*", ["access-control-expose-headers"] = EXPOSED }

local function with(headers)
  local out = {}
  for name, value in pairs(headers or {}) do
    out[name] = value
  end
  for name, value in pairs(ALLOWED) do
    out[name] = value
  end
  return out
end

--- The request as it is, or for one that names an origin an object that answers it so. Headers are given by name.
return function(request)
  if not request.headers:get("origin") then
    return request
  end
  local own = {}
  function own:respond(status, headers, body) -- luacheck: ignore 212
    return request:respond(status, with(headers), body)
  end
  function own:begin(status, headers, first) -- luacheck: ignore 212
    return request:begin(status, with(headers), first)
  end
  return setmetatable(own, {
    __index = function(_, name)
      local value = request[name]
      if type(value) ~= "function" then
        return value
      end
      return function(_, ...)
        return value(request, ...)
      end
    end,
  })
end
