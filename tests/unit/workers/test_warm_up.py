"""Warm-up samples: what a backend gets of them, and what happens when it does not like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.work import SEQUENCE_END, SEQUENCE_START, LoadArguments, WorkError, WorkRequest, WorkResponse
from naiad.errors import NaiadError
from naiad.workers.warm_up import warm_up


class Recorder:
    def __init__(self, error: str = "") -> None:
        self.batches: list[list[WorkRequest]] = []
        self._error = error

    def load(self, arguments: LoadArguments, runtime: Any) -> None: ...

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        self.batches.append(requests)
        error = WorkError("INTERNAL", self._error) if self._error else None
        return [WorkResponse(error=error) for _ in requests]

    def unload(self) -> None: ...


class AsyncRecorder(Recorder):
    async def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:  # type: ignore[override]
        return super().execute(requests)


def run(config: dict[str, Any], backend: Recorder | None = None, model_dir: Path = Path("m")) -> Recorder:
    backend = backend or Recorder()
    warm_up(LoadArguments("m", 1, str(model_dir), "m_0", "CPU", 0, json.dumps(config).encode()), backend)
    return backend


def sample(batch_size: int = 1, count: int = 0, **given: Any) -> dict[str, Any]:
    return {"name": "first", "batch_size": batch_size, "count": count, "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [2], **given}}}


def test_a_sample_is_so_many_requests_of_one_element() -> None:
    backend = run({"max_batch_size": 4, "model_warmup": [sample(3, zero_data=True)]})
    (batch,) = backend.batches
    assert [[(tensor.name, tensor.shape, tensor.as_numpy().tolist()) for tensor in request.inputs] for request in batch] == (
        [[("x", [1, 2], [[0, 0]])]] * 3
    )


def test_counts() -> None:
    warmups = [sample(1, 0), sample(1, 3), sample(0, 5)]
    assert len(run({"max_batch_size": 1, "model_warmup": warmups}).batches) == 4


def test_without_a_batch_dimension() -> None:
    (batch,) = run({"model_warmup": [sample(1)]}).batches
    assert batch[0].inputs[0].shape == [2]


@pytest.mark.parametrize(
    ("data_type", "dtype"), [("TYPE_FP32", np.float32), ("TYPE_FP16", np.float16), ("TYPE_INT64", np.int64), ("TYPE_BOOL", np.bool_)]
)
def test_random_data(data_type: str, dtype: Any) -> None:
    (batch,) = run({"model_warmup": [sample(data_type=data_type, dims=[200], random_data=True)]}).batches
    values = batch[0].inputs[0].as_numpy()
    assert values.dtype == dtype
    assert len(np.unique(values)) > 1
    if np.dtype(dtype).kind != "f":
        assert set(values.tolist()) <= {0, 1}


def test_strings_are_empty() -> None:
    (batch,) = run({"model_warmup": [sample(data_type="TYPE_STRING", random_data=True)]}).batches
    assert batch[0].inputs[0].as_numpy().tolist() == [b"", b""]


def test_data_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(np.array([1.5, 2.5], np.float32).tobytes())
    (batch,) = run({"model_warmup": [sample(input_data_file="data")]}, model_dir=tmp_path).batches
    assert batch[0].inputs[0].as_numpy().tolist() == [1.5, 2.5]


def test_files_that_are_missing_or_short(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"1234")
    with pytest.raises(NaiadError) as caught:
        run({"model_warmup": [sample(input_data_file="short")]}, model_dir=tmp_path)
    words = "warmup setting expects 8 bytes, but the data provided from short only has 4 bytes"
    assert caught.value.message == f"failed to run warmup sample 'first': {words}"
    with pytest.raises(NaiadError, match="No such file"):
        run({"model_warmup": [sample(input_data_file="none")]}, model_dir=tmp_path)


def test_a_sample_that_fails_fails_the_load() -> None:
    with pytest.raises(NaiadError) as caught:
        run({"model_warmup": [sample()]}, Recorder("no such thing"))
    assert caught.value.message == "failed to run warmup sample 'first': no such thing"


def test_a_coroutine() -> None:
    assert len(run({"model_warmup": [sample()]}, AsyncRecorder()).batches) == 1
    with pytest.raises(NaiadError, match="failed to run warmup sample 'first': late"):
        run({"model_warmup": [sample()]}, AsyncRecorder("late"))


def test_a_sequence_model_gets_its_controls_and_its_state() -> None:
    controls = [
        {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 7]}]},
        {"name": "READY", "control": [{"kind": "CONTROL_SEQUENCE_READY", "bool_false_true": [False, True]}]},
        {"name": "END", "control": [{"kind": "CONTROL_SEQUENCE_END", "fp32_false_true": [0, 1]}]},
        {"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
    ]
    state = [{"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [-1, 2]}]
    config = {"max_batch_size": 2, "model_warmup": [sample(2)], "sequence_batching": {"control_input": controls, "state": state}}
    (batch,) = run(config).batches
    inputs = {tensor.name: tensor.as_numpy().tolist() for tensor in batch[1].inputs}
    assert inputs == {"x": [[0, 0]], "START": [[7]], "READY": [[True]], "END": [[1.0]], "ID": [[2]], "before": [[[0, 0]]]}
    assert [(request.correlation_id, request.flags) for request in batch] == [
        (1, SEQUENCE_START | SEQUENCE_END),
        (2, SEQUENCE_START | SEQUENCE_END),
    ]


def test_a_framework_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from naiad.workers.worker import import_backend

    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "naiad.backends.openvino", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"openvino is not installed: pip install naiad\[openvino\]"):
        import_backend("openvino")
