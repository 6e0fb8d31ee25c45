"""Answers in JSON that come again with other numbers: the text around the data of their tensors is
rendered once.

In:  a response. Out: the body that encoding all of it would have given, or None where it is not
     like the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.protocol.v2.json_template import is_plain_id
from naiad.protocol.v2.json_tensor import numbers_of

_encode = msgspec.json.Encoder().encode


class JsonAnswer(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""
    start: bytes
    """Up to the first data; without the id and the bracket before it."""
    rows: list[tuple[Callable[[Buffer], Sequence[Any]], bytes]]
    """(how the numbers of a tensor are read, the text behind them)"""

    def fill(self, response: InferResponse) -> bytes | None:
        id, outputs = response.id, response.outputs
        if (
            [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in outputs]
            != self.outputs
            or response.parameters
            or response.model_version != self.model_version
            or response.model_name != self.model_name
        ):
            return None
        if not id:
            parts = [b"{", self.start]
        elif is_plain_id(id) is not None:
            parts = [b'{"id":"', id.encode(), b'",', self.start]
        else:
            return None
        for tensor, (read, text) in zip(outputs, self.rows):  # noqa: B905 - as many: they have been compared
            parts += (_encode(read(tensor.data)), text)
        whole = b"".join(parts)
        # as v2_json does it: NaN and Infinity take the slow way
        return None if b"null" in whole else whole


def learn_answer(response: InferResponse, text: bytes) -> JsonAnswer | None:
    """`text` is all of it but the id, with a NUL, which no JSON holds, in place of each tensor's
    data. None when not all are numbers."""
    texts = text.split(b"\0")
    outputs: list[tuple[str, str, list[int], int]] = []
    rows: list[tuple[Callable[[Buffer], Sequence[Any]], bytes]] = []
    for tensor, behind in zip(response.outputs, texts[1:], strict=True):
        read = numbers_of(tensor.datatype, len(tensor.data))
        if read is None:
            return None
        outputs.append((tensor.name, tensor.datatype, tensor.shape, len(tensor.data)))
        rows.append((read, behind))
    return JsonAnswer(response.model_name, response.model_version, outputs, texts[0][1:], rows)
