-- A websocket server for the specs, in Python's standard library: what a path does is in `talk`.

local websocket = {}

--- websocket.py ADDRESS PORT [PEM]: the port it got (of 0, any) is the first line it prints; inside TLS with that
--- certificate and key.
websocket.SERVER = [==[
import base64, hashlib, socket, ssl, struct, sys, threading, time
def head(f):
    lines = []
    while True:
        line = f.readline()
        if line in (b"\r\n", b""): return lines
        lines.append(line.rstrip(b"\r\n"))
class Ws:
    def __init__(self, s, f): self.s, self.f, self.lock = s, f, threading.Lock()
    def frame(self, op, data=b"", fin=1):
        n = len(data)
        size = bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n) if n < 65536 else b"\x7f" + struct.pack(">Q", n)
        with self.lock: self.s.sendall(bytes([fin << 7 | op]) + size + data)
    def read(self):
        a, b = self.f.read(2)
        n = b & 127
        if not b & 128: raise Exception("a client's frame is not masked")
        if n == 126: n = struct.unpack(">H", self.f.read(2))[0]
        elif n == 127: n = struct.unpack(">Q", self.f.read(8))[0]
        mask = self.f.read(4)
        data = self.f.read(n)
        whole = (mask * (n // 4 + 1))[:n]
        data = (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(n, "big")
        return a & 15, data
sent = 0
def talk(ws, path, lines):
    global sent
    if path == "/host":
        ws.frame(1, [l for l in lines if l.lower().startswith(b"host:")][0])
        for l in lines:
            if l.lower().startswith(b"x-"): ws.frame(1, l)
    if path == "/early": pass
    if path == "/fragments":
        for i in range(100):
            ws.frame(1 if i == 0 else 0, b"%03d" % i, 1 if i == 99 else 0)
            if i == 50: ws.frame(9, b"are you there")
        ws.frame(1, b"%d:%s" % ws.read())
    if path == "/big": ws.frame(2, bytes(range(256)) * 4096)
    if path == "/utf8": ws.frame(1, b"\xff\xfe")
    if path == "/masked": ws.s.sendall(b"\x81\x81abcdx")
    if path == "/cut":
        ws.frame(1, b"before"); return
    if path == "/reset":
        ws.frame(1, b"before")
        time.sleep(0.05)
        ws.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); return
    if path == "/code":
        ws.frame(1, b"first"); ws.frame(8, struct.pack(">H", 4001) + "schön".encode()); ws.read(); return
    if path == "/flood":
        while True:
            ws.frame(2, b"x" * 65536); sent += 1
    if path == "/sent": ws.frame(1, b"%d" % sent)
    while True:
        op, data = ws.read()
        if op == 8:
            if path == "/deaf":
                time.sleep(60)
            ws.frame(8, data); return
        if op == 1 and data == b"4001":
            ws.frame(8, struct.pack(">H", 4001) + b"as you like")
            ws.read(); return
        if path == "/slow": time.sleep(0.5)
        if op in (1, 2): ws.frame(op, data)
def serve(s):
    f = s.makefile("rb")
    lines = head(f)
    if not lines: return
    path = lines[0].split()[1].decode()
    fields = {l.split(b":", 1)[0].lower(): l.split(b":", 1)[1].strip() for l in lines[1:]}
    if path == "/plain" or b"upgrade" not in fields:
        body = b"no socket here"
        s.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body); return
    key = base64.b64encode(hashlib.sha1(fields[b"sec-websocket-key"] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    if path == "/liar": key = (b"y" if key[:1] == b"x" else b"x") + key[1:]
    extra = b""
    if path == "/fat": extra = b"".join(b"X-%d: %s\r\n" % (i, b"h" * 1000) for i in range(60))
    if path == "/extension": extra = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
    if path == "/other": extra = b"Sec-WebSocket-Protocol: other\r\n"
    elif b"sec-websocket-protocol" in fields:
        extra = b"Sec-WebSocket-Protocol: " + fields[b"sec-websocket-protocol"].split(b",")[-1].strip() + b"\r\n"
    answer = b"HTTP/1.1 101 Switching\r\nupgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: " \
        + key + b"\r\n" + extra + b"\r\n"
    if path == "/early":
        answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer + b"\x81\x05early\x82\x02\x00\x01"
    if path == "/mute": time.sleep(60)
    if path == "/half": s.sendall(answer[:40]); return
    s.sendall(answer)
    talk(Ws(s, f), path, lines)
def run(s):
    try:
        if tls: s = tls.wrap_socket(s, server_side=True)
        serve(s)
    except (OSError, ValueError, TypeError): pass
    finally:
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
        s.close()
tls = None
if len(sys.argv) > 3:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[3])
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(50)
print(l.getsockname()[1], flush=True)
while True:
    s, _ = l.accept()
    threading.Thread(target=run, args=(s,), daemon=True).start()
]==]

return websocket
