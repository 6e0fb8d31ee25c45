"""Keeps the keys of the identity provider up to date while the server runs.

In:  a file, read again when it changes, or a URL, fetched again every few minutes and when a token
     names an unknown key. Out: the bytes, passed to `apply`.
Rule: nothing blocks the event loop, and a document that cannot be read or fetched changes nothing:
      the last good keys stay, the log says why once, and a metric shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from naiad import log
from naiad.errors import NaiadError, invalid_arg
from naiad.settings.exposure import is_loopback

MAX_BYTES = 1 << 20
FETCH_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 1.0
"""How often a file is looked at."""
UNKNOWN_KEY_INTERVAL_S = 30.0
"""Tokens with unknown keys cause at most one fetch in this time: anybody can send them."""
RETRY_INTERVAL_S = 15.0
"""How long after a failed fetch the next one is."""
_Stamp: TypeAlias = tuple[int, int, int]


class KeySetWatch:
    def __init__(
        self,
        location: str,
        apply: Callable[[bytes], None],
        *,
        refresh_s: float = 300.0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`apply` raises NaiadError for a document that is not a key set."""
        self._location = location
        self._apply = apply
        self._refresh_s = refresh_s
        self._clock_s = clock_s
        self._is_url = is_url(location)
        self.data = b""
        """The key set that is in use; empty before one has been read."""
        self._stamp: _Stamp | None = None
        self._fetched_s = 0.0
        self._is_due = asyncio.Event()
        self.is_good = True
        """False while the document cannot be read."""
        self.num_failures = 0

    def load(self) -> None:
        """Reads the document at the start of the server; blocks. Raises NaiadError for a file. A
        URL that does not respond does not keep the server from starting, because the identity
        provider may be down for a moment; tokens are refused until it responds."""
        self._fetched_s = self._clock_s()
        try:
            self._stamp = self._read_stamp()
            self._accept(self._read())
        except NaiadError as error:
            if not self._is_url:
                raise
            self._fail(error)

    def on_unknown_key(self) -> None:
        """A token names a key that the set does not have."""
        if self._is_url and self._clock_s() - self._fetched_s >= UNKNOWN_KEY_INTERVAL_S:
            self._is_due.set()

    def reread(self) -> None:
        """Reads the document soon, whether it seems to have changed or not."""
        self._stamp = None
        self._is_due.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), self._interval_s())
            self._is_due.clear()
            if self._is_url or self._read_stamp() != self._stamp:
                await self._update()

    def _interval_s(self) -> float:
        if not self._is_url:
            return POLL_INTERVAL_S
        return self._refresh_s if self.is_good else min(RETRY_INTERVAL_S, self._refresh_s)

    async def _update(self) -> None:
        self._fetched_s = self._clock_s()
        self._stamp = self._read_stamp()
        try:
            self._accept(await asyncio.get_running_loop().run_in_executor(None, self._read))
        except NaiadError as error:
            self._fail(error)

    def _accept(self, data: bytes) -> None:
        """An unchanged document is not applied again, so that verified tokens stay known."""
        if data != self.data:
            self._apply_document(data)
            log.info(f"read the keys of the identity provider from '{self._location}'")
        self.data, self.is_good = data, True

    def _apply_document(self, data: bytes) -> None:
        try:
            self._apply(data)
        except NaiadError as error:
            raise invalid_arg(
                f"the key set '{self._location}' cannot be used: {error.message}"
            ) from None

    def _fail(self, error: NaiadError) -> None:
        self.num_failures += 1
        if self.is_good:
            log.error(f"the keys of the identity provider stay as they were: {error.message}")
        self.is_good = False

    def _read(self) -> bytes:
        """Blocks. Raises NaiadError."""
        return fetch(self._location) if self._is_url else _read_file(self._location)

    def _read_stamp(self) -> _Stamp | None:
        if self._is_url:
            return None
        try:
            status = os.stat(self._location)
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def is_url(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def check_location(location: str) -> None:
    """Raises NaiadError for a URL that others could change on its way."""
    if location.startswith("http://") and not is_loopback(urlsplit(location).hostname or ""):
        raise invalid_arg(
            f"--jwt-jwks {location} would be fetched without TLS, so that others could replace the "
            "keys; use https://, or a file"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to an address without TLS."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def fetch(url: str) -> bytes:
    """Blocks for at most a few seconds. Raises NaiadError."""
    opener = urllib.request.build_opener(_NoRedirect)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with opener.open(request, timeout=FETCH_TIMEOUT_S) as response:
            data: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise invalid_arg(f"'{url}' responded with the status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise invalid_arg(f"'{url}' cannot be fetched: {reason}") from None
    return _checked(data, url)


def _read_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _checked(file.read(MAX_BYTES + 1), path)
    except OSError as error:
        raise invalid_arg(
            f"the key set '{path}' cannot be read: {os.strerror(error.errno or 0)}"
        ) from None


def _checked(data: bytes, location: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise invalid_arg(f"the key set '{location}' has more than {MAX_BYTES} bytes")
    return data
