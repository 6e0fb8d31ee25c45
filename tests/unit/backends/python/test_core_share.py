"""The thread counts of the libraries that a Python model uses, seen from inside a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from naiad.backends.python.core_share import share_cores
from naiad.ipc.work import LoadArguments


@pytest.fixture(autouse=True)
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naiad.backends.served_config.usable_cpus", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(
        "naiad.backends.python.core_share._limit_loaded_openblas", lambda count: None
    )


def arguments(count: int, kind: str = "CPU") -> LoadArguments:
    config = {"name": "m", "instance_group": [{"kind": f"KIND_{kind}", "count": count}]}
    return LoadArguments("m", 1, "/m", "m_0", kind, 0, json.dumps(config).encode())


@pytest.mark.parametrize(("count", "share"), [(1, None), (2, "2"), (3, "1"), (8, "1")])
def test_instances_get_equal_shares(count: int, share: str | None) -> None:
    share_cores(arguments(count))
    assert os.environ.get("OMP_NUM_THREADS") == share


def test_keeps_the_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    share_cores(arguments(8))
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_an_instance_on_a_gpu_keeps_all_cores() -> None:
    share_cores(arguments(8, "GPU"))
    assert "OMP_NUM_THREADS" not in os.environ


SCRIPT = """
import json, os, re, ctypes
import numpy
from naiad.backends import served_config
from naiad.backends.python.core_share import share_cores
from naiad.ipc.work import LoadArguments
served_config.usable_cpus = lambda: 4
config = {"name": "m", "instance_group": [{"kind": "KIND_CPU", "count": 4}]}
share_cores(LoadArguments("m", 1, "/m", "m_0", "CPU", 0, json.dumps(config).encode()))
path = re.search(r"/\\S*openblas\\S*", open("/proc/self/maps").read())
if path is None:
    print("none")
else:
    library = ctypes.CDLL(path[0])
    names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads")
    print([getattr(library, name)() for name in names if hasattr(library, name)])
"""


@pytest.mark.parametrize(
    ("variables", "counts"), [({}, "[1]"), ({"OPENBLAS_NUM_THREADS": "2"}, "[2]")]
)
def test_numpy_that_is_imported_already(variables: dict[str, str], counts: str) -> None:
    environment = {**os.environ, **variables}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    if finished.stdout.strip() == "none":
        pytest.skip("this numpy has no OpenBLAS")
    assert finished.stdout.strip() == counts
