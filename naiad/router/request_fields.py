"""Reads the few fields of a request that decide where it goes, and nothing else of it.

In:  a JSON body or the bytes of a ModelInferRequest. Out: the model, and the sequence.
Rule: tensors are never decoded. What cannot be read is left to the replica, which has the right
      error for it, except for a model that the router needs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from naiad.core.identity import Identity
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg
from naiad.router.sequences import SequenceStep

_SEQUENCE = b"sequence_id"
_SMALL_BYTES = 16 * 1024
_MAX_FIELDS = 16 * 1024
"""A request has a few fields per tensor. Millions of empty ones would hold up the event loop."""


class _OpenAiBody(msgspec.Struct):
    model: str = ""


class _InferBody(msgspec.Struct):
    parameters: dict[str, Any] = {}


_openai_decoder = msgspec.json.Decoder(_OpenAiBody)
_infer_decoder = msgspec.json.Decoder(_InferBody)


def openai_model(body: Buffer) -> str:
    """The field `model`; empty if there is none. Raises NaiadError."""
    try:
        return _openai_decoder.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the request body is not JSON with a text 'model': {error}") from None


def json_sequence(body: Buffer, json_bytes: int, owner: str = "") -> SequenceStep | None:
    """The sequence of an inference request, whose JSON has `json_bytes`; 0 if all of it is JSON."""
    text = body[:json_bytes] if json_bytes else body
    if isinstance(text, memoryview):
        text = bytes(text)
    if _SEQUENCE not in text:
        return None
    try:
        parameters = _infer_decoder.decode(text).parameters
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return _step(parameters, owner)


def owner_of(identity: Identity | None, header: Callable[[str], str]) -> str:
    """Whose sequences a client's are. Without a guard the router cannot tell who has a key."""
    if identity is not None:
        return identity.key_id
    return header("authorization") or header("x-api-key")


def _step(parameters: dict[str, Any], owner: str) -> SequenceStep | None:
    identifier = parameters.get("sequence_id")
    if not isinstance(identifier, str | int) or identifier in (0, "", False):
        return None
    return SequenceStep(
        str(identifier),
        parameters.get("sequence_start") is True,
        parameters.get("sequence_end") is True,
        owner,
        identifier,
    )


# gRPC. The messages for one model begin with its name (field 1) and its version (field 2), in
# ModelInferRequest as in the requests for metadata, configuration and statistics.

_NAME, _VERSION, _ID, _PARAMETERS = 1, 2, 3, 4


def grpc_model(message: Buffer, *, is_exact: bool = False) -> tuple[str, str]:
    """The model and its version. Raises NaiadError for a message that is not protobuf.

    `is_exact` reads all fields: the last of several names counts to the replica, and a key must not
    reach a model through the first."""
    size = len(message)
    if (
        size > 2
        and not is_exact
        and message[0] == 0x0A
        and (length := message[1]) < 0x80
        and size >= length + 2
    ):
        end = 2 + length
        # Serializers write fields in their order, so a version comes next or not at all.
        if end == size or message[end] not in (0x0A, 0x12):
            try:
                return str(message[2:end], "utf-8"), ""
            except UnicodeDecodeError:
                pass
    name, version = b"", b""
    for field, value in _fields(message):
        if field == _NAME:
            name = bytes(value)
        elif field == _VERSION:
            version = bytes(value)
    try:
        return name.decode(), version.decode()
    except UnicodeDecodeError:
        raise invalid_arg("the model name is not UTF-8") from None


def grpc_request_id(message: Buffer) -> str:
    """The id that the client gave to a ModelInferRequest; empty if it cannot be read."""
    try:
        found = [bytes(value) for field, value in _fields(message) if field == _ID]
    except NaiadError:
        return ""
    return found[-1].decode("utf-8", "replace") if found else ""


def grpc_sequence(message: Buffer, owner: str = "") -> SequenceStep | None:
    """The sequence of a ModelInferRequest."""
    if len(message) <= _SMALL_BYTES and _SEQUENCE not in bytes(message):
        return None
    parameters: dict[str, Any] = {}
    for field, value in _fields(message):
        if field != _PARAMETERS:
            continue
        entry = dict(_fields(value))
        key = bytes(entry.get(1, b"")).decode("utf-8", "replace")
        if key.startswith("sequence_"):
            # InferParameter: bool_param = 1, int64_param = 2, string_param = 3, double_param = 4,
            # uint64_param = 5.
            for kind, content in _fields(entry.get(2, b"")):
                if kind == 1:
                    parameters[key] = content != 0
                elif kind in (2, 5):
                    parameters[key] = content
                elif kind == 3:
                    parameters[key] = bytes(content).decode("utf-8", "replace")
    return _step(parameters, owner)


def _fields(message: Any) -> list[tuple[int, Any]]:
    """The fields of a protobuf message: numbers as int, the rest as bytes. Raises NaiadError."""
    found: list[tuple[int, Any]] = []
    offset, size = 0, len(message)
    try:
        while offset < size:
            tag, offset = _varint(message, offset)
            kind = tag & 7
            if kind == 0:
                value, offset = _varint(message, offset)
                found.append((tag >> 3, value))
                if len(found) > _MAX_FIELDS:
                    raise invalid_arg(f"the message has more than {_MAX_FIELDS} fields")
                continue
            if kind == 2:
                length, offset = _varint(message, offset)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise invalid_arg("the message is not protobuf: unknown wire type")
            if offset + length > size:
                raise invalid_arg("the message is not protobuf: a field is cut off")
            found.append((tag >> 3, message[offset : offset + length]))
            offset += length
            if len(found) > _MAX_FIELDS:
                raise invalid_arg(f"the message has more than {_MAX_FIELDS} fields")
    except IndexError:
        raise invalid_arg("the message is not protobuf: it is cut off") from None
    return found


def _varint(message: Any, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise invalid_arg("the message is not protobuf: a number is too long")
