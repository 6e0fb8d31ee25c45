"""The deploy API as a script uses it: plain requests, one after the other."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from tests.server.gates import eventually
from tests.server.harness import Endpoints

JSON = "application/json"
BYTES = "application/octet-stream"


class DeployClient:
    def __init__(self, server: Endpoints, headers: dict[str, str] | None = None) -> None:
        self._base = f"http://{server.http}/console/api"
        self._headers = server.console_headers() if headers is None else headers

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        is_bytes = isinstance(body, bytes)
        data = body if is_bytes or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{path}", data=data, method=method)
        for name, value in {
            "Content-Type": BYTES if is_bytes else JSON, **self._headers, **(headers or {}),
        }.items():  # fmt: skip
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def new_draft(self) -> str:
        status, body = self.call("POST", "drafts", {})
        assert status == 200, body
        return str(body["id"])

    def put(
        self, draft: str, path: str, piece: bytes, offset: int = 0, size: int | None = None
    ) -> tuple[int, Any]:
        size = len(piece) if size is None else size
        query = urlencode({"path": path, "offset": offset, "size": size})
        return self.call("PUT", f"drafts/{draft}/file?{query}", piece)

    def upload(self, files: dict[str, bytes]) -> str:
        draft = self.new_draft()
        for path, content in files.items():
            status, body = self.put(draft, path, content)
            assert status == 200, body
        return draft

    def preview(self, name: str, **spec: Any) -> Any:
        status, body = self.call("POST", f"models/{quote(name)}/preview", spec)
        assert status == 200, body
        return body

    def deploy(self, name: str, **spec: Any) -> Any:
        """Returns the status of the deployment when it has ended."""
        status, body = self.call("POST", f"models/{quote(name)}/deploy", spec)
        assert status == 200, body

        def state() -> Any:
            return self.call("GET", f"models/{quote(name)}/deploy")[1]

        eventually(lambda: state()["state"] != "running", f"the end of the deployment of {name}")
        return state()
