-- check: no asan
-- check: no user
-- Archives for template builds: how long the server keeps them.

local helper = require "spec.helper"
helper.guard()

local core = require "sandbar.core"
local hosttree = require "sandbar.hosttree"
local sandbar = require "sandbar"
local store = require "sandbar.server.store"
local uploads = require "sandbar.server.control.uploads"

local HASH = ("ab"):rep(32)

describe("an uploaded archive", function()
  local server, dir

  before_each(function()
    dir = helper.dir()
    server = { store = sandbar.assert(store.open(dir)), boxes = { seed = "seed" }, report = error }
  end)
  after_each(function()
    server.store:close()
    helper.remove(dir)
  end)

  -- Asks for the address of an archive, for a template's build. Whether it was there, and its name on the disk.
  local function ask(template, hash)
    local request = { headers = { get = function() return "host" end } }
    local status, answer = uploads.routes["GET /templates/{template}/files/{hash}"] {
      server = server, team = "team", request = request, params = { template = template, hash = hash or HASH },
    }
    assert.equal(201, status)
    return answer.present, answer.url:match("_uploads/([^?]*)")
  end

  -- The same, and it is uploaded.
  local function upload(template)
    local present, name = ask(template)
    assert.is_false(present)
    helper.write_file(server.store.dir .. "/" .. name, "archive")
    return name
  end

  local function is_there()
    return uploads.path(server, "team", HASH) ~= nil
  end

  it("stayed for ever after its build", function()
    upload("one")
    local build = uploads.hold(server, "team", "one", { [HASH] = true })
    assert.is_true(is_there())
    uploads.release(server, build)
    assert.is_false(is_there())
    assert.same({}, server.archives)
  end)

  it("stays while another build uses it, or was told that it is there", function()
    upload("one")
    assert.is_true((ask("two")))
    local one = uploads.hold(server, "team", "one", { [HASH] = true })
    uploads.release(server, one)
    assert.is_true(is_there())
    local two = uploads.hold(server, "team", "two", { [HASH] = true })
    local three = uploads.hold(server, "team", "two", { [HASH] = true })
    uploads.release(server, three)
    assert.is_true(is_there())
    uploads.release(server, two)
    assert.is_false(is_there())
  end)

  it("goes after an hour where no build has come, but not from under one", function()
    upload("one")
    local build = uploads.hold(server, "team", "two", { [HASH] = true })
    core.advance(3601)
    ask("three", ("cd"):rep(32))
    assert.is_true(is_there())
    uploads.release(server, build) -- template one was told of it
    core.advance(3601)
    ask("three", ("ef"):rep(32))
    assert.is_false(is_there())
  end)

  it("of a server before this one goes, whole or not", function()
    upload("one")
    helper.write_file(server.store.dir .. "/part-1234", "half")
    sandbar.assert(uploads.clear(server.store))
    local left = {}
    for _, one in ipairs(sandbar.assert(hosttree.list(server.store.dir, "list"))) do
      left[#left + 1] = one.path
    end
    assert.same({ "", "lock", "seed" }, left)
  end)
end)
