"""The audit log: every request, no secret, and never in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.keys.account import Accounts
from naiad.keys.api_class import INFERENCE
from naiad.keys.audit import AuditLine, AuditLog
from naiad.keys.audit_trail import AuditTrail
from naiad.keys.guard import Gate, read_text
from tests.fakes.keys import KeyRing


class Peer:
    """A connection from a known address."""

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.7", 1234) if name == "peername" else None


def open_gate(ring: KeyRing, log: AuditLog, key: str, model: str = "") -> Gate:
    trail = AuditTrail(log, ring.time)
    guard = ring.guard(
        accounts=Accounts(ring.time, trail.on_end, steady_s=ring.time.steady_s),
        on_refused=trail.on_refused,
    )
    gate = guard.gate(INFERENCE, read_text({"x-api-key": key}), model)
    assert isinstance(gate, Gate)
    return gate


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_request_without_secrets(tmp_path: Path) -> None:
    ring, path = KeyRing(), tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.start()
    key = ring.create("one")
    gate = open_gate(ring, log, key)
    admission = gate.enter(Peer())  # type: ignore[arg-type]
    assert not isinstance(admission, NaiadError)
    admission.note_model("llama")
    admission.settle(12, 34)
    ring.time.advance(seconds=1.5)
    admission.end(200)
    admission.end(499)
    ring.revoke(key)
    gate.enter(Peer())  # type: ignore[arg-type]
    open_gate(ring, log, "wrong", "m").enter(Peer())  # type: ignore[arg-type]
    log.stop()
    ended, revoked, wrong = lines(path)
    assert ended == {
        "time": "2030-01-01T00:00:01.500+00:00",
        "key": key[9:17],
        "address": "10.0.0.7",
        "api": "inference",
        "model": "llama",
        "status": "200",
        "prompt_tokens": 12,
        "output_tokens": 34,
        "ms": 1500.0,
    }
    assert (revoked["status"], revoked["key"]) == ("Unauthenticated", key[9:17])
    assert (wrong["status"], wrong["key"], wrong["model"]) == ("Unauthenticated", "", "m")
    assert key[18:] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def line(number: int) -> AuditLine:
    return AuditLine("", "", "", "", str(number), "200", 0, 0, 0.0)


def test_reopen_writes_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.start()
    log.write(line(1))
    assert log._writer.flush()
    path.rename(tmp_path / "old")
    log.reopen()
    log.write(line(2))
    log.stop()
    assert [row["model"] for row in lines(tmp_path / "old")] == ["1"]
    assert [row["model"] for row in lines(path)] == ["2"]


def test_a_pipe_that_nobody_reads_drops_lines_and_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(path)
    log._writer._max_queued_bytes = 10_000
    log.start()
    for number in range(5000):
        log.write(line(number))
    os.close(reader)
    assert log._writer.flush(10)
    assert log.num_dropped > 0
    log.stop()


def test_a_full_disk_drops_lines_and_counts_them() -> None:
    log = AuditLog(Path("/dev/full"))
    log.start()
    log.write(line(1))
    log._writer.flush(10)
    assert log.num_dropped == 1
    log.stop()


def test_a_file_that_cannot_be_opened_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match=r"the audit log .* cannot be opened"):
        AuditLog(tmp_path / "missing" / "x").start()
