-- check: only 5.4
-- check: no asan
-- The official SDK for JavaScript against `sandbar serve`: the cases are in sdk.mjs.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local NPM = "build/npm"

describe("the official SDK on Node", function()
  helper.guard { each = false }

  local missing = helper.read_file(NPM .. "/missing")
  if not helper.read_file(NPM .. "/node_modules/e2b/package.json") then
    it("runs", function()
      helper.skip("needs the npm package e2b: " .. (missing or "run .ci/npm"):gsub("\n", ""))
    end)
    return
  end

  local results, names = {}, {}
  for name in helper.read_file("spec/server/sdk.mjs"):gmatch("\ncases%['([^']+)'%] = ") do
    names[#names + 1] = name
  end

  -- Runs the cases whose names have `only` in them, against a server with these arguments.
  local function run(prefix, only, args, env)
    local server = serve.start(args)
    local out, status = helper.shell(
      ("%s E2B_API_KEY=%s E2B_OTHER_KEY=%s %s node spec/server/sdk.mjs $PWD/%s %s"):format(
        server.set, server.key, server.other_key, env, NPM, only))
    local record = server.stop()
    results.rest = ("node: %s\n%s\nserver: %s"):format(tostring(status), out, record.stderr)
    for _, name in ipairs(names) do
      for verdict, text in out:gmatch("([^\n]*ok) ([^\n]*)") do
        if text:sub(1, #name + 1) == name .. " " or text:sub(1, #name + 1) == name .. ":" then
          results[prefix .. name] = { ok = verdict == "ok", text = text }
        end
      end
    end
  end

  local function check(name)
    local result = results[name]
    assert(result, results.rest)
    assert(result.ok, result.text)
  end

  it("has cases", function()
    assert.is_true(#names > 20)
  end)

  for _, name in ipairs(names) do
    it(name, function()
      if not results.rest then -- all of them at once, and once
        run("", "", nil, "")
      end
      check(name)
    end)
  end

  it("over HTTPS, ports and websockets too", function()
    local pem = helper.scratch() .. "/tls.pem"
    helper.sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=sandbar "
      .. "-addext subjectAltName=IP:127.0.0.1,DNS:*.sandbar.test -keyout %s -out %s.crt 2>/dev/null && cat %s.crt >> %s", pem, pem, pem, pem)
    run("https ", "ports", { "--tls-cert", pem, "--tls-key", pem, "--domain", "sandbar.test" }, "NODE_EXTRA_CA_CERTS=" .. pem .. ".crt")
    os.remove(pem)
    os.remove(pem .. ".crt")
    check("https ports, and websockets over them")
    check("https ports by host name")
  end)
end)
