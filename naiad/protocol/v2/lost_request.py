"""Which sequence a request belongs to that was refused or lost before it was decoded.

In:  a JSON body or a ModelInferRequest, or what has arrived of one. Out: requests that name the
     model and the sequence, and nothing else.
Rule: nothing here raises for bad bytes. Clients write the parameters before the tensors, or at the
      end of the JSON.
"""

from __future__ import annotations

import re
import zlib

import msgspec
from google.protobuf.message import DecodeError

from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.protocol.v2.grpc_large import sequence_fields

END_BYTES = 64 * 1024
"""How much of the beginning and of the end of a message is looked at."""
_MAX_FOUND = 8
_SEQUENCE_ID = re.compile(
    rb'"sequence_id"\s*:\s*(?:([0-9]{1,20})\s*[,}]|("(?:[^"\\]|\\.){1,512}"))'
)
_UINT64_MASK = (1 << 64) - 1
_MAX_CHECKSUM_BYTES = 8


def in_json(text: Buffer, model_name: str, model_version: str) -> list[InferRequest]:
    """The text may also be something else that looks like a sequence's id: too many sequences end
    then rather than too few."""
    view = memoryview(text)
    seen = bytes(view[:END_BYTES])
    if len(view) > END_BYTES:
        seen += bytes(view[max(END_BYTES, len(view) - END_BYTES) :])
    found: list[InferRequest] = []
    for match in _SEQUENCE_ID.finditer(seen):
        number, quoted = match.groups()
        try:
            id = int(number) if number else msgspec.json.decode(quoted, type=str)
        except msgspec.DecodeError:
            continue
        found.append(InferRequest(model_name, [], model_version, sequence_id=id))
    return found[:_MAX_FOUND]


def in_message(message: Buffer) -> list[InferRequest]:
    try:
        request = ModelInferRequest.FromString(sequence_fields(message[:END_BYTES]))
    except (DecodeError, ValueError):
        return []
    written = request.parameters.get("sequence_id")
    if written is None:
        return []
    id = written.string_param or written.int64_param & _UINT64_MASK
    return [InferRequest(request.model_name, [], request.model_version, sequence_id=id)]


def uncompressed(data: Buffer) -> bytes:
    """The beginning of gzip or zlib data, as far as it can be read. The checksum at its end may be
    what is wrong with it."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
    found, offset, end = bytearray(), 0, len(data) - _MAX_CHECKSUM_BYTES
    try:
        while offset < end and len(found) < END_BYTES:
            found += inflate.decompress(data[offset : min(offset + 1024, end)], END_BYTES)
            offset += 1024
    except zlib.error:
        pass
    return bytes(found)
