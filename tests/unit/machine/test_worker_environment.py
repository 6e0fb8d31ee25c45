from __future__ import annotations

import pytest

from naiad.machine.worker_environment import worker_environment

ENVIRON = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "PYTHONPATH": "/p",
    "CUDA_VISIBLE_DEVICES": "0",
    "MY_TOKEN": "t",
    "MY_OTHER": "o",
    "AWS_SECRET_ACCESS_KEY": "s",
    "NAIAD_API_KEY": "k",
    "NAIAD_CACHE": "/c",
    "ORT_DISABLE_TELEMETRY": "1",
}
NEEDED = {
    *("PATH", "LC_ALL", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "NAIAD_CACHE"),
    "ORT_DISABLE_TELEMETRY",
}


@pytest.mark.parametrize(
    ("patterns", "secrets", "more"),
    [
        (["*"], [], {"MY_TOKEN", "MY_OTHER", "AWS_SECRET_ACCESS_KEY"}),
        (["*"], ["AWS_SECRET_ACCESS_KEY"], {"MY_TOKEN", "MY_OTHER"}),
        (
            ["*", "AWS_SECRET_ACCESS_KEY"],
            ["AWS_SECRET_ACCESS_KEY"],
            {"MY_TOKEN", "MY_OTHER", "AWS_SECRET_ACCESS_KEY"},
        ),
        (["MY_T*"], [], {"MY_TOKEN"}),
        (["NAIAD_*"], [], set()),
        (["NAIAD_API_KEY"], [], {"NAIAD_API_KEY"}),
        ([], [], set()),
    ],
)
def test_what_passes(patterns: list[str], secrets: list[str], more: set[str]) -> None:
    assert worker_environment(ENVIRON, patterns, secrets).keys() == NEEDED | more
