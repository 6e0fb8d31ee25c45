"""Infer requests and responses as protobuf messages: ModelInferRequest bytes -> InferRequest,
InferResponse -> message pieces.

A request is read as a head, which upb parses, and raw tensors, which stay views of the message.
Responses are assembled from serialized heads and the outputs' own buffers.
Rule: a message means here what it means to upb; tests/unit/protocol/v2/test_grpc_codec.py compares
      the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Allocate, Tensor, move_data
from naiad.errors import NaiadError, internal
from naiad.pb.grpc_service_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.protocol.v2.classification import classify
from naiad.protocol.v2.grpc_large import MAX_FIELDS, Outline, identity_fields, too_many
from naiad.protocol.v2.grpc_request import RequestOptions, RequestTemplate, build_template
from naiad.protocol.v2.grpc_wire import Buffer, WireError, delimited, read_varint, varint

Pieces: TypeAlias = tuple[list[Buffer], int]
"""A message in parts, and its length: large tensors are not copied into one buffer."""
ReadTemplate: TypeAlias = Callable[[bytes], RequestTemplate | None]
"""`read_template`, or a cache of it."""

_MAX_HEAD_BYTES: Final = 4096
_MAX_INLINE_BYTES: Final = 16 * 1024
"""Larger messages are for `decode_large_request` unless they begin with a head that is a whole
message."""
_MAX_GUESSES: Final = 8
_JOIN_BYTES: Final = 64 * 1024

# Tags are number << 3 | 2: all fields of ModelInferRequest and ModelInferResponse are
# length-delimited.
_MODEL_NAME, _MODEL_VERSION, _ID, RAW = 0x0A, 0x12, 0x1A, 0x3A
_RAW_TAG: Final = bytes((RAW,))
_REGION: Final = b"shared_memory_region"
"""A request with all its tensors in shared memory has no raw tensors: all of it is head."""
RESPONSE_ID, _RESPONSE_OUTPUTS, _RESPONSE_RAW = 0x1A, 0x2A, 0x32
_INFER_RESPONSE = 0x12


# Requests.


def read_template(head: bytes) -> RequestTemplate | None:
    """The request without its raw tensors. None when the head is not a whole message. Raises
    NaiadError."""
    try:
        return build_template(ModelInferRequest.FromString(head))
    except DecodeError:
        return None


def decode_request(
    message: Buffer, read: ReadTemplate = read_template
) -> tuple[InferRequest, RequestOptions]:
    """Decodes any message. Raises NaiadError."""
    return decode_small_request(message, read) or decode_large_request(message)


def decode_small_request(
    message: Buffer, read: ReadTemplate = read_template
) -> tuple[InferRequest, RequestOptions] | None:
    """Returns None for a message that takes long to decode: `decode_large_request` does that.
    Raises NaiadError with Triton's messages. Tensors of a memoryview are views of it.

    The end of the head is guessed: any byte that could be the tag of the first raw tensor. A guess
    is right exactly when the bytes before it are a whole message.
    """
    head = message if type(message) is bytes else bytes(message[:_MAX_HEAD_BYTES])
    id_field = find_id(head)
    template, offset = find_template(head, id_field, read)
    if template is not None:
        raw = raw_tensors(message, offset)
        if raw is None:
            return _decode_whole(message)
        if len(raw) > max(len(template.inputs), MAX_FIELDS):
            raise too_many("raw_input_contents")
        return template.fill(id_field.id, raw), template.options
    if len(message) <= _MAX_HEAD_BYTES and _REGION in head:
        template = read(head[: id_field.start] + head[id_field.end :])
        if template is not None and template.has_no_raw:
            return template.fill(id_field.id, []), template.options
    return _decode_whole(message)


class IdField(NamedTuple):
    """The id of a request, and the place of its field in the message; 0 and 0 when the id is not
    where clients write it."""

    id: str
    start: int
    end: int


def find_id(head: bytes) -> IdField:
    """Finds the id in a message that begins with model name, version and id."""
    try:
        start = 2 + head[1]
        if head[start] == _MODEL_VERSION and head[start + 1] < 128:
            start += 2 + head[start + 1]
        if (
            head[start] == _ID
            and head[0] == _MODEL_NAME
            and head[1] < 128
            and head[start + 1] < 128
        ):
            end = start + 2 + head[start + 1]
            return IdField(head[start + 2 : end].decode(), start, end)
    except (IndexError, UnicodeDecodeError):
        pass
    return IdField("", 0, 0)


def find_template(
    head: bytes, id_field: IdField, read: ReadTemplate
) -> tuple[RequestTemplate | None, int]:
    """The template of a message that begins with `head`, and the offset of its first raw tensor;
    (None, -1) when no guess is right."""
    _, start, end = id_field
    offset = head.find(_RAW_TAG, 1, _MAX_HEAD_BYTES)
    for _ in range(_MAX_GUESSES):
        if offset < 0:
            break
        template = read(head[:start] + head[end:offset] if end <= offset else head[:offset])
        if template is not None:
            return template, offset
        offset = head.find(_RAW_TAG, offset + 1, _MAX_HEAD_BYTES)
    return None, -1


def raw_tensors(message: Buffer, offset: int) -> list[Buffer] | None:
    """The raw tensors from `offset` to the end, or the first of too many; None when other fields
    are among them."""
    raw: list[Buffer] = []
    end = len(message)
    try:
        while offset < end:
            if len(raw) > MAX_FIELDS:
                return raw
            if message[offset] != RAW:
                return None
            size = message[offset + 1]
            offset += 2
            if size >= 128:
                size, offset = read_varint(message, offset - 1)
            raw.append(message[offset : offset + size])
            offset += size
    except (WireError, IndexError):
        return None
    return raw if offset == end else None


def _decode_whole(message: Buffer) -> tuple[InferRequest, RequestOptions] | None:
    if len(message) > _MAX_INLINE_BYTES:
        if message[0] < 8:
            raise internal("Unable to parse request")  # no field has the number 0
        return None
    try:
        parsed = ModelInferRequest.FromString(bytes(message))
    except DecodeError:
        raise internal("Unable to parse request") from None
    template = build_template(parsed)
    return template.fill("", list(parsed.raw_input_contents)), template.options


def decode_large_request(
    message: Buffer, allocate: Callable[[str], Allocate] | None = None
) -> tuple[InferRequest, RequestOptions]:
    """Decodes what `decode_small_request` did not. It is made for a thread: no step of it holds the
    interpreter lock for long. `allocate` provides memory for the typed contents of a
    model. Raises NaiadError."""
    outline = Outline(message)
    try:
        parsed = ModelInferRequest.FromString(outline.rest)
    except DecodeError:
        raise internal("Unable to parse request") from None
    template = build_template(parsed, outline.contents, has_raw=bool(outline.raw))
    request = template.fill("", outline.raw)
    if allocate is not None and not outline.raw:
        allocate_tensor = allocate(request.model_name)
        for tensor in request.inputs:
            move_data(tensor, allocate_tensor)
    return request, template.options


def _without_raw(message: Buffer) -> bytes:
    """All fields but the raw tensors. Raises ValueError or IndexError when the bytes are not a
    message."""
    rest: list[Buffer] = []
    offset = 0
    while offset < len(message):
        start = offset
        size, offset = read_varint(message, offset + 1)
        offset += size
        if message[start] != RAW:
            rest.append(message[start:offset])
    return b"".join(rest)


class RequestIdentity(msgspec.Struct, frozen=True):
    model_name: str = ""
    model_version: str = ""
    id: str = ""


def identify(message: Buffer) -> RequestIdentity | None:
    """Identifies a request that `decode_request` refused; None when the bytes are not a message.
    Only the beginning of a large message is looked at."""
    try:
        if len(message) > _MAX_INLINE_BYTES:
            request = ModelInferRequest.FromString(identity_fields(message))
        else:
            request = ModelInferRequest.FromString(_without_raw(message))
    except (DecodeError, ValueError, IndexError):
        return None
    return RequestIdentity(request.model_name, request.model_version, request.id)


def model_of(first_bytes: bytes) -> tuple[str, int]:
    """The model of a large message and the offset of its first raw tensor, from the beginning of
    the message; ("", -1) when the beginning does not tell."""
    name, offset = "", 0
    try:
        while True:
            tag = first_bytes[offset]
            size, offset = read_varint(first_bytes, offset + 1)
            if tag == RAW:
                return name, offset
            if tag == _MODEL_NAME:
                name = first_bytes[offset : offset + size].decode()
            offset += size
    except (ValueError, IndexError):
        return "", -1


# Responses.


def encode_response(
    response: InferResponse, request: InferRequest, options: RequestOptions, spec: ModelSpec
) -> Pieces:
    """The ModelInferResponse of a response without error. Raises NaiadError when an output cannot
    be classified."""
    outputs = response.outputs
    wanted = request.requested_outputs
    if wanted and len(wanted) < len(outputs):
        outputs = [output for output in outputs if output.name in wanted]
    if options.classification:
        outputs = [_classified(output, options, spec) for output in outputs]
    pieces: list[Buffer] = [model_head(response.model_name, response.model_version)]
    if response.id:
        pieces.append(delimited(RESPONSE_ID, response.id.encode()))
    if response.parameters:
        pieces.append(_parameters(response.parameters))
    raw: list[Buffer] = []
    for output in outputs:
        pieces.append(output_head(output.name, output.datatype, tuple(output.shape)))
        raw += (raw_head(len(output.data)), output.data)
    pieces += raw
    num_bytes = sum(map(len, pieces))
    return (
        ([b"".join(pieces)], num_bytes)
        if num_bytes <= _JOIN_BYTES
        else (_merge_small(pieces), num_bytes)
    )


def is_slow_response(response: InferResponse, options: RequestOptions, max_bytes: int) -> bool:
    """True if more than `max_bytes` of tensors are classified."""
    return bool(options.classification) and any(
        len(tensor.data) > max_bytes
        for tensor in response.outputs
        if tensor.name in options.classification
    )


def _classified(output: Tensor, options: RequestOptions, spec: ModelSpec) -> Tensor:
    count = options.classification.get(output.name, 0)
    return classify(output, count, spec) if count else output


def _merge_small(pieces: list[Buffer]) -> list[Buffer]:
    """Joins the pieces between two large tensors, so that fewer buffers are written."""
    merged: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) <= 4096:
            small.append(piece)
            continue
        if small:
            merged.append(b"".join(small))
            small = []
        merged.append(piece)
    if small:
        merged.append(b"".join(small))
    return merged


@lru_cache(1024)
def model_head(name: str, version: str) -> bytes:
    return ModelInferResponse(model_name=name, model_version=version).SerializeToString()


@lru_cache(1024)
def output_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
    return delimited(_RESPONSE_OUTPUTS, tensor.SerializeToString())


@lru_cache(1024)
def raw_head(num_bytes: int) -> bytes:
    return bytes((_RESPONSE_RAW,)) + varint(num_bytes)


def _parameters(parameters: dict[str, ParameterValue]) -> bytes:
    return ModelInferResponse(
        parameters={name: _parameter(value) for name, value in parameters.items()}
    ).SerializeToString()


def _parameter(value: ParameterValue) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return (
                InferParameter(uint64_param=value)
                if value >= 1 << 63
                else InferParameter(int64_param=value)
            )
        case float():
            return InferParameter(double_param=value)
        case _:
            return InferParameter(string_param=value)


_FINAL_TRUE: Final = _parameters({"triton_final_response": True})
_FINAL_FALSE: Final = _parameters({"triton_final_response": False})


def encode_stream_response(pieces: Pieces, *, is_final: bool) -> Pieces:
    """A ModelInferResponse as part of a stream, marked as the final one of its request or not."""
    buffers, num_bytes = pieces
    final = _FINAL_TRUE if is_final else _FINAL_FALSE
    num_bytes += len(final)
    head = bytes((_INFER_RESPONSE,)) + varint(num_bytes)
    return [head, *buffers, final], len(head) + num_bytes


def encode_empty_final(request: InferRequest) -> bytes:
    response = ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    response.parameters["triton_final_response"].bool_param = True
    return ModelStreamInferResponse(infer_response=response).SerializeToString()


def encode_stream_error(error: NaiadError, request: InferRequest, *, is_final: bool) -> bytes:
    """An error with which the model or its scheduler responded."""
    response = ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    response.parameters["triton_final_response"].bool_param = is_final
    return ModelStreamInferResponse(
        error_message=error.message, infer_response=response
    ).SerializeToString()


def encode_stream_rejection(error: NaiadError, request_id: str) -> bytes:
    """The error of a request that never reached a model: Triton returns only the request's id."""
    return ModelStreamInferResponse(
        error_message=error.message, infer_response=ModelInferResponse(id=request_id)
    ).SerializeToString()
