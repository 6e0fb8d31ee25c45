"""Tests the checkpoint: a half-written line, another configuration, a full disk."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from naiad.analyze.checkpoint import (
    FILE,
    Checkpoint,
    CheckpointError,
    CheckpointJob,
    Goal,
    read_history,
)
from naiad.analyze.measurement import Measurement
from naiad.settings.option import OptionError


def job(fingerprint: str = "f") -> CheckpointJob:
    return CheckpointJob(
        ["m"], fingerprint, "quick", Goal(), "naiad analyze", "a machine", "now", "1", 10
    )


def measurement(key: str) -> Measurement:
    return Measurement(key, 1, 1, [])


def stored_keys(folder: Path) -> list[str]:
    return list(read_history(folder).measurements["m"])


def test_drops_a_half_written_line(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path)
    first.begin(job())
    first.add(job(), measurement("a"))
    first.add(job(), measurement("b"))
    first.close()
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-9])
    second = Checkpoint(tmp_path)
    assert list(second.begin(job())) == ["a"]
    second.add(job(), measurement("c"))
    second.close()
    assert stored_keys(tmp_path) == ["a", "c"]


def test_rejects_measurements_of_another_configuration(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path)
    first.begin(job())
    first.add(job(), measurement("a"))
    first.close()
    second = Checkpoint(tmp_path)
    with pytest.raises(OptionError, match="another configuration of m"):
        second.begin(job("other"))
    second.close()


def test_a_job_whose_measurements_all_failed_starts_anew(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path)
    first.begin(job())
    first.add(job(), Measurement("a", 1, 1, [], error="wrong shape"))
    first.close()
    second = Checkpoint(tmp_path)
    assert second.begin(job("with other data")) == {}
    second.add(job("with other data"), measurement("b"))
    second.close()
    assert stored_keys(tmp_path) == ["b"]


class FullDisk(io.RawIOBase):
    """Accepts ten bytes, then fails."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.written:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written = bytes(data[:10])
        return len(self.written)


def test_a_full_disk_raises_a_clear_error(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.close()
    checkpoint._file = FullDisk()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        checkpoint.begin(job())
