"""What keys have used survives a restart of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.keys.account import Accounts, EntranceFacts, LimitError
from naiad.keys.usage_file import UsageFile, read_usage, usage_path
from tests.fakes.keys import KeyRing


def start(ring: KeyRing, path: Path) -> tuple[Accounts, UsageFile]:
    """A server that starts."""
    accounts = Accounts(ring.time)
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
