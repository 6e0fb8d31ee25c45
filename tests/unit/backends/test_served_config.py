from __future__ import annotations

import pytest

from naiad.backends.served_config import InstanceGroup, Parameter, ServedConfig


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naiad.backends.served_config.usable_cpus", lambda: 8)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def config(count: int, **parameters: str) -> ServedConfig:
    return ServedConfig(
        "m",
        parameters={name: Parameter(value) for name, value in parameters.items()},
        instance_group=[InstanceGroup("KIND_CPU", count)],
    )


@pytest.mark.parametrize(("count", "share"), [(1, 8), (2, 4), (3, 2), (20, 1)])
def test_cpus_are_divided_among_the_instances(count: int, share: int) -> None:
    assert config(count).threads() == share
    assert config(count).openmp_threads("THREADS") == share


@pytest.mark.parametrize(
    ("name", "value", "threads"),
    [
        ("OMP_NUM_THREADS", "3", 3),
        ("OMP_NUM_THREADS", "5,2", 5),
        ("MKL_NUM_THREADS", "6", 6),
        ("OMP_NUM_THREADS", "many", 4),
        ("OMP_NUM_THREADS", "0", 4),
    ],
)
def test_the_environment_of_the_user_has_precedence_over_the_share(
    name: str, value: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert config(2).openmp_threads("THREADS") == threads
    assert config(2).threads("THREADS") == 4


def test_a_parameter_has_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert config(2, THREADS="7").openmp_threads("THREADS") == 7
