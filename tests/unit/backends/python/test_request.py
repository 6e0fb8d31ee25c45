"""pb_utils.InferenceRequest, received and built."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from naiad.backends.python import pb_utils
from naiad.backends.python.error import TritonModelException
from naiad.backends.python.instance import Instance
from naiad.backends.python.request import InferenceRequest, InferenceTrace, received_request
from naiad.backends.python.tensor import Tensor
from naiad.ipc.work import SEQUENCE_END, SEQUENCE_START
from tests.unit.backends.fake_runtime import FakeRuntime
from tests.unit.backends.models import request as work_request


def built(**options: Any) -> InferenceRequest:
    defaults: dict[str, Any] = {
        "model_name": "other",
        "inputs": [Tensor("X", np.ones(2, np.float32))],
        "requested_output_names": ["Y"],
    }
    return InferenceRequest(**{**defaults, **options})


def test_received_request(instance: Instance) -> None:
    work = work_request(
        7,
        id="abc",
        correlation_id="seq",
        flags=3,
        timeout_us=5,
        parameters={"a": 1, "d": 2.5},
        trace_context='{"x":1}',
    )
    request = received_request(work, instance)
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == (
        "abc",
        "seq",
        3,
        5,
    )
    assert json.loads(request.parameters()) == {"a": 1, "d": 2.5}
    assert request.trace().get_context() == '{"x":1}'
    assert request.inputs()[0] is request.inputs()[0]
    assert request.inputs() is not request.inputs()
    assert request.requested_output_names() == {"Y", "TEXT"}
    assert received_request(
        work_request(requested_outputs=["Y"]), instance
    ).requested_output_names() == {"Y"}
    plain = received_request(work_request(), instance)
    assert (plain.parameters(), plain.trace().get_context(), plain.correlation_id()) == (
        "{}",
        None,
        0,
    )


def test_flags_can_be_changed(instance: Instance) -> None:
    request = received_request(work_request(), instance)
    request.set_flags(
        pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        | pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    )
    assert request.flags() == SEQUENCE_START | SEQUENCE_END == 3
    for wrong in (-1, "1"):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            request.set_flags(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="incompatible function arguments"):
            request.set_release_flags(wrong)  # type: ignore[arg-type]


def test_lookup_by_name(instance: Instance) -> None:
    request = received_request(work_request(), instance)
    tensor = pb_utils.get_input_tensor_by_name(request, "X")
    assert tensor is not None
    assert tensor is pb_utils.get_input_tensor_by_name(request, "X") is request.inputs()[0]
    assert pb_utils.get_input_tensor_by_name(request, "missing") is None
    response = pb_utils.InferenceResponse([Tensor("Y", np.zeros(1))])
    assert pb_utils.get_output_tensor_by_name(response, "Y") is response.output_tensors()[0]
    assert pb_utils.get_output_tensor_by_name(response, "missing") is None


def test_reports_cancellation(instance: Instance, runtime: FakeRuntime) -> None:
    request = received_request(work_request(3), instance)
    assert not request.is_cancelled()
    runtime.cancelled.add(3)
    assert request.is_cancelled()
    assert request.get_response_sender().is_cancelled()
    assert not built().is_cancelled()
    request.get_response_sender()._close()


def test_built_request() -> None:
    request = built(
        request_id="r",
        correlation_id=7,
        flags=1,
        timeout=9,
        parameters={"a": 1},
        trace=InferenceTrace("ctx"),
    )
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == (
        "r",
        7,
        1,
        9,
    )
    assert (request.parameters(), request.trace().get_context()) == ('{"a": 1}', "ctx")
    assert request.requested_output_names() == {"Y"}
    assert built(requested_output_names=[]).requested_output_names() == set()
    assert built(correlation_id="c", timeout=np.int64(4)).timeout() == 4
    positional = InferenceRequest("rid", 1, [Tensor("X", np.zeros(1))], ["Y"], "other")
    assert [tensor.name() for tensor in positional.inputs()] == ["X"]


def test_text_may_be_utf8_bytes(instance: Instance) -> None:
    request = built(
        request_id="grün".encode(), model_name=b"other", requested_output_names=[b"Y", "Z"]
    )
    assert request.request_id() == "grün"
    assert request._target is not None
    assert request._target[0] == "other"
    assert request.requested_output_names() == {"Y", "Z"}
    received = received_request(work_request(), instance)
    assert pb_utils.get_input_tensor_by_name(received, b"X") is received.inputs()[0]
    assert pb_utils.get_input_tensor_by_name(received, b"nothing") is None
    response = pb_utils.InferenceResponse([Tensor(b"Y", np.zeros(1))])
    assert pb_utils.get_output_tensor_by_name(response, b"Y") is response.output_tensors()[0]
    config = {"input": [{"name": "X"}], "output": [{"name": "Y"}]}
    assert pb_utils.get_input_config_by_name(config, b"X") == {"name": "X"}
    assert pb_utils.get_output_config_by_name(config, b"Y") == {"name": "Y"}
    with pytest.raises(TritonModelException, match="Correlation ID must be integer or string"):
        built(correlation_id=b"moon")
    with pytest.raises(TypeError):
        built(requested_output_names="RESULT")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"inputs": [None]},
            "Input tensor for request with id '' and model name 'other' should not be empty.",
        ),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id '' and model name 'other' should not be "
            "empty.",
        ),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"correlation_id": -1}, "Correlation ID must be an unsigned 64-bit integer or a string"),
        (
            {"parameters": {1: 2}},
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            {"parameters": {"a": 2.5}},
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
    ],
)
def test_rejects_invalid_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        built(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {"model_name": None},
        {"inputs": None},
        {"inputs": [1]},
        {"requested_output_names": None},
        {"requested_output_names": [1]},
        {"request_id": 1},
        {"flags": -1},
        {"timeout": -1},
        {"model_version": "1"},
        {"trace": 1},
        {"preferred_memory": 1},
        {"correlation_id": None},
    ],
)
def test_rejects_wrong_types(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments") as caught:
        built(**options)
    assert "0x" not in str(caught.value)


def test_preferred_memory() -> None:
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    assert built(preferred_memory=memory).preferred_memory() is memory
    assert built().preferred_memory().memory_type == pb_utils.TRITONSERVER_MEMORY_CPU
    with pytest.raises(TypeError):
        pb_utils.PreferredMemory("gpu")  # type: ignore[arg-type]


def test_rejects_operations_of_the_other_kind(instance: Instance) -> None:
    with pytest.raises(
        TritonModelException, match="Only a request that the model received has a response sender"
    ):
        built().get_response_sender()
    with pytest.raises(
        TritonModelException, match="Only a request that the model built can be executed"
    ):
        received_request(work_request(), instance).exec()
