"""The inference protocol over HTTP: a JSON header, with tensors inside it or as binary data after
it.

`decode_request` decodes common requests in one typed pass. Whatever that pass cannot express goes
to json_checked.py, which reads the same body as plain values and reports faults as Triton does.
Rule: tensors that arrive as binary data are views of the body, never copies. The functions keep
      nothing from one call to the next; naiad.fastpath does that.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Allocate, Buffer, Tensor
from naiad.errors import NaiadError, oversize_body
from naiad.protocol.v2 import json_checked
from naiad.protocol.v2.classification import classify
from naiad.protocol.v2.json_checked import (
    check_shared_output,
    repeated_output,
    unexpected_data,
    unexpected_size,
)
from naiad.protocol.v2.json_data import LargeData
from naiad.protocol.v2.json_split import split_data
from naiad.protocol.v2.json_tensor import (
    LongText,
    check_json_format,
    json_value_pieces,
    json_values,
    pack_json,
)
from naiad.protocol.v2.output_format import (
    ALL_BINARY,
    ALL_JSON,
    BINARY_FORMAT,
    JSON_FORMAT,
    SHARED_FORMAT,
    OutputFormat,
    OutputFormats,
)
from naiad.protocol.v2.request_parameters import JSON_PARAMETERS, apply_parameters
from naiad.protocol.v2.triton_json import parse

Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _InputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data_size: Size | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0


class _Input(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    datatype: str
    shape: list[Size]
    data: msgspec.Raw | UnsetType = UNSET
    parameters: _InputParameters | UnsetType = UNSET


class _OutputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data: bool = False
    classification: Size | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0


class _Output(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET


class _Request(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, ParameterValue] = {}


_DECODER = msgspec.json.Decoder(_Request)
_NO_BINARY = memoryview(b"")
_FORMAT_PARAMETERS = frozenset({"binary_data_output"})
"""Parameters that choose the format of the response and nothing else."""


class DecodedRequest(NamedTuple):
    request: InferRequest
    formats: OutputFormats
    json_data: list[msgspec.Raw] | None = None
    """The JSON text of the tensors' data: one entry for each tensor, or none when no tensor is
    written as JSON. None when requests with the same text may still differ in more than id and
    data, or the checked decoder was needed."""


def decode_request(
    body: Buffer, header_length: int | None, model_name: str, model_version: str, max_bytes: int
) -> DecodedRequest:
    """`header_length` is Inference-Header-Content-Length, or None. Raises NaiadError."""
    decoded = decode_typed(body, header_length, model_name, model_version, max_bytes)
    if decoded is not None:
        return decoded
    text, binary = _split(body, header_length, max_bytes)
    return DecodedRequest(
        *json_checked.decode_request(text, binary, model_name, model_version, max_bytes)
    )


def decode_large_request(
    body: Buffer,
    header_length: int | None,
    model_name: str,
    model_version: str,
    max_bytes: int,
    max_rest_bytes: int,
    allocate: Allocate | None = None,
) -> DecodedRequest:
    """Equal to `decode_request`, for requests with much JSON. It is made for a thread: no step
    holds the interpreter lock for long. `max_rest_bytes` bounds what is not tensor data;
    `allocate` provides memory for large tensors."""
    text, binary = _split(body, header_length, max_bytes)
    split = split_data(text, max_rest_bytes)
    large = LargeData(text, split, allocate)
    document = parse(split.rest, split.locate)
    return DecodedRequest(
        *json_checked.decode_document(document, binary, model_name, model_version, max_bytes, large)
    )


def decode_typed(
    body: Buffer, header_length: int | None, model_name: str, model_version: str, max_bytes: int
) -> DecodedRequest | None:
    """Decodes a common request. Returns None when only the checked decoder can tell what the
    request means, or what is wrong with it. Raises NaiadError."""
    text, binary = _split(body, header_length, max_bytes)
    try:
        header = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    decoded = _decode_header(header, binary, model_name, model_version, max_bytes)
    if decoded is not None and decoded.json_data and header_length is not None:
        return decoded._replace(json_data=None)
    return decoded


def _split(body: Buffer, header_length: int | None, max_bytes: int) -> tuple[Buffer, memoryview]:
    """The JSON and the binary data after it."""
    text = body if header_length is None else memoryview(body)[:header_length]
    if len(text) > max_bytes:
        raise oversize_body(len(text), max_bytes)
    return text, _NO_BINARY if header_length is None else memoryview(body)[header_length:]


def _decode_header(
    header: _Request,
    binary: memoryview,
    model_name: str,
    model_version: str,
    max_bytes: int,
) -> DecodedRequest | None:
    slices: list[tuple[int, RegionSlice]] = []
    inputs = _inputs(header.inputs, binary, model_name, max_bytes, slices)
    if inputs is None:
        return None
    request = InferRequest(model_name, inputs, model_version, header.id)
    if slices:
        request.regions = RegionUse(slices)
    is_binary = bool(header.parameters) and apply_parameters(
        request, header.parameters, JSON_PARAMETERS
    )
    if header.outputs:
        formats = _formats(request, header.outputs)
    elif is_binary:
        formats = ALL_BINARY
    else:
        formats = ALL_JSON
    if not header.parameters.keys() <= _FORMAT_PARAMETERS:
        return DecodedRequest(request, formats)
    data = [tensor.data for tensor in header.inputs if tensor.data is not UNSET]
    if data and len(data) < len(inputs):
        return DecodedRequest(request, formats)
    return DecodedRequest(request, formats, data)


def _inputs(
    inputs: list[_Input],
    binary: memoryview,
    model_name: str,
    max_bytes: int,
    slices: list[tuple[int, RegionSlice]],
) -> list[Tensor] | None:
    """Adds tensors in shared memory to `slices`. Returns None when something is not as expected;
    the checked decoder then finds out what."""
    tensors: list[Tensor] = []
    offset = 0
    for tensor in inputs:
        data: Buffer | None
        if tensor.parameters is not UNSET:
            size, region = (
                tensor.parameters.binary_data_size,
                tensor.parameters.shared_memory_region,
            )
            if tensor.data is not UNSET or tensor.datatype not in DATATYPES:
                return None
            if size is not UNSET and region is UNSET:
                end = offset + size
                data = binary[offset:end]
                if end > len(binary):
                    raise unexpected_size(tensor.name, end - len(binary), model_name)
                offset = end
            elif region is not UNSET and size is UNSET:
                parameters = tensor.parameters
                slices.append(
                    (
                        len(tensors),
                        RegionSlice(
                            region,
                            parameters.shared_memory_offset,
                            parameters.shared_memory_byte_size,
                        ),
                    )
                )
                data = b""
            else:
                return None
        elif tensor.data is not UNSET:
            count = prod(tensor.shape) if tensor.shape else 0
            data = pack_json(tensor.data, tensor.datatype, count)
            if data is None or len(data) > max_bytes or count == 0:
                return None
        else:
            return None
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
    if offset != len(binary):
        raise unexpected_data(model_name)
    return tensors


def _formats(request: InferRequest, outputs: list[_Output]) -> OutputFormats:
    formats: dict[str, OutputFormat] = {}
    regions: dict[str, RegionSlice] = {}
    for output in outputs:
        if output.name in formats:
            raise repeated_output(output.name, request.id)
        wanted = output.parameters
        if wanted is UNSET:
            formats[output.name] = JSON_FORMAT
        elif wanted.shared_memory_region is not UNSET:
            check_shared_output(
                has_classification=wanted.classification is not UNSET, is_binary=wanted.binary_data
            )
            region = RegionSlice(
                wanted.shared_memory_region,
                wanted.shared_memory_offset,
                wanted.shared_memory_byte_size,
            )
            regions[output.name] = region
            formats[output.name] = SHARED_FORMAT
        elif wanted.classification:
            formats[output.name] = OutputFormat(wanted.binary_data, wanted.classification)
        else:
            formats[output.name] = BINARY_FORMAT if wanted.binary_data else JSON_FORMAT
    request.requested_outputs = list(formats)
    if regions:
        request.regions = RegionUse(
            [] if request.regions is None else request.regions.inputs, regions
        )
    return OutputFormats(JSON_FORMAT, formats)


class EncodedResponse(NamedTuple):
    headers: bytes
    parts: list[Buffer]
    size: int
    header_length: int
    """The length of the JSON before binary data; 0 when the body is JSON alone."""


class _BinarySize(msgspec.Struct, gc=False):
    binary_data_size: int


class _JsonTensor(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]
    data: Any


class _SharedTensor(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]


class _BinaryTensor(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]
    parameters: _BinarySize


class _Response(msgspec.Struct, omit_defaults=True, gc=False):
    id: str = ""
    model_name: str = ""
    model_version: str = ""
    parameters: dict[str, ParameterValue] = {}
    outputs: list[_JsonTensor | _BinaryTensor | _SharedTensor] | UnsetType = UNSET


_ENCODER = msgspec.json.Encoder()
_HOLE = msgspec.Raw(b"\0")
_LEFT_OUT = secrets.token_hex(16)
"""Stands for data in the outline of a large response; nobody can guess it."""
"""Stands for the data of a tensor; no JSON text contains a NUL."""
JSON_HEADERS = b"Content-Type: application/json\r\n"


def encode_response(
    response: InferResponse,
    formats: OutputFormats,
    spec: ModelSpec,
    values: Callable[[Tensor], Any] = json_values,
) -> EncodedResponse:
    """Raises NaiadError when an output cannot be returned in the format that was requested.
    `values` returns what stands for the data of a tensor that is written as JSON."""
    outputs: list[_JsonTensor | _BinaryTensor | _SharedTensor] = []
    binary: list[Buffer] = []
    binary_bytes = 0
    for tensor in response.outputs:
        format = formats.of(tensor.name)
        if format is None:
            continue
        if format.classification:
            tensor = classify(tensor, format.classification, spec)
        if format.is_binary:
            size = len(tensor.data)
            outputs.append(
                _BinaryTensor(tensor.name, tensor.datatype, tensor.shape, _BinarySize(size))
            )
            binary.append(tensor.data)
            binary_bytes += size
        elif format.is_shared:
            outputs.append(_SharedTensor(tensor.name, tensor.datatype, tensor.shape))
        else:
            outputs.append(_JsonTensor(tensor.name, tensor.datatype, tensor.shape, values(tensor)))
    text = _encode_json(
        _Response(
            response.id, response.model_name, response.model_version, response.parameters, outputs
        )
    )
    if not binary_bytes:
        return EncodedResponse(JSON_HEADERS, [text], len(text), 0)
    return EncodedResponse(
        _binary_headers(len(text)), [text, *binary], len(text) + binary_bytes, len(text)
    )


def _binary_headers(header_length: int) -> bytes:
    return (
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
        % header_length
    )


def is_large_response(response: InferResponse, formats: OutputFormats, max_bytes: int) -> bool:
    """True if more than `max_bytes` of tensors are written as JSON or classified."""
    num_bytes = 0
    for tensor in response.outputs:
        num_bytes += len(tensor.data)
    if num_bytes <= max_bytes:
        return False
    num_bytes = 0
    for tensor in response.outputs:
        format = formats.of(tensor.name)
        if format is not None and (format.classification or not format.is_binary):
            num_bytes += len(tensor.data)
    return num_bytes > max_bytes


def encode_large_response(
    response: InferResponse, formats: OutputFormats, spec: ModelSpec
) -> EncodedResponse:
    """Equal to `encode_response`, for much data that is written as JSON. It is made for a thread:
    no step holds the interpreter lock for long. The parts are many."""
    tensors: list[Tensor] = []

    def leave_out(tensor: Tensor) -> str:
        check_json_format(tensor)
        tensors.append(tensor)
        return _LEFT_OUT

    outline = encode_response(response, formats, spec, leave_out)
    texts = bytes(outline.parts[0]).split(b'"%b"' % _LEFT_OUT.encode())
    parts: list[Buffer] = [texts[0]]
    for tensor, text in zip(tensors, texts[1:], strict=True):
        parts += (b"[", *value_parts(tensor), b"]", text)
    length = sum(map(len, parts))
    binary = outline.parts[1:]
    size = length + sum(map(len, binary))
    if not outline.header_length:
        return EncodedResponse(JSON_HEADERS, parts, size, 0)
    return EncodedResponse(_binary_headers(length), [*parts, *binary], size, length)


def value_parts(tensor: Tensor) -> Iterator[bytes]:
    """The JSON of the values of a tensor, without brackets around them, in parts."""
    separator = b""
    for values in json_value_pieces(tensor):
        yield separator
        if isinstance(values, LongText):
            # Each part has the quotes of a string.
            yield b'"'
            for part in values.parts():
                yield _encode_values([part])[1:-1]
            yield b'"'
        else:
            yield _encode_values(values)
        separator = b","


def _encode_values(values: Sequence[Any]) -> bytes:
    """The JSON of a list, without its brackets."""
    try:
        text = _ENCODER.encode(values)
    except UnicodeEncodeError:
        return encode_slowly(values)[1:-1]
    return encode_slowly(values)[1:-1] if b"null" in text else text[1:-1]


def encode_json_layout(response: InferResponse) -> bytes | None:
    """The JSON of the response without its id, with a NUL in place of each tensor's data. None when
    a name is not UTF-8."""
    outputs: list[_JsonTensor | _BinaryTensor | _SharedTensor] = [
        _JsonTensor(tensor.name, tensor.datatype, tensor.shape, _HOLE)
        for tensor in response.outputs
    ]
    try:
        return _ENCODER.encode(
            _Response("", response.model_name, response.model_version, {}, outputs)
        )
    except UnicodeEncodeError:
        return None


def _encode_json(response: _Response) -> bytes:
    """msgspec writes NaN and Infinity as null and refuses bytes that are not UTF-8; json.dumps
    encodes both as Triton does, but slowly."""
    try:
        text = _ENCODER.encode(response)
    except UnicodeEncodeError:
        pass
    else:
        if b"null" not in text:
            return text
    return encode_slowly(msgspec.to_builtins(response))


def encode_slowly(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogateescape"
    )


def encode_error(error: NaiadError) -> bytes:
    try:
        return _ENCODER.encode({"error": error.message})
    except UnicodeEncodeError:
        return encode_slowly({"error": error.message})
