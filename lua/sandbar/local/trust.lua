-- The certificate authority of a sandbox whose requests get headers inside TLS: it is made here, its key goes to the
-- relay (src/engine/tlsrelay) and nowhere else, and the sandbox trusts it.

local core = require "sandbar.core"
local compat = require "sandbar.compat"
local errors = require "sandbar.errors"

local trust = {}

-- Where programs look: most read the bundle (other distributions have it elsewhere), OpenSSL the directory.
local BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
local BUNDLES = { BUNDLE, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem" }
local HASHED = "/etc/ssl/certs/%s.0"

local function any(entries, kind)
  for _, entry in ipairs(entries or {}) do
    if type(entry) == "string" and entry:sub(1, 1) == kind then
      return true
    end
  end
  return false
end

-- Whether among these entries of net_inject there is one already.
function trust.has(entries)
  return any(entries, "c")
end

-- Whether there are rules among them.
function trust.is_needed(entries)
  return any(entries, "h")
end

-- Adds one to the entries: what is to be installed, or nil and an error.
function trust.add(entries)
  local http, why = compat.load "sandbar.http"
  if not http then
    return nil, errors.new { kind = "Unsupported", clause = "network.inject", message = "network.inject: " .. why }
  end
  local cert, key, hash = http.authority()
  entries[#entries + 1] = "c" .. cert
  entries[#entries + 1] = { "k", core.secret(key) }
  return { cert = cert, hash = hash }
end

-- Whoever may write there: root, or the one user that there is.
local function put(files, path, text, timeout)
  local done, err = files:write(path, text, { user = "root", mode = "644", timeout = timeout })
  if not done and err.kind == "Unsupported" then
    done, err = files:write(path, text, { mode = "644", timeout = timeout })
  end
  return done, err
end

-- Makes the programs of a sandbox trust it. True, or nil and an error.
function trust.install(files, authority, timeout)
  for _, path in ipairs(BUNDLES) do
    local text, err = files:read(path, { timeout = timeout })
    if not text and err.kind ~= "NotFound" then
      return nil, err
    end
    if text or path == BUNDLE then
      text = text or ""
      local done
      done, err = put(files, path, text .. (text == "" and "" or "\n") .. authority.cert, timeout)
      if not done then
        return nil, err
      end
    end
  end
  local done, err = put(files, HASHED:format(authority.hash), authority.cert, timeout)
  return done and true, err
end

return trust
