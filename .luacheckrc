-- The library runs on every Lua: only what all of them have.
std = "min"
max_line_length = 120
self = false
ignore = { "581" } -- not (x > y) is not x <= y: it catches NaN

files["lua/sandbar/openresty.lua"] = { read_globals = { "ngx" } }
files["lua/sandbar/host/openresty.lua"] = { read_globals = { "ngx" } }
files["spec"] = { std = "max+busted", max_line_length = 160 } -- data and whole configurations
files["spec/**/nginx*"] = { std = "ngx_lua+busted" }
files["src/lua"] = { std = "max", globals = { "arg" } }
files["src/main"] = { std = "max", globals = { "arg" } }
files["examples"] = { std = "max" }
files["bench"] = { std = "max", max_line_length = 160 }
files["rockspec/*.rockspec"] = { std = "rockspec" }
-- Annotations: every name is declared, nothing is used.
files["types"] = { ignore = { "211", "212", "241" }, max_line_length = 140 }
