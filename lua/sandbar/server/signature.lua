-- Secrets of sandboxes and what is derived from them: tokens, signatures of file links, comparisons that take as long
-- whatever differs.

local http = require "sandbar.http"

local signature = {}

local BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

-- Base64 without the padding.
local function base64(bytes)
  local out = {}
  for i = 1, #bytes, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local value = a * 65536 + (b or 0) * 256 + (c or 0)
    for k = 3, c and 0 or b and 1 or 2, -1 do
      local at = math.floor(value / 64 ^ k) % 64 + 1
      out[#out + 1] = BASE64:sub(at, at)
    end
  end
  return table.concat(out)
end

local function hex(bytes)
  return (bytes:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

signature.hex = hex

--- The SHA-256 of a text, in hexadecimal digits.
function signature.hash(text)
  return hex(http.sha256(text))
end

--- Are both the same? Hashes are compared: where the texts differ tells nothing about either.
function signature.equal(a, b)
  if type(a) ~= "string" or type(b) ~= "string" then
    return false
  end
  local x, y, differ = http.sha256(a), http.sha256(b), 0
  for i = 1, 32 do
    differ = differ + math.abs(x:byte(i) - y:byte(i))
  end
  return differ == 0
end

--- A token for `what`, always the same while the server's seed is. The inner hash has one length, so that no token can
--- be prolonged into another's.
function signature.token(seed, what)
  return hex(http.sha256(seed .. http.sha256(seed .. "\0" .. what)))
end

--- Of a file link: op is "read" or "write", user may be "", expiration is the decimal text or nil.
function signature.of(path, op, user, token, expiration)
  local text = table.concat({ path, op, user, token, expiration }, ":")
  return "v1_" .. base64(http.sha256(text))
end

--- Does a request for a file have the right to it? True, or nil and the refusal's text. `query` is the request's,
--- `given` its token header, `token` the sandbox's, `now` in seconds.
function signature.check(query, op, given, token, now)
  if not token then
    return true
  elseif given then
    if signature.equal(given, token) then
      return true
    end
    return nil, "access token present in header but does not match"
  elseif not query.signature then
    return nil, "missing signature query parameter"
  end
  local expiration = query.signature_expiration
  if expiration == "" then
    expiration = nil
  end
  local right = signature.of(query.path or "", op, query.username or "", token, expiration)
  if not signature.equal(query.signature, right) then
    return nil, "invalid signature"
  elseif expiration and not (tonumber(expiration) and tonumber(expiration) >= now) then
    return nil, "signature is already expired"
  end
  return true
end

return signature
