"""The inference protocol over HTTP: a JSON header, tensors in it or as binary data behind it.

`decode_request` takes the common requests in one typed pass; whatever that cannot express goes to
v2_json_checked.py, which reads the same body as plain values and finds Triton's words for what is
wrong with it.
Rule: tensors that came as binary data are views of the body, never copies.
"""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError, invalid_arg
from naiad.protocol.v2 import json_checked as v2_json_checked
from naiad.protocol.v2.classification import classify
from naiad.protocol.v2.json_answer import JsonAnswer, learn_answer
from naiad.protocol.v2.json_checked import (
    check_shared_output,
    repeated_output,
    unexpected_data,
    unexpected_size,
)
from naiad.protocol.v2.json_form import recognise
from naiad.protocol.v2.json_template import (
    MAX_TEMPLATE_BYTES,
    is_plain_id,
    is_sure_of_id,
    recall,
    remember,
    without_id,
)
from naiad.protocol.v2.json_tensor import json_values, pack_json
from naiad.protocol.v2.output_format import (
    ALL_JSON,
    BINARY_FORM,
    JSON_FORM,
    SHARED_FORM,
    AnswerHead,
    OutputForm,
    OutputForms,
)
from naiad.protocol.v2.request_parameters import apply_parameters

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
_REPEATABLE = frozenset({"binary_data_output"})
"""Parameters that say nothing but the form of the answer."""


def decode_request(
    body: Buffer, header_length: int | None, model_name: str, model_version: str, max_bytes: int
) -> tuple[InferRequest, OutputForms]:
    """`header_length` is Inference-Header-Content-Length, or None. Raises NaiadError."""
    text = body if header_length is None else memoryview(body)[:header_length]
    if len(text) > max_bytes:
        raise invalid_arg(oversize_message(len(text), max_bytes))
    binary = _NO_BINARY if header_length is None else memoryview(body)[header_length:]
    rest = None
    if len(text) <= MAX_TEMPLATE_BYTES and (
        header_length is not None or _is_in_shared_memory(text)
    ):
        rest, id = without_id(bytes(text))
        template = recall(model_name, rest)
        if (
            template is not None
            and template.binary_bytes == len(binary)
            and template.has_id == bool(id)
        ):
            return template.fill(binary, id, model_name, model_version), template.forms
    try:
        header = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return v2_json_checked.decode_request(text, binary, model_name, model_version, max_bytes)
    slices: list[tuple[int, RegionSlice]] = []
    inputs = _inputs(header.inputs, binary, model_name, max_bytes, slices)
    if inputs is None:
        return v2_json_checked.decode_request(text, binary, model_name, model_version, max_bytes)
    request = InferRequest(model_name, inputs, model_version, header.id)
    if slices:
        request.regions = RegionUse(slices)
    is_binary = bool(header.parameters) and apply_parameters(request, header.parameters)
    if header.outputs:
        forms = _forms(request, header.outputs)
    elif is_binary:
        forms = OutputForms(BINARY_FORM)
    else:
        forms = ALL_JSON
    if header.parameters.keys() <= _REPEATABLE:
        data = [tensor.data for tensor in header.inputs if tensor.data is not UNSET]
        if not data:
            if rest is not None and is_sure_of_id(id, header.id, rest):
                remember(rest, request, forms)
        elif header_length is None and len(data) == len(inputs):
            forms = recognise(body, data, request, forms)
    return request, forms


def _is_in_shared_memory(body: Buffer) -> bool:
    """Such bodies hold no tensors, so clients repeat them as a whole."""
    return type(body) is bytes and b"shared_memory_region" in body


def oversize_message(num_bytes: int, max_bytes: int) -> str:
    return (
        f"request JSON size of {num_bytes} bytes exceeds the maximum allowed input size of {max_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _inputs(
    inputs: list[_Input],
    binary: memoryview,
    model_name: str,
    max_bytes: int,
    slices: list[tuple[int, RegionSlice]],
) -> list[Tensor] | None:
    """Adds what is in shared memory to `slices`. None when something is not as expected, for the
    checked decoder to find out."""
    tensors: list[Tensor] = []
    at = 0
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
                end = at + size
                data = binary[at:end]
                if end > len(binary):
                    raise unexpected_size(tensor.name, end - len(binary), model_name)
                at = end
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
            count = prod(tensor.shape)
            data = pack_json(tensor.data, tensor.datatype, count)
            if data is None or len(data) > max_bytes or count == 0:
                return None
        else:
            return None
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, data))
    if at != len(binary):
        raise unexpected_data(model_name)
    return tensors


