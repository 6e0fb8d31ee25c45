"""HTTP requests with a JSON header and tensors as binary data after it, or in shared memory: the
header repeats, only the id and the data change.

Rule: what a plan decodes is what json_codec.decode_request would have decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from naiad.core.request import InferRequest
from naiad.core.signature import tensor_list_signature
from naiad.core.tensor import Buffer, Tensor
from naiad.fastpath.http_plan import HttpPlan, RequestLayout
from naiad.fastpath.request_id import ID_AT_START
from naiad.protocol.v2.output_format import OutputFormats

if TYPE_CHECKING:
    from naiad.repository.model import Model
    from naiad.transport.http1.head import Head

MAX_COPIED_BYTES = 4096
"""Copies of the tensors are cheaper than views up to this size."""


class BinaryPlan(HttpPlan):
    __slots__ = ("has_id", "inputs", "num_binary_bytes", "regions", "text")

    def __init__(
        self,
        model: Model,
        model_version: str,
        request: InferRequest,
        formats: OutputFormats,
        text: bytes,
    ) -> None:
        """`text` is the JSON header, without the id when it begins with one."""
        super().__init__(model, model_version, request, formats)
        self.text = text
        self.has_id = bool(request.id)
        self.inputs = tensor_list_signature(request.inputs)
        self.num_binary_bytes = self.inputs.num_bytes
        self.regions = request.regions

    def decode(self, body: Buffer, header_length: int | None) -> InferRequest | None:
        start = len(body) if header_length is None else header_length
        if len(body) != start + self.num_binary_bytes:
            return None
        header = body if body.__class__ is bytes else bytes(body[:start])
        assert isinstance(header, bytes)
        id, id_end = "", 0
        if self.has_id:
            match = ID_AT_START.match(header)
            if match is None:
                return None
            id, id_end = match[1].decode(), match.end()
        if id_end + len(self.text) != start or not header.startswith(self.text, id_end):
            return None
        return self.fill(body, start, id)

    def fill(self, body: Buffer, start: int, id: str) -> InferRequest:
        """The request whose data is `body` from `start` on."""
        data = body if self.num_binary_bytes <= MAX_COPIED_BYTES else memoryview(body)
        tensors: list[Tensor] = []
        for name, datatype, shape, num_bytes in self.inputs.tensors:
            end = start + num_bytes
            tensors.append(Tensor(name, datatype, shape, data[start:end]))
            start = end
        return InferRequest(
            self.model_name,
            tensors,
            self.model_version,
            id,
            self.requested_outputs,
            signature=self.signature,
            regions=self.regions,
        )

    def layout(self, head: Head, max_body_bytes: int) -> BinaryRequestLayout | None:
        if self.regions is not None or self.num_binary_bytes > MAX_COPIED_BYTES:
            return None
        return BinaryRequestLayout(self, head)


class _PlacedInput(msgspec.Struct, frozen=True, gc=False):
    name: str
    datatype: str
    shape: list[int]
    place: slice
    """The bytes of the tensor in the whole request."""


class BinaryRequestLayout(RequestLayout):
    __slots__ = (
        "_body_start",
        "_has_id",
        "_id_end",
        "_inputs",
        "_num_bytes",
        "_start",
        "_text",
    )

    def __init__(self, plan: BinaryPlan, head: Head) -> None:
        super().__init__(plan, head)
        self._num_bytes = len(head.text) + head.content_length
        self._body_start = len(head.text)
        self._has_id = plan.has_id
        self._text = plan.text
        self._start = head.text if plan.has_id else head.text + plan.text
        offset = self._num_bytes - plan.num_binary_bytes
        self._id_end = offset - len(plan.text)
        """The lengths in the head fix the length of the id."""
        self._inputs: list[_PlacedInput] = []
        for name, datatype, shape, num_bytes in plan.inputs.tensors:
            place = slice(offset, offset + num_bytes)
            self._inputs.append(_PlacedInput(name, datatype, shape, place))
            offset += num_bytes

    def decode(self, data: bytes) -> InferRequest | None:
        if len(data) != self._num_bytes or not data.startswith(self._start):
            return None
        id = ""
        if self._has_id:
            match = ID_AT_START.match(data, self._body_start)
            if (
                match is None
                or match.end() != self._id_end
                or not data.startswith(self._text, self._id_end)
            ):
                return None
            id = match[1].decode()
        plan = self.plan
        return InferRequest(
            plan.model_name,
            [
                Tensor(tensor.name, tensor.datatype, tensor.shape, data[tensor.place])
                for tensor in self._inputs
            ],
            plan.model_version,
            id,
            plan.requested_outputs,
            signature=plan.signature,
        )

    def is_head(self, data: bytes) -> bool:
        return data == self.head.text
