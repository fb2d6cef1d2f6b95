-- check: only 5.4
-- check: no asan
-- check: no user
-- The page of `sandbar serve`: what is sent for it, its terminal on Node, and all of it in a real browser (page.mjs).

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local json = require "sandbar.json"
local signature = require "sandbar.server.signature"

local BROWSERS = { "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome" }

-- Runs cases of a program on Node, all of them once: check(name) for each.
local function cases_of(file, command)
  local names, output = {}, nil
  for name in helper.read_file("spec/server/" .. file):gmatch("\ncases%['([^']+)'%] = ") do
    names[#names + 1] = name
  end
  assert(#names > 5)
  for _, name in ipairs(names) do
    it(name, function()
      output = output or "\n" .. command()
      local _, ending = output:find("\nok " .. name, 1, true)
      assert(ending and output:find("^[ \n]", ending + 1), output)
    end)
  end
end

describe("the page", function()
  local server, port

  setup(function()
    server = serve.start()
    port = http.port { port = tonumber(server.url:match(":(%d+)$")) }
  end)
  teardown(function()
    port:close()
    server.stop()
  end)
  helper.guard { each = false }

  local function ask(method, path, headers)
    local all = { host = server.url:match("//(.*)") }
    for name, value in pairs(headers or {}) do
      all[name] = value
    end
    local r = assert(http.request(port, { method = method, path = path, headers = all }, 20, "ask"))
    return r.status, r.body, r.headers
  end

  it("needs nothing else: no file, no address, no script of another place", function()
    local status, body = ask("GET", "/")
    assert.equal(200, status)
    for place in body:gmatch("https?://[%w.%-]+") do
      assert.equal("http://www.w3.org", place) -- the name of SVG
    end
    assert.is_nil(body:find("%%%u%u+%%"))
    assert.equal(1, select(2, body:gsub("<script", "")))
    assert.equal(1, select(2, body:gsub("</script", "")))
    assert.equal(1, select(2, body:gsub("</style", "")))
  end)

  it("has each of its files in it", function()
    local _, body = ask("GET", "/")
    local count = 0
    for path in helper.sh("ls lua/sandbar/server/page/*.js lua/sandbar/server/page/*.css"):gmatch("%S+") do
      assert(body:find(helper.read_file(path), 1, true), path)
      count = count + 1
    end
    assert.is_true(count > 10)
  end)

  it("is the document that its policy names, to the byte", function()
    local _, body, headers = ask("GET", "/")
    local policy = headers["content-security-policy"]
    for tag, name in pairs { script = "script%-src", style = "style%-src" } do
      local text = body:match("<" .. tag .. "[^>]*>(.-)</" .. tag .. ">")
      assert.equal(http.base64(http.sha256(text)), policy:match(name .. " 'sha256%-([^']+)'"))
    end
    for _, word in ipairs { "default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
      "connect-src 'self'", "require-trusted-types-for 'script'", "trusted-types 'none'" } do
      assert.matches(word, policy, 1, true)
    end
    assert.is_nil(policy:find("unsafe", 1, true))
    assert.equal("nosniff", headers["x-content-type-options"])
    assert.equal("DENY", headers["x-frame-options"])
    assert.equal("no-referrer", headers["referrer-policy"])
    assert.equal("same-origin", headers["cross-origin-opener-policy"])
    assert.equal("text/html; charset=utf-8", headers["content-type"])
  end)

  it("makes no HTML of text", function()
    local _, body = ask("GET", "/")
    for _, word in ipairs { "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
      "srcdoc", "DOMParser", "createContextualFragment", "localStorage" } do
      assert.is_nil(body:find(word, 1, true), word)
    end
    assert.is_nil(body:match("<script.-</script>.*$"):find("%son%a+="))
    assert.is_nil(body:match("^(.-)<script"):find("%son%a+="))
  end)

  it("has no key in it and needs none, its data does", function()
    local _, body = ask("GET", "/", { ["x-api-key"] = server.key })
    assert.is_nil(body:find(server.key, 1, true))
    assert.equal(401, (ask("GET", "/v2/sandboxes")))
    local status, empty = ask("HEAD", "/")
    assert.equal(200, status)
    assert.equal("", empty)
    assert.equal(401, (ask("POST", "/")))
  end)

  it("is not for pages of other origins, nor under a name that was made to lead here", function()
    assert.equal(403, (ask("GET", "/", { origin = "http://evil.test" })))
    assert.equal(403, (ask("GET", "/", { host = "evil.test" })))
    assert.equal(200, (ask("GET", "/", { origin = server.url })))
  end)

  it("shares its origin with no script of a sandbox's: files behind signed links have none of their own", function()
    local r = assert(http.request(port, { method = "POST", path = "/v2/sandboxes", body = '{"templateID":"base"}',
      headers = { host = server.url:match("//(.*)"), ["x-api-key"] = server.key } }, 20, "ask"))
    local made = json.decode(r.body)
    local status, _, headers = ask("GET", "/files?path=/etc/passwd&signature="
      .. signature.of("/etc/passwd", "read", "", made.envdAccessToken):gsub("[+/=]", { ["+"] = "%2B", ["/"] = "%2F", ["="] = "%3D" }))
    assert.equal(200, status)
    assert.equal("sandbox", headers["content-security-policy"])
  end)
end)

describe("the page's terminal", function()
  helper.guard { each = false }

  if not helper.shell("command -v node"):find("node", 1, true) then
    it("runs", function()
      helper.skip("needs node")
    end)
    return
  end
  cases_of("screen.mjs", function()
    return (helper.shell("node spec/server/screen.mjs"))
  end)
end)

describe("in a browser the page", function()
  helper.guard { each = false }

  local browser
  for _, name in ipairs(BROWSERS) do
    local found, status = helper.shell("command -v " .. helper.quote(name))
    browser = browser or status == 0 and found:match("%S+") or nil
  end
  if not browser or not helper.shell("command -v node"):find("node", 1, true) then
    it("works", function()
      helper.skip(browser and "needs node" or "needs a browser: `make browser`")
    end)
    return
  end
  cases_of("page.mjs", function()
    local server, profile = serve.start(), helper.dir("profile")
    local out = helper.shell(("E2B_API_URL=%s E2B_API_KEY=%s node spec/server/page.mjs %s %s"):format(server.url, server.key,
      helper.quote(browser), helper.quote(profile)))
    local record = server.stop()
    helper.shell("rm -rf " .. helper.quote(profile))
    return out .. "\nserver: " .. record.stderr
  end)
end)
