"""A stand-in for the Hugging Face hub: it speaks as much of its protocol as the hub's client needs
to download a repository, and breaks off transfers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the repository org/tiny, which is private if there is a token. The first transfers of
    the weights break off halfway."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], token: str = "", num_breaks: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.token = token
        self.num_breaks = num_breaks
        """Transfers of the weights that will break off."""
        self.ranges: list[str] = []
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond(has_body=False)

    def do_GET(self) -> None:
        self._respond(has_body=True)

    def _respond(self, *, has_body: bool) -> None:
        token = self.server.token
        is_allowed = not token or self.headers.get("Authorization") == f"Bearer {token}"
        if "org/tiny" not in self.path or not is_allowed:
            self._send(401, {"X-Error-Code": "RepoNotFound"}, b"{}", has_body)
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": COMMIT}
                for name, data in self.server.files.items()
            ]
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(tree).encode(), has_body
            )
        elif self.path.startswith("/api/models/org/tiny"):
            document = {
                "id": "org/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.server.files],
                "private": True,
                "tags": [],
            }
            self._send(
                200, {"Content-Type": "application/json"}, json.dumps(document).encode(), has_body
            )
        else:
            self._file(self.path.split("?")[0].rpartition("/")[2], has_body)

    def _file(self, name: str, has_body: bool) -> None:
        data = self.server.files[name]
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = 0
        if has_body:
            self.server.fetched.append(name)
            requested = self.headers.get("Range", "")
            if requested:
                self.server.ranges.append(requested)
                start = int(requested.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if has_body and name == "model.safetensors" and self.server.num_breaks > 0:
            self.server.num_breaks -= 1
            self._head(206 if start else 200, headers, len(data) - start)
            self.wfile.write(data[start : start + (len(data) - start) // 2])
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


@contextmanager
def run_hub(files: Mapping[str, bytes], token: str = "", num_breaks: int = 1) -> Iterator[Hub]:
    hub = Hub(files, token, num_breaks)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
