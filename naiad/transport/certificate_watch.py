"""Follows the certificate files of a port while the server runs.

In:  TlsFiles, whose files may be replaced at any time. Out: `context` for loop.create_server: each
     new connection uses the certificates that were read last. Open connections go on with theirs.
Rule: files that cannot be used change nothing. The last good certificates stay, and the log says
      why once.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TypeAlias

from naiad import log
from naiad.errors import NaiadError
from naiad.transport.tls import TlsFiles, build_tls_context

POLL_INTERVAL_S = 0.5
_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class CertificateWatch:
    def __init__(self, files: TlsFiles, alpn: str) -> None:
        """Raises NaiadError."""
        self._files = files
        self._alpn = alpn
        self._stamp = self._seen = self._read_stamp()
        self.context = self._current = build_tls_context(files, alpn)
        # A port keeps its context, and a context cannot forget an authority. The callback runs
        # after the client's first message, also if the client names no server.
        self.context.sni_callback = self._select

    def reread(self) -> None:
        """Raises NaiadError; the old certificates stay then."""
        stamp = self._read_stamp()
        self._current = build_tls_context(self._files, self._alpn)
        self._stamp = self._seen = stamp

    def poll(self) -> None:
        """Reads files that have changed, once they have been the same for one interval: the
        certificate and its key are not replaced at the same moment."""
        stamp = self._read_stamp()
        is_settled = stamp == self._seen
        self._seen = stamp
        if stamp == self._stamp or not is_settled:
            return
        try:
            self.reread()
        except NaiadError as error:
            self._stamp = stamp
            log.error(f"the certificates stay as they were: {error.message}")
        else:
            log.info(f"read the certificates of the {self._files.flag} port again")

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.poll()

    def _select(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        if self._current is not self.context:
            connection.context = self._current

    def _read_stamp(self) -> _Stamp:
        files = self._files
        paths = (files.cert, files.key, files.root) if files.is_mutual else (files.cert, files.key)
        return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int]:
    """Follows links, as Kubernetes replaces the link to a folder of certificates."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
