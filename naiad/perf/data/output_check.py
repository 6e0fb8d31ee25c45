"""Compares the outputs of responses with `validation_data`.

In:  the response to a request. Out: None, or a message that says what differs.
The comparison is byte for byte, as in perf_analyzer, unless floats may differ by a tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.pb.grpc_service_pb2 import ModelInferResponse
from naiad.perf.channels.infer_request import InputTensor


def http_outputs(payload: Any) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the datatype, shape and bytes of each output, by name, from (head, body)."""
    head, body = payload
    text = body[: head.tensor_header_bytes] if head.tensor_header_bytes else body
    offset = len(text)
    outputs: dict[str, tuple[str, list[int], bytes]] = {}
    for output in json.loads(text).get("outputs", []):
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            raw = body[offset : offset + size]
            offset += size
        else:
            raw = _raw(output["datatype"], output.get("data", []))
        outputs[output["name"]] = (output["datatype"], output["shape"], raw)
    return outputs


def _raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return encode_byte_strings(values)
    import numpy as np

    return np.array(values, DATATYPES[datatype].numpy).tobytes()


def grpc_outputs(message: Any) -> dict[str, tuple[str, list[int], bytes]]:
    response = ModelInferResponse.FromString(message) if isinstance(message, bytes) else message
    pairs = zip(response.outputs, response.raw_output_contents, strict=False)
    return {output.name: (output.datatype, list(output.shape), raw) for output, raw in pairs}


def make_check(
    expected: list[tuple[InputTensor, ...]], *, is_grpc: bool, tolerance: float = 0.0
) -> Callable[[int, Any], str | None]:
    """Returns the function that checks a response. `expected` has one entry per prepared request.
    `tolerance` is what a float may differ by, absolutely or relative to the expected value."""

    def check(item: int, payload: Any) -> str | None:
        outputs = (grpc_outputs if is_grpc else http_outputs)(payload)
        for tensor in expected[item]:
            if tensor.name not in outputs:
                return f"validation: the response has no output '{tensor.name}'"
            datatype, _, raw = outputs[tensor.name]
            difference = "" if raw == tensor.raw else _difference(datatype, raw, tensor, tolerance)
            if difference:
                return (
                    f"validation: output '{tensor.name}' of data item {item} differs from"
                    f" validation_data{difference}"
                )
        return None

    return check


def _difference(datatype: str, raw: bytes, expected: InputTensor, tolerance: float) -> str:
    """Returns "" for floats within the tolerance, else how they differ."""
    import numpy as np

    kind = DATATYPES[datatype].numpy
    if kind is None or kind.kind != "f" or len(raw) != len(expected.raw):
        return ", byte for byte"
    found = np.frombuffer(raw, kind).astype(np.float64)
    wanted = np.frombuffer(expected.raw, kind).astype(np.float64)
    if np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
        return ""
    largest = float(np.max(np.abs(found - wanted)))
    return f" by up to {largest:.3g} (--validation-tolerance allows {tolerance:g})"
