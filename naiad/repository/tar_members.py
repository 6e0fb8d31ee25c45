"""Reads a tar archive from front to back, a member at a time.

In:  a file. Out: its members, each with a file for its data, which must be read before the next.
Rules: the format of the compression is chosen here, from a list. What leaves the decompressor is
       counted before tarfile sees it, because tarfile reads extended headers whole. Nothing is kept
       of a member that has been read.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, cast

MAX_HEADER_BYTES = 1 << 20
"""The most that the extended headers of one member may have: names and times take some hundred
bytes."""
GZIP, BZIP2, XZ = "gzip", "bzip2", "xz"
_MAGIC = {GZIP: b"\x1f\x8b", BZIP2: b"BZh", XZ: b"\xfd7zXZ\0"}
_OPEN: dict[str, Callable[[Path], Any]] = {
    GZIP: gzip.open,
    BZIP2: bz2.open,
    XZ: lzma.open,
}
READ_ERRORS = (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError)


class _Counted:
    """A file whose reader is stopped after too many bytes."""

    def __init__(self, source: IO[bytes], max_bytes: int) -> None:
        self._source = source
        self._left = max_bytes
        self.header_left = MAX_HEADER_BYTES
        self.is_in_header = True

    def read(self, num_bytes: int) -> bytes:
        block = self._source.read(num_bytes)
        self._left -= len(block)
        if self._left < 0:
            raise ValueError("it unpacks to more than its members may have")
        if self.is_in_header:
            self.header_left -= len(block)
            if self.header_left < 0:
                raise ValueError(
                    f"the header of a member has more than {MAX_HEADER_BYTES} bytes, which no tool "
                    "writes"
                )
        return block


def tar_members(
    path: Path, formats: Collection[str], max_bytes: int
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """`formats` are the compressions that are read, beside none. `max_bytes` may leave the
    decompressor. Raises READ_ERRORS."""
    with path.open("rb") as file:
        start = file.read(6)
    found = [name for name in _MAGIC if start.startswith(_MAGIC[name])]
    if found and found[0] not in formats:
        raise ValueError(
            f"it is compressed by {found[0]}, expected {' or '.join(formats)}, or none"
        )
    with cast("IO[bytes]", _OPEN[found[0]](path) if found else path.open("rb")) as source:
        counted = _Counted(source, max_bytes)
        # The | means that tarfile never goes back, and has no compression of its own to guess.
        with tarfile.open(fileobj=cast("IO[bytes]", counted), mode="r|") as archive:
            while (member := archive.next()) is not None:
                counted.is_in_header = False
                yield member, archive.extractfile(member) if member.isreg() else None
                # tarfile remembers all members, and the headers of each.
                archive.members.clear()  # type: ignore[attr-defined]
                counted.is_in_header, counted.header_left = True, MAX_HEADER_BYTES
