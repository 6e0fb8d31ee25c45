"""Triton's trace file: its entries, when which file is written, and what happens when it cannot
be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.tensor import Tensor
from naiad.core.trace import TraceGroup
from naiad.trace.trace_file import TraceFile
from naiad.trace.trace_json import MAX_ELEMENTS, encode_trace
from naiad.trace.trace_options import TraceOptions
from naiad.trace.tracing import ALL_MODELS, Tracing
from tests.unit.trace.trace_rig import begin, finish, run, tracing_of


class Rig:
    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.file = TraceFile(str(path))
        self.tracing = Tracing(
            TraceOptions(**{"level": 1, "rate": 1, "file": str(path), **options}), self.file
        )

    def run(self, count: int = 1, model: str = "m") -> None:
        for _ in range(count):
            group = self.tracing.sample(model)
            assert group is not None
            run(group, model)
        assert self.file.flush()

    def ids(self, suffix: str = "") -> list[int]:
        entries = json.loads(Path(f"{self.path}{suffix}").read_text())
        return [entry["id"] for entry in entries if "model_name" in entry]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.json"


@pytest.fixture
def rigs(path: Path) -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.tracing.close()


def make(rigs: list[Rig], path: Path, **options: Any) -> Rig:
    rigs.append(Rig(path, **options))
    return rigs[-1]


class TestFiles:
    def test_the_file_is_valid_json_at_any_time(self, rigs: list[Rig], path: Path) -> None:
        rig = make(rigs, path)
        path.write_text("what an earlier server left")
        for count in (1, 2, 3):
            rig.run()
            assert rig.ids() == list(range(1, count + 1))
        assert rig.names() == ["t.json"]

    def test_numbered_files_by_log_frequency(self, rigs: list[Rig], path: Path) -> None:
        rig = make(rigs, path, log_frequency=2)
        rig.run(5)
        assert rig.names() == ["t.json.0", "t.json.1"]
        assert (rig.ids(".0"), rig.ids(".1")) == ([1, 2], [3, 4])
        rig.tracing.close()
        assert rig.ids(".2") == [5]

    def test_writes_a_limited_number_of_traces_to_a_numbered_file(
        self, rigs: list[Rig], path: Path
    ) -> None:
        rig = make(rigs, path, count=3)
        rig.run(2)
        assert rig.names() == []
        rig.run()
        assert rig.names() == ["t.json.0"]
        assert rig.ids(".0") == [1, 2, 3]

    def test_writes_an_incomplete_number_of_traces_at_shutdown(
        self, rigs: list[Rig], path: Path
    ) -> None:
        rig = make(rigs, path, count=3)
        rig.run(2)
        rig.tracing.close()
        assert rig.ids() == [1, 2]

    def test_writes_buffered_traces_when_the_setting_is_replaced(
        self, rigs: list[Rig], path: Path
    ) -> None:
        rig = make(rigs, path, log_frequency=10)
        rig.run(2)
        rig.tracing.update(ALL_MODELS, {"log_frequency": ["1"]})
        rig.run()
        assert (rig.ids(".0"), rig.ids(".1")) == ([1, 2], [3])

    def test_models_with_settings_of_their_own_share_the_file(
        self, rigs: list[Rig], path: Path
    ) -> None:
        rig = make(rigs, path)
        rig.tracing.update("other", {"log_frequency": ["1"]})
        rig.run(1)
        rig.run(1, "other")
        assert rig.names() == ["t.json", "t.json.0"]

    def test_a_file_that_cannot_be_written_only_loses_traces(
        self, rigs: list[Rig], tmp_path: Path
    ) -> None:
        path = tmp_path / "missing" / "t.json"
        rig = make(rigs, path)
        rig.run(2)
        assert rig.file.num_dropped == 2
        path.parent.mkdir()
        rig.run()
        assert rig.ids() == [3]

    def test_creates_a_removed_file_again(self, rigs: list[Rig], path: Path) -> None:
        rig = make(rigs, path)
        rig.run()
        path.unlink()
        rig.run()
        rig.run()
        assert rig.file.num_dropped == 1
        assert rig.ids() == [3]

    def test_counts_a_trace_that_cannot_be_encoded(self, rigs: list[Rig], path: Path) -> None:
        rig = make(rigs, path)
        group = rig.tracing.sample("m")
        assert group is not None
        trace = begin(group)
        trace.model_version = "not a number"
        finish(trace)
        group.close()
        rig.run()
        assert rig.file.num_dropped == 1
        assert rig.ids() == [2]


def entries_of(group: TraceGroup) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(b"[" + encode_trace(group) + b"]")
    return entries


class TestEntries:
    def group(self, **options: Any) -> TraceGroup:
        group = tracing_of(**options)[0].sample("m")
        assert group is not None
        return group

    def test_entries_are_in_order_of_time(self) -> None:
        group = self.group(level=3)
        run(group, "add", "seven")
        entries = entries_of(group)
        assert entries[0] == {
            "id": 1,
            "model_name": "add",
            "model_version": 1,
            "request_id": "seven",
        }
        stamps = [stamp for entry in entries for stamp in entry.get("timestamps", [])]
        assert [stamp["ns"] for stamp in stamps] == sorted(stamp["ns"] for stamp in stamps)
        assert {stamp["name"] for stamp in stamps} == {
            "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START",
            "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE",
            "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END",
        }  # fmt: skip
        tensors = [entry for entry in entries if "tensor" in entry]
        assert tensors == [
            {
                "id": 1,
                "activity": "TENSOR_QUEUE_INPUT",
                "tensor": {"name": "IN", "data": "1,2", "shape": "2", "dtype": "INT32"},
            },
            {
                "id": 1,
                "activity": "TENSOR_BACKEND_OUTPUT",
                "tensor": {"name": "OUT", "data": "1", "shape": "1", "dtype": "FP32"},
            },
        ]

    def test_children_name_their_parent_and_have_no_endpoint(self) -> None:
        group = self.group()
        outer = begin(group, "outer")
        finish(begin(group, "inner", parent=outer))
        finish(outer)
        heads = [entry for entry in entries_of(group) if "model_name" in entry]
        assert heads == [
            {"id": 1, "model_name": "outer", "model_version": 1},
            {"id": 2, "model_name": "inner", "model_version": 1, "parent_id": 1},
        ]

    @pytest.mark.parametrize(
        ("datatype", "array", "text"),
        [
            ("BOOL", np.array([True, False]), "1,0"),
            ("UINT8", np.array([0, 255], np.uint8), "0,255"),
            ("INT64", np.array([-(2**63)], np.int64), "-9223372036854775808"),
            ("FP16", np.array([0.5], np.float16), "0.5"),
            (
                "FP32",
                np.array([1 / 3, 1e10, np.nan, -np.inf], np.float32),
                "0.333333,1e+10,nan,-inf",
            ),
            ("FP64", np.array([], np.float64), ""),
            ("BF16", np.array([0x3FC0], np.uint16), "1.5"),
        ],
    )
    def test_formats_values_as_triton_does(
        self, datatype: str, array: np.ndarray[Any, Any], text: str
    ) -> None:
        assert self.text_of(Tensor("T", datatype, [array.size], array.tobytes())) == text

    def test_escapes_strings(self) -> None:
        data = encode_byte_strings([b'a"b', b"\\", b"\xff\0"])
        assert self.text_of(Tensor("T", "BYTES", [3], data)) == '"a\\"b","\\\\","\ufffd\\u0000"'

    def test_omits_the_data_of_very_large_tensors(self) -> None:
        assert self.text_of(Tensor("T", "UINT8", [MAX_ELEMENTS + 1], bytes(MAX_ELEMENTS + 1))) == ""

    def text_of(self, tensor: Tensor) -> str:
        group = self.group(level=2)
        trace = group.new_trace()
        trace.begin("m", "1", "", 1)
        trace.record("TENSOR_QUEUE_INPUT", [tensor])
        text: str = entries_of(group)[1]["tensor"]["data"]
        return text

    def test_escapes_names(self) -> None:
        group = self.group()
        run(group, 'mo"del', 'id"\n')
        assert entries_of(group)[0] == {
            "id": 1,
            "model_name": 'mo"del',
            "model_version": 1,
            "request_id": 'id"\n',
        }


def test_tensors_are_copied_when_they_are_recorded() -> None:
    """A model may write to its inputs."""
    tracing, _ = tracing_of(level=2)
    group = tracing.sample("m")
    assert group is not None
    data = bytearray(b"\1")
    trace = group.new_trace()
    trace.record("TENSOR_QUEUE_INPUT", [Tensor("T", "UINT8", [1], data)])
    data[0] = 9
    assert trace.tensors[0].data == b"\1"
