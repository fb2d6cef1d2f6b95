-- The service filesystem.Filesystem: entries, directories, moves and watches. Contexts are those of process.lua.

local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local pace = require "sandbar.server.pace"
local tree = require "sandbar.server.envd.tree"
local users = require "sandbar.server.envd.users"
local watching = require "sandbar.server.envd.watching"

local failure = connect.failure

local filesystem = {}

-- The user of a call and the absolute path of what it names; nil and a failure.
local function place(context, path)
  local user, err = users.find(context.box, users.named(context.headers))
  if not user then
    return nil, err
  end
  local full
  full, err = users.path(path or "", user, context.workdir)
  if not full then
    return nil, err
  end
  return user, full
end

local function run_stat(context, m)
  local user, path = place(context, m.path)
  if not user then
    return nil, path
  end
  local entry, err = tree.entry(context.box, path)
  if not entry then
    return nil, tree.failure(err, path)
  end
  return { entry = entry }
end

local function run_make(context, m)
  local user, path = place(context, m.path)
  if not user then
    return nil, path
  end
  local there = context.box.files:stat(path, tree.ROOT)
  if there then
    return nil, there.type == "directory" and failure("already_exists", ("directory already exists: %s"):format(path))
      or failure("invalid_argument", ("path already exists but it is not a directory: %s"):format(path))
  end
  local made, err = tree.make(context.box, path, user)
  if made == nil then
    return nil, err.code == "ENOTDIR" and failure("internal", err.message) or tree.failure(err, path)
  elseif not made then
    return nil, failure("already_exists", ("directory already exists: %s"):format(path))
  end
  return run_stat(context, m)
end

local function run_move(context, m)
  local user, from = place(context, m.source)
  if not user then
    return nil, from
  end
  local to, err = users.path(m.destination or "", user, context.workdir)
  if not to then
    return nil, err
  end
  local ok
  ok, err = context.box.files:stat(from, tree.AT)
  if not ok then
    return nil, tree.failure(err, from)
  end
  ok, err = tree.make(context.box, tree.parent(to), user)
  if ok == nil then
    return nil, failure("internal", err.message)
  end
  ok, err = context.box.files:move(from, to, tree.ROOT)
  if not ok then
    return nil, failure("internal", err.message)
  end
  return run_stat(context, { path = to })
end

-- Depth first, names in order: what is in a directory comes behind it.
local function before(a, b)
  return a.order < b.order
end

local function run_list(context, m)
  local user, path = place(context, m.path)
  if not user then
    return nil, path
  end
  local depth = m.depth or 0
  local step = pace.new()
  local list, err = tree.list(context.box, path, depth == 0 and 1 or depth, step)
  if not list then
    return nil, tree.failure(err, path)
  end
  local base, paths = path == "/" and "" or path, {}
  for _, e in ipairs(list) do
    step()
    local relative = e.path
    if relative:sub(1, 1) == "/" then
      relative = relative:sub(#base + 2)
    end
    e.order = relative:gsub("/", "\0")
  end
  list = pace.sorted(list, before, step)
  for i, e in ipairs(list) do
    step()
    paths[i] = base .. "/" .. e.order:gsub("%z", "/")
  end
  local entries
  entries, err = tree.entries(context.box, list, paths)
  return entries and { entries = entries[1] and entries }, err
end

local function run_remove(context, m)
  local user, path = place(context, m.path)
  if not user then
    return nil, path
  end
  local ok, err = context.box.files:remove(path, { user = "root", recursive = true })
  if not ok and not (err.kind == "NotFound" and err.path) then
    return nil, err.errno and failure("internal", err.message) or err
  end
  return {}
end

-- ---- watches ----

-- The watch of a request, or nil and a failure.
local function open(context, m)
  local user, path = place(context, m.path)
  if not user then
    return nil, path
  end
  local watch, err = context.box.files:watch(path, { user = "root", recursive = m.recursive == true })
  if not watch then
    return nil, tree.failure(err, path)
  end
  return watch, path
end

local function run_watch(context, m, sink)
  local deadline = context.timeout and core.now() + context.timeout
  local watch, path = open(context, m)
  if not watch then
    return nil, path
  end
  sink:send { start = {} }
  local boxes, entry = context.boxes, context.entry
  boxes:open(entry, sink)
  watching.begin(context.box, watch, path, m.includeEntry, function(event)
    return sink:send { filesystem = event }
  end, function(err)
    if boxes.is_lost(entry, err) then
      sink:cut()
    elseif not sink.closed then
      sink:finish(err)
    end
  end)
  local over = sink:attend({ keepalive = {} }, deadline)
  boxes:close(entry, sink)
  watch:close()
  if over == nil then
    return nil, failure("deadline_exceeded", "context deadline exceeded")
  end
  return true
end

local function run_create_watcher(context, m)
  local watch, path = open(context, m)
  if not watch then
    return nil, path
  end
  local id = watching.create(context.entry, context.box, watch, path, m.includeEntry)
  return { watcherId = id }
end

local function run_watcher_events(context, m)
  local events, err = watching.drain(context.entry, m.watcherId or "")
  return events and { events = events[1] and events }, err
end

local function run_remove_watcher(context, m)
  local ok, err = watching.remove(context.entry, m.watcherId or "")
  return ok and {}, err
end

local function call(name, run, stream)
  return { input = ("filesystem.%sRequest"):format(name), output = ("filesystem.%sResponse"):format(name), run = run,
    stream = stream }
end

-- One whose answer may have any number of something.
local function many(name, list, run)
  local one = call(name, run)
  one.list = list
  return one
end

--- The service's methods by name.
filesystem.calls = {
  Stat = call("Stat", run_stat),
  MakeDir = call("MakeDir", run_make),
  Move = call("Move", run_move),
  ListDir = many("ListDir", "entries", run_list),
  Remove = call("Remove", run_remove),
  WatchDir = call("WatchDir", run_watch, true),
  CreateWatcher = call("CreateWatcher", run_create_watcher),
  GetWatcherEvents = many("GetWatcherEvents", "events", run_watcher_events),
  RemoveWatcher = call("RemoveWatcher", run_remove_watcher),
}

return filesystem
