"""A stand-in for a judge's endpoint: a real HTTP server on loopback that answers by a script.

Each answer is a function of the request's body: it returns text, a grade (a number), or an `Answer`. The last
one of the script answers all further requests.
"""

import json
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict = field(default_factory=dict)
    delay_s: float = 0.0
    cut: int = 0  # bytes that are announced and not sent


def completion(text, finish="stop", model="stand-in-1"):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
    return json.dumps({"model": model, "choices": [choice]}).encode()


def graded(score, reason="so it is"):
    return completion(json.dumps({"reason": reason, "score": score}))


class JudgeServer:
    def __init__(self, *script, port=0):
        self.script = list(script)
        self.requests = []  # (headers, body)
        self.running = self.most_running = 0
        self.connections = []  # all that were ever accepted
        self.gate = threading.Event()  # what an answer that must wait waits for
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                owner.connections.append(self.connection)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.answer(self, body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # a client that gave up
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def answer(self, handler, body):
        with self._lock:
            number = len(self.requests)
            self.requests.append((dict(handler.headers), body))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            step = self.script[min(number, len(self.script) - 1)]
        try:
            found = step(body) if callable(step) else step
            if isinstance(found, (int, float)):
                found = graded(found)
            if isinstance(found, str):
                found = completion(found)
            if isinstance(found, bytes):
                found = Answer(body=found)
            if found.delay_s:
                self.gate.wait(found.delay_s)
        finally:
            with self._lock:
                self.running -= 1
        handler.send_response(found.status)
        handler.send_header("content-length", str(len(found.body) + found.cut))
        for name, value in found.headers.items():
            handler.send_header(name, value)
        if found.cut:
            handler.close_connection = True
        handler.end_headers()
        handler.wfile.write(found.body)


@contextmanager
def served(*script, port=0):
    server = JudgeServer(*script, port=port)
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.server.shutdown()
        server.server.server_close()
        for connection in server.connections:  # or those that are kept alive would be served on
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()
