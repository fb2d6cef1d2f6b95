-- check: netlab
-- check: only 5.4
-- Addresses and names in odd spellings: none is a way around a policy, neither in its lists nor from inside.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local sandbar = require "sandbar"

local assert_ok = sandbar.assert
local with_box, reach, denied = reaching.with_box, reaching.reach, reaching.denied
local OTHER = "198.51.100.99"

describe("an odd spelling", function()
  helper.guard()

  it("in a list is refused, and not taken for a name that nobody has", function()
    local sandboxes = helper.open()
    for _, entry in ipairs {
      "3325256714", "0xc633640a", "030614662012", -- 198.51.100.10 as one number
      "198.51.25610", "198.3367946", "198.51.100", "1", "0306.063.0144.012", "0xc6.0x33.0x64.0xa", "198.51.100.0xa",
      "198.51.100.010", "198.51.100.10.", "198.51.100.256", "198.51.100.10.5", " 198.51.100.10", "198.51.100.10 ",
      "198.51.100.10:80", "198.51.100.10/24", "198.51.100.10/033", "198.51.100.10/33", "198.51.100.0/+24", "198.51.100.0/",
      "[2001:db8:2::10]", "2001:db8:2::10%1", "fe80::1%lo", "2001:db8:2::10/129", "2001:db8:2:::10", "::198.51.100.010",
      "user@good.test", "good.test:80", "http://good.test", "good.test/", "good..test", ".good.test", "good.test..", "*",
      "*.", "**.good.test", "a.*.test", "*good.test", "-good.test", "good-.test", "g\195\182od.test", "good.test\0x",
      "good\226\128\164test", "good\227\128\130test", "good%2etest", "good.test\n", "good .test", "", ".",
    } do
      for _, list in ipairs { "allow", "deny" } do
        local network = { allow = {}, deny = {} }
        network[list] = { entry }
        local box, err = sandboxes:create { network = network }
        assert.is_nil(box, entry)
        assert.equal("InvalidArgument", err.kind, entry)
      end
    end
  end)

  it("of an IPv4 address that a program dials is that address", function()
    with_box({ allow = { "198.51.100.8/29" }, deny = { "198.51.100.11" } }, function(box)
      -- What comes of each, in the program's own reading of it: an address below %d.
      local forms = { "198.51.100.%d", "198.51.%d+25600", "198.%d+3367936", "%d+3325256704", "0xc6.0x33.0x64.%d",
        "0306.063.0144.%d", "0306.0x33.%d+25600" }
      local script = { "try() { (exec 3<>/dev/tcp/$1/7; echo x >&3; read -r line <&3 && echo in || echo out) 2>/dev/null; }" }
      for _, last in ipairs { 10, 11, 99 } do
        for _, form in ipairs(forms) do
          script[#script + 1] = "try " .. form:gsub("%%d%+?(%d*)", function(more)
            return tostring(last + (tonumber(more) or 0))
          end)
        end
        script[#script + 1] = ("try ::ffff:198.51.100.%d; try ::ffff:c633:64%02x; try 0:0:0:0:0:FFFF:198.51.100.%d"):format(
          last, last, last)
      end
      local r = assert_ok(box:exec(table.concat(script, "\n"), { shell = "/bin/bash", timeout = 30 }))
      assert.equal(("in\n"):rep(10) .. ("out\n"):rep(20), r.stdout)
      assert.equal("denied", denied(box, "198.51.100.11").reason)
    end)
  end)

  -- 198.51.100.10, 10.1.0.5, 127.0.0.1, 169.254.169.254 and 203.0.113.2 inside an address of IPv6.
  local V4 = { { 198, 51, 100, 10 }, { 10, 1, 0, 5 }, { 127, 0, 0, 1 }, { 169, 254, 169, 254 }, { 203, 0, 113, 2 } }
  local FORMS = {
    ["compatible"] = "::%02x%02x:%02x%02x",
    ["mapped"] = "::ffff:%02x%02x:%02x%02x",
    ["translated"] = "::ffff:0:%02x%02x:%02x%02x",
    ["NAT64"] = "64:ff9b::%02x%02x:%02x%02x",
    ["NAT64 of a network's own"] = "64:ff9b:1::%02x%02x:%02x%02x",
    ["6to4"] = "2002:%02x%02x:%02x%02x::1",
    ["ISATAP"] = "2001:db8:2::5efe:%02x%02x:%02x%02x",
    ["ISATAP, unique"] = "2001:db8:2::200:5efe:%02x%02x:%02x%02x",
  }

  it("of IPv4 as IPv6 is not a way to what is denied, nor to what nobody reaches", function()
    local deny = {}
    for i, a in ipairs(V4) do
      deny[i] = ("%d.%d.%d.%d"):format(a[1], a[2], a[3], a[4])
    end
    local function try(box, named)
      for what, form in pairs(FORMS) do
        for i = named, #V4 do
          local address = form:format(V4[i][1], V4[i][2], V4[i][3], V4[i][4])
          local word = reach(box, "tcp", address, 7) -- of ::ffff:127.0.0.1 it is the sandbox itself who says so
          assert.is_truthy(word == "reset" or word == "refused", what .. " " .. address .. " " .. word)
          assert.is_truthy(reach(box, "udp", address, 7) ~= "ok", what .. " " .. address)
        end
      end
      local teredo = ("2001:0:cb00:7102:0:ffff:%04x:%04x"):format(0xffff - 0xc633, 0xffff - 0x640a)
      if named == 1 then
        assert.equal("reset", (reach(box, "tcp", teredo, 7)))
      end
      assert.equal("reset", (reach(box, "tcp", "2001:0:7f00:1:0:ffff:0:0", 7)))
    end
    with_box({ allow = { "0.0.0.0/0", "::/0" }, deny = deny }, function(box)
      try(box, 1)
      assert.equal("ok", (reach(box, "tcp", "198.51.100.12", 7)))
      assert.equal("ok", (reach(box, "tcp", "2001:db8:2::5efe", 7)))
    end)
    with_box("allow", function(box)
      try(box, 3)
    end)
  end)

  local HOSTS = { -- as a request names it; else: how it is to be read
    ["good.test"] = true, ["GOOD.TEST"] = true, ["gOOd.test."] = true, ["good.test:80"] = true, ["good.test.:80"] = true,
    ["xn--mnchen-3ya.test"] = "not allowed",
    ["good.test.."] = false, [".good.test"] = false, ["good..test"] = false, ["good.test:"] = false, ["good.test:81"] = false,
    ["good.test:80:80"] = false, ["good.test:+80"] = false, ["good.test:0"] = false, ["good.test:65616"] = false,
    ["good.test/"] = false, ["good.test%00"] = false, ["good%2etest"] = false, ["good.test%2eother.test"] = false,
    ["user@good.test"] = false, ["good.test@other.test"] = false, ["other.test@good.test"] = false,
    ["good.test,other.test"] = false, ["good.test other.test"] = false, ["good.test#"] = false, ["good.test?"] = false,
    ["good.test\\\\"] = false, ["[good.test]"] = false, ["good.test%25lo"] = false, ["g\\xc3\\xb6od.test"] = false,
    ["good\\xe3\\x80\\x82test"] = false, ["\\xef\\xbd\\x87ood.test"] = false, ["good.test\\x00"] = false, [""] = false,
    ["198.51.100.10"] = false, ["3325256714"] = false, ["0xc633640a"] = false, ["0306.063.0144.012"] = false,
    ["198.51.25610"] = false, ["198.51.100.10."] = false, ["[2001:db8:2::10]"] = false, ["2001:db8:2::10"] = false,
    ["[::ffff:198.51.100.10]"] = false, ["[fe80::1%25eth0]"] = false, ["[2001:db8:2::10]:80"] = false,
  }

  it("of a name in a request is the listed name to everybody, or is refused", function()
    with_box({ allow = { "good.test", "*.wide.test" } }, function(box)
      for host, good in pairs(HOSTS) do
        local word, came = reach(box, "tcp", OTHER, 80, reaching.HTTP:format("/", host, ""), "")
        assert.equal(good == true and "ok" or "reset", word, host)
        if good == true then
          assert.is_truthy(came:find("\n198.51.100.10 GET / HTTP/1.1", 1, true), came)
        end
      end
      for target, good in pairs { ["http://good.test/"] = true, ["HTTP://GOOD.test/x"] = true, ["http://good.test"] = true,
        ["http://good.test:80/"] = false, ["http://user@good.test/"] = false, ["http://good.test@other.test/"] = false,
        ["http://other.test\\\\@good.test/"] = false, ["http://other.test#@good.test/"] = false, ["https://good.test/"] = false,
        ["http:good.test/"] = false, ["http:///"] = false, ["good.test/"] = false, ["good.test:80"] = false,
        ["http://198.51.100.10/"] = false, ["http://good.test\\x09/"] = false } do
        local word = reach(box, "tcp", OTHER, 80, reaching.HTTP:format(target, "good.test", ""), "")
        assert.equal(good and "ok" or "reset", word, target)
      end
    end)
  end)

  it("of a name in TLS is the listed name, or is refused", function()
    with_box({ allow = { "good.test" } }, function(box)
      for name, good in pairs { ["good.test"] = true, ["GOOD.test"] = true, ["good.test."] = true, ["good.test.."] = false,
        ["good.test:443"] = false, ["good.test\0"] = false, ["good.test\0.other.test"] = false, [""] = false, ["*.test"] = false,
        ["198.51.100.10"] = false, ["3325256714"] = false, ["0xc633640a"] = false, ["2001:db8:2::10"] = false,
        ["user@good.test"] = false, ["g\195\182od.test"] = false, ["good\227\128\130test"] = false, [" good.test"] = false,
        ["xn--mnchen-3ya.test"] = false } do
        local word, came = reach(box, "tcp", OTHER, 443, (reaching.hello(reaching.sni(name))), "")
        assert.equal(good and "ok" or "reset", word, name)
        assert.is_true(not good or came:find("^198%.51%.100%.10 ") ~= nil)
      end
    end)
  end)
end)
