# HTTPS servers of the small world (netlab.c), on 127.0.0.1:8443, with a certificate for tls.test: a request's head is
# sent back in the body. "/close" ends without a word of TLS; an upgrade gets its frames back.
import os
import socket
import ssl
import threading

PEM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tls", "server.pem")


def serve(raw, context):
    with context.wrap_socket(raw, server_side=True) as conn:
        head = b""
        while b"\r\n\r\n" not in head:
            more = conn.recv(65536)
            if not more:
                return
            head += more
        head, rest = head.split(b"\r\n\r\n", 1)
        line = head.split(b"\r\n")[0].split(b" ")
        if b"websocket" in head.lower():
            conn.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            while True:
                more = conn.recv(65536)
                if not more:
                    return
                conn.sendall(more)
        length = 0
        for field in head.split(b"\r\n")[1:]:
            name, value = field.split(b":", 1)
            if name.lower() == b"content-length":
                length = int(value)
        have = len(rest)
        while have < length:
            more = conn.recv(65536)
            if not more:
                return
            have += len(more)
        if line[1].startswith(b"/big"):
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\nConnection: close\r\n\r\n")
            for _ in range(50):
                conn.sendall(b"x" * 100000)
        else:
            body = b"%d %s" % (have, head)
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
        if not line[1].startswith(b"/close"):
            conn.unwrap()


def quietly(raw, context):
    try:
        serve(raw, context)
    except (OSError, ValueError):
        pass
    raw.close()


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(PEM)
context.set_alpn_protocols(["http/1.1"])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8443))
listener.listen(512)
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=quietly, args=(accepted, context), daemon=True).start()
