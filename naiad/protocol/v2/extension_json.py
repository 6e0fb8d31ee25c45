"""Bodies of the small extensions over HTTP: shared memory, trace and log settings. JSON -> typed
values; errors have Triton's messages.

Unlike in inference requests, the error for a value of the wrong type does not name the field; this
follows Triton.
Rule: pure functions. Unknown keys are ignored, as by Triton, except where that would hide a
      mistake.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from naiad import log
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg, unavailable, unsupported
from naiad.protocol.v2.json_access import NULL, clean_text, find, is_unsigned, mismatch
from naiad.protocol.v2.triton_json import parse

CUDA_HANDLE_BYTES = 64


class SystemRegistration(msgspec.Struct, frozen=True):
    key: str
    offset: int
    byte_size: int


class CudaRegistration(msgspec.Struct, frozen=True):
    raw_handle: bytes
    device_id: int
    byte_size: int


def decode_system_registration(body: Buffer) -> SystemRegistration:
    document = parse(body)
    key, offset, byte_size = (
        find(document, "key"),
        find(document, "offset"),
        find(document, "byte_size"),
    )
    if key is None:
        raise _no_field("key")
    if byte_size is None:
        raise _no_field("byte_size")
    return SystemRegistration(
        _string(key), 0 if offset is None else _unsigned(offset), _unsigned(byte_size)
    )


def decode_cuda_registration(body: Buffer) -> CudaRegistration:
    document = parse(body)
    handle = find(document, "raw_handle")
    if handle is None:
        raise _no_field("raw_handle")
    text = _string(_member(handle, "b64"))
    device_id, byte_size = (
        _unsigned(_member(document, "device_id")),
        _unsigned(_member(document, "byte_size")),
    )
    try:
        raw_handle = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw_handle = b""
    if len(raw_handle) != CUDA_HANDLE_BYTES:
        raise invalid_arg("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegistration(raw_handle, device_id, byte_size)


def decode_trace_update(body: Buffer) -> dict[str, list[str] | None]:
    """Setting -> its values; None clears it."""
    document = parse(body)
    update: dict[str, list[str] | None] = {}
    for name in document if isinstance(document, dict) else ():
        value = find(document, name)
        if value is NULL:
            update[name] = None
        elif name == "trace_level":
            if not isinstance(value, list):
                raise internal(mismatch("array"))
            update[name] = [_string(level) for level in value]
        elif name in ("trace_rate", "trace_count", "log_frequency"):
            update[name] = [_string(value)]
        else:
            update[name] = [str(value)]
    return update


LogValue = bool | int | str


def decode_log_update(body: Buffer) -> dict[str, LogValue]:
    document = parse(body)
    if find(document, "log_file") is not None:
        raise unsupported("log file location can not be updated through network protocol")
    update: dict[str, LogValue] = {}
    for name in ("log_info", "log_warning", "log_error"):
        value = find(document, name)
        if value is not None and value is not NULL:
            if not isinstance(value, bool):
                raise internal(mismatch("boolean"))
            update[name] = value
    level = find(document, "log_verbose_level")
    if level is not None and level is not NULL:
        update["log_verbose_level"] = _unsigned(level)
    log_format = find(document, "log_format")
    if log_format is not None and log_format is not NULL:
        update["log_format"] = _string(log_format)
        if update["log_format"] not in log.FORMATS:
            raise unavailable(f"invalid argument for --log_format, got: {update['log_format']}")
    return update


def _no_field(name: str) -> NaiadError:
    return invalid_arg(f"Shared memory register request has no '{name}' field")


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict) and name in value:
        return value[name]
    raise internal(f"attempt to access non-existing object member '{name}'")


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise internal(mismatch("string"))
    return clean_text(value)


def _unsigned(value: Any) -> int:
    if not is_unsigned(value):
        raise internal(mismatch("unsigned-integer"))
    return int(value)
