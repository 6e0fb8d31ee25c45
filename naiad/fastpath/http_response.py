"""Layouts of HTTP responses that differ from an earlier one only in id and data.

In:  a response. Out: the parts of the whole HTTP response, head included, exactly as the full path
     would encode it; None when the response does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from naiad.core.response import InferResponse
from naiad.core.signature import ResponseSignature, response_signature
from naiad.core.tensor import Buffer
from naiad.fastpath.request_id import is_plain_id, split_id
from naiad.protocol.v2.json_codec import JSON_HEADERS, EncodedResponse, encode_json_layout
from naiad.protocol.v2.json_tensor import numbers_of
from naiad.transport.http1.response_head import render_head

MAX_JOINED_BYTES = 64 * 1024
"""The full path writes larger responses without copying them together."""
_encode = msgspec.json.Encoder().encode


class BinaryResponseLayout(msgspec.Struct, frozen=True):
    """A response whose outputs are all binary data. Lengths in its head depend on the length of the
    id, so the layout is for one length."""

    signature: ResponseSignature
    start: bytes
    """Everything before the id, or before the data when there is no id."""
    text: bytes
    """The JSON after the id; empty when there is no id."""

    def encode(self, response: InferResponse) -> list[Buffer] | None:
        if not self.signature.matches(response):
            return None
        data = [tensor.data for tensor in response.outputs]
        if not self.text:
            return [self.start, *data]
        id = response.id
        return None if is_plain_id(id) is None else [self.start, id.encode(), self.text, *data]


def learn_binary_response(
    response: InferResponse, encoded: EncodedResponse
) -> BinaryResponseLayout | None:
    """None for a response that is too large to be joined, or whose id JSON escapes."""
    if encoded.size > MAX_JOINED_BYTES:
        return None
    text = bytes(encoded.parts[0])
    rest, id = split_id(text)
    if id != response.id:
        return None
    head = render_head(200, encoded.headers, encoded.size)
    signature = response_signature(response)
    if not id:
        return BinaryResponseLayout(signature, head + text, b"")
    return BinaryResponseLayout(signature, head + b'{"id":"', b'"' + rest)


class _JsonOutput(msgspec.Struct, frozen=True, gc=False):
    read: Callable[[Buffer], Sequence[Any]]
    """Reads the numbers of the tensor."""
    text: bytes
    """The JSON after the tensor's data."""


class JsonResponseLayout(msgspec.Struct, frozen=True):
    """A response whose outputs are all numbers in JSON. NaN and Infinity are left to the full
    path."""

    signature: ResponseSignature
    start: bytes
    """The JSON up to the first data, without the opening bracket and the id."""
    outputs: list[_JsonOutput]

    def encode(self, response: InferResponse) -> list[Buffer] | None:
        if not self.signature.matches(response):
            return None
        id = response.id
        if not id:
            parts = [b"{", self.start]
        elif is_plain_id(id) is not None:
            parts = [b'{"id":"', id.encode(), b'",', self.start]
        else:
            return None
        for tensor, output in zip(response.outputs, self.outputs):  # noqa: B905 - as many, they match
            parts += (_encode(output.read(tensor.data)), output.text)
        body = b"".join(parts)
        if b"null" in body:
            return None
        return [render_head(200, JSON_HEADERS, len(body)), body]


def learn_json_response(response: InferResponse) -> JsonResponseLayout | None:
    """None when an output is not made of numbers."""
    text = encode_json_layout(response)
    if text is None:
        return None
    start, *texts = text.split(b"\0")
    outputs: list[_JsonOutput] = []
    for tensor, text_after in zip(response.outputs, texts, strict=True):
        read = numbers_of(tensor.datatype, len(tensor.data))
        if read is None:
            return None
        outputs.append(_JsonOutput(read, text_after))
    return JsonResponseLayout(response_signature(response), start[1:], outputs)
