# A small control plane for the specs of the E2B provider: control_plane.py [v1] [tls=FILE] prints the port it listens on and
# its process id, and ends with its parent. What it answers, it has done: sandboxes live in a table, lists are paged, filters are decoded as the
# protocol has it. "v1" knows only the first generation of paths. It misbehaves on request:
#   POST /_faults  a list of { method, path (a regular expression), skip, times, do, ... }; the first that fits is taken. `do`:
#     status   answers `status` with `body`, `type`, `headers` instead of doing anything
#     close, reset, stall   reads the request, then does that instead
#     lose, hold   does it, then closes without an answer, or says nothing;  cut  does it, then sends half of the answer
#     twin     does it, and once more with the same body, `before` or after it
#     pause    pauses the sandbox that the path names before it does anything
#     all      does it as if it had been asked without a filter
#     lie      does it, then answers `status` with a page that is none of ours
#     meet     waits for `count` requests that do the same; 503 when they do not come
#   GET /_log      every request since the last look: method, path, headers, body, running (how many there were then)
import ctypes
import io
import json
import os
import re
import secrets
import signal
import socket
import ssl
import struct
import sys
import tarfile
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, unquote_plus, urlsplit

KEY = "e2b_" + "5a" * 20
BEARER = "sk_e2b_" + "7b" * 20
V1 = "v1" in sys.argv[1:]
lock = threading.RLock()
faults, log, running, meetings = [], [], set(), {}
sandboxes, snapshots, keys, templates, builds, tags, files = {}, {}, {}, {}, {}, {}, {}
templates["base"] = {"templateID": "t" * 20, "names": ["base"]}


def stamp(at):
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")


class Refused(Exception):
    def __init__(self, status, message, **more):
        self.status, self.body = status, dict(code=status, message=message, **more)


def find(name):
    box = sandboxes.get(name.split("-")[0])
    if box is None:
        raise Refused(404, 'sandbox "%s" was not found' % name)
    if time.time() > box["end"] and box["state"] == "running":
        if box["body"].get("autoPause"):
            box["state"] = "paused"
        else:
            del sandboxes[box["id"]]
            raise Refused(404, 'sandbox "%s" was not found' % name)
    return box


def known(reference):
    name = reference.split(":")[0]
    return name in templates or name in [t["templateID"] for t in templates.values()] or reference in snapshots


def create(body, started=None):
    if not known(body.get("templateID", "")):
        raise Refused(404, "template '%s' not found" % body.get("templateID"))
    if body.get("timeout", 300) <= 0 or body.get("timeout", 300) > 86400:
        raise Refused(400, "Timeout cannot be greater than 24 hours")
    name = "i" + secrets.token_hex(10)
    at = started or time.time()
    sandboxes[name] = {
        "id": name, "body": body, "state": "running", "started": at, "end": at + body.get("timeout", 15 if V1 else 300),
        "network": body.get("network"), "internet": body.get("allow_internet_access"), "token": secrets.token_hex(32),
    }
    return name


def private(box):
    return (box["network"] or {}).get("allowPublicTraffic") is False


def answer_of(box):
    return {
        "templateID": "t" * 20, "sandboxID": box["id"], "clientID": "6532622b", "alias": box["body"]["templateID"],
        "envdVersion": "0.6.13", "envdAccessToken": box["token"], "domain": None,
        "trafficAccessToken": "tr" + box["token"] if private(box) else None,
    }


def listed(box):
    return {
        "templateID": "t" * 20, "alias": box["body"]["templateID"], "sandboxID": box["id"], "clientID": "6532622b",
        "startedAt": stamp(box["started"]), "endAt": stamp(box["end"]), "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "envdVersion": "0.6.13", "state": box["state"], "metadata": box["body"].get("metadata", {}),
    }


def detail(box):
    return dict(listed(box), envdAccessToken=box["token"], domain=None, allowInternetAccess=box["internet"],
                network=box["network"], lifecycle={
                    "autoResume": box["body"].get("autoResume", {}).get("enabled", False),
                    "onTimeout": "pause" if box["body"].get("autoPause") else "kill"})


