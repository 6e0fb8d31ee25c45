"""Archives whose headers or tables of contents are larger than all that is in them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
from collections.abc import Callable
from typing import IO, Any

from naiad.repository.deploy.draft import MAX_PIECE_BYTES
from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target

HEADER_BYTES = 400 * MIB


def upload(target: Target, path: str, content: bytes) -> tuple[int, bytes]:
    """Uploads a file of a new draft in pieces; returns the last response."""
    json_type, octets = "application/json", "application/octet-stream"
    token = target.server.console_headers()
    status, body = target.post("/console/api/drafts", b"{}", {"Content-Type": json_type, **token})
    assert status == 200, (status, body)
    draft = json.loads(body)["id"]
    for offset in range(0, len(content), MAX_PIECE_BYTES):
        place = f"/console/api/drafts/{draft}/file?path={path}&offset={offset}&size={len(content)}"
        piece = content[offset : offset + MAX_PIECE_BYTES]
        status, body = target.put(place, piece, {"Content-Type": octets, **token})
    return status, body


def long_header(kind: bytes, compress: Callable[[IO[bytes]], Any]) -> bytes:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = kind, HEADER_BYTES
    out = io.BytesIO()
    with compress(out) as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(HEADER_BYTES // MIB):
            file.write(b"a" * MIB)
    return out.getvalue()


def gzipped(out: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1)


def table_of_contents(num_entries: int) -> bytes:
    """A zip file of nothing but its table of contents."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", *[0] * 6, 0, 0, 0, 1, *[0] * 6) + b"x"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0, 0, num_entries * len(entry), 0, 0)
    return entry * num_entries + end


@attack(64 * MIB)
def archive_headers(target: Target) -> None:
    """Extended headers of tar, which tarfile reads whole before the first member is seen."""
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        status, body = upload(target, "m.tar.gz", long_header(kind, gzipped))
        assert (status, b"the header of a member" in body) == (400, True), (status, body)
    status, body = upload(target, "m.tar", long_header(tarfile.XHDTYPE, lzma_written))
    assert (status, b"compressed by xz" in body) == (400, True), (status, body)


def lzma_written(out: IO[bytes]) -> Any:
    return lzma.LZMAFile(out, "wb", preset=0)


@attack(64 * MIB)
def archive_tables(target: Target) -> None:
    """Tables of contents with a million entries, in an archive and in a PyTorch file."""
    content = table_of_contents(MIB)
    for name in ("m.zip", "model.pt"):
        status, body = upload(target, name, content)
        assert status == 400, (status, body)
        assert b"MiB of memory" in body, body