def _forms(request: InferRequest, outputs: list[_Output]) -> OutputForms:
    forms: dict[str, OutputForm] = {}
    regions: dict[str, RegionSlice] = {}
    for output in outputs:
        if output.name in forms:
            raise repeated_output(output.name, request.id)
        wanted = output.parameters
        if wanted is UNSET:
            forms[output.name] = JSON_FORM
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
            forms[output.name] = SHARED_FORM
        elif wanted.classification:
            forms[output.name] = OutputForm(wanted.binary_data, wanted.classification)
        else:
            forms[output.name] = BINARY_FORM if wanted.binary_data else JSON_FORM
    request.requested_outputs = list(forms)
    if regions:
        request.regions = RegionUse(
            [] if request.regions is None else request.regions.inputs, regions
        )
    return OutputForms(JSON_FORM, forms)


class EncodedResponse(NamedTuple):
    headers: bytes
    parts: list[Buffer]
    size: int
    header_length: int
    """Of the JSON at the beginning; 0 when there is nothing but JSON."""


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
JSON_HEADERS = b"Content-Type: application/json\r\n"


def encode_response(
    response: InferResponse, forms: OutputForms, spec: ModelSpec
) -> EncodedResponse:
    """Raises NaiadError when an output cannot be given in the form that was asked for."""
    last = forms.answers.get(len(response.id))
    if last is not None and is_repeated(response, last):
        text = b'{"id":"%b%b' % (response.id.encode(), last.text) if last.id_bytes else last.text
        return EncodedResponse(
            last.headers,
            [text, *(tensor.data for tensor in response.outputs)],
            last.size,
            len(text),
        )
    if forms.json_answer is not None:
        whole = forms.json_answer.fill(response)
        if whole is not None:
            return EncodedResponse(JSON_HEADERS, [whole], len(whole), 0)
    outputs: list[_JsonTensor | _BinaryTensor | _SharedTensor] = []
    binary: list[Buffer] = []
    binary_bytes = 0
    by_name = forms.by_name
    for tensor in response.outputs:
        form = forms.default if by_name is None else by_name.get(tensor.name)
        if form is None:
            continue
        if form.classification:
            tensor = classify(tensor, form.classification, spec)
        if form.is_binary:
            size = len(tensor.data)
            outputs.append(
                _BinaryTensor(tensor.name, tensor.datatype, tensor.shape, _BinarySize(size))
            )
            binary.append(tensor.data)
            binary_bytes += size
        elif form.is_shared:
            outputs.append(_SharedTensor(tensor.name, tensor.datatype, tensor.shape))
        else:
            outputs.append(
                _JsonTensor(tensor.name, tensor.datatype, tensor.shape, json_values(tensor))
            )
    text = _encode_json(
        _Response(
            response.id, response.model_name, response.model_version, response.parameters, outputs
        )
    )
    if not binary_bytes:
        if (
            forms.is_kept
            and len(outputs) == len(response.outputs)
            and not response.parameters
            and not _has_classes(forms)
        ):
            forms.json_answer = _learn_json(response, outputs)
        return EncodedResponse(JSON_HEADERS, [text], len(text), 0)
    headers = (
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
        % len(text)
    )
    if len(binary) == len(response.outputs) and not response.parameters and not _has_classes(forms):
        rest, id = without_id(text)
        if id == response.id:
            rows = [
                (tensor.name, tensor.datatype, tensor.shape, len(tensor.data))
                for tensor in response.outputs
            ]
            size = len(text) + binary_bytes
            rest = text if not id else b'"' + rest
            forms.answers[len(id)] = AnswerHead(
                response.model_name, response.model_version, rows, headers, rest, size, len(id)
            )
    return EncodedResponse(headers, [text, *binary], len(text) + binary_bytes, len(text))


def _learn_json(
    response: InferResponse, outputs: list[_JsonTensor | _BinaryTensor | _SharedTensor]
) -> JsonAnswer | None:
    for output in outputs:
        if not isinstance(output, _JsonTensor):
            return None
        output.data = _HOLE
    try:
        return learn_answer(
            response,
            _ENCODER.encode(
                _Response("", response.model_name, response.model_version, {}, outputs)
            ),
        )
    except UnicodeEncodeError:
        return None


def _has_classes(forms: OutputForms) -> bool:
    return forms.by_name is not None and any(form.classification for form in forms.by_name.values())


def is_repeated(response: InferResponse, last: AnswerHead) -> bool:
    """Nothing but the data of the tensors and the id, as long as the last one, is new. Only binary
    outputs without classes come here, so their count tells the forms."""
    id = response.id
    return (
        [
            (tensor.name, tensor.datatype, tensor.shape, len(tensor.data))
            for tensor in response.outputs
        ]
        == last.outputs
        and len(id) == last.id_bytes
        and (not id or is_plain_id(id) is not None)
        and not response.parameters
        and response.model_version == last.model_version
        and response.model_name == last.model_name
    )


def _encode_json(response: _Response) -> bytes:
    """NaN and Infinity, which the fast encoder writes as null, and bytes that are no UTF-8 take the
    slow way."""
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
