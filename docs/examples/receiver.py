"""Receive webhooks, and take only those that the service signed. Needs Python alone.

WEBHOOK_SECRET=whsec_… python receiver.py [PORT]
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
TOLERANCE_S = 300
seen = set()  # a real receiver keeps these in its database: an attempt may be repeated for days


def is_signed(headers, body):
    identity, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > TOLERANCE_S:
        return False
    signed = f"{identity}.{sent_at}.".encode() + body
    expected = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    # while a secret is rotated there are two signatures, with a space between
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(f"v1,{expected}".encode(), one.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_signed(self.headers, body):
            self.answer(401)
            return
        if self.headers["webhook-id"] not in seen:
            prediction = json.loads(body)
            print(prediction["id"], prediction["status"], prediction["output"], flush=True)
            seen.add(self.headers["webhook-id"])  # after the work: until then another attempt is welcome
        self.answer(204)  # any 2xx ends the delivery

    def answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9999), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
