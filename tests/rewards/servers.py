"""A reward server whose answers a test scripts."""

import contextlib
import itertools
import json
import math
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer


@contextmanager
def reward_server(answer):
    """Serve `answer(question) -> (status, body)` on a free port; give its URL and the questions that it was asked."""
    questions = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            questions.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = answer(questions[-1])
            if status is None:  # hang up without a word
                return
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, *_arguments):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # more than connect at once: of those beyond it some are reset

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/get_reward", questions
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw_server(parts, most_bytes=math.inf):
    """Serve what `parts(number of the request)` yields, byte by byte what the server says; give its URL.

    It refuses a request of more bytes with 413, and closes without reading them.
    """
    numbers = itertools.count()

    class Handler(StreamRequestHandler):
        def handle(self):
            head = iter(self.rfile.readline, b"\r\n")
            [length] = [int(line.split()[1]) for line in head if line.startswith(b"Content-Length")]
            if length > most_bytes:
                self.wfile.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
                return
            self.rfile.read(length)
            with contextlib.suppress(ConnectionError):
                for part in parts(next(numbers)):
                    self.wfile.write(part)

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lengths(question):
    """Score each response by its length."""
    pairs = zip(question["query"], question["prompts"], strict=True)
    return 200, {"rewards": [len(query) - len(prompt) for query, prompt in pairs]}
