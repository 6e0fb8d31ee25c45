"""Layouts of infer messages that repeat: the places of the data in a ModelInferRequest and in its
response, so that the rest is neither read nor written again.

In:  one message of a kind. Out: its layout, and the request or the response parts of any other
     message with that layout.
Rule: a layout yields what grpc_codec.decode_request and encode_response yield. Only plain messages
      have a layout: raw tensors, no parameters, no shared memory, no classification, no fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.signature import RequestSignature, ResponseSignature, response_signature
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError
from naiad.protocol.v2.grpc_codec import (
    RAW,
    RESPONSE_ID,
    ReadTemplate,
    find_id,
    find_template,
    model_head,
    output_head,
    raw_head,
)
from naiad.protocol.v2.grpc_request import RequestOptions
from naiad.protocol.v2.grpc_wire import WireError, read_varint, varint


class MessageLayout(msgspec.Struct, frozen=True):
    pieces: list[bytes | int]
    """Bytes that repeat, and sizes of parts that do not, alternating. The parts are the id, where
    there is one, then each raw tensor."""
    has_id: bool
    prototype: InferRequest
    names: list[str]
    datatypes: list[str]
    shapes: list[list[int]]
    signature: RequestSignature
    options: RequestOptions

    def decode(self, parts: Sequence[Buffer]) -> InferRequest | None:
        """None when the id is not UTF-8."""
        prototype = self.prototype
        request_id = prototype.id
        if self.has_id:
            if not request_id:
                try:
                    request_id = bytes(parts[0]).decode()
                except UnicodeDecodeError:
                    return None
            parts = parts[1:]
        return InferRequest(
            prototype.model_name,
            list(map(Tensor, self.names, self.datatypes, self.shapes, parts)),
            prototype.model_version,
            request_id,
            prototype.requested_outputs,
            signature=self.signature,
        )


def learn_message(message: bytes, num_bytes: int, read: ReadTemplate) -> MessageLayout | None:
    """The layout of a message of `num_bytes`; None when the message is not plain. The beginning of
    a large message is enough: up to the data of its last tensor."""
    id_field = find_id(message)
    try:
        template, offset = find_template(message, id_field, read)
    except NaiadError:
        return None
    if (
        template is None
        or not template.is_plain
        or template.output_error is not None
        or template.options.classification
        or offset < id_field.end
    ):
        return None
    pieces: list[bytes | int] = []
    done = 0
    if id_field.end:
        pieces += (message[: id_field.start + 2], id_field.end - id_field.start - 2)
        done = id_field.end
    num_tensors = 0
    try:
        while offset < num_bytes:
            if message[offset] != RAW:
                return None
            size, offset = read_varint(message, offset + 1)
            pieces += (message[done:offset], size)
            done = offset = offset + size
            num_tensors += 1
            if num_tensors > len(template.inputs):
                return None
    except (WireError, IndexError):
        return None
    inputs = template.inputs
    if offset != num_bytes or num_tensors != len(inputs):
        return None
    return MessageLayout(
        pieces,
        id_field.end > 0,
        template.prototype,
        [tensor.name for tensor in inputs],
        [tensor.datatype for tensor in inputs],
        [tensor.shape for tensor in inputs],
        template.signature,
        template.options,
    )


class ResponseLayout(msgspec.Struct, frozen=True):
    pieces: list[bytes | int]
    """As in MessageLayout; the parts are the id, where there is one, then the data of each
    output."""
    num_id_bytes: int
    """0 when there is no id."""
    signature: ResponseSignature

    def encode(self, response: InferResponse) -> list[Buffer] | None:
        """The parts of the message; None when the response does not match."""
        if not self.signature.matches(response):
            return None
        parts: list[Buffer] = [tensor.data for tensor in response.outputs]
        if response.id or self.num_id_bytes:
            id = response.id.encode()
            if len(id) != self.num_id_bytes:
                return None
            parts.insert(0, id)
        return parts


def learn_response(response: InferResponse) -> ResponseLayout:
    """The layout of a response with at least one output, all of whose outputs are returned as they
    are."""
    num_id_bytes = len(response.id.encode())
    pieces: list[bytes | int] = []
    head = model_head(response.model_name, response.model_version)
    if num_id_bytes:
        pieces += (head + bytes((RESPONSE_ID,)) + varint(num_id_bytes), num_id_bytes)
        head = b""
    head += b"".join(
        output_head(output.name, output.datatype, tuple(output.shape))
        for output in response.outputs
    )
    for output in response.outputs:
        pieces += (head + raw_head(len(output.data)), len(output.data))
        head = b""
    return ResponseLayout(pieces, num_id_bytes, response_signature(response))
