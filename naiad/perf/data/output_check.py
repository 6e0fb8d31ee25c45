"""`validation_data`: does an answer hold the outputs that the file says it must?

In:  the kept answer of a request. Out: None, or what differs. Compared byte for byte, as
     perf_analyzer does.
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
    """name -> (datatype, shape, raw) of (head, body)."""
    head, body = payload
    text = body[: head.tensor_header_bytes] if head.tensor_header_bytes else body
    at = len(text)
    found: dict[str, tuple[str, list[int], bytes]] = {}
    for output in json.loads(text).get("outputs", []):
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            raw = body[at : at + size]
            at += size
        else:
            raw = _raw(output["datatype"], output.get("data", []))
        found[output["name"]] = (output["datatype"], output["shape"], raw)
    return found


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
    """`expected` for each prepared request."""

    def check(item: int, payload: Any) -> str | None:
        outputs = (grpc_outputs if is_grpc else http_outputs)(payload)
        for tensor in expected[item]:
            if tensor.name not in outputs:
                return f"validation: the answer has no output '{tensor.name}'"
            if outputs[tensor.name][2] != tensor.raw:
                return f"validation: output '{tensor.name}' of data item {item} is not what validation_data says"
        return None

    return check
