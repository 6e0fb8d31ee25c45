"""Tests that everything the OpenVINO engine needs can be imported without torch, which the extra
`openvino-llm` does not install."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("tokenizers", reason="the extra openvino-llm brings it")
pytest.importorskip("jinja2", reason="the extra openvino-llm brings it")

MODULES = [
    "naiad.backends.llm.backend",
    "naiad.backends.llm.vllm.backend",
    "naiad.backends.llm.tensorrtllm.backend",
    "naiad.llm.openvino.checkpoint",
]
ENGINE = "naiad.llm.openvino.engine"


@pytest.mark.parametrize("module", [*MODULES, ENGINE])
def test_imports_without_torch(module: str) -> None:
    if module == ENGINE:
        pytest.importorskip(
            "openvino_genai", reason="needs openvino-genai (the openvino-llm extra)"
        )
    script = (
        f"import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import {module}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
