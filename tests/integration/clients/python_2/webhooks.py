from http.server import BaseHTTPRequestHandler, HTTPServer

from given import client, models, said_all
from standardwebhooks import Webhook

received: list[tuple[dict[str, str], bytes]] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        received.append((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()


with HTTPServer(("127.0.0.1", 0), Receiver) as server:
    made = client.predictions.create(
        version=models.captioner.name,
        input={"prompt": "ünïcödé"},
        webhook=f"http://127.0.0.1:{server.server_port}/hook",
        webhook_events_filter=["completed"],
    )
    server.handle_request()

[(headers, body)] = received
# this client has no function that validates a webhook: the standard's own library does it
told = Webhook(client.webhooks.default.secret.get().key).verify(body, headers)
assert (told["id"], told["status"], told["output"]) == (made.id, "succeeded", "ünïcödé")
said_all()
