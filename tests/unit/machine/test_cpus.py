from __future__ import annotations

from pathlib import Path

import pytest

from naiad.machine import cpus
from naiad.machine.cpus import choose_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the control groups of a machine without quotas."""
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cpus, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ("max 100000", None),
        ("200000 100000", 2.0),
        ("800000 100000", 8.0),
        ("nonsense", None),
        ("x y", None),
        ("100000 0", None),
    ],
)
def test_quota_of_a_container(limits: str, quota: float | None, groups: Path) -> None:
    (groups / "cpu.max").write_text(limits)
    assert cpus.quota_cpus() == quota


def test_quota_of_version_1(groups: Path) -> None:
    (groups / "cpu").mkdir()
    (groups / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (groups / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus.quota_cpus() == 1.5
    (groups / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpus.quota_cpus() is None


def test_the_smallest_quota_of_the_groups_above_counts(groups: Path) -> None:
    (groups.parent / "membership").write_text("0::/system.slice/naiad.service\n")
    service = groups / "system.slice" / "naiad.service"
    service.mkdir(parents=True)
    (service / "cpu.max").write_text("300000 100000")
    assert cpus.quota_cpus() == 3.0
    (service.parent / "cpu.max").write_text("100000 100000")
    assert cpus.quota_cpus() == 1.0


@pytest.mark.parametrize(
    ("affinity", "limits", "usable"),
    [(8, "max 100000", 8), (8, "150000 100000", 2), (2, "800000 100000", 2), (4, "1000 100000", 1)],
)
def test_usable_cpus(
    affinity: int, limits: str, usable: int, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(affinity)))
    (groups / "cpu.max").write_text(limits)
    assert cpus.usable_cpus() == usable


def test_instances_of_a_group_share_no_core_while_there_are_enough() -> None:
    cores = [2, 3, 4, 5, 8, 9]
    chosen = [choose_cores(cores, 2, "resnet", index) for index in range(3)]
    assert sorted(core for part in chosen for core in part) == cores
    assert choose_cores(cores, 2, "resnet", 3) == chosen[0]


def test_groups_begin_at_different_cores() -> None:
    cores = list(range(16))
    assert len({tuple(choose_cores(cores, 1, f"model-{n}", 0)) for n in range(64)}) > 8


def test_the_largest_numa_node_counts_only_cpus_of_the_affinity_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "NODES", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 5, 6, 8})
    assert cpus.largest_node_cpus() == 6
    for name, text in (("node0", "0-3,8\n"), ("node1", "4-7\n"), ("node2", "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert cpus.largest_node_cpus() == 4


@pytest.mark.parametrize(
    ("text", "multiplies"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbugs\t\t: avx_vnni\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        (None, False),
    ],
)
def test_products_of_bytes_are_a_flag_of_the_processor(
    text: str | None, multiplies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(cpus, "PROCESSORS", path)
    assert cpus.multiplies_bytes() is multiplies
