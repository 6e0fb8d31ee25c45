"""What was measured survives: half a line at the end, other configurations, a disk that is full."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from naiad.analyze.checkpoint import FILE, Checkpoint, CheckpointError, Goal, Job, read_history
from naiad.analyze.measurement import Measurement
from naiad.settings.option import OptionError


def job(fingerprint: str = "f") -> Job:
    return Job(["m"], fingerprint, "quick", Goal(), "naiad analyze", "a machine", "now", "1", 10)


def measurement(key: str) -> Measurement:
    return Measurement(key, 1, 1, [])


def kept(folder: Path) -> list[str]:
    return list(read_history(folder).measurements["m"])


def test_a_half_written_line_is_dropped(tmp_path: Path) -> None:
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
    assert kept(tmp_path) == ["a", "c"]


def test_figures_of_another_configuration_are_refused(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path)
    first.begin(job())
    first.close()
    second = Checkpoint(tmp_path)
    with pytest.raises(OptionError, match="another configuration of m"):
        second.begin(job("other"))
    second.close()


class FullDisk(io.RawIOBase):
    """Takes ten bytes and no more."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken = bytes(data[:10])
        return len(self.taken)


def test_a_full_disk_ends_the_search_with_a_clear_word(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.close()
    checkpoint._file = FullDisk()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        checkpoint.begin(job())
