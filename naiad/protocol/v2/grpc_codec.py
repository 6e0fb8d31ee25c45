"""Infer requests and responses as protobuf messages: ModelInferRequest bytes -> InferRequest,
InferResponse -> message pieces.

What repeats from request to request (all but the tensors' data and the id) is parsed by upb once
and looked up afterwards; raw tensors stay views of the message. Responses are put together from
heads that are looked up and the outputs' own buffers.
Rule: a message means here what it means to upb; tests/unit/protocol/v2/test_grpc_codec.py compares
      the two.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal
from naiad.pb.grpc_service_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.protocol.v2.classification import classify
from naiad.protocol.v2.grpc_request import RequestOptions, RequestTemplate, build_template
from naiad.protocol.v2.grpc_wire import Buffer, WireError, delimited, read_varint, varint

Pieces: TypeAlias = tuple[list[Buffer], int]
"""A message in parts, and its length: large tensors are not copied into one buffer."""

_MAX_HEAD_BYTES: Final = 4096
_MAX_GUESSES: Final = 8
_JOIN_BYTES: Final = 64 * 1024

# Tags, number << 3 | 2: all fields of ModelInferRequest and ModelInferResponse are
# length-delimited.
_MODEL_NAME, _MODEL_VERSION, _ID, RAW = 0x0A, 0x12, 0x1A, 0x3A
_RAW_TAG: Final = bytes((RAW,))
_REGION: Final = b"shared_memory_region"
"""A request with all its tensors in shared memory holds none: clients repeat it as a whole."""
RESPONSE_ID, _RESPONSE_OUTPUTS, _RESPONSE_RAW = 0x1A, 0x2A, 0x32
_INFER_RESPONSE = 0x12


# Requests.


def decode_request(message: Buffer) -> tuple[InferRequest, RequestOptions]:
    """Raises NaiadError in Triton's words. Tensors of a memoryview are views of it.

    A client sends the same request again and again with other tensors, so a message is read as a
    head and raw tensors. Where the head ends is a guess: at a byte that could be the first tensor's
    tag. It is right exactly when what is before it is a message.
    """
    head = message if type(message) is bytes else bytes(message[:_MAX_HEAD_BYTES])
    request_id, start, stop = find_id(head)
    template, at = find_template(head, start, stop)
    if template is not None:
        raw = raw_tensors(message, at)
        return (
            _decode_whole(message)
            if raw is None
            else (template.fill(request_id, raw), template.options)
        )
    if len(message) <= _MAX_HEAD_BYTES and _REGION in head:
        template = _template(head[:start] + head[stop:])
        if template is not None and template.has_no_raw:
            return template.fill(request_id, []), template.options
    return _decode_whole(message)


def find_template(head: bytes, start: int, stop: int) -> tuple[RequestTemplate | None, int]:
    """Of a message that begins so, with its id between the two, and where its first raw tensor
    begins; (None, -1) when that is not seen."""
    at = head.find(_RAW_TAG, 1, _MAX_HEAD_BYTES)
    for _ in range(_MAX_GUESSES):
        if at < 0:
            break
        template = _template(head[:start] + head[stop:at] if stop <= at else head[:at])
        if template is not None:
            return template, at
        at = head.find(_RAW_TAG, at + 1, _MAX_HEAD_BYTES)
    return None, -1


def find_id(head: bytes) -> tuple[str, int, int]:
    """The request's id and where its field lies, in a message that begins with model name, version
    and id; else ("", 0, 0)."""
    try:
        at = 2 + head[1]
        if head[at] == _MODEL_VERSION and head[at + 1] < 128:
            at += 2 + head[at + 1]
        if head[at] == _ID and head[0] == _MODEL_NAME and head[1] < 128 and head[at + 1] < 128:
            stop = at + 2 + head[at + 1]
            return head[at + 2 : stop].decode(), at, stop
    except (IndexError, UnicodeDecodeError):
        pass
    return "", 0, 0


@lru_cache(1024)
def _template(head: bytes) -> RequestTemplate | None:
    """None when the head is not a whole message. Raises NaiadError, which is not cached."""
    try:
        return build_template(ModelInferRequest.FromString(head))
    except DecodeError:
        return None


def raw_tensors(message: Buffer, at: int) -> list[Buffer] | None:
    """The raw tensors from `at` to the end; None when other fields are among them."""
    raw: list[Buffer] = []
    end = len(message)
    try:
        while at < end:
            if message[at] != RAW:
                return None
            size = message[at + 1]
            at += 2
            if size >= 128:
                size, at = read_varint(message, at - 1)
            raw.append(message[at : at + size])
            at += size
    except (WireError, IndexError):
        return None
    return raw if at == end else None


def _decode_whole(message: Buffer) -> tuple[InferRequest, RequestOptions]:
    try:
        parsed = ModelInferRequest.FromString(bytes(message))
    except DecodeError:
        raise internal("Unable to parse request") from None
    template = build_template(parsed)
    return template.fill("", list(parsed.raw_input_contents)), template.options


def _without_raw(message: Buffer) -> bytes:
    """All fields but the raw tensors. Raises ValueError or IndexError for what is no message."""
    rest: list[Buffer] = []
    at = 0
    while at < len(message):
        start = at
        size, at = read_varint(message, at + 1)
        at += size
        if message[start] != RAW:
            rest.append(message[start:at])
    return b"".join(rest)


class RequestIdentity(msgspec.Struct, frozen=True):
    model_name: str = ""
    model_version: str = ""
    id: str = ""


def identify(message: Buffer) -> RequestIdentity | None:
    """Of a request that `decode_request` refused; None when it is no message at all."""
    try:
        request = ModelInferRequest.FromString(_without_raw(message))
    except (DecodeError, ValueError, IndexError):
        return None
    return RequestIdentity(request.model_name, request.model_version, request.id)


def model_of(first_bytes: bytes) -> tuple[str, int]:
    """From the beginning of a large message: its model, and where its first raw tensor begins. ("",
    -1) when that cannot be seen."""
    name, at = "", 0
    try:
        while True:
            tag = first_bytes[at]
            size, at = read_varint(first_bytes, at + 1)
            if tag == RAW:
                return name, at
            if tag == _MODEL_NAME:
                name = first_bytes[at : at + size].decode()
            at += size
    except (ValueError, IndexError):
        return "", -1


# Responses.


def encode_response(
    response: InferResponse, request: InferRequest, options: RequestOptions, spec: ModelSpec
) -> Pieces:
    """The ModelInferResponse of a response without error. Raises NaiadError when an output cannot
    be classified."""
    outputs = response.outputs
    form = request.form
    if (
        form is not None
        and form.answer is not None
        and (repeated := _encode_again(response, form.answer)) is not None
    ):
        return repeated
    wanted = request.requested_outputs
    if wanted and len(wanted) < len(outputs):
        outputs = [output for output in outputs if output.name in wanted]
    if options.classification:
        outputs = [_classified(output, options, spec) for output in outputs]
    pieces: list[Buffer] = [_model_head(response.model_name, response.model_version)]
    if response.id:
        pieces.append(delimited(RESPONSE_ID, response.id.encode()))
    if response.parameters:
        pieces.append(_parameters(response.parameters))
    raw: list[Buffer] = []
    for output in outputs:
        pieces.append(_output_head(output.name, output.datatype, tuple(output.shape)))
        raw += (_raw_head(len(output.data)), output.data)
    pieces += raw
    num_bytes = sum(map(len, pieces))
    if (
        form is not None
        and len(outputs) == len(response.outputs)
        and not options.classification
        and outputs
    ):
        form.answer = _answer_form(response)
    return (
        ([b"".join(pieces)], num_bytes)
        if num_bytes <= _JOIN_BYTES
        else (_merge_small(pieces), num_bytes)
    )


class AnswerForm(msgspec.Struct, frozen=True, gc=False):
    """An answer without its id and data: what comes again when a client repeats its request."""

    model_name: str
    model_version: str
    outputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""
    model_head: bytes
    heads: list[bytes]
    """What precedes the data of each output."""
    num_bytes: int


def _answer_form(response: InferResponse) -> AnswerForm:
    outputs = response.outputs
    heads = [_raw_head(len(output.data)) for output in outputs]
    heads[0] = (
        b"".join(
            _output_head(output.name, output.datatype, tuple(output.shape)) for output in outputs
        )
        + heads[0]
    )
    rows = [
        (output.name, output.datatype, list(output.shape), len(output.data)) for output in outputs
    ]
    model_head = _model_head(response.model_name, response.model_version)
    num_bytes = len(model_head) + sum(map(len, heads)) + sum(row[3] for row in rows)
    return AnswerForm(
        response.model_name, response.model_version, rows, model_head, heads, num_bytes
    )


def _encode_again(response: InferResponse, form: AnswerForm) -> Pieces | None:
    """None when more than the data and the id is new."""
    outputs = response.outputs
    if (
        [(output.name, output.datatype, output.shape, len(output.data)) for output in outputs]
        != form.outputs
        or response.parameters
        or response.model_version != form.model_version
        or response.model_name != form.model_name
    ):
        return None
    pieces: list[Buffer] = [form.model_head]
    num_bytes = form.num_bytes
    if response.id:
        id_field = delimited(RESPONSE_ID, response.id.encode())
        pieces.append(id_field)
        num_bytes += len(id_field)
    for head, output in zip(form.heads, outputs, strict=True):
        pieces += (head, output.data)
    return ([b"".join(pieces)] if num_bytes <= _JOIN_BYTES else _merge_small(pieces)), num_bytes


def _classified(output: Tensor, options: RequestOptions, spec: ModelSpec) -> Tensor:
    count = options.classification.get(output.name, 0)
    return classify(output, count, spec) if count else output


def _merge_small(pieces: list[Buffer]) -> list[Buffer]:
    """Fewer buffers to write: what lies between two large tensors becomes one."""
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
def _model_head(name: str, version: str) -> bytes:
    return ModelInferResponse(model_name=name, model_version=version).SerializeToString()


@lru_cache(4096)
def _output_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
    return delimited(_RESPONSE_OUTPUTS, tensor.SerializeToString())


@lru_cache(1024)
def _raw_head(num_bytes: int) -> bytes:
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
    """A ModelInferResponse as part of a stream: says whether it is the last one of its request."""
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
    """An error that the model or its scheduler answered."""
    response = ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    response.parameters["triton_final_response"].bool_param = is_final
    return ModelStreamInferResponse(
        error_message=error.message, infer_response=response
    ).SerializeToString()


def encode_stream_rejection(error: NaiadError, request_id: str) -> bytes:
    """A request that never got as far as a model: Triton tells nothing but which one it was."""
    return ModelStreamInferResponse(
        error_message=error.message, infer_response=ModelInferResponse(id=request_id)
    ).SerializeToString()
