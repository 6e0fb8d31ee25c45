"""Small servers on loopback with the parts of Google's, Azure's and the Hugging Face hub's
protocols that a repository needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from xml.sax.saxutils import escape

MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"


class CloudHandler(BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []
    ranges: ClassVar[list[str | None]] = []
    """The range that each read of a file has asked for."""
    part_status = 206
    has_ranges = True
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.requests.append(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.respond(urllib.parse.unquote(url.path), query)

    def do_HEAD(self) -> None:
        self.do_GET()

    def respond(self, path: str, query: dict[str, str]) -> None:
        raise NotImplementedError

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, content: bytes) -> None:
        headers = {
            "ETag": f'"{etag(content)}"',
            "Last-Modified": MODIFIED,
            "x-ms-blob-type": "BlockBlob",
        }
        condition = self.headers.get("If-Match")
        if condition is not None and condition.strip('"') != etag(content):
            self.send(412, b"")
            return
        wanted = self.headers.get("Range") or self.headers.get("x-ms-range")
        self.ranges.append(wanted)
        if wanted is None or not self.has_ranges:
            self.send(200, content, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last) + 1 if last else len(content), len(content))
        part = content[int(first) : end]
        place = {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"}
        self.send(self.part_status, part, headers | place)

    def listing(self, prefix: str, delimiter: str) -> tuple[dict[str, bytes], list[str]]:
        """Returns (files, common prefixes)."""
        files, prefixes = {}, set()
        for key, content in sorted(self.files.items()):
            if not key.startswith(prefix):
                continue
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                files[key] = content
        return files, sorted(prefixes)


class GoogleHandler(CloudHandler):
    """Serves /bucket/key and /bucket?list-type=2."""

    def respond(self, path: str, query: dict[str, str]) -> None:
        bucket, _, key = path.lstrip("/").partition("/")
        if bucket != "bucket":
            self.send(404, b"")
        elif not key:
            files, prefixes = self.listing(query.get("prefix", ""), query.get("delimiter", ""))
            rows = "".join(
                f"<Contents><Key>{escape(name)}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag(text)}&quot;</ETag>"
                f"<Size>{len(text)}</Size></Contents>"
                for name, text in files.items()
            )
            rows += "".join(
                f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"
                for prefix in prefixes
            )
            self.send(
                200,
                f"<ListBucketResult>{rows}</ListBucketResult>".encode(),
                {"Content-Type": "application/xml"},
            )
        elif key in self.files:
            self.send_file(self.files[key])
        else:
            self.send(404, b"")


class AzureHandler(CloudHandler):
    """Serves /container/key and /container?comp=list."""

    def respond(self, path: str, query: dict[str, str]) -> None:
        container, _, key = path.lstrip("/").partition("/")
        if container != "container":
            self.send(404, b"")
        elif not key:
            files, prefixes = self.listing(query.get("prefix", ""), query.get("delimiter", ""))
            rows = "".join(
                f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified><Etag>{etag(text)}</Etag>"
                f"<Content-Length>{len(text)}</Content-Length><Content-Type>x</Content-Type></Properties></Blob>"
                for name, text in files.items()
            )
            rows += "".join(
                f"<BlobPrefix><Name>{escape(prefix)}</Name></BlobPrefix>" for prefix in prefixes
            )
            body = f"<EnumerationResults><Blobs>{rows}</Blobs><NextMarker/></EnumerationResults>"
            self.send(200, body.encode(), {"Content-Type": "application/xml"})
        elif key in self.files:
            self.send_file(self.files[key])
        else:
            self.send(404, b"")


class HubHandler(CloudHandler):
    """Serves the repository organisation/models: its tree, its revisions (except `gone`) and its
    files. Files over 100 bytes are in LFS."""

    def respond(self, path: str, query: dict[str, str]) -> None:
        parts = path.lstrip("/").split("/")
        api = ["api", "models", "organisation", "models"]
        if (parts[:5] == [*api, "revision"] and parts[5:] != ["gone"]) or (
            parts[:4] == api and len(parts) == 4
        ):
            self.send_json({"id": "organisation/models", "sha": self.commit(), "siblings": []})
        elif parts[:5] == [*api, "tree"]:
            self.tree("/".join(parts[6:]), query.get("recursive", "").lower() == "true")
        elif (
            parts[:3] == ["organisation", "models", "resolve"] and "/".join(parts[4:]) in self.files
        ):
            self.send_file(self.files["/".join(parts[4:])])
        else:
            self.send(
                404,
                b'{"error": "not found"}',
                {"X-Error-Code": "EntryNotFound" if "resolve" in parts else "RepoNotFound"},
            )

    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def tree(self, directory: str, is_recursive: bool) -> None:
        prefix = f"{directory}/" if directory else ""
        files, prefixes = self.listing(prefix, "" if is_recursive else "/")
        rows: list[dict[str, object]] = [
            {"type": "directory", "path": name.rstrip("/"), "oid": "0" * 40, "size": 0}
            for name in prefixes
        ]
        for name, content in files.items():
            row: dict[str, object] = {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": git_id(content),
            }
            if len(content) > 100:
                row["lfs"] = {
                    "oid": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 130,
                }
            rows.append(row)
        self.send_json(rows)

    def send_json(self, document: object) -> None:
        self.send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})


def etag(content: bytes) -> str:
    return "0x" + hashlib.sha1(content).hexdigest()[:12].upper()


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class CloudServer:
    def __init__(self, handler: type[CloudHandler], files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.requests: list[str] = []
        self.ranges: list[str | None] = []
        own = {"files": self.files, "requests": self.requests, "ranges": self.ranges}
        bound = type("Bound", (handler,), own)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def cloud_server(handler: type[CloudHandler], files: dict[str, bytes]) -> Iterator[CloudServer]:
    server = CloudServer(handler, files)
    try:
        yield server
    finally:
        server.stop()
