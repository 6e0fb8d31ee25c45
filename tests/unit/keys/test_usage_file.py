"""What keys have used survives a restart of the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.keys.account import Accounts, EntranceFacts, LimitError
from naiad.keys.usage_file import UsageFile, read_usage, usage_path
from tests.fakes.keys import KeyRing


def start(ring: KeyRing, path: Path) -> tuple[Accounts, UsageFile]:
    """A server that starts."""
    accounts = Accounts(ring.time, steady_s=ring.time.steady_s)
    usage = UsageFile(path, accounts, ring.time)
    usage.load()
    return accounts, usage


def test_day_counters_survive_a_restart(tmp_path: Path) -> None:
    path = usage_path(tmp_path / "keys.json")
    ring = KeyRing()
    ring.create("one", tokens_per_day=100)
    (identity,) = ring.table.identities()
    for _ in range(2):
        accounts, usage = start(ring, path)
        admission = accounts.of(identity).admit(identity, EntranceFacts())
        assert not isinstance(admission, LimitError)
        admission.reserve(45)
        admission.settle(20, 25)
        admission.end(200)
        usage.save()
    accounts, _ = start(ring, path)
    with pytest.raises(LimitError, match="100 tokens per day"):
        accounts.of(identity).reserve(11)
    (used,) = read_usage(path).keys.values()
    assert (used.requests, used.prompt_tokens, used.output_tokens) == (2, 40, 50)
    ring.time.advance(days=1)
    accounts, _ = start(ring, path)
    accounts.of(identity).reserve(100)


def test_an_unchanged_document_is_not_written_again(tmp_path: Path) -> None:
    ring = KeyRing()
    accounts, usage = start(ring, tmp_path / "u")
    ring.create("one")
    (identity,) = ring.table.identities()
    accounts.of(identity)
    usage.save()
    assert usage.encode() is None


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "u").write_bytes(b"{")
    with pytest.raises(NaiadError, match=r"the usage file .* cannot be read"):
        read_usage(tmp_path / "u")


def test_a_file_that_cannot_be_written_does_not_raise(tmp_path: Path) -> None:
    _, usage = start(KeyRing(), tmp_path / "missing" / "u")
    usage.write(b"{}")
    usage.write(b"{}")


RESERVES = """
import asyncio, sys, time
from pathlib import Path
from naiad.core.identity import Identity, KeyLimits
from naiad.keys import keys as module
from naiad.keys.account import Accounts
from naiad.keys.guard import Guard
from naiad.keys.key_table import KeyTable
from naiad.keys.usage_file import UsageFile

module.SAVE_INTERVAL_S = 0.2
identity = Identity("one", limits=KeyLimits(tokens_per_day=10**9))


async def main():
    accounts = Accounts()
    usage = UsageFile(Path(sys.argv[1]), accounts, time.time)
    usage.load()
    async with module.Keys(Guard(KeyTable(), accounts=accounts), None, usage).running():
        for total in range(10**6):
            accounts.of(identity).reserve(1)
            print(time.monotonic(), total + 1, flush=True)
            await asyncio.sleep(0.002)


asyncio.run(main())
"""


def test_a_killed_server_forgets_at_most_the_time_between_two_writes(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    process = subprocess.Popen(
        [sys.executable, "-c", RESERVES, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(300)]
    process.kill()
    lines += process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    totals = [(float(when), int(total)) for when, total in map(str.split, lines)]
    (used,) = read_usage(path).keys.values()
    written_s = next(when for when, total in totals if total >= used.tokens_today)
    # 0.2 seconds between two writes, and a slow machine may need some time for a write.
    assert totals[-1][0] - written_s < 0.2 + 0.5
    assert used.tokens_today > 0
