"""The unpacked sizes of the wheels that an image installs, without downloading them.

    pip install --dry-run --ignore-installed --report report.json '.[onnx,pytorch,llm]'
    python deploy/docker/wheel_sizes.py report.json

pip says which wheels it would install. Of each one only the end is read, which lists the files in
it and their sizes. Written: the wheels in order of size, and the sum.
"""

from __future__ import annotations

import io
import json
import sys
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

SHOWN = 25
READ_AHEAD = 256 * 1024


class RemoteFile(io.RawIOBase):
    """A file on a server that can send parts of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._position = 0
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as response:
            self._size = int(response.headers["Content-Length"])
        self._start = max(0, self._size - READ_AHEAD)
        self._tail = self._fetch(self._start, self._size)

    def _fetch(self, start: int, end: int) -> bytes:
        header = {"Range": f"bytes={start}-{end - 1}"}
        with urllib.request.urlopen(
            urllib.request.Request(self._url, headers=header), timeout=60
        ) as response:
            if response.status != 206:
                raise OSError(f"{self._url}: the server does not send parts of files")
            data: bytes = response.read()
        return data

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        if self._position >= self._start:
            data = self._tail[self._position - self._start : end - self._start]
        else:
            data = self._fetch(self._position, end)
        self._position = end
        return data


def unpacked_bytes(url: str) -> int:
    parts = urlsplit(url)
    file = Path(parts.path) if parts.scheme == "file" else RemoteFile(url)
    with zipfile.ZipFile(file) as wheel:  # type: ignore[arg-type]
        return sum(entry.file_size for entry in wheel.infolist())


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text())
    rows = []
    for entry in report["install"]:
        name = f"{entry['metadata']['name']} {entry['metadata']['version']}"
        url = entry["download_info"]["url"]
        if url.partition("#")[0].endswith(".whl"):
            rows.append((unpacked_bytes(url), name))
        else:
            print(f"{name}: not a wheel, left out")
    rows.sort(reverse=True)
    for size, name in rows[:SHOWN]:
        print(f"{size / 1e6:10,.1f} MB  {name}")
    if rest := rows[SHOWN:]:
        print(f"{sum(size for size, _ in rest) / 1e6:10,.1f} MB  {len(rest)} others")
    print(f"{sum(size for size, _ in rows) / 1e6:10,.1f} MB  together")
    return 0


if __name__ == "__main__":
    sys.exit(main())
