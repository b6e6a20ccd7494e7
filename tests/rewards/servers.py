"""A reward server whose answers a test scripts."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/get_reward", questions
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lengths(question):
    """Score each response by its length."""
    pairs = zip(question["query"], question["prompts"], strict=True)
    return 200, {"rewards": [len(query) - len(prompt) for query, prompt in pairs]}
