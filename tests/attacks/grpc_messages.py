"""gRPC messages whose cost is not in their tensors: names, parameters, typed contents, empty
fields."""

from __future__ import annotations

import grpc

from naiad.pb.grpc_service_pb2 import ModelInferRequest
from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target

_BUDGET = 3 * 64 * MIB + 64 * MIB


def _request() -> ModelInferRequest:
    request = ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    return request


@attack(_BUDGET)
def many_output_names(target: Target) -> None:
    """650 KB: 80,000 different output names."""
    request = _request()
    for index in range(80_000):
        request.outputs.add(name=str(index))
    request.raw_input_contents.append(bytes(4))
    for _ in range(3):
        assert target.call("ModelInfer", request.SerializeToString()) != "OK"


@attack(_BUDGET)
def many_input_names(target: Target) -> None:
    """An error must not repeat every name that was sent."""
    request = ModelInferRequest(model_name="identity_fp32")
    for index in range(1_000_000):
        request.inputs.add(name=f"input-{index}", datatype="FP32", shape=[1])
    status = target.call("ModelInfer", request.SerializeToString())
    assert status != "OK"
    assert len(status) < 64 * 1024, f"the error has {len(status)} characters"


@attack(_BUDGET)
def empty_fields(target: Target) -> None:
    """Two bytes are an input, an output or a raw tensor."""
    head = ModelInferRequest(model_name="identity_fp32").SerializeToString()
    for tag in (b"\x2a\x00", b"\x32\x00", b"\x3a\x00"):
        assert target.call("ModelInfer", head + tag * (16 * MIB)) != "OK"


@attack(_BUDGET)
def many_grpc_parameters(target: Target) -> None:
    request = _request()
    for index in range(500_000):
        request.parameters[str(index)].int64_param = index
    request.raw_input_contents.append(bytes(4))
    assert target.call("ModelInfer", request.SerializeToString()) != "OK"


@attack(_BUDGET)
def typed_contents(target: Target) -> None:
    """Valid requests with all their data in typed contents."""
    request = ModelInferRequest(model_name="identity_fp32")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[15 * MIB])
    tensor.contents.fp32_contents.extend([0.5] * (15 * MIB))
    assert target.call("ModelInfer", request.SerializeToString()) == "OK"


@attack(_BUDGET)
def typed_byte_contents(target: Target) -> None:
    request = ModelInferRequest(model_name="identity_bytes")
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=[1, 4 * MIB])
    tensor.contents.bytes_contents.extend([b""] * (4 * MIB))
    target.call("ModelInfer", request.SerializeToString())


@attack(_BUDGET)
def compressed_grpc_names(target: Target) -> None:
    head = ModelInferRequest(model_name="identity_fp32").SerializeToString()
    message = head + b"\x32\x00" * (16 * MIB)
    assert target.call("ModelInfer", message, grpc.Compression.Gzip) != "OK"


@attack(_BUDGET)
def control_messages(target: Target) -> None:
    """A megabyte of settings, load parameters and names."""
    from naiad.pb import grpc_service_pb2 as pb

    trace = pb.TraceSettingRequest()
    for index in range(200_000):
        trace.settings[str(index)].value.append("x")
    target.call("TraceSetting", trace.SerializeToString())
    load = pb.RepositoryModelLoadRequest(model_name="add_sub")
    for index in range(200_000):
        load.parameters[f"x{index}"].string_param = "x"
    target.call("RepositoryModelLoad", load.SerializeToString())
