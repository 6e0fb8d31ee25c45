"""Typed contents of an input (int_contents, fp32_contents, ...) -> the raw bytes of its tensor."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.errors import invalid_arg
from naiad.pb.grpc_service_pb2 import ModelInferRequest

_FIELDS: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    # field -> datatype it may carry -> (numpy type of the field, numpy type of the tensor)
    "bool_contents": {"BOOL": (np.bool_, np.bool_)},
    "int_contents": {
        "INT32": (np.int32, np.int32),
        "INT16": (np.int32, np.int16),
        "INT8": (np.int32, np.int8),
    },
    "int64_contents": {"INT64": (np.int64, np.int64)},
    "uint_contents": {
        "UINT32": (np.uint32, np.uint32),
        "UINT16": (np.uint32, np.uint16),
        "UINT8": (np.uint32, np.uint8),
    },
    "uint64_contents": {"UINT64": (np.uint64, np.uint64)},
    "fp32_contents": {"FP32": (np.float32, np.float32)},
    "fp64_contents": {"FP64": (np.float64, np.float64)},
    "bytes_contents": {"BYTES": (None, None)},
}


def raw_contents(tensor: ModelInferRequest.InferInputTensor, model_name: str) -> bytes:
    """Values that do not fit the tensor's narrower type lose their upper bits, as under Triton."""
    data = b""
    is_set = False
    for field, types in _FIELDS.items():
        values = getattr(tensor.contents, field)
        if not values:
            continue
        if is_set:
            raise invalid_arg(f"{_subject(tensor, model_name)}, binary data was already supplied.")
        if tensor.datatype not in types:
            expected = next(iter(types))
            raise invalid_arg(
                f"{_subject(tensor, model_name)} of type '{expected}', expected datatype "
                f"'{tensor.datatype}'"
            )
        field_type, tensor_type = types[tensor.datatype]
        data = (
            encode_byte_strings(values)
            if field_type is None
            else np.array(values, field_type).astype(tensor_type).tobytes()
        )
        is_set = True
    return data


def _subject(tensor: ModelInferRequest.InferInputTensor, model_name: str) -> str:
    return (
        f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model_name}'"
    )
