"""compute-sanitizer watches the kernel tests: no access out of bounds, no race, no barrier misused.

Takes minutes, so only with NAIAD_SANITIZE=1 (`make test-gpu`). Every tensor is an allocation of its
own meanwhile: inside PyTorch's pool a wrong access would hit another tensor and pass unseen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = (
    "test_attention.py",
    "test_dense_kernels.py",
    "test_quantized_kernels.py",
    "test_sampling.py",
)
FOUND_SOMETHING = 99
LIMIT_S = 540


@pytest.mark.skipif(
    os.environ.get("NAIAD_SANITIZE") != "1", reason="takes minutes; NAIAD_SANITIZE=1 runs it"
)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("file", KERNEL_TESTS)
def test_it_finds_nothing(file: str, tool: str, device: object) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer is None:
        pytest.skip("needs compute-sanitizer, which comes with CUDA")
    command = [
        sanitizer,
        "--tool",
        tool,
        "--error-exitcode",
        str(FOUND_SOMETHING),
        "--target-processes",
        "all",
        "--print-limit",
        "5",
    ]
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "--verbosity=0",
        "-x",
        "-p",
        "no:cacheprovider",
        f"tests/gpu/{file}",
    ]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "NAIAD_SANITIZED": "1"}
    done = subprocess.run(
        [*command, *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
