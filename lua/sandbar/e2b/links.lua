-- Signed links to files of a hosted sandbox: whoever has one may write or read that file, and nothing else.

local address = require "sandbar.e2b.address"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local http = require "sandbar.http"

local links = {}

local LAST = 253402300799 -- the end of the year 9999

--- `what`: "read" or "write"; `fields`: path, user; `expires`: seconds, or nil. The URL, or nil and an error.
function links.of(to, op, what, fields, expires)
  local native, err = to:native(0, op)
  if not native then
    return nil, errors.from(err, op)
  end
  local driver = to.driver
  local access, base = driver.access, driver.client.sandbox_url
  local token = access.daemon_token
  if not token then
    return nil, errors.new { kind = "Unsupported", op = op, clause = "signed_urls", path = fields.path,
      message = "the sandbox has no token to sign with, and anybody may read and write its files" }
  end
  base = base and base:gsub("/+$", "")
    or "https://" .. address.host(address.DAEMON_PORT, access.vendor_id, access.domain)
  local user = fields.user or ""
  local text, ends_at = ("%s:%s:%s:"):format(fields.path, what, user), nil
  if expires then
    ends_at = ("%.0f"):format(math.min(math.floor(core.wall()) + math.ceil(expires), LAST))
  end
  local hash = ends_at and http.sha256(text, token, ":" .. ends_at) or http.sha256(text, token)
  local query = { { "path", fields.path }, { "signature", "v1_" .. http.base64(hash):gsub("=+$", "") } }
  if user ~= "" then
    table.insert(query, 1, { "username", user })
  end
  if ends_at then
    query[#query + 1] = { "signature_expiration", ends_at }
  end
  return base .. "/files" .. address.query(query)
end

return links
