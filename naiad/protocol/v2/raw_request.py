"""Raw binary requests: the whole body is the single input of the model
(`Inference-Header-Content-Length: 0`).

The shape follows from the model and the number of bytes; all outputs are returned as binary data.
"""

from __future__ import annotations

from math import prod

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError, invalid_arg
from naiad.protocol.v2.output_format import ALL_BINARY, OutputFormats


def decode_request(
    body: Buffer, spec: ModelSpec, model_version: str, max_bytes: int
) -> tuple[InferRequest, OutputFormats]:
    """Raises NaiadError."""
    if len(body) > max_bytes:
        raise invalid_arg(oversize_message(len(body), max_bytes))
    if len(spec.inputs) != 1:
        raise _error(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration"
        )
    (tensor,) = spec.inputs.values()
    if tensor.datatype == "BYTES":
        return InferRequest(spec.name, [_one_string(tensor, spec, body)], model_version), ALL_BINARY
    shape = _shape(tensor, spec, len(body))
    return InferRequest(
        spec.name, [Tensor(tensor.name, tensor.datatype, shape, body)], model_version
    ), ALL_BINARY


def oversize_message(num_bytes: int, max_bytes: int) -> str:
    return (
        f"Raw input has a byte_size ({num_bytes} bytes) that exceeds the maximum allowed value "
        f"of {max_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _one_string(tensor: TensorSpec, spec: ModelSpec, body: Buffer) -> Tensor:
    if tensor.dims != [1]:
        raise _error(
            f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]"
        )
    shape = [1, 1] if spec.max_batch_size > 0 else [1]
    return Tensor(tensor.name, "BYTES", shape, encode_byte_strings([bytes(body)]))


def _shape(tensor: TensorSpec, spec: ModelSpec, num_bytes: int) -> list[int]:
    dims = list(tensor.dims)
    element_bytes = DATATYPES[tensor.datatype].byte_size
    if dims.count(-1) > 1:
        raise _error(
            f"The shape of the raw input '{tensor.name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    if -1 in dims:
        fixed_bytes = -prod(dims) * element_bytes
        dims[dims.index(-1)] = num_bytes // fixed_bytes if fixed_bytes else 0
    expected = prod(dims) * element_bytes
    if expected != num_bytes:
        raise _error(
            f"input byte size mismatch for input 'raw_input' for model '{spec.name}'. Expected "
            f"{expected}, got {num_bytes}"
        )
    return [1, *dims] if spec.max_batch_size > 0 else dims


def _error(message: str) -> NaiadError:
    return invalid_arg(f"[request id: <id_unknown>] {message}")
