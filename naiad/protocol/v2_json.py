"""The inference protocol over HTTP: a JSON header, tensors in it or as binary data behind it.

`decode_request` takes the common requests in one typed pass; whatever that cannot express goes to v2_json_checked.py, which reads
the same body as plain values and finds Triton's words for what is wrong with it.
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
from naiad.core.request import InferRequest, ParameterValue, RequestForm
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError, invalid_arg
from naiad.protocol import v2_json_checked
from naiad.protocol.classification import classify
from naiad.protocol.json_tensor import json_values, pack_json
from naiad.protocol.output_form import ALL_JSON, BINARY_FORM, JSON_FORM, SHARED_FORM, AnswerHead, OutputForm, OutputForms
from naiad.protocol.request_parameters import apply_parameters
from naiad.protocol.v2_json_checked import check_shared_output, repeated_output, unexpected_data, unexpected_size

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


class Template(msgspec.Struct, frozen=True):
    """A header whose tensors are all binary or in shared memory: serves any number of requests that repeat it."""

    text: bytes

    inputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""
    binary_bytes: int
    requested_outputs: list[str]
    forms: OutputForms
    form: RequestForm
    regions: RegionUse | None

    def fill_body(self, body: bytes, model_name: str, model_version: str) -> InferRequest | None:
        """From a whole body that has come in one piece; None when it does not repeat the header, or not with as much data."""
        at = len(self.text)
        if len(body) != at + self.binary_bytes or not body.startswith(self.text):
            return None
        if self.binary_bytes > _MAX_COPIED_BYTES:
            return self.fill(memoryview(body)[at:], model_name, model_version)
        tensors: list[Tensor] = []
        for name, datatype, shape, size in self.inputs:
            tensors.append(Tensor(name, datatype, shape, body[at : at + size]))
            at += size
        return InferRequest(model_name, tensors, model_version, "", self.requested_outputs, form=self.form, regions=self.regions)

    def fill(self, binary: memoryview, model_name: str, model_version: str) -> InferRequest:
        tensors: list[Tensor] = []
        at = 0
        for name, datatype, shape, size in self.inputs:
            tensors.append(Tensor(name, datatype, shape, binary[at : at + size]))
            at += size
        return InferRequest(model_name, tensors, model_version, "", self.requested_outputs, form=self.form, regions=self.regions)


_REPEATABLE = frozenset({"binary_data_output"})
"""Parameters that say nothing but the form of the answer."""
_MAX_TEMPLATES = 1024
_MAX_TEMPLATE_BYTES = 4096
_MAX_COPIED_BYTES = 4096
"""Up to here copies of the tensors are cheaper than views."""
_templates: dict[tuple[str, bytes], Template] = {}
"""By model and header: a client sends the same header again and again, only the tensors behind it differ."""


def _remember(key: tuple[str, bytes], request: InferRequest, forms: OutputForms) -> None:
    if len(_templates) >= _MAX_TEMPLATES:
        _templates.clear()
    inputs = [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in request.inputs]
    request.form = RequestForm()
    num_bytes = sum(row[3] for row in inputs)
    _templates[key] = Template(key[1], inputs, num_bytes, request.requested_outputs, forms, request.form, request.regions)


def recall(model_name: str, text: bytes) -> Template | None:
    """What a request with this header was decoded with."""
    return _templates.get((model_name, text))


def decode_request(
    body: Buffer, header_length: int | None, model_name: str, model_version: str, max_bytes: int
) -> tuple[InferRequest, OutputForms]:
    """`header_length` is Inference-Header-Content-Length, or None. Raises NaiadError."""
    text = body if header_length is None else memoryview(body)[:header_length]
    if len(text) > max_bytes:
        raise invalid_arg(oversize_message(len(text), max_bytes))
    binary = _NO_BINARY if header_length is None else memoryview(body)[header_length:]
    key = None
    if len(text) <= _MAX_TEMPLATE_BYTES and (header_length is not None or _is_in_shared_memory(text)):
        key = (model_name, bytes(text))
        template = _templates.get(key)
        if template is not None and template.binary_bytes == len(binary):
            return template.fill(binary, model_name, model_version), template.forms
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
    # A header with an id of its own is not worth keeping: the next one will be another.
    if key is not None and not header.id and header.parameters.keys() <= _REPEATABLE and all(i.data is UNSET for i in header.inputs):
        _remember(key, request, forms)
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
    inputs: list[_Input], binary: memoryview, model_name: str, max_bytes: int, slices: list[tuple[int, RegionSlice]]
) -> list[Tensor] | None:
    """Adds what is in shared memory to `slices`. None when something is not as expected, for the checked decoder to find out."""
    tensors: list[Tensor] = []
    at = 0
    for tensor in inputs:
        data: Buffer | None
        if tensor.parameters is not UNSET:
            size, region = tensor.parameters.binary_data_size, tensor.parameters.shared_memory_region
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
                slices.append((len(tensors), RegionSlice(region, parameters.shared_memory_offset, parameters.shared_memory_byte_size)))
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
            check_shared_output(has_classification=wanted.classification is not UNSET, is_binary=wanted.binary_data)
            region = RegionSlice(wanted.shared_memory_region, wanted.shared_memory_offset, wanted.shared_memory_byte_size)
            regions[output.name] = region
            forms[output.name] = SHARED_FORM
        elif wanted.classification:
            forms[output.name] = OutputForm(wanted.binary_data, wanted.classification)
        else:
            forms[output.name] = BINARY_FORM if wanted.binary_data else JSON_FORM
    request.requested_outputs = list(forms)
    if regions:
        request.regions = RegionUse([] if request.regions is None else request.regions.inputs, regions)
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
_JSON_HEADERS = b"Content-Type: application/json\r\n"


def encode_response(response: InferResponse, forms: OutputForms, spec: ModelSpec) -> EncodedResponse:
    """Raises NaiadError when an output cannot be given in the form that was asked for."""
    last = forms.last_answer
    if last is not None and is_repeated(response, last):
        return EncodedResponse(last.headers, [last.text, *(tensor.data for tensor in response.outputs)], last.size, len(last.text))
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
            outputs.append(_BinaryTensor(tensor.name, tensor.datatype, tensor.shape, _BinarySize(size)))
            binary.append(tensor.data)
            binary_bytes += size
        elif form.is_shared:
            outputs.append(_SharedTensor(tensor.name, tensor.datatype, tensor.shape))
        else:
            outputs.append(_JsonTensor(tensor.name, tensor.datatype, tensor.shape, json_values(tensor)))
    text = _encode_json(_Response(response.id, response.model_name, response.model_version, response.parameters, outputs))
    if not binary_bytes:
        return EncodedResponse(_JSON_HEADERS, [text], len(text), 0)
    headers = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(text)
    if len(binary) == len(response.outputs) and not response.id and not response.parameters and not _has_classes(forms):
        rows = [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in response.outputs]
        forms.last_answer = AnswerHead(response.model_name, response.model_version, rows, headers, text, len(text) + binary_bytes)
    return EncodedResponse(headers, [text, *binary], len(text) + binary_bytes, len(text))


def _has_classes(forms: OutputForms) -> bool:
    return forms.by_name is not None and any(form.classification for form in forms.by_name.values())


def is_repeated(response: InferResponse, last: AnswerHead) -> bool:
    """Nothing but the data of the tensors is new. Only binary outputs without classes come here, so their count tells the forms."""
    return (
        [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in response.outputs] == last.outputs
        and not response.id
        and not response.parameters
        and response.model_version == last.model_version
        and response.model_name == last.model_name
    )


def _encode_json(response: _Response) -> bytes:
    """NaN and Infinity, which the fast encoder writes as null, and bytes that are no UTF-8 take the slow way."""
    try:
        text = _ENCODER.encode(response)
    except UnicodeEncodeError:
        pass
    else:
        if b"null" not in text:
            return text
    return encode_slowly(msgspec.to_builtins(response))


def encode_slowly(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def encode_error(error: NaiadError) -> bytes:
    try:
        return _ENCODER.encode({"error": error.message})
    except UnicodeEncodeError:
        return encode_slowly({"error": error.message})
