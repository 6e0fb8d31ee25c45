"""HTTP requests that are JSON alone, with numbers for data: the text around the data repeats, only
the id and the numbers change.

Rule: what a plan decodes is what json_codec.decode_request would have decoded. One value of a JSON
      text can be replaced by another without changing the meaning of the rest: where the texts
      between the data are equal, everything but the data is equal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer, Tensor
from naiad.fastpath.http_plan import HttpPlan, RequestLayout
from naiad.fastpath.request_id import ID_AT_START
from naiad.protocol.v2.json_tensor import Decode, Pack, nesting, numbers_from_json
from naiad.protocol.v2.output_format import OutputFormats

if TYPE_CHECKING:
    from naiad.repository.model import Model
    from naiad.transport.http1.head import Head

_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*')
_CLOSING = re.compile(rb"\](?:[ \t\r\n]*\])*$")
_CONTENT_LENGTH = re.compile(rb"\r\nContent-Length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)


class JsonInput(msgspec.Struct, frozen=True, gc=False):
    name: str
    datatype: str
    shape: list[int]
    brackets: bytes
    """The brackets that close the data."""
    decode: Decode
    pack: Pack
    """`pack(*decode(text))` are the bytes of the tensor."""
    text: bytes
    """The text after the data."""


class JsonPlan(HttpPlan):
    __slots__ = ("has_id", "inputs", "text")

    def __init__(
        self,
        model: Model,
        model_version: str,
        request: InferRequest,
        formats: OutputFormats,
        text: bytes,
        inputs: list[JsonInput],
    ) -> None:
        """`text` is the JSON up to the first data, without the id when it begins with one."""
        super().__init__(model, model_version, request, formats)
        self.text = text
        self.has_id = bool(request.id)
        self.inputs = inputs

    def decode(self, body: Buffer, header_length: int | None = None) -> InferRequest | None:
        if body.__class__ is not bytes or header_length is not None:
            return None
        assert isinstance(body, bytes)
        if self.has_id:
            return self.decode_with_id(body, 0)
        if not body.startswith(self.text):
            return None
        return self.fill(body, len(self.text), "")

    def decode_with_id(self, data: bytes, start: int) -> InferRequest | None:
        """The body begins at `start`."""
        match = ID_AT_START.match(data, start)
        if match is None or not data.startswith(self.text, match.end()):
            return None
        return self.fill(data, match.end() + len(self.text), match[1].decode())

    def fill(self, data: bytes, start: int, id: str) -> InferRequest | None:
        """The data of the first tensor begins at `start`. None when a text between the data differs
        or the data are not the expected numbers."""
        tensors: list[Tensor] = []
        try:
            for tensor in self.inputs:
                end = data.find(tensor.brackets, start) + len(tensor.brackets)
                if not data.startswith(tensor.text, end):
                    return None
                values = tensor.decode(data[start:end])
                tensors.append(
                    Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.pack(*values))
                )
                start = end + len(tensor.text)
        except (msgspec.MsgspecError, struct.error, OverflowError, UnicodeError):
            return None
        if start != len(data):
            return None
        return InferRequest(
            self.model_name,
            tensors,
            self.model_version,
            id,
            self.requested_outputs,
            signature=self.signature,
        )

    def layout(self, head: Head, max_body_bytes: int) -> JsonRequestLayout | None:
        match = _CONTENT_LENGTH.search(head.text)
        return None if match is None else JsonRequestLayout(self, head, match, max_body_bytes)


class JsonRequestLayout(RequestLayout):
    """Numbers differ in length, so requests differ in size, and their heads in Content-Length."""

    __slots__ = (
        "_after_length",
        "_before_length",
        "_json",
        "_max_length",
        "_min_length",
        "_num_head_bytes",
        "_start_after_length",
    )

    def __init__(
        self, plan: JsonPlan, head: Head, length: re.Match[bytes], max_body_bytes: int
    ) -> None:
        """`length` is the Content-Length in the text of the head."""
        super().__init__(plan, head)
        self._json = plan
        start, end = length.span(1)
        self._before_length = head.text[:start]
        self._after_length = head.text[end:]
        self._start_after_length = self._after_length + (b"" if plan.has_id else plan.text)
        self._num_head_bytes = len(head.text)
        # All bodies whose length has as many digits.
        self._min_length = 10 ** (end - start - 1)
        self._max_length = min(10 ** (end - start) - 1, max_body_bytes)

    def decode(self, data: bytes) -> InferRequest | None:
        length = len(data) - self._num_head_bytes
        if not self._min_length <= length <= self._max_length:
            return None
        start = b"%b%d%b" % (self._before_length, length, self._start_after_length)
        if not data.startswith(start):
            return None
        plan = self._json
        if plan.has_id:
            return plan.decode_with_id(data, len(start))
        return plan.fill(data, len(start), "")

    def is_head(self, data: bytes) -> bool:
        before, after = self._before_length, self._after_length
        if (
            len(data) != self._num_head_bytes
            or not data.startswith(before)
            or not data.endswith(after)
        ):
            return False
        digits = data[len(before) : len(data) - len(after)]
        return digits.isdigit() and self._min_length <= int(digits) <= self._max_length


def texts_around(body: bytes, data: Sequence[Buffer]) -> list[bytes] | None:
    """The text before, between and after the data of the tensors. None when the places of the data
    are not certain: the key `data` is escaped, occurs twice, or is part of a string."""
    keys = list(_DATA.finditer(body))
    if len(keys) != len(data) or b"\\" in body:
        return None
    texts: list[bytes] = []
    end = 0
    for key, value in zip(keys, data, strict=True):
        texts.append(body[end : key.end()])
        end = key.end() + len(value)
        if body[key.end() : end] != bytes(value):
            return None
    texts.append(body[end:])
    return texts


def json_inputs(
    tensors: list[Tensor], data: Sequence[Buffer], texts: Sequence[bytes]
) -> list[JsonInput] | None:
    """`texts` are the texts after the data. None when a tensor is not made of numbers."""
    inputs: list[JsonInput] = []
    for tensor, value, text in zip(tensors, data, texts, strict=True):
        codec = numbers_from_json(tensor.datatype, tensor.element_count(), nesting(value))
        closing = _CLOSING.search(bytes(value))
        if codec is None or closing is None:
            return None
        inputs.append(
            JsonInput(tensor.name, tensor.datatype, tensor.shape, closing[0], *codec, text)
        )
    return inputs
