"""Infer messages that repeat: where in a ModelInferRequest the data lies, and in its answer, so
that the rest need not be read again.

In:  one message of a kind. Out: its layout, and the request or the answer of any other that has it.
Rule: as decode_request and encode_response (v2_grpc.py) have it; only messages that they take the
      quick way are known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.core.request import InferRequest, RequestForm
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.protocol.v2.grpc_codec import RAW, RESPONSE_ID, AnswerForm, find_id, find_template
from naiad.protocol.v2.grpc_request import RequestOptions
from naiad.protocol.v2.grpc_wire import Buffer, WireError, read_varint, varint


class RequestLayout(msgspec.Struct, frozen=True):
    layout: list[bytes | int]
    """Bytes that repeat, and sizes of what does not, in turns: the id, where there is one, then
    each raw tensor."""
    has_id: bool
    prototype: InferRequest
    names: list[str]
    datatypes: list[str]
    shapes: list[list[int]]
    form: RequestForm
    options: RequestOptions

    def request(self, parts: Sequence[Buffer]) -> InferRequest:
        """Raises UnicodeDecodeError for an id that is none."""
        prototype = self.prototype
        request_id = prototype.id
        if self.has_id:
            request_id = request_id or bytes(parts[0]).decode()
            parts = parts[1:]
        return InferRequest(
            prototype.model_name,
            list(map(Tensor, self.names, self.datatypes, self.shapes, parts)),
            prototype.model_version,
            request_id,
            prototype.requested_outputs,
            form=self.form,
        )


def learn_request(message: bytes, num_bytes: int) -> RequestLayout | None:
    """None for all but plain requests with raw tensors: no parameters, no shared memory, no
    classification, no fault.

    Of a large message, of so many bytes, the beginning will do: up to where the data of its last
    tensor begins.
    """
    _, start, stop = find_id(message)
    try:
        template, at = find_template(message, start, stop)
    except NaiadError:
        return None
    if (
        template is None
        or not template.is_plain
        or template.output_error is not None
        or template.options.classification
        or at < stop
    ):
        return None
    inputs = template.inputs
    layout: list[bytes | int] = []
    done = 0
    if stop:
        layout += (message[: start + 2], stop - start - 2)
        done = stop
    count = 0
    try:
        while at < num_bytes:
            if message[at] != RAW:
                return None
            size, at = read_varint(message, at + 1)
            layout += (message[done:at], size)
            done = at = at + size
            count += 1
    except (WireError, IndexError):
        return None
    if at != num_bytes or count != len(inputs):
        return None
    names, datatypes, shapes = (
        [getattr(head, field) for head in inputs] for field in ("name", "datatype", "shape")
    )
    return RequestLayout(
        layout,
        stop > 0,
        template.prototype,
        names,
        datatypes,
        shapes,
        template.form,
        template.options,
    )


class AnswerLayout(msgspec.Struct, frozen=True):
    layout: list[bytes | int]
    """Of the message: the id, where there is one, then the data of each output."""
    id_bytes: int
    """0 when there is none."""
    model_name: str
    model_version: str
    outputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""

    def parts(self, response: InferResponse) -> list[Buffer] | None:
        """What fills the layout; None when more than id and data is new."""
        outputs = response.outputs
        if (
            response.error is not None
            or response.parameters
            or len(outputs) != len(self.outputs)
            or response.model_version != self.model_version
            or response.model_name != self.model_name
        ):
            return None
        parts: list[Buffer] = []
        if response.id or self.id_bytes:
            parts.append(response.id.encode())
            if len(parts[0]) != self.id_bytes:
                return None
        for output, known in zip(outputs, self.outputs, strict=True):
            data = output.data
            if (output.name, output.datatype, output.shape, len(data)) != known:
                return None
            parts.append(data)
        return parts


def learn_answer(form: AnswerForm, request_id: str) -> AnswerLayout:
    """Of answers to a request with such an id."""
    id_bytes = len(request_id.encode())
    layout: list[bytes | int] = []
    head = form.model_head
    if id_bytes:
        layout += (head + bytes((RESPONSE_ID,)) + varint(id_bytes), id_bytes)
        head = b""
    for output_head, output in zip(form.heads, form.outputs, strict=True):
        layout += (head + output_head, output[3])
        head = b""
    return AnswerLayout(layout, id_bytes, form.model_name, form.model_version, form.outputs)
