"""How a client wants its outputs: as JSON, as binary data, as classes, or in its shared memory.

Decided by the request, used by the response encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from naiad.protocol.v2.json_answer import JsonAnswer


class OutputForm(msgspec.Struct, frozen=True):
    is_binary: bool = False
    classification: int = 0
    """The number of top classes; 0 means the tensor itself."""
    is_shared: bool = False
    """The data is in the client's shared memory: the answer says only what it is."""


JSON_FORM = OutputForm()
BINARY_FORM = OutputForm(is_binary=True)
SHARED_FORM = OutputForm(is_shared=True)


class AnswerHead(msgspec.Struct):
    """The JSON of an answer whose tensors are all binary."""

    model_name: str
    model_version: str
    outputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""
    headers: bytes
    text: bytes
    """All of the JSON, or what follows the id in it."""
    size: int
    id_bytes: int = 0
    """How long the id is: lengths in the head depend on it."""
    start: bytes = b""
    """All of the answer that precedes the id or else the tensors' data, in the terms of its
    transport: rendered by the frontend when it comes again."""


class OutputForms(msgspec.Struct):
    """`by_name` holds the requested outputs, in order; None means all outputs, each in the form
    `default`."""

    default: OutputForm = JSON_FORM
    by_name: dict[str, OutputForm] | None = None
    answers: dict[int, AnswerHead] = {}
    """Of the last answers in these forms of which all but the id and the tensors' data may come
    again, by the length of the id."""
    json_answer: JsonAnswer | None = None
    """The same of the last one that was all JSON, of any id."""
    is_kept: bool = False
    """Further requests will want their answers in these very forms."""


ALL_JSON = OutputForms()
ALL_BINARY = OutputForms(BINARY_FORM)
