"""The identity backend: outputs, Triton's parameters for delays, and the byte counter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.backends.identity import IdentityBackend
from naiad.errors import NaiadError
from tests.unit.backends.fake_runtime import FakeRuntime
from tests.unit.backends.framework import arguments, arrays, load, parameters, request, tensor

CONFIG: dict[str, Any] = {
    "input": [tensor("a", "TYPE_FP32", [2]), tensor("b", "TYPE_STRING", [1])],
    "output": [tensor("c", "TYPE_FP32", [2]), tensor("d", "TYPE_STRING", [1])],
}
INPUTS: dict[str, Any] = {"a": np.array([1, 2], np.float32), "b": np.array([b"x"], object)}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []
    monkeypatch.setattr(time, "sleep", times.append)
    return times


def test_output_i_is_input_i(tmp_path: Path) -> None:
    first, second = load(IdentityBackend, tmp_path / "m", CONFIG).execute(
        request(**INPUTS), request(["d"], **INPUTS)
    )
    assert arrays(first)["c"].tolist() == [1, 2]
    assert arrays(first)["d"].tolist() == [b"x"]
    assert list(arrays(second)) == ["d"]


def test_delays(tmp_path: Path, slept: list[float]) -> None:
    served = load(
        IdentityBackend,
        tmp_path / "m",
        {**CONFIG, "parameters": parameters(execute_delay_ms="20", creation_delay_sec="3")},
    )
    assert slept == [3.0]
    served.execute(request(**INPUTS), request(**INPUTS))
    assert slept == [3.0, 0.02]


def test_later_instances_may_be_slower(tmp_path: Path, slept: list[float]) -> None:
    given = arguments(
        tmp_path / "m",
        {
            **CONFIG,
            "parameters": parameters(execute_delay_ms="20", instance_wise_delay_multiplier="2"),
        },
    )
    given.instance_name = "m_2"
    backend = IdentityBackend()
    backend.load(given, FakeRuntime())
    backend.execute([request(**INPUTS)])
    assert slept[-1] == pytest.approx(0.08)


def test_counts_bytes_if_enabled(tmp_path: Path) -> None:
    served = load(
        IdentityBackend,
        tmp_path / "m",
        {**CONFIG, "parameters": parameters(input_byte_size_counter="true")},
    )
    served.execute(request(**INPUTS), request(**INPUTS))
    kinds = [
        (operation.kind, operation.name, operation.value) for operation in served.runtime.metrics
    ]
    assert kinds == [
        ("create_family", "input_byte_size_counter", 0),
        ("create_metric", "", 0),
        ("increment", "", 26),
    ]
    assert served.runtime.metrics[1].labels == {"model": "m", "version": "1"}


def test_rejects_an_unknown_input(tmp_path: Path) -> None:
    (response,) = load(IdentityBackend, tmp_path / "m", CONFIG).execute(request(e=INPUTS["a"]))
    assert response.error is not None
    assert response.error.message == "unexpected inference input 'e'"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"input": CONFIG["input"], "output": CONFIG["output"][:1]},
            "model 'm' has 2 inputs and 1 outputs",
        ),
        (
            {**CONFIG, "parameters": parameters(execute_delay_ms="soon")},
            "parameter 'execute_delay_ms' is 'soon', expected a number",
        ),
    ],
)
def test_rejects_invalid_configs(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        load(IdentityBackend, tmp_path / "m", config)
    assert message in caught.value.message
