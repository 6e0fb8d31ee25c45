"""Keeps the key table equal to the key file while the server runs.

In:  the file, which `naiad key` and administrators change at any time. Out: the table, within a
     second of a change, and at once on SIGHUP.
Rule: a file that is broken or gone changes nothing. The last good keys stay, the log says why once,
      and a metric shows it until the file is good again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from naiad import log
from naiad.errors import NaiadError
from naiad.keys.key import KeyDocument
from naiad.keys.key_file import KeyFile
from naiad.keys.key_table import KeyTable

POLL_INTERVAL_S = 0.25
_Stamp: TypeAlias = tuple[int, int, int]


class KeyWatch:
    def __init__(self, file: KeyFile, table: KeyTable) -> None:
        self.file = file
        self.table = table
        self.is_good = True
        """False while the file cannot be read."""
        self.num_failures = 0
        self.on_read: Callable[[], None] | None = None
        """Called after the table has followed the file."""
        self.publish: Callable[[], Awaitable[None]] | None = None
        """Returns when every process of the server acts on the table."""
        self._stamp: _Stamp | None = None
        self._is_due = asyncio.Event()

    def load(self) -> None:
        """Reads the file at the start of the server. Raises NaiadError."""
        self._stamp = self._read_stamp()
        self.table.replace(self.file.read())

    def reread(self) -> None:
        """Reads the file soon, whether it seems to have changed or not."""
        self._stamp = None
        self._is_due.set()

    async def read(self) -> KeyDocument:
        """Raises NaiadError."""
        return await asyncio.get_running_loop().run_in_executor(None, self.file.read)

    async def change(self, edit: Callable[[KeyDocument], KeyDocument]) -> KeyDocument:
        """Changes the file, and the table of every process with it. `edit` runs in a thread. Raises
        NaiadError."""
        document = await asyncio.get_running_loop().run_in_executor(None, self.file.change, edit)
        self.table.replace(document)
        if self.publish is not None:
            await self.publish()
        return document

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), POLL_INTERVAL_S)
            self._is_due.clear()
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                await self._update()

    async def _update(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # A file with many keys takes longer to decode than the event loop may be held up.
            document = await loop.run_in_executor(None, self.file.read)
        except NaiadError as error:
            self.is_good = False
            self.num_failures += 1
            log.error(f"the API keys stay as they were: {error.message}")
            return
        self.is_good = True
        self.table.replace(document)
        log.info(f"read {len(document.keys)} API keys from '{self.file.path}'")
        if self.on_read is not None:
            self.on_read()

    def _read_stamp(self) -> _Stamp | None:
        try:
            status = os.stat(self.file.path)
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size