def filtered(query):
    wanted = {}
    if query.get("metadata"):
        for pair in unquote(query["metadata"][0]).split("&"):
            parts = pair.split("=")
            if len(parts) != 2:
                raise Refused(400, "invalid metadata filter")
            wanted[unquote(parts[0])] = unquote_plus(parts[1])
    states = query.get("state", ["running,paused"])[0].split(",")
    limit = int(query.get("limit", ["100"])[0])
    if not 1 <= limit <= 100:
        raise Refused(400, "validation error: limit")
    found = []
    for name in list(sandboxes):
        try:
            box = find(name)
        except Refused:
            continue
        metadata = box["body"].get("metadata", {})
        if box["state"] in states and all(metadata.get(k) == v for k, v in wanted.items()):
            found.append(box)
    found.sort(key=lambda box: (-box["started"], box["id"]))
    start = int(query.get("nextToken", ["0"])[0])
    more = {"X-Next-Token": str(start + limit)} if len(found) > start + limit else {}
    return [listed(box) for box in found[start:start + limit]], more


def with_sandbox(method, name, rest, query, body):
    box = find(name)
    if rest == "" and method == "GET":
        return 200, detail(box), {}
    if rest == "" and method == "DELETE":
        del sandboxes[box["id"]]
        return 204, None, {}
    if rest == "connect":
        status, until = 200, time.time() + body.get("timeout", 300)
        if box["state"] == "paused":
            box["started"], status, box["end"] = time.time(), 201, until
        box["state"], box["end"] = "running", max(box["end"], until)
        return status, answer_of(box), {}
    if rest == "pause":
        if box["state"] == "paused":
            raise Refused(409, "sandbox is already paused")
        box["state"], box["end"], box["kept"] = "paused", time.time(), body.get("memory", True)
        return 204, None, {}
    if box["state"] != "running":
        raise Refused(404 if rest == "timeout" else 409, "sandbox is not running")
    if rest == "timeout":
        box["end"] = time.time() + body["timeout"]
        return 204, None, {}
    if rest == "network" and method == "PUT":
        box["network"] = dict({k: body[k] for k in ("allowOut", "denyOut", "rules") if k in body},
                              allowPublicTraffic=(box["network"] or {}).get("allowPublicTraffic"))
        box["internet"] = body.get("allow_internet_access")
        return 204, None, {}
    if rest == "snapshots":
        own = body.get("name")
        reference = ("team/" + own if own else secrets.token_hex(10)) + ":default"
        snapshots[reference] = {"snapshotID": reference, "names": ["team/" + own] if own else []}
        return 201, snapshots[reference], {}
    if rest == "metrics":
        return 200, [{"timestamp": stamp(at), "timestampUnix": at, "cpuCount": 2, "cpuUsedPct": 12.5, "memUsed": 1 << 28,
                      "memTotal": 1 << 29, "memCache": 4096, "diskUsed": 1 << 33, "diskTotal": 1 << 34}
                     for at in (1700000000, 1700000005)], {}
    if rest == "logs":
        return 200, {"logs": [{"timestamp": "2026-09-01T10:00:00Z", "message": "up", "level": "info",
                               "fields": {"unit": "envd"}}]}, {}
    raise Refused(404, "no such thing")


