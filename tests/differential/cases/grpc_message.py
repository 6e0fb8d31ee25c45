"""Builds gRPC cases from messages of tritonclient's generated classes, serialized to bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case, GrpcCase

NOTHING: dict[str, Any] = {}
ROW = np.arange(16, dtype=np.float32)
ONES = np.ones(16, dtype=np.float32)


def call(name: str, rpc: str, message: Message | bytes, **options: Any) -> Case:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcCase(f"{rpc}: {name}", rpc, (data,), **options)


def described(name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return tensor


def parameter(value: Any) -> Any:
    match value:
        case bool():
            return pb.InferParameter(bool_param=value)
        case int():
            return pb.InferParameter(int64_param=value)
        case float():
            return pb.InferParameter(double_param=value)
        case _:
            return pb.InferParameter(string_param=value)


def request(
    model: str,
    inputs: list[Any],
    raw: Sequence[bytes] = (),
    outputs: Sequence[Any] = (),
    parameters: dict[str, Any] = NOTHING,
    version: str = "",
    id: str = "",
) -> Any:
    message = pb.ModelInferRequest(
        model_name=model,
        model_version=version,
        id=id,
        inputs=inputs,
        raw_input_contents=raw,
        outputs=outputs,
    )
    for key, value in parameters.items():
        message.parameters[key].CopyFrom(
            value if isinstance(value, pb.InferParameter) else parameter(value)
        )
    return message


def output(name: str, **parameters: Any) -> Any:
    tensor = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        tensor.parameters[key].CopyFrom(
            value if isinstance(value, pb.InferParameter) else parameter(value)
        )
    return tensor


def add_sub(first: Any = None, raw: list[bytes] | None = None, **options: Any) -> Any:
    inputs = [
        described("INPUT0", "FP32", [1, 16]) if first is None else first,
        described("INPUT1", "FP32", [1, 16]),
    ]
    return request(
        "add_sub", inputs, [ROW.tobytes(), ONES.tobytes()] if raw is None else raw, **options
    )


def typed(datatype: str, field: str, values: list[Any], size: int | None = None) -> Any:
    return request(
        "types",
        [
            described(
                f"IN_{datatype}",
                datatype,
                [len(values) if size is None else size],
                **{field: values},
            )
        ],
    )


def raw_typed(datatype: str, payload: bytes, size: int = 3) -> Any:
    return request("types", [described(f"IN_{datatype}", datatype, [size])], [payload])


def strings(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def infer(name: str, message: Any, **options: Any) -> Case:
    return call(name, "ModelInfer", message, **options)


def info(name: str, parameters: dict[str, Any], **options: Any) -> Case:
    any_input = [described("ANY", "INT32", [1], int_contents=[1])]
    return infer(
        f"parameters: {name}", request("request_info", any_input, parameters=parameters), **options
    )


def refused(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "response": None}
