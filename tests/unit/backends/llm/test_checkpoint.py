"""Tests of checkpoints from a hub, against a server that speaks the hub's protocol: tokens, resumed
transfers, offline mode, error messages."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="the hub's own client")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 90_000,
    "README.md": b"not needed",
}
TOKEN = "hf_secret"
SCRIPT = """
import sys
from naiad.backends.llm.checkpoint import find_checkpoint
from naiad.errors import NaiadError
try:
    print(find_checkpoint(sys.argv[1], []))
except NaiadError as error:
    print(f"{error.code.name}: {error.message}")
"""


class Hub(ThreadingHTTPServer):
    """Serves the private repository org/tiny. The first transfer of the weights breaks off
    halfway."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str] = []
        self.has_broken_off = False
        self.fetched: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond(has_body=False)

    def do_GET(self) -> None:
        self._respond(has_body=True)

    def _respond(self, *, has_body: bool) -> None:
        if "org/tiny" not in self.path or self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"X-Error-Code": "RepoNotFound"}, b"{}", has_body)
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": COMMIT}
                for name, data in FILES.items()
            ]
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(tree).encode(), has_body
            )
        elif self.path.startswith("/api/models/org/tiny"):
            document = {
                "id": "org/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in FILES],
                "private": True,
                "tags": [],
            }
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(document).encode(), has_body
            )
        else:
            self._file(self.path.split("?")[0].rpartition("/")[2], has_body)

    def _file(self, name: str, has_body: bool) -> None:
        data, etag = FILES[name], hashlib.sha256(FILES[name]).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = 0
        if has_body:
            self.server.fetched.append(name)
            requested = self.headers.get("Range", "")
            if requested:
                self.server.ranges.append(requested)
                start = int(requested.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if has_body and name == "model.safetensors" and not self.server.has_broken_off:
            self.server.has_broken_off = True
            self._head(200, headers, len(data))
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self._send(206 if start else 200, headers, data[start:], has_body)

    def _send(self, status: int, headers: dict[str, str], body: bytes, has_body: bool) -> None:
        self._head(status, headers, len(body))
        if has_body:
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str], size: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(size)}.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def find(name: str, home: Path, hub: Hub | None, **environment: str) -> str:
    """Runs find_checkpoint in a new process, because the hub's client reads its environment once,
    when it is imported."""
    endpoint = f"http://127.0.0.1:{hub.server_port}" if hub is not None else "http://127.0.0.1:9"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    variables |= {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_downloads_resumes_and_then_works_offline(hub: Hub, tmp_path: Path) -> None:
    path = Path(find("org/tiny", tmp_path, hub, PRIVATE_REPO_TOKEN=TOKEN))
    assert path.is_relative_to(tmp_path)
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert hub.ranges == ["bytes=10485760-"], "the client writes pieces of 10 MiB"
    assert "README.md" not in hub.fetched
    assert find("org/tiny", tmp_path, None, HF_HUB_OFFLINE="1") == str(path)


def test_error_messages(hub: Hub, tmp_path: Path) -> None:
    assert find("org/tiny", tmp_path, hub) == (
        "NOT_FOUND: the hub has no repository 'org/tiny', "
        "or it is private and the token gives no access"
    )
    assert find("org/tiny", tmp_path, None, HF_HUB_OFFLINE="1") == (
        "UNAVAILABLE: 'org/tiny' is not in the local cache and the hub cannot be reached"
    )