def with_templates(method, parts, query, body):
    if method == "POST" and parts == ["v3", "templates"]:
        name = body["name"].split(":")[0]
        templates.setdefault(name, {"templateID": secrets.token_hex(10), "names": [name]})
        build = "00000000-0000-4000-8000-" + secrets.token_hex(6)
        builds[build] = {"status": "waiting", "logs": [], "template": templates[name]["templateID"], "body": body}
        return 202, {"templateID": templates[name]["templateID"], "buildID": build, "names": [name], "tags": ["default"],
                     "public": False, "aliases": [name]}, {}
    if method == "POST" and parts[:2] == ["v2", "templates"]:
        build = builds[parts[4]]
        if build["status"] != "waiting":
            raise Refused(400, "build is not in waiting state")
        build["status"], build["start"] = "building", body
        bad = [i + 1 for i, s in enumerate(body["steps"]) if "exit 3" in "".join(s["args"])]
        build["logs"] = [{"timestamp": "2026-09-01T10:00:01Z", "level": "info", "message": "[%d] %s %s" % (
            i + 1, s["type"], " ".join(s["args"])), "step": str(i + 1)} for i, s in enumerate(body["steps"])]
        build["end"] = {"status": "error", "reason": {"message": "failed to run command: exit status 3",
                                                      "step": str(bad[0])}} if bad else {"status": "ready"}
        return 202, None, {}
    if method == "GET" and parts[-1] == "status":
        build = builds[parts[3]]
        at = int(query.get("logsOffset", ["0"])[0])
        page = build["logs"][at:at + 1]
        if build["status"] == "building" and at + 1 >= len(build["logs"]):
            build.update(build["end"])
        return 200, {"templateID": parts[1], "buildID": parts[3], "status": build["status"], "logs": [], "logEntries": page,
                     "reason": build.get("reason")}, {}
    if method == "GET" and parts[2:3] == ["files"]:
        return 201, {"present": True} if parts[3] in files else {
            "present": False, "url": "http://127.0.0.1:%d/upload/%s?sig=a%%2Fb" % (server.server_address[1], parts[3]),
            "headers": {"X-Store": "yes"}}, {}
    if method == "GET" and parts == ["v2", "templates"]:
        return 200, [dict(t, buildID="b", buildStatus="ready", cpuCount=2, memoryMB=512, aliases=t["names"],
                          createdAt="2026-09-01T10:00:00Z") for t in templates.values()], {}
    if method == "DELETE" and parts == ["templates", "tags"]:
        for tag in body["tags"]:
            tags.pop((body["name"], tag), None)
        return 204, None, {}
    if method == "POST" and parts == ["templates", "tags"]:
        for tag in body["tags"]:
            tags[(body["target"].split(":")[0], tag)] = "b"
        return 201, {"buildID": "b", "tags": body["tags"]}, {}
    if method == "GET" and parts[-1] == "tags":
        return 200, [{"tag": tag, "buildID": b, "createdAt": "2026-09-01T10:00:00Z"}
                     for (name, tag), b in sorted(tags.items()) if name == parts[1]], {}
    if method == "DELETE" and len(parts) == 2:
        own = "team/" + parts[1] + ":default"
        if parts[1] in snapshots or own in snapshots:
            del snapshots[parts[1] if parts[1] in snapshots else own]
            return 204, None, {}
        name = parts[1].split(":")[0]
        if name not in templates:
            raise Refused(404, "template '%s' not found" % name)
        if any(box["body"]["templateID"] == name for box in sandboxes.values()):
            raise Refused(400, "cannot delete template because there are running or paused sandboxes using it")
        del templates[name]
        return 204, None, {}
    raise Refused(404, "no such thing")


def with_keys(method, parts, body):
    if method == "POST":
        name = "11111111-1111-4111-8111-" + secrets.token_hex(6)
        keys[name] = {"id": name, "name": body["name"], "createdAt": "2026-09-01T10:00:00Z",
                      "mask": {"prefix": "e2b_", "valueLength": 40, "maskedValuePrefix": "ab", "maskedValueSuffix": "9f01"}}
        return 201, dict(keys[name], key="e2b_" + secrets.token_hex(20)), {}
    if method == "GET":
        return 200, list(keys.values()), {}
    if keys.pop(parts[1], None) is None:
        raise Refused(404, None)
    return 204, None, {}


