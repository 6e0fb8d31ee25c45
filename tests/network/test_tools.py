"""The tools around the server, cut off from it: each ends within 30 s, with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.network.hosts import Network
from tests.network.models import write_models
from tests.server.harness import launch_naiad, naiad_command, naiad_environment

END_S = 32.0
"""30 s, and time for a busy machine."""
START_S = 60.0
ROOT = Path(__file__).parents[2]
ENDLESS_CHAT = """
import http.server, json, socketserver, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments):
        pass
    def do_GET(self):
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while True:
            event = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
            time.sleep(0.1)

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

server = Server(("0.0.0.0", 8000), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def test_a_chat_that_is_cut_off_ends(network: Network) -> None:
    host, client = network.hosts["server"], network.hosts["client"]
    server = host.start([sys.executable, "-c", ENDLESS_CHAT], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    chat = client.start(
        naiad_command("chat", f"http://{host.address}:8000"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=naiad_environment(),
    )
    try:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("hello\n")
        chat.stdin.flush()
        heard = ""
        while "word word" not in heard:
            heard += chat.stdout.read(1)
        client.cut()
        output, _ = chat.communicate(timeout=END_S)
        assert "broke" in output
        assert chat.returncode != 0
    finally:
        client.heal()
        for child in (chat, server):
            child.kill()
            child.communicate()


@pytest.mark.parametrize("kind", ["http", "grpc", "stream"])
def test_a_measurement_that_is_cut_off_ends(network: Network, tmp_path: Path, kind: str) -> None:
    host, client = network.hosts["server"], network.hosts["client"]
    flags = ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--frontend-processes=1"]
    server = launch_naiad([str(write_models(tmp_path / "models"))], flags, prefix=host.prefix)
    data = tmp_path / "data.json"
    values = {"COUNT": [2], "PAUSE_MS": [50], "SIZE": [10]}
    if kind != "stream":
        values = {"SIZE": [1000]}
    data.write_text(json.dumps({"data": [values]}))
    port = server.http_port if kind == "http" else server.grpc_port
    command = naiad_command(
        *("perf", "-m", "ticker" if kind == "stream" else "big", "-u", f"{host.address}:{port}"),
        *(() if kind == "http" else ("-i", "grpc")),
        *(("--streaming",) if kind == "stream" else ()),
        *("--concurrency-range", "2:8:2", "--input-data", str(data)),
        *("--measurement-interval", "2000"),
    )
    perf = None
    try:
        server.wait_started()
        perf = client.start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=naiad_environment()
        )
        # Until the first window has been measured, as perf says.
        host.call(lambda: _wait_served(server.metrics_port))
        client.cut()
        cut_s = time.monotonic()
        output, _ = perf.communicate(timeout=END_S)
        print(f"ended after {time.monotonic() - cut_s:.1f} s")
        assert "Given up" in output, output
        assert perf.returncode == 99
    finally:
        client.heal()
        if perf is not None:
            perf.kill()
            perf.communicate()
        server.stop()


def _wait_served(metrics_port: int, num_requests: int = 20) -> None:
    """Runs on the server's host."""
    import http.client

    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        connection = http.client.HTTPConnection("127.0.0.1", metrics_port)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        rows = [row for row in page.splitlines() if row.startswith("nv_inference_request_success{")]
        if sum(float(row.rsplit(" ", 1)[1]) for row in rows) >= num_requests:
            return
        time.sleep(0.05)
    raise AssertionError("the measurement has not begun")
