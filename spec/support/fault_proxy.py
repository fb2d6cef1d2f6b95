# Stands between a client of HTTP/1.1 and a server and spoils what goes through it, at a byte of one's choice:
# fault_proxy.py PORT; prints the port it listens on and its process id, and ends with its parent.
#
#   POST /_faults  a list of { method, path (a regular expression), skip, times, side, at, do, ... }; each request is spoiled
#                  by the first that fits it. `side` is "request" or "answer"; after `at` bytes of it have been passed on:
#     cut, reset   closes both connections, the client's with an end or a reset
#     stall        passes nothing on any more, until the client closes
#     drop, twice, swap   leaves the next `len` bytes out, passes them twice, or passes them behind the `len` that follow
#     flip         changes the next byte
#     trickle      goes on a byte at a time
#     say          passes on `text` instead of all the rest, then closes; with at = 0 of a request the server sees nothing
#   GET /_log      since the last look, of each request: method, path, `request` and `answer` (how many bytes of it were
#                  passed on), `request_head` and `answer_head` (how many of these are head), `whole` (all of the request was
#                  passed on), spoiled
import ctypes
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading

SERVER = int(sys.argv[1])
lock = threading.Lock()
faults, log = [], []


class Message:
    """Where a request or an answer ends."""

    def __init__(self):
        self.head, self.left, self.chunked, self.line, self.done = b"", None, False, b"", False

    def feed(self, data):
        """How many bytes of data are part of it."""
        at = 0
        while at < len(data) and not self.done:
            if self.left is None:
                at += self.feed_head(data[at:])
            elif self.left > 0:
                n = min(self.left, len(data) - at)
                self.left -= n
                at += n
                self.done = self.left == 0 and not self.chunked
            else:
                at += self.feed_line(data[at:])
        return at

    def feed_head(self, data):
        before = len(self.head)
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return len(data)
        self.head = self.head[:end + 4]
        fields = self.head.lower()
        length = re.search(rb"\r\ncontent-length: *(\d+)", fields)
        self.chunked = b"\r\ntransfer-encoding: chunked" in fields
        if length:
            self.left = int(length.group(1))
        elif self.chunked or not fields.startswith(b"http/") or re.match(rb"http/1.1 (204|304)", fields):
            self.left = 0
        else:
            self.left = 1 << 62  # until the connection ends
        self.done = self.left == 0 and not self.chunked
        return len(self.head) - before

    def feed_line(self, data):  # of a chunk: its length, the end of the one before, or what stands behind the last
        end = data.find(b"\n") + 1
        self.line += data[:end] if end else data
        if not end:
            return len(data)
        line, self.line = self.line.strip(), b""
        if self.chunked == "last":
            self.done = line == b""
        elif line:
            self.left = int(line.split(b";")[0], 16)
            if self.left == 0:
                self.chunked = "last"
        return end


class Over(Exception):
    """Both connections of it are."""


def rule_for(method, path):
    with lock:
        for fault in faults:
            if re.search(fault["path"], path) and fault.get("method", method) == method and fault["times"] > 0:
                if fault.get("skip", 0) > 0:
                    fault["skip"] -= 1
                    continue
                fault["times"] -= 1
                return dict(fault)
    return None


