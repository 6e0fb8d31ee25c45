"""Tests input data (generated, from JSON, from a folder) and the requests built from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.byte_strings import split_byte_strings
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.perf.channels.address import Address
from naiad.perf.channels.grpc_infer import GrpcInferEncoder, sequence_message
from naiad.perf.channels.http_infer import HttpInferEncoder, sequence_bytes
from naiad.perf.channels.infer_request import MemorySpan, OutputTensor, batched_requests
from naiad.perf.data.data_file import read_folder, read_json_files
from naiad.perf.data.dataset import Dataset, check_batch_size
from naiad.perf.data.generated_data import generate
from naiad.perf.data.model_facts import ModelFacts, TensorFacts, model_facts
from naiad.settings.option import OptionError
from tests.unit.perf.facts import add_sub, text_model

ADDRESS = Address("localhost", 8000)


def written(folder: Path, document: Any) -> Path:
    path = folder / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def floats(raw: bytes) -> list[float]:
    return list(np.frombuffer(raw, np.float32))


def test_random_data_is_in_range_and_repeatable() -> None:
    kinds = ("FP16", "FP32", "FP64", "BF16", "INT8", "UINT64", "BOOL", "BYTES")
    facts = ModelFacts("m", "", tuple(TensorFacts(kind, kind, (3, 2)) for kind in kinds))
    step = generate(facts, {}).steps[0]
    assert step == generate(facts, {}).steps[0]
    assert all(-1 <= value <= 1 for value in floats(step["FP32"].raw))
    assert len(step["BF16"].raw) == 12
    assert len(split_byte_strings(step["BYTES"].raw)) == 6
    assert set(np.frombuffer(step["INT8"].raw, np.int8)) <= set(range(128))


def test_zero_and_string_data() -> None:
    step = generate(text_model(), {"TEXT": (2,)}, is_zero=True).steps[0]
    assert split_byte_strings(step["TEXT"].raw) == [b"", b""]
    step = generate(text_model(), {"TEXT": (2,)}, string_data="hi").steps[0]
    assert split_byte_strings(step["TEXT"].raw) == [b"hi", b"hi"]
    assert "COUNT" not in step


def test_a_dynamic_shape_requires_the_shape_option() -> None:
    with pytest.raises(OptionError, match="--shape TEXT:8"):
        generate(text_model(), {})
    with pytest.raises(OptionError, match="does not fit the model's shape"):
        generate(add_sub(), {"INPUT0": (5,)})


def test_reads_all_kinds_of_json_content(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "data": [
                {"TEXT": ["a", "b"]},
                {"TEXT": {"content": ["c"], "shape": [1]}, "COUNT": [7]},
                {"TEXT": {"content": {"b64": "ZGQ="}, "shape": [1]}},
            ]
        },
    )
    steps = read_json_files([path], text_model(), {}).steps
    assert [split_byte_strings(step["TEXT"].raw) for step in steps] == [
        [b"a", b"b"],
        [b"c"],
        [b"dd"],
    ]
    assert steps[0]["TEXT"].shape == (2,)
    assert steps[1]["COUNT"].raw == (7).to_bytes(4, "little")


def test_reads_the_input_files_of_genai_perf(tmp_path: Path) -> None:
    path = written(tmp_path, {"data": [{"model": "text", "TEXT": ["a"]}]})
    (step,) = read_json_files([path], text_model(), {}).steps
    assert list(step) == ["TEXT"]


def test_reads_streams_from_several_files(tmp_path: Path) -> None:
    one = [{"INPUT0": [1, 2, 3, 4], "INPUT1": [[1, 2], [3, 4]]}]
    path = written(tmp_path, {"data": [one, one * 2]})
    dataset = read_json_files([path, path], add_sub(), {})
    assert [len(stream) for stream in dataset.streams] == [1, 2, 1, 2]
    assert dataset.is_from_file


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ({"data": []}, "a non-empty list 'data'"),
        ({"data": [{"X": [1]}]}, "no tensor 'X'"),
        ({"data": [{"INPUT0": [1, 2, 3, 4]}]}, "no value for input 'INPUT1'"),
        ({"data": [{"INPUT0": [1], "INPUT1": [1]}]}, "does not fit 4 bytes"),
        ({"data": [{"INPUT0": ["a", 1, 2, 3], "INPUT1": [1, 2, 3, 4]}]}, "expected FP32 values"),
        ({"data": [{"INPUT0": {"b64": "!"}, "INPUT1": [1, 2, 3, 4]}]}, "invalid base64"),
        ({"data": [[3]]}, "expected an object of tensors"),
        (
            {
                "data": [{"INPUT0": [1] * 4, "INPUT1": [1] * 4}],
                "validation_data": [{"OUTPUT0": [1] * 4}] * 2,
            },
            "as many steps",
        ),
    ],
)
def test_rejects_invalid_json(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_json_files([written(tmp_path, document)], add_sub(), {})


def test_rejects_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_json_files([tmp_path / "none.json"], add_sub(), {})


def test_reads_a_folder(tmp_path: Path) -> None:
    (tmp_path / "TEXT").write_text("one\ntwo\n")
    dataset = read_folder(tmp_path, text_model(), {"TEXT": (2,)})
    assert split_byte_strings(dataset.steps[0]["TEXT"].raw) == [b"one", b"two"]
    with pytest.raises(OptionError, match="needs 3 strings"):
        read_folder(tmp_path, text_model(), {"TEXT": (3,)})
    with pytest.raises(OptionError, match="no file for the input 'INPUT0'"):
        read_folder(tmp_path, add_sub(), {})


def steps_dataset(count: int) -> Dataset:
    facts = add_sub()
    return Dataset(
        [[generate(facts, {}, seed=number).steps[0] for number in range(count)]], is_from_file=True
    )


def test_batches_use_steps_in_turn() -> None:
    dataset = steps_dataset(5)
    requests = batched_requests(dataset, add_sub(), 2, {})
    assert len(requests) == 2
    assert requests[1].inputs[0].shape == (2, 4)
    assert (
        requests[1].inputs[0].raw == dataset.steps[2]["INPUT0"].raw + dataset.steps[3]["INPUT0"].raw
    )


def test_batch_size_must_fit_the_model() -> None:
    with pytest.raises(OptionError, match="does not support batching"):
        check_batch_size(add_sub(0), 2)
    with pytest.raises(OptionError, match="larger than max_batch_size 8"):
        check_batch_size(add_sub(), 9)


def parts(data: bytes) -> tuple[dict[str, str], dict[str, Any], bytes]:
    """Returns headers, JSON and binary tensors of an HTTP request, and checks the lengths."""
    head, _, body = data.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert int(headers["Content-Length"]) == len(body)
    size = int(headers.get("Inference-Header-Content-Length", len(body)))
    return headers, json.loads(body[:size]), body[size:]


def test_http_request_with_binary_tensors() -> None:
    request = batched_requests(steps_dataset(1), add_sub(), 1, {"n": 3})[0]
    encoder = HttpInferEncoder(ADDRESS, "add sub", "2", headers=(("K", "v"),))
    data = encoder.encode(request)
    assert data.startswith(b"POST /v2/models/add%20sub/versions/2/infer HTTP/1.1\r\n")
    headers, document, binary = parts(data)
    assert headers["K"] == "v"
    assert document["inputs"][0]["parameters"] == {"binary_data_size": 16}
    assert document["outputs"][0] == {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    assert document["parameters"] == {"n": 3}
    assert binary == request.inputs[0].raw + request.inputs[1].raw


def test_http_request_as_json() -> None:
    request = batched_requests(steps_dataset(1), add_sub(), 1, {})[0]
    _, document, binary = parts(
        HttpInferEncoder(ADDRESS, "m", "", is_json_input=True, is_json_output=True).encode(request)
    )
    assert document["inputs"][0]["data"] == floats(request.inputs[0].raw)
    assert document["outputs"][0]["parameters"] == {"binary_data": False}
    assert binary == b""


@pytest.mark.parametrize(
    ("sequence_id", "is_start", "is_end"),
    [(1, True, False), (2**63, False, True), (77, False, False)],
)
def test_http_sequence_requests_have_a_fixed_length(
    sequence_id: int, is_start: bool, is_end: bool
) -> None:
    request = batched_requests(steps_dataset(1), add_sub(), 1, {})[0]
    halves = HttpInferEncoder(ADDRESS, "m", "").encode_sequence(request)
    _, document, binary = parts(sequence_bytes(halves, sequence_id, is_start, is_end))
    assert document["parameters"] == {
        "sequence_id": sequence_id,
        "sequence_start": is_start,
        "sequence_end": is_end,
    }
    assert len(binary) == 32


def test_grpc_request_with_inserted_sequence_parameters() -> None:
    request = batched_requests(
        steps_dataset(1), add_sub(), 1, {"text": "x", "flag": True, "real": 0.5}
    )[0]
    encoder = GrpcInferEncoder("m", "1", is_stream=True)
    whole = sequence_message(encoder.message(request), encoder.head_bytes, 9, True, False)
    message = ModelInferRequest.FromString(whole)
    assert (message.model_name, message.model_version) == ("m", "1")
    assert whole.startswith(
        ModelInferRequest(model_name="m", model_version="1").SerializeToString()
    )
    assert message.parameters["sequence_id"].int64_param == 9
    assert message.parameters["sequence_start"].bool_param
    assert message.parameters["text"].string_param == "x"
    assert message.parameters["real"].double_param == 0.5
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    assert list(message.raw_input_contents) == [tensor.raw for tensor in request.inputs]


def test_shared_memory_spans() -> None:
    request = batched_requests(steps_dataset(1), add_sub(), 1, {})[0]
    import msgspec

    tensor = msgspec.structs.replace(request.inputs[0], span=MemorySpan("r", 16, 64))
    placed = msgspec.structs.replace(
        request, inputs=(tensor,), outputs=(OutputTensor("OUTPUT0", MemorySpan("o", 16)),)
    )
    _, document, binary = parts(HttpInferEncoder(ADDRESS, "m", "").encode(placed))
    assert document["inputs"][0]["parameters"] == {
        "shared_memory_region": "r",
        "shared_memory_byte_size": 16,
        "shared_memory_offset": 64,
    }
    assert document["outputs"][0]["parameters"] == {
        "shared_memory_region": "o",
        "shared_memory_byte_size": 16,
    }
    assert binary == b""
    message = ModelInferRequest.FromString(GrpcInferEncoder("m", "").message(placed))
    assert message.inputs[0].parameters["shared_memory_offset"].int64_param == 64
    assert not message.raw_input_contents


def test_facts_from_metadata_and_config() -> None:
    metadata = {
        "name": "m",
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [],
    }
    config = {
        "max_batch_size": 4,
        "input": [{"name": "A", "optional": True}],
        "sequence_batching": {},
        "model_transaction_policy": {"decoupled": True},
        "response_cache": {"enable": True},
    }
    facts = model_facts(metadata, config, "1", ["statistics"])
    assert facts.inputs == (TensorFacts("A", "FP32", (3,), is_optional=True),)
    assert facts.is_sequence
    assert facts.is_decoupled
    assert facts.has_response_cache
    assert facts.has_statistics
