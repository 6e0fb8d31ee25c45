"""Uploads a large file to the console and prints how the server's memory grows:
`python -m bench.console_upload [MEGABYTES]`, 2048 by default."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.server.deploy_client import DeployClient
from tests.server.harness import naiad

PIECE = bytes(8 << 20)


def resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/statm").read_text()
    return int(text.split()[1]) * 4096


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else 2048) << 20
    with tempfile.TemporaryDirectory(dir=".") as folder, naiad([folder], []) as server:
        client = DeployClient(server)
        draft = client.new_draft()
        before = highest = resident_bytes(server.pid)
        start_s, offset = time.monotonic(), 0
        while offset < size:
            piece = PIECE[: size - offset]
            status, body = client.put(draft, "weights.bin", piece, offset, size)
            assert status == 200, body
            offset += len(piece)
            highest = max(highest, resident_bytes(server.pid))
        seconds = time.monotonic() - start_s
        stored = sum(file.stat().st_size for file in Path(folder).rglob("weights.bin"))
        assert stored == size
        print(
            f"{size / 1e6:.0f} MB in {seconds:.1f} s ({size / seconds / 1e6:.0f} MB/s); memory of "
            f"the server {before / 1e6:.1f} MB before, at most {highest / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