def serve(method, path, body, authorized):
    url = urlsplit(path)
    query, parts = parse_qs(url.query, keep_blank_values=True), [unquote(p) for p in url.path.strip("/").split("/")]
    if not authorized(parts[0]):
        raise Refused(401, "invalid credentials")
    if parts[0] == "api-keys":
        return with_keys(method, parts, body)
    if "templates" in parts[:2]:
        return with_templates(method, parts, query, body)
    if parts == ["snapshots"]:
        start, limit = int(query.get("nextToken", ["0"])[0]), int(query.get("limit", ["100"])[0])
        found = list(snapshots.values())
        more = {"X-Next-Token": str(start + limit)} if len(found) > start + limit else {}
        return 200, found[start:start + limit], more
    v2 = parts[0] == "v2"
    if v2:
        parts = parts[1:]
    if parts[0] != "sandboxes" or (V1 and v2 and method == "POST"):
        return 404, "404 page not found", {"Content-Type": "text/plain"}
    if len(parts) > 1:
        return with_sandbox(method, parts[1], "/".join(parts[2:]), query, body)
    if method == "POST":
        return 201, answer_of(sandboxes[create(body)]), {}
    return (200,) + filtered(query)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one piece
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def take_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b""
            while True:
                size = int(self.rfile.readline(), 16)
                data += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def say(self, status, body, headers, half=False):
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        kind = {} if body is None or "Content-Type" in headers else {"Content-Type": "application/json"}
        for name, value in dict(kind, **headers).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:len(data) // 2] if half else data)
        self.wfile.flush()
        if half:
            self.end()

    def end(self, reset=False):
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def fault(self):
        with lock:
            for f in faults:
                if f.get("method", self.command) == self.command and re.search(f.get("path", ""), self.path):
                    if f.get("skip", 0) > 0:
                        f["skip"] -= 1
                        continue
                    f["times"] = f.get("times", 1) - 1
                    if f["times"] == 0:
                        faults.remove(f)
                    return f
        return {}

    def answer(self):
        with lock:
            running.add(self)
        try:
            self.answer_one()
        finally:
            with lock:
                running.discard(self)

    def answer_one(self):
        raw = self.take_body()
        body = json.loads(raw) if raw[:1] in (b"{", b"[") else {}
        if self.path == "/_faults":
            with lock:
                faults[:] = body or []
            return self.say(204, None, {})
        if self.path == "/_log":
            with lock:
                told, log[:] = list(log), []
            return self.say(200, told, {})
        if self.command == "PUT" and self.path.startswith("/upload/"):
            with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
                found = [{"name": m.name, "type": m.type.decode(), "mode": m.mode, "link": m.linkname,
                          "text": tar.extractfile(m).read().decode("latin-1") if m.isfile() else ""} for m in tar]
            with lock:
                files[self.path[8:72]] = found
            raw = json.dumps(found).encode()
        with lock:
            log.append({"method": self.command, "path": self.path, "headers": dict(self.headers), "body": raw.decode(),
                        "peer": self.client_address[1], "running": len(running)})
        f = self.fault()
        do = f.get("do")
        if do == "status":
            return self.say(f["status"], f.get("body", {"code": f["status"], "message": f.get("message", "refused")}),
                            dict(f.get("headers", {}), **({"Content-Type": f["type"]} if "type" in f else {})))
        if do in ("close", "reset"):
            return self.end(do == "reset")
        if do == "meet":
            with lock:
                meeting = meetings.setdefault(f["count"], threading.Barrier(f["count"]))
            try:
                meeting.wait(5)
            except threading.BrokenBarrierError:
                return self.say(503, {"code": 503, "message": "nobody else came"}, {})
        if do == "stall":
            self.rfile.read(1)
            return self.end()

        if self.command == "PUT" and self.path.startswith("/upload/"):
            return self.say(200, "", {})

        def authorized(first):
            if first == "api-keys":
                return self.headers.get("Authorization") == "Bearer " + BEARER and self.headers.get("X-Team-ID")
            return self.headers.get("X-API-Key") == KEY

        with lock:
            try:
                if do == "twin" and f.get("before"):
                    create(body, time.time() - 5)
                if do == "pause":
                    find(self.path.split("/sandboxes/")[1].split("/")[0])["state"] = "paused"
                path = self.path.split("?")[0] if do == "all" else self.path
                done = serve(self.command, path, body, authorized)
                if do == "twin" and not f.get("before"):
                    create(body, time.time() + 5)
            except Refused as refused:
                done = refused.status, refused.body, {}
                if refused.body["message"] is None:
                    done = refused.status, "id not found", {"Content-Type": "text/plain"}
        if do == "lie":
            done = f["status"], "<html>", {"Content-Type": "text/html"}
        if do in ("lose", "hold"):
            if do == "hold":
                self.rfile.read(1)
            return self.end()
        self.say(*done, half=do == "cut")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


server = Server(("127.0.0.1", 0), Handler)
for argument in sys.argv[1:]:
    if argument.startswith("tls="):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(argument[4:])
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
print(server.server_address[1], os.getpid(), flush=True)
server.serve_forever()
