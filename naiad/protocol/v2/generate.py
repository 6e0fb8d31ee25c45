"""The generate extension: a flat JSON object <-> an inference request and its responses.

A key that names an input of the model becomes that input, `id` the request's id, and any other key
a request parameter; keys of the object `parameters` count as if they were outside it. Each response
is one flat JSON object again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_access import as_string, mismatch
from naiad.protocol.v2.json_codec import encode_slowly, value_parts
from naiad.protocol.v2.json_tensor import check_json_format, json_values, pack_values
from naiad.protocol.v2.request_parameters import JSON_PARAMETERS
from naiad.protocol.v2.triton_json import parse

_ENCODER = msgspec.json.Encoder()
_NESTED = "parameters"


def decode_request(
    body: Buffer, spec: ModelSpec, model_version: str, max_bytes: int
) -> InferRequest:
    """Raises NaiadError."""
    document = parse(body)
    if not isinstance(document, dict):
        raise internal("attempt to get members for non-object")
    _check_repeated(bytes(body), document, spec)
    return request_from_document(document, spec, model_version, max_bytes)


def request_from_document(
    document: dict[str, Any], spec: ModelSpec, model_version: str, max_bytes: int
) -> InferRequest:
    return Conversion(spec, max_bytes).request(document, model_version)


def _check_repeated(body: bytes, document: dict[str, Any], spec: ModelSpec) -> None:
    """Refuses an input that is given twice, as Triton does: the parser has kept only one of two
    equal keys. The text is parsed again only where a name occurs twice, and not if it has numbers
    or depths that this parser refuses: the first of two equal keys then counts."""
    suspects = [
        name for name in spec.inputs if name in document and body.count(b'"%b"' % name.encode()) > 1
    ]
    if suspects:
        try:
            pairs: list[tuple[str, Any]] = json.loads(
                body.decode("utf-8", "surrogateescape"), object_pairs_hook=list
            )
        except (ValueError, RecursionError):
            return
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen and key in suspects:
                raise _repeated(key)
            seen.add(key)


def _repeated(name: str) -> NaiadError:
    return invalid_arg(f"[request id: <id_unknown>] input '{name}' already exists in request")


class Conversion:
    """From the members of a document to the tensors and parameters of a request."""

    def __init__(self, spec: ModelSpec, max_bytes: int) -> None:
        self.inputs: list[Tensor] = []
        self.parameters: dict[str, ParameterValue] = {}
        self._spec = spec
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def request(self, document: dict[str, Any], model_version: str) -> InferRequest:
        """Raises NaiadError."""
        request_id = ""
        for key, value in document.items():
            if key == _NESTED:
                self.read_nested(value)
            elif key == "id" and key not in self._spec.inputs:
                request_id = as_string(value, key)
            else:
                self.read(key, value)
        return InferRequest(
            self._spec.name, self.inputs, model_version, request_id, parameters=self.parameters
        )

    def read_nested(self, value: Any) -> None:
        if _NESTED in self._spec.inputs:
            raise invalid_arg(
                f"Keyword '{_NESTED}' for nested schema also given as input tensor name"
            )
        if not isinstance(value, dict):
            raise internal(f"Expected JSON object for keyword: '{_NESTED}': {mismatch('object')}")
        try:
            for key, item in value.items():
                self.read(key, item)
        except NaiadError as error:
            raise NaiadError(
                error.code, f"Converting keyword: '{_NESTED}': {error.message}"
            ) from None

    def read(self, key: str, value: Any) -> None:
        tensor = self._spec.inputs.get(key)
        if tensor is None:
            self.parameters[key] = JSON_PARAMETERS.value(key, value)
            return
        if any(key == given.name for given in self.inputs):
            raise _repeated(key)
        self.inputs.append(self.tensor(tensor, value))

    def tensor(self, tensor: TensorSpec, value: Any) -> Tensor:
        """Checks the size before the shape and the data, as Triton does."""
        # Only the outermost list counts, as in Triton.
        count = len(value) if isinstance(value, list) else 1
        if tensor.datatype == "BYTES":
            data = pack_values(value, "BYTES", count, tensor.name)
            self.count_bytes(tensor.name, len(data))
            shape = self.shape(tensor, count)
        else:
            self.count_bytes(tensor.name, count * DATATYPES[tensor.datatype].byte_size)
            shape = self.shape(tensor, count)
            data = pack_values(value, tensor.datatype, count, tensor.name) if count else b""
        return Tensor(tensor.name, tensor.datatype, shape, data)

    def count_bytes(self, name: str, num_bytes: int) -> None:
        if self._num_bytes + num_bytes > self._max_bytes:
            raise invalid_arg(
                f"request size of {self._num_bytes} bytes with input '{name}' of size "
                f"{num_bytes} bytes exceeds the maximum allowed input size of {self._max_bytes}. "
                "Use --http-max-input-size to increase the limit."
            )
        self._num_bytes += num_bytes

    def shape(self, tensor: TensorSpec, count: int) -> list[int]:
        return _shape(tensor, count, is_batched=self._spec.max_batch_size > 0)


def _shape(tensor: TensorSpec, count: int, *, is_batched: bool) -> list[int]:
    """Fixed dimensions divide the number of values; the rest becomes the innermost variable
    dimension, or else the batch."""
    left = count
    for dim in tensor.dims:
        if dim != -1:
            if dim == 0 or left % dim:
                raise _no_shape(tensor)
            left //= dim
    shape: list[int] = []
    for dim in reversed(tensor.dims):
        shape.append(left if dim == -1 else dim)
        left = 1 if dim == -1 else left
    if is_batched:
        shape.append(max(left, 1))
    elif left > 1:
        raise _no_shape(tensor)
    return shape[::-1]


def _no_shape(tensor: TensorSpec) -> NaiadError:
    return invalid_arg(
        f"The schema can not convert input '{tensor.name}' to tensor with proper shape"
    )


# Responses.


def encode_response(response: InferResponse, identity: Mapping[str, Any] | None = None) -> bytes:
    """`identity` is how the request named its id, if not by `id`. Raises NaiadError for an output
    that JSON cannot express."""
    members: dict[str, Any] = dict(identity or ({"id": response.id} if response.id else {}))
    members["model_name"] = response.model_name
    members["model_version"] = response.model_version
    members.update(response.parameters)
    for tensor in response.outputs:
        values = json_values(tensor)
        members[tensor.name] = values[0] if len(values) == 1 else values
    return _encode(members)


def is_large_response(response: InferResponse, max_bytes: int) -> bool:
    return sum(len(tensor.data) for tensor in response.outputs) > max_bytes


def encode_large_response(
    response: InferResponse, identity: Mapping[str, Any] | None = None
) -> list[Buffer]:
    """Equal to `encode_response`, in parts. It is made for a thread: no step holds the interpreter
    lock for long. Raises NaiadError."""
    outline = InferResponse(
        response.model_name, response.model_version, response.id, [], response.parameters
    )
    parts: list[Buffer] = [encode_response(outline, identity)[:-1]]
    for tensor in response.outputs:
        check_json_format(tensor)
        values = list(value_parts(tensor))
        name = _encode({tensor.name: 0})[1:-2]
        if tensor.element_count() == 1:
            parts += (b",", name, *values)
        else:
            parts += (b",", name, b"[", *values, b"]")
    parts.append(b"}")
    return parts


def encode_event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % data


def _encode(members: dict[str, Any]) -> bytes:
    try:
        text = _ENCODER.encode(members)
    except UnicodeEncodeError:
        return encode_slowly(members)
    return encode_slowly(members) if b"null" in text else text
