from __future__ import annotations

from pathlib import Path

import pytest

from naiad.instances.devices import gpu_ids


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (0,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, (0,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a2b"}, (0,)),
        ({"TRITON_SERVER_CPU_ONLY": "1"}, ()),
    ],
)
def test_gpus_by_device_file_and_environment(
    tmp_path: Path, environ: dict[str, str], expected: tuple[int, ...]
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpu_ids(environ, tmp_path) == expected


def test_a_machine_without_devices(tmp_path: Path) -> None:
    assert gpu_ids({}, tmp_path / "nothing") == ()
