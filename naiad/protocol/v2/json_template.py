"""Headers of inference requests that come again: clients repeat themselves, and only the id and the
tensors' data are new.

In:  the header of a request, its id cut off where clients write it. Out: the request itself,
     without reading JSON.
Rule: what is filled from a template is what decoding the whole header would have given.
"""

from __future__ import annotations

import re

import msgspec

from naiad.core.region_slice import RegionUse
from naiad.core.request import InferRequest, RequestForm
from naiad.core.tensor import Tensor
from naiad.protocol.v2.output_format import OutputForms

ID_AT_START = re.compile(rb'\{"id": ?"([0-9A-Za-z._:/+=@-]{1,128})"')
"""Where all clients of Triton write it; without anything that JSON would have to escape."""
is_plain_id = re.compile(r"[0-9A-Za-z._:/+=@-]{1,128}").fullmatch


class Template(msgspec.Struct, frozen=True):
    """A header whose tensors are all binary or in shared memory: serves any number of requests that
    repeat it, each with an id of its own or all without."""

    text: bytes
    """All of it, or what follows the id."""
    has_id: bool
    inputs: list[tuple[str, str, list[int], int]]
    """(name, datatype, shape, bytes)"""
    binary_bytes: int
    requested_outputs: list[str]
    forms: OutputForms
    form: RequestForm
    regions: RegionUse | None

    def fill_body(
        self, body: bytes, header_length: int, model_name: str, model_version: str
    ) -> InferRequest | None:
        """From a whole body that has come in one piece; None when it does not repeat the header, or
        not with as much data."""
        at = header_length
        if len(body) != at + self.binary_bytes:
            return None
        id = ""
        if self.has_id:
            start = ID_AT_START.match(body)
            if (
                start is None
                or start.end() + len(self.text) != at
                or not body.startswith(self.text, start.end())
            ):
                return None
            id = start[1].decode()
        elif at != len(self.text) or not body.startswith(self.text):
            return None
        if self.binary_bytes > MAX_COPIED_BYTES:
            return self.fill(memoryview(body)[at:], id, model_name, model_version)
        tensors: list[Tensor] = []
        for name, datatype, shape, size in self.inputs:
            tensors.append(Tensor(name, datatype, shape, body[at : at + size]))
            at += size
        return InferRequest(
            model_name,
            tensors,
            model_version,
            id,
            self.requested_outputs,
            form=self.form,
            regions=self.regions,
        )

    def fill(
        self, binary: memoryview, id: str, model_name: str, model_version: str
    ) -> InferRequest:
        tensors: list[Tensor] = []
        at = 0
        for name, datatype, shape, size in self.inputs:
            tensors.append(Tensor(name, datatype, shape, binary[at : at + size]))
            at += size
        return InferRequest(
            model_name,
            tensors,
            model_version,
            id,
            self.requested_outputs,
            form=self.form,
            regions=self.regions,
        )


_MAX_TEMPLATES = 1024
MAX_TEMPLATE_BYTES = 4096
MAX_COPIED_BYTES = 4096
"""Up to here copies of the tensors are cheaper than views."""
_templates: dict[tuple[str, bytes], Template] = {}
"""By model and header: a client sends the same header again and again, only the id in it and the
tensors behind it differ."""


def without_id(text: bytes) -> tuple[bytes, str]:
    """What of a header may come again, and the id that it begins with."""
    start = ID_AT_START.match(text)
    return (text, "") if start is None else (text[start.end() :], start[1].decode())


def remember(rest: bytes, request: InferRequest, forms: OutputForms) -> None:
    """Of a request that was decoded, and whose header may come again."""
    if len(_templates) >= _MAX_TEMPLATES:
        _templates.clear()
    inputs = [
        (tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in request.inputs
    ]
    request.form = RequestForm()
    num_bytes = sum(row[3] for row in inputs)
    has_id = bool(request.id)
    kept = OutputForms(forms.default, forms.by_name, is_kept=True)
    key = request.model_name, rest
    _templates[key] = Template(
        rest,
        has_id,
        inputs,
        num_bytes,
        request.requested_outputs,
        kept,
        request.form,
        request.regions,
    )


def is_sure_of_id(id: str, header_id: str, rest: bytes) -> bool:
    """The id is the one that was seen at the start, if any: in JSON a later one would win."""
    return id == header_id and (not id or (b'"id"' not in rest and b"\\" not in rest))


def recall(model_name: str, rest: bytes) -> Template | None:
    return _templates.get((model_name, rest))
