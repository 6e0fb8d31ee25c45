from __future__ import annotations

from pathlib import Path

import pytest

from naiad.machine.memory import machine_memory_bytes


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert machine_memory_bytes(tmp_path) > 1 << 28


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "7000\n"}, 7000),
        ("0::/a/b\n", {"sys/fs/cgroup/memory.max": "9000\n"}, 9000),
        (
            "0::/a\n",
            {"sys/fs/cgroup/a/memory.max": "8000\n", "sys/fs/cgroup/memory.max": "6000\n"},
            6000,
        ),
        (
            "5:cpu:/x\n4:memory:/x\n",
            {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4000\n"},
            4000,
        ),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, group: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path, "proc/self/cgroup", group)
    for path, text in files.items():
        write(tmp_path, path, text)
    assert machine_memory_bytes(tmp_path) == expected


def test_no_limit_is_not_a_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert machine_memory_bytes(tmp_path) == machine_memory_bytes(tmp_path / "empty")
