"""What keys have used, on disk: so that limits per day survive a restart, and `naiad key usage` can
show it.

In:  the accounts, every few seconds and when the server stops. Out: a small JSON file next to the
     key file, replaced as a whole.
Rule: a file that cannot be read or written is logged and never keeps the server from serving.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from naiad import log
from naiad.errors import internal
from naiad.files.private_folder import write_file
from naiad.keys.account import Account, Accounts

SAVE_INTERVAL_S = 2.0


class KeyUsage(msgspec.Struct, omit_defaults=True):
    day: int = 0
    """Days since 1970, UTC."""
    tokens_today: int = 0
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    """The last four are counted since the key was created."""


class UsageDocument(msgspec.Struct):
    version: int = 1
    keys: dict[str, KeyUsage] = {}


def usage_path(key_file: Path) -> Path:
    return key_file.with_name(f"{key_file.name}.usage")


def read_usage(path: Path) -> UsageDocument:
    """An absent file is empty. Raises NaiadError for one that cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=UsageDocument)
    except FileNotFoundError:
        return UsageDocument()
    except (OSError, msgspec.DecodeError) as error:
        raise internal(f"the usage file '{path}' cannot be read: {error}") from None


class UsageFile:
    def __init__(self, path: Path, accounts: Accounts, clock_s: Callable[[], float]) -> None:
        self.path = path
        self._accounts = accounts
        self._clock_s = clock_s
        self._before: dict[str, KeyUsage] = {}
        """What the keys had used when this server started."""
        self._written = b""
        self._has_failed = False

    def load(self) -> None:
        """Restores the counters of a server that ran before. Raises NaiadError."""
        self._before = read_usage(self.path).keys
        self._accounts.on_new = self._restore

    def _restore(self, account: Account) -> None:
        usage = self._before.get(account.key_id)
        if usage is not None:
            account.tokens_today.restore(usage.day, usage.tokens_today)

    def encode(self) -> bytes | None:
        """The document as it is now; None if it has been written already. Fast: the caller writes
        it in a thread."""
        now_s = self._clock_s()
        keys = dict(self._before)
        for account in self._accounts.all():
            keys[account.key_id] = self._usage(account, now_s)
        data = msgspec.json.encode(UsageDocument(keys=keys))
        return None if data == self._written else data

    def _usage(self, account: Account, now_s: float) -> KeyUsage:
        before = self._before.get(account.key_id, KeyUsage())
        tokens_today = account.tokens_today.used(now_s)
        return KeyUsage(
            account.tokens_today.day,
            tokens_today,
            before.requests + account.num_requests,
            before.refused + account.refusals.total(),
            before.prompt_tokens + account.num_prompt_tokens,
            before.output_tokens + account.num_output_tokens,
        )

    def write(self, data: bytes) -> None:
        """Blocks."""
        try:
            write_file(self.path, data)
        except OSError as error:
            if not self._has_failed:
                log.error(
                    f"the usage of API keys cannot be written to '{self.path}': "
                    f"{os.strerror(error.errno or 0)}"
                )
            self._has_failed = True
        else:
            self._written, self._has_failed = data, False

    def save(self) -> None:
        """Blocks; for the end of the server."""
        data = self.encode()
        if data is not None:
            self.write(data)
