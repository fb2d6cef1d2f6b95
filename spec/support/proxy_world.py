# HTTP proxies for specs of network.upstream_proxy: proxy_world.py FILE serves on ports of every address that it writes to
# FILE, one line "kind port" for each kind, and notes in FILE.seen each request's first line and who logs in. It ends with
# its standard input. Kinds:
#   open, login   connect to what is asked for; "login" only for user with the password "p@ss w:rd", else 407
#   odd           as "open", in pieces, with odd fields, and what the server says in the same piece
#   no, gone, redirect, garbage, giant, early, shut, stall   403; 502; 302; not HTTP; a head without end; the program's
#                 data without an answer before; closes; says nothing
import base64
import os
import socket
import sys
import threading

LOGIN = b"Basic " + base64.b64encode(b"user:p@ss w:rd")
ANSWERS = {
    "no": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n",
    "gone": b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n",
    "garbage": b"SSH-2.0-proxy\r\n\r\n",
    "giant": b"HTTP/1.1 200 OK\r\n" + b"X-Fill: y\r\n" * 20000,
    "early": b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\nsecret of the proxy",
    "shut": b"",
}
lock = threading.Lock()


def note(text):
    with lock, open(sys.argv[1] + ".seen", "a") as f:
        f.write(text + "\n")


def copy(source, sink):
    try:
        while True:
            more = source.recv(65536)
            if not more:
                break
            sink.sendall(more)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def connect(client, target, kind):
    host, port = target.rsplit(":", 1)
    try:
        server = socket.create_connection((host.strip("[]"), int(port)), 5)
    except OSError:
        client.sendall(ANSWERS["gone"])
        return
    server.settimeout(None)
    if kind == "odd":
        first = server.recv(100) if int(port) == 11 else b""
        for piece in (b"HT", b"TP/1.0 20", b"0\r\nX: \r", b"\n\r", b"\n" + first):
            client.sendall(piece)
    else:
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client)
    server.close()


def serve(client, kind):
    head = b""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while b"\r\n\r\n" not in head:
        more = client.recv(65536)
        if not more:
            return
        head += more
    lines = head.split(b"\r\n\r\n", 1)[0].split(b"\r\n")
    login = [x.split(b": ", 1)[1] for x in lines if x.lower().startswith(b"proxy-authorization: ")]
    note("%s %s %s" % (kind, lines[0].decode(), base64.b64decode(login[0].split()[1]).decode() if login else "-"))
    method, target = lines[0].split(b" ")[:2]
    if kind in ANSWERS:
        client.sendall(ANSWERS[kind])
    elif kind == "stall":
        client.recv(1)
    elif kind == "login" and login != [LOGIN]:
        client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
    elif method == b"CONNECT":
        connect(client, target.decode(), kind)


def one(client, kind):
    try:
        serve(client, kind)
    except OSError:
        pass
    client.close()


def listen(listener, kind):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=one, args=(client, kind), daemon=True).start()


ports = []
for kind in ["open", "login", "odd", "stall", *ANSWERS]:
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    ports.append("%s %d\n" % (kind, listener.getsockname()[1]))
    threading.Thread(target=listen, args=(listener, kind), daemon=True).start()
with open(sys.argv[1] + ".new", "w") as f:
    f.writelines(ports)
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.stdin.read()
