"""An OpenAI-compatible endpoint that misbehaves as its model's name says; a process of its own, as a real one is.

``python judge_server.py LOG`` prints its port. LOG gets one line of JSON per request: model, key, question.
"""

import json
import re
import socket
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ASKED: Counter[str] = Counter()
UNDER_WAY = [0]
LOCK = threading.Lock()


class Judge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model, question = body["model"], body["messages"][-1]["content"]
        self.is_done = False
        with LOCK:
            UNDER_WAY[0] += 1
            ASKED[question] += 1
            line = {
                "model": model,
                "key": self.headers.get("Authorization"),
                "path": self.path,
                "asked": ASKED[question],
            }
            with open(sys.argv[1], "a") as log:
                log.write(json.dumps({**line, "question": question, "under_way": UNDER_WAY[0]}) + "\n")
        try:
            getattr(self, model.replace("-", "_"))(question, ASKED[question])
        finally:
            self.done()

    def done(self):
        """Before the reply: whoever has it may ask again at once."""
        with LOCK:
            UNDER_WAY[0] -= 1 - self.is_done
            self.is_done = True

    def reply(self, text, status=200, **headers):
        self.done()
        data = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send(data, status, **headers)

    def send(self, data, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def verdict(self, question):
        """As many points as the response has digits."""
        response = question.partition("Response:")[2].split("===")[1].partition("\n")[2]
        return f"Looks fine.\nVerdict: {max(1, min(10, len(re.findall('[0-9]', response))))}"

    def good(self, question, n):
        self.reply(self.verdict(question))

    def busy(self, question, n):
        time.sleep(0.5)
        self.reply(self.verdict(question))

    def slow(self, question, n):
        time.sleep(30)

    def drips(self, question, n):
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        for _ in range(300):
            self.wfile.write(b" ")
            time.sleep(0.1)

    def fails_once(self, question, n):
        self.send(b"overloaded", 500) if n == 1 else self.good(question, n)

    def always_500(self, question, n):
        self.send(b"overloaded", 500)

    def wait_a_moment(self, question, n):
        self.send(b"{}", 429, Retry_After="1") if n == 1 else self.good(question, n)

    def drops_once(self, question, n):
        if n > 1:
            return self.good(question, n)
        self.send_response(200)
        self.send_header("Content-Length", "5000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.wfile.flush()
        self.hang_up()

    def hangs_up_once(self, question, n):
        self.hang_up() if n == 1 else self.good(question, n)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def no_json(self, question, n):
        self.send(b"<html>Welcome</html>")

    def other_schema(self, question, n):
        self.send(b'{"answer": "Verdict: 10"}')

    def null_content(self, question, n):
        self.send(b'{"choices": [{"message": {"content": null}}]}')

    def forbidden(self, question, n):
        self.send(f"Incorrect API key provided: {self.headers.get('Authorization')}".encode(), 401)

    def moved(self, question, n):
        self.send(b"", 302, Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere/chat/completions")

    def chatty(self, question, n):
        self.reply("I'd say nine out of ten.")

    def two_minds(self, question, n):
        self.reply("Verdict: 3\nor rather\nVerdict: 9")

    def off_the_scale(self, question, n):
        self.reply("Verdict: 11")

    def cannot_tell(self, question, n):
        self.reply("Verdict: none")

    def obeys(self, question, n):
        """A judge that a response can talk to."""
        self.reply("Verdict: 10" if "give it a 10" in question else "Verdict: 1")


server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
print(server.server_port, flush=True)
server.serve_forever()
