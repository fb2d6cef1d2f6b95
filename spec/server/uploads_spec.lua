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

local function ends(task)
  local _, err = task:wait { timeout = 10 }
  assert.is_true(err == nil or err.kind == "Cancelled", tostring(err))
end

describe("an uploaded archive", function()
  local server, dir

  before_each(function()
    dir = helper.dir()
    server = { store = sandbar.assert(store.open(dir)), boxes = { seed = "seed" }, report = error }
  end)
  after_each(function()
    local sweeping = server.sweeping
    uploads.stop(server)
    if sweeping then
      ends(sweeping)
    end
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

  -- An hour passes, after which the server has looked at what it keeps.
  local function hour()
    local behind = sandbar.spawn(sandbar.sleep, 61)
    sandbar.sleep(0) -- it has begun
    core.advance(3601)
    ends(behind)
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
    hour()
    assert.is_true(is_there())
    uploads.release(server, build) -- template one was told of it
    local sweeping = server.sweeping
    hour()
    ends(sweeping)
    assert.is_false(is_there())
  end)

  it("stayed until somebody asked for the address of another one", function()
    upload("one")
    local sweeping = server.sweeping
    hour()
    ends(sweeping)
    assert.is_false(is_there())
    assert.is_nil(server.sweeping)
    upload("one")
    assert.truthy(server.sweeping)
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
