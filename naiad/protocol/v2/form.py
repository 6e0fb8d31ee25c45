"""Bodies that are files: a form (`curl -F image=@page.png -F threshold=0.5`), or one file
(`--data-binary @page.png` with its type) -> a request. Responses are those of the flat form.

In:  the body and the `Content-Type`. Out: a request, or NaiadError that names what would work.
Rule: what a part means never depends on its content: the model's input says whether it is bytes or
      a value, and a part that names no input is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import invalid_arg
from naiad.protocol.v2.flat import FlatConversion
from naiad.protocol.v2.json_access import as_unsigned

FORM: Final = "multipart/form-data"
MAX_PARTS: Final = 1024
_MAX_HEAD_BYTES: Final = 8192
_SLICE_BYTES: Final = 4 * 1024 * 1024
_FILE_TYPES = ("image/", "audio/", "video/", "application/pdf")
_OPEN_TYPES = ("application/octet-stream", "text/")
"""Triton reads a body of any type as JSON, so one that begins as an object is that."""
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb';\s*name=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)")
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_BLANK: Final = b" \t\r\n"
_VALUE = msgspec.json.Decoder()


def is_file_type(content_type: bytes) -> bool | None:
    """True for a body that is a form or a file, None if its first byte tells, False if it is not.
    `content_type` may have parameters."""
    name = content_type.partition(b";")[0].strip().lower().decode("latin-1")
    if name == FORM or name.startswith(_FILE_TYPES):
        return True
    return None if name.startswith(_OPEN_TYPES) else False


def begins_as_object(body: Buffer) -> bool:
    start = bytes(memoryview(body)[:1024]).lstrip(_BLANK)
    return start.startswith(b"{") or not start


def decode_request(
    body: Buffer, content_type: bytes, spec: ModelSpec, model_version: str, max_bytes: int
) -> InferRequest:
    """Raises NaiadError."""
    if len(body) > max_bytes:
        raise invalid_arg(
            f"the body has {len(body)} bytes, which exceeds the maximum allowed value of "
            f"{max_bytes} bytes. Use --http-max-input-size to increase the limit."
        )
    if content_type.partition(b";")[0].strip().lower() == FORM.encode():
        return _decode_form(body, content_type, spec, model_version, max_bytes)
    return InferRequest(spec.name, [_only_input(body, content_type, spec)], model_version)


def _only_input(body: Buffer, content_type: bytes, spec: ModelSpec) -> Tensor:
    required = [tensor for tensor in spec.inputs.values() if not tensor.is_optional]
    if len(required) == 1 and required[0].datatype == "BYTES":
        return _bytes_tensor(required[0], [bytes(body)], spec)
    kind = content_type.partition(b";")[0].decode("latin-1")
    raise invalid_arg(
        f"a body of type '{kind}' is the only input of a model, of type BYTES; {_ways(spec)}"
    )


def _ways(spec: ModelSpec) -> str:
    inputs = ", ".join(
        f"'{each.name}' ({each.datatype} {each.shape})" for each in spec.inputs.values()
    )
    names = list(spec.inputs)
    form = " ".join(f"-F {name}=..." for name in names[:3])
    return (
        f"model '{spec.name}' has {inputs}: send a form ({form}), or JSON "
        f'{{"{names[0] if names else ""}": ...}}'
    )


# Forms.


def _decode_form(
    body: Buffer, content_type: bytes, spec: ModelSpec, model_version: str, max_bytes: int
) -> InferRequest:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise invalid_arg("the Content-Type of a form has no boundary")
    values: dict[str, list[bytes]] = {}
    for name, value in _parts(bytes(body), found[1] or found[2]):
        values.setdefault(name, []).append(value)
    request = InferRequest(spec.name, [], model_version)
    conversion = FlatConversion(spec, max_bytes)
    for name, given in values.items():
        tensor = spec.inputs.get(name)
        if tensor is None:
            _read_option(request, name, given, spec)
        elif tensor.datatype == "BYTES":
            request.inputs.append(_bytes_tensor(tensor, given, spec))
        else:
            request.inputs.append(conversion.tensor(tensor, _read_values(tensor, given)))
    return request


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, bytes]]:
    """The name and the content of each part. Raises NaiadError."""
    delimiter = b"\r\n--" + boundary
    if not body.startswith(delimiter[2:]):
        raise invalid_arg("the form does not begin with its boundary")
    parts: list[tuple[str, bytes]] = []
    start = len(delimiter) - 2
    while True:
        if body.startswith(b"--", start):
            return parts
        if not body.startswith(b"\r\n", start):
            raise invalid_arg("the form has something behind a boundary")
        if len(parts) == MAX_PARTS:
            raise invalid_arg(f"the form has more than {MAX_PARTS} parts")
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        if head_end < 0:
            raise invalid_arg("a part of the form has no head, or one of more than 8192 bytes")
        end = _find(body, delimiter, head_end + 2)
        if end < 0:
            raise invalid_arg("the form ends before its last boundary")
        parts.append((_name(body[start:head_end]), body[head_end + 4 : end]))
        start = end + len(delimiter)


def _find(body: bytes, delimiter: bytes, start: int) -> int:
    """In slices, because a search holds the interpreter lock."""
    while start < len(body):
        found = body.find(delimiter, start, start + _SLICE_BYTES + len(delimiter))
        if found >= 0:
            return found
        start += _SLICE_BYTES
    return -1


def _name(head: bytes) -> str:
    lines = [line.partition(b":") for line in head.split(b"\r\n") if line]
    fields = {key.strip().lower(): value.strip() for key, _, value in lines}
    encoding = fields.get(b"content-transfer-encoding", b"binary").lower()
    if encoding not in (b"binary", b"8bit", b"7bit"):
        raise invalid_arg(
            f"a part of the form has Content-Transfer-Encoding {encoding.decode('latin-1')}: send "
            "the bytes as they are"
        )
    disposition = fields.get(b"content-disposition", b"")
    found = _NAME.search(disposition)
    if found is None or not disposition.lower().startswith(b"form-data"):
        raise invalid_arg("a part of the form has no name")
    text = (found[1] if found[1] is not None else found[2]).decode("utf-8", "replace")
    return unquote(_ESCAPED.sub(r"\1", text))


def _read_option(request: InferRequest, name: str, given: list[bytes], spec: ModelSpec) -> None:
    """What is no input: the id, the priority and the time limit of the request."""
    text = given[0].decode("utf-8", "replace").strip()
    if len(given) > 1:
        raise invalid_arg(f"the form has '{name}' {len(given)} times")
    if name == "id":
        request.id = text
    elif name == "priority":
        request.priority = as_unsigned(_value(text), name)
    elif name == "timeout":
        request.timeout_us = as_unsigned(_value(text), name)
    elif name in _SEQUENCE:
        raise invalid_arg(f"a form cannot have '{name}': send requests of a sequence as JSON")
    else:
        inputs = ", ".join(f"'{each}'" for each in spec.inputs)
        raise invalid_arg(
            f"the form has '{name}', which is no input of model '{spec.name}' ({inputs}); other "
            "parameters of a request go into JSON"
        )


def _read_values(tensor: TensorSpec, given: list[bytes]) -> Any:
    values = [_value(value.decode("utf-8", "replace").strip()) for value in given]
    for value, text in zip(values, given, strict=True):
        if value is None or isinstance(value, (str, dict)):
            is_short = len(text) <= 40 and text.isascii() and text.decode().isprintable()
            shown = f"'{text.decode()}'" if is_short else f"{len(text)} bytes"
            raise invalid_arg(
                f"input '{tensor.name}' of type {tensor.datatype} cannot be {shown}: a value of "
                "a form is a number, true, false, or a JSON list of them"
            )
    return values[0] if len(values) == 1 else values


def _value(text: str) -> Any:
    try:
        return _VALUE.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text


def _bytes_tensor(tensor: TensorSpec, given: list[bytes], spec: ModelSpec) -> Tensor:
    """One file, or as many as a variable dimension or the batch may hold."""
    shape = FlatConversion(spec, 0).elements_shape(tensor, len(given))
    return Tensor(tensor.name, "BYTES", shape, encode_byte_strings(given))
