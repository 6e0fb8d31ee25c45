"""Compares the outputs of responses with `validation_data`.

In:  the response to a request. Out: None, or a message that says what differs.
The comparison is byte for byte, as in perf_analyzer.
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
    expected: list[tuple[InputTensor, ...]], *, is_grpc: bool
) -> Callable[[int, Any], str | None]:
    """Returns the function that checks a response. `expected` has one entry per prepared
    request."""

    def check(item: int, payload: Any) -> str | None:
        outputs = (grpc_outputs if is_grpc else http_outputs)(payload)
        for tensor in expected[item]:
            if tensor.name not in outputs:
                return f"validation: the response has no output '{tensor.name}'"
            if outputs[tensor.name][2] != tensor.raw:
                return (
                    f"validation: output '{tensor.name}' of data item {item} differs from"
                    " validation_data"
                )
        return None

    return check