class Exchange:
    """A request and its answer."""

    def __init__(self, pair):
        self.pair, self.rule, self.entry = pair, None, None
        self.messages = {"request": Message(), "answer": Message()}
        self.held = b""  # of the request as long as its head is not whole, then what waits to be moved

    def take(self, side, data):
        """Passes on what is of this exchange; the rest comes back."""
        message = self.messages[side]
        n = message.feed(data)
        mine, rest = data[:n], data[n:]
        if self.entry is None:
            self.held += mine
            if message.left is None:
                return rest
            method, path, _ = message.head.split(b"\r\n")[0].decode("latin-1").split(" ", 2)
            if path.startswith("/_"):
                mine = self.held
                if message.done:
                    self.pair.control(path, mine[len(message.head):])
                return rest
            self.rule = rule_for(method, path)
            self.entry = dict(method=method, path=path, request=0, answer=0, request_head=len(message.head),
                              answer_head=0, whole=False, spoiled=False)
            with lock:
                log.append(self.entry)
            mine, self.held = self.held, b""
        if side == "answer" and message.left is not None:
            self.entry["answer_head"] = len(message.head)
        self.spoil(side, mine)
        if side == "request":
            self.entry["whole"] = message.done and not (self.rule and self.rule["side"] == side and self.entry["spoiled"])
        return rest

    def over(self):
        return self.messages["answer"].done

    def send(self, side, data):
        self.entry[side] += len(data)
        (self.pair.server if side == "request" else self.pair.client).sendall(data)

    def spoil(self, side, data):
        rule = self.rule
        if rule is None or rule["side"] != side:
            return self.send(side, data)
        do, room = rule["do"], rule["at"] - self.entry[side]
        if room > 0 and not self.entry["spoiled"]:
            self.send(side, data[:room])
            data = data[room:]
            if self.entry[side] < rule["at"]:
                return None
        if self.entry["spoiled"] and do != "trickle":
            return self.send(side, data)
        return getattr(self, "do_" + do)(side, data, rule)

    def do_cut(self, side, data, rule):
        self.entry["spoiled"] = True
        raise Over

    def do_reset(self, side, data, rule):
        self.pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.do_cut(side, data, rule)

    def do_stall(self, side, data, rule):
        self.entry["spoiled"] = True
        while self.pair.client.recv(65536):
            pass
        raise Over

    def do_say(self, side, data, rule):
        self.entry["spoiled"] = True
        self.pair.client.sendall(rule["text"].encode())
        raise Over

    def do_trickle(self, side, data, rule):
        self.entry["spoiled"] = True
        for i in range(len(data)):
            self.send(side, data[i:i + 1])

    def collect(self, side, data, count):
        """As many bytes as are to be moved, once they are there or no more will come; else None."""
        self.held += data
        if len(self.held) < count and not self.messages[side].done:
            return None
        data, self.held = self.held, b""
        self.entry["spoiled"] = len(data) > 0
        return data

    def do_flip(self, side, data, rule):
        data = self.collect(side, data, 1)
        if data:
            self.send(side, bytes([data[0] ^ 0x15]) + data[1:])

    def do_drop(self, side, data, rule):
        data = self.collect(side, data, rule["len"])
        if data:
            self.send(side, data[rule["len"]:])

    def do_twice(self, side, data, rule):
        data = self.collect(side, data, rule["len"])
        if data:
            self.send(side, data[:rule["len"]] + data)

    def do_swap(self, side, data, rule):
        n = rule["len"]
        data = self.collect(side, data, 2 * n)
        if data:
            self.send(side, data[n:2 * n] + data[:n] + data[2 * n:])


class Pair:
    """A client's connection, and the one to the server that it stands for."""

    def __init__(self, client):
        self.client, self.server = client, None

    def control(self, path, body):
        global faults, log
        with lock:
            if path == "/_faults":
                faults = [dict(fault, times=fault.get("times", 1)) for fault in json.loads(body)]
                text = b""
            else:
                text, log = json.dumps(log).encode(), []
        self.client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        self.exchange = None

    def take_request(self, data):
        while data:
            if self.exchange is None or self.exchange.over():
                self.exchange = Exchange(self)
            data = self.exchange.take("request", data)

    def run(self):
        self.exchange = None
        try:
            self.server = socket.create_connection(("127.0.0.1", SERVER))
            self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                ready, _, _ = select.select([self.client, self.server], [], [])
                if self.server in ready:
                    data = self.server.recv(262144)
                    if not data:
                        return
                    if self.exchange is not None and self.exchange.entry is not None:
                        self.exchange.take("answer", data)
                if self.client in ready:
                    data = self.client.recv(262144)
                    if not data:
                        return
                    self.take_request(data)
        except (Over, OSError):
            pass
        finally:
            self.client.close()
            if self.server:
                self.server.close()


listener = socket.create_server(("127.0.0.1", 0), backlog=128)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
print(listener.getsockname()[1], os.getpid(), flush=True)
while True:
    threading.Thread(target=Pair(listener.accept()[0]).run, daemon=True).start()
