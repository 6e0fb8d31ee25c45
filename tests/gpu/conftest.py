"""The kernel tests run on an NVIDIA GPU, or on the CPU in Triton's interpreter with smaller shapes
(TRITON_INTERPRET=1). Otherwise they are skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IS_SANITIZED = os.environ.get("NAIAD_SANITIZED") == "1"
"""compute-sanitizer (test_sanitizer.py) makes everything a hundred times slower, so it gets smaller
shapes too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.gpu)
        if IS_INTERPRETED:  # numpy computes there. It warns of overflows that a GPU ignores.
            item.add_marker(
                pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
            )


@pytest.fixture
def device() -> torch.device:
    torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if not IS_INTERPRETED:
        pytest.skip("no GPU here; TRITON_INTERPRET=1 runs this test on the CPU")
    return torch.device("cpu")


@pytest.fixture
def narrow(device: torch.device) -> torch.dtype:
    """The 16-bit type under test. Triton's interpreter computes bfloat16 products wrongly, so it
    uses float16."""
    torch = pytest.importorskip("torch")
    return torch.bfloat16 if device.type == "cuda" else torch.float16


@pytest.fixture(params=["narrow", "float32"])
def dtype(request: pytest.FixtureRequest, narrow: torch.dtype) -> torch.dtype:
    return narrow if request.param == "narrow" else pytest.importorskip("torch").float32


@pytest.fixture
def is_small(device: torch.device) -> bool:
    return device.type == "cpu" or IS_SANITIZED
