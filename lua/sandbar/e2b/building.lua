-- Building a template at the vendor: the steps of a build in its words, the files they copy sent up, the log passed on
-- until it is ready. What would come out otherwise than with the local provider is refused before anything is sent.

local address = require "sandbar.e2b.address"
local archive = require "sandbar.e2b.archive"
local body = require "sandbar.e2b.body"
local digest = require "sandbar.digest"
local errors = require "sandbar.errors"
local fields = require "sandbar.e2b.record"
local filecall = require "sandbar.filecall"
local hosttree = require "sandbar.hosttree"
local http = require "sandbar.http"
local link = require "sandbar.link"
local local_steps = require "sandbar.steps"
local values = require "sandbar.values"
local wait = require "sandbar.wait"

local building = {}

local OP = "templates:build"
local POLL_FIRST, POLL_MOST = 0.2, 2
local MEBIBYTE = 1048576
local TAIL = 20 -- lines of the log in an error

local unsupported = values.unsupported

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- A command as a line for the vendor's shell, which is another one than ours and a login shell: ours runs inside it.
local function line_of(command)
  if command[1] == "line" then
    return "/bin/sh -c " .. quoted(command[2])
  end
  local words = {}
  for i = 2, #command do
    words[#words + 1] = quoted(command[i])
  end
  return table.concat(words, " ")
end

local step_of = {}

-- `user`: the name of the last user step, nil before there is one. Then we are root, and the vendor's `user` is not.
function step_of.run(step, _, user)
  return { type = "RUN", args = { line_of(step.command), not user and "root" or nil } }
end

function step_of.copy(step, deadline)
  local given = step.given
  local mode = given.mode
  if type(mode) == "number" then
    local bits, wrong = filecall.mode_bits(OP, given.to, mode)
    if not bits then
      return nil, wrong
    end
    mode = ("%o"):format(bits)
  end
  local _, name = hosttree.split(given.copy)
  if name == "." or name == ".." or name == "" then
    name = "tree"
  end
  if name:find("[*?%[%]{}!\\]") then
    return unsupported("steps", ("step %d: the vendor takes the name %q for a pattern"):format(step.number, name))
  end
  local hash, err = digest.tree(given.copy, deadline, OP)
  if not hash then
    return nil, err
  end
  local args = { name, given.to, given.owner or "root", mode or "" }
  return { type = "COPY", args = args, filesHash = digest.of { "copy", name, given.to, hash }, path = given.copy,
    name = name }
end

function step_of.env(step)
  local names, args = {}, {}
  for name in pairs(step.given.env) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = step.given.env[name]
    if value:find('[$`\\"]') then
      return unsupported("steps", ("step %d: the vendor's shell would change the value of %s ($, `, \\ or \" in it)"
        ):format(step.number, name))
    end
    args[#args + 1], args[#args + 2] = name, value
  end
  return { type = "ENV", args = args }
end

function step_of.workdir(step, _, user)
  local made = { type = "WORKDIR", args = { step.given.workdir } }
  if not user then -- it would be made for somebody else
    return { type = "RUN", args = { "mkdir -p -- " .. quoted(step.given.workdir), "root" } }, made
  end
  return made
end

function step_of.user(step)
  return { type = "USER", args = { step.given.user } }
end

local function ready_of(list)
  if list[2] == "port" then
    return ('[ -n "$(ss -Htuln sport = :%s)" ]'):format(list[3])
  end
  local command = {}
  for i = 2, #list do
    command[i - 1] = list[i]
  end
  return line_of(command)
end

-- { steps, startCmd, readyCmd } of parsed steps.
local function plan(parsed, deadline)
  local out, user = { steps = body.list {}, numbers = {} }, nil
  for _, step in ipairs(parsed) do
    if step.kind == "start" or step.kind == "ready" then
      if #step.list == 0 then
        return unsupported("steps", ("step %d: what a template starts cannot be taken away here"):format(step.number))
      elseif step.given.timeout ~= nil then
        return unsupported("steps", ("step %d: the vendor waits ten minutes for ready, no other time"):format(
          step.number))
      end
      out[step.kind] = step.kind == "start" and line_of(step.list) or ready_of(step.list)
    else
      local made, more = step_of[step.kind](step, deadline, user)
      if not made then
        return nil, more
      end
      for _, one in ipairs { made, more } do
        one.args = body.list(one.args)
        out.steps[#out.steps + 1] = one
        out.numbers[#out.steps] = step.number -- here and there are not the same
      end
      user = step.kind == "user" and step.given.user or user
    end
  end
  if out.start and not out.ready then
    out.ready = "true" -- else the vendor waits twenty seconds
  end
  return out
end

-- ---- sending up ----

local function upload(client, step, answer, deadline)
  if client.injected then
    return unsupported("transport", "transport: files go to another place than requests, and it cannot")
  end
  local origin, path = address.split(answer.url:gsub("%?.*$", ""), "url")
  if not origin then
    return nil, errors.new { kind = "Protocol", op = OP, message = "the answer names no place for files" }
  end
  local made, err = archive.of(step.path, step.name, deadline, OP)
  if not made then
    return nil, err
  end
  local proxy, port
  proxy, err = client:proxy_for(origin)
  if not err then
    port, err = http.client { url = origin, proxy = proxy, ca_file = client.ca_file }
  end
  if not port then
    return nil, err
  end
  local lines = { { "Content-Length", made.length } }
  for name, value in pairs(type(answer.headers) == "table" and answer.headers or {}) do
    lines[#lines + 1] = { name, value }
  end
  local result
  result, err = http.request(port, {
    method = "PUT", path = (path == "" and "/" or path) .. (answer.url:match("%?.*$") or ""), headers = lines,
    body = made.pieces,
  }, link.left(deadline), OP)
  made.close()
  port:close()
  if not result then
    return nil, err
  elseif result.status < 200 or result.status > 299 then
    return nil, errors.new { kind = "Unavailable", op = OP, status = result.status, step = step.number,
      message = ("the place for files answers %d"):format(result.status) }
  end
  return true
end

local function send_files(client, made, template, deadline)
  local sent = {}
  for _, step in ipairs(made.steps) do
    if step.filesHash and not sent[step.filesHash] then
      local answer, err = client:call {
        op = OP, method = "GET", path = ("/templates/%s/files/%s"):format(template, step.filesHash), repeatable = true,
        timeout = link.left(deadline),
      }
      if not answer then
        return nil, err
      end
      if answer == true or answer.present ~= true then
        local ok = false
        if answer ~= true and type(answer.url) == "string" then
          ok, err = upload(client, step, answer, deadline)
        end
        if not ok then
          return nil, err or errors.new { kind = "Protocol", op = OP, message = "the answer names no place for files" }
        end
      end
      sent[step.filesHash] = true
    end
  end
  return true
end

-- ---- following ----

local function failed(status, lines, numbers)
  local reason = type(status.reason) == "table" and status.reason or {}
  local text = type(reason.message) == "string" and reason.message or "the build has failed"
  local step = numbers[tonumber(reason.step)]
  local tail = {}
  for i = math.max(#lines - TAIL + 1, 1), #lines do
    tail[#tail + 1] = lines[i]
  end
  return nil, errors.new { kind = "CommandFailed", op = OP, step = step, output = table.concat(tail, "\n"),
    message = step and ("step %d: %s"):format(step, text) or text }
end

-- Until it is ready. `tell(event)` hears each line of the log; `numbers`: of the vendor's steps, ours.
local function follow(client, template, build, numbers, tell, deadline, timeout)
  local offset, lines, pause = 0, {}, POLL_FIRST
  while true do
    local status, err = client:call {
      op = OP, method = "GET", path = ("/templates/%s/builds/%s/status"):format(template, build), repeatable = true,
      query = { { "logsOffset", offset } }, timeout = link.left(deadline),
    }
    if not status or status == true then
      return nil, link.told(err, timeout) or errors.new { kind = "Protocol", op = OP, message = "an empty answer" }
    end
    local entries = fields.list(status.logEntries or {}, "table")
    if not entries then
      return nil, errors.new { kind = "Protocol", op = OP, message = "the answer's log makes no sense" }
    end
    for _, entry in ipairs(entries) do
      lines[#lines + 1] = tostring(entry.message)
      tell { line = tostring(entry.message), level = entry.level, step = numbers[tonumber(entry.step)],
        at = fields.time(entry.timestamp) }
    end
    offset = offset + #entries
    local over = status.status == "ready" or status.status == "error"
    if over and #entries == 0 then
      if status.status == "error" then
        return failed(status, lines, numbers)
      end
      return true
    end
    if #entries == 0 then
      local ok
      ok, err = wait.sleep(deadline and math.min(pause, link.left(deadline)) or pause)
      if not ok then
        return nil, err
      end
      pause = math.min(pause * 1.5, POLL_MOST)
      if deadline and link.left(deadline) == 0 then
        return nil, wait.timed_out(OP, "timeout", timeout)
      end
    else
      pause = POLL_FIRST
    end
  end
end

-- ---- all of it ----

local function resources(limits)
  for name in pairs(limits) do
    if name ~= "cpus" and name ~= "memory" then
      return unsupported("limits." .. name, ("limits.%s: a template has cpus and memory"):format(name))
    end
  end
  local memory = limits.memory and limits.memory / MEBIBYTE
  if memory and (memory < 128 or memory % 2 ~= 0) then
    return values.invalid("limits.memory", "limits.memory: 128 MiB or more, in steps of 2 MiB")
  elseif limits.cpus and (limits.cpus < 1 or limits.cpus ~= 1 and limits.cpus % 2 ~= 0) then
    return values.invalid("limits.cpus", "limits.cpus: 1 or an even number")
  end
  return { cpus = limits.cpus, memory = memory }
end

--- Where a build begins: a name, or { image =, username =, password = }.
local function source(from)
  if from == nil or type(from) == "string" then
    return { fromTemplate = from or "base" }
  end
  local out = { fromImage = from.image }
  if from.username ~= nil or from.password ~= nil then
    out.fromImageRegistry = { type = "registry", username = from.username or "", password = from.password or "" }
  end
  return out
end

--- `opts`: as of templates:build, checked. { name, id, build, steps }; or nil and an error.
function building.run(client, opts, timeout)
  local deadline = link.deadline(timeout)
  local parsed, err = local_steps.parse(opts.steps or {})
  if not parsed then
    return nil, err
  end
  local size
  size, err = resources(opts.limits or {})
  if not size then
    return nil, errors.from(err, OP)
  end
  local made
  made, err = plan(parsed, deadline)
  if not made then
    return nil, errors.from(err, OP)
  end
  local begun
  begun, err = client:call {
    op = OP, method = "POST", path = "/v3/templates", timeout = link.left(deadline),
    kinds = { [409] = "AlreadyExists" },
    body = {
      name = opts.name, tags = opts.tags and body.list(opts.tags), cpuCount = size.cpus, memoryMB = size.memory,
    },
  }
  if not begun then
    return nil, link.told(err, timeout)
  elseif begun == true or type(begun.templateID) ~= "string" or type(begun.buildID) ~= "string" then
    return nil, errors.new { kind = "Protocol", op = OP, message = "the answer names no build" }
  end
  local template, build = begun.templateID, begun.buildID
  local ok
  ok, err = send_files(client, made, template, deadline)
  if not ok then
    return nil, link.told(err, timeout)
  end
  local start = source(opts.from)
  start.steps, start.startCmd, start.readyCmd = body.list {}, made.start, made.ready
  for i, step in ipairs(made.steps) do
    start.steps[i] = { type = step.type, args = step.args, filesHash = step.filesHash }
  end
  start.force = opts.cache == false or nil
  ok, err = client:call {
    op = OP, method = "POST", path = ("/v2/templates/%s/builds/%s"):format(template, build), body = start,
    timeout = link.left(deadline),
  }
  if not ok then
    return nil, link.told(err, timeout)
  end
  ok, err = follow(client, template, build, made.numbers, function(event)
    if opts.on_progress then
      event.name, event.steps = opts.name, #parsed
      opts.on_progress(event)
    end
  end, deadline, timeout)
  if not ok then
    return nil, err
  end
  local out = { name = opts.name, id = template, build = build, steps = {} }
  for i, step in ipairs(parsed) do
    out.steps[i] = { kind = step.kind, text = step.text }
  end
  return out
end

return building
