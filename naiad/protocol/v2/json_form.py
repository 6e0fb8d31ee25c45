"""Requests in JSON that come again with other numbers: the text around the data of their tensors
stays the same.

In:  a body. Out: the request itself; of all its JSON, only the lists of numbers are read.
Rule: what is filled from a form is what decoding the whole body would have given. One value of a
      JSON text may be replaced by another without changing what the rest of it says: where the
      texts between the data are the same, so is all but the data.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import msgspec

from naiad.core.request import InferRequest, RequestForm
from naiad.core.tensor import Buffer, Tensor
from naiad.protocol.v2.json_template import ID_AT_START, MAX_TEMPLATE_BYTES, is_sure_of_id
from naiad.protocol.v2.json_tensor import Decode, Pack, nesting, numbers_from_json
from naiad.protocol.v2.output_format import OutputForms

_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*')
_CLOSING = re.compile(rb"\](?:[ \t\r\n]*\])*$")
_MAX_BODY_BYTES = 64 * 1024
"""Reading larger ones costs so much that the rest does not matter."""
_MAX_FORMS = 1024
_forms: dict[tuple[str, bytes], JsonForm] = {}
"""By model and text."""


class JsonForm(RequestForm, kw_only=True):
    """Serves any number of requests, each with an id of its own or all without."""

    start: bytes
    """Up to the first data; without the id, where there is one."""
    has_id: bool
    inputs: list[tuple[str, str, list[int], bytes, Decode, Pack, bytes]]
    """(name, datatype, shape, brackets that end its data, how that is read, text behind it)"""
    requested_outputs: list[str]
    forms: OutputForms

    def fill_body(self, body: bytes, model_name: str, model_version: str) -> InferRequest | None:
        """None when it is another request, or when something about its data is not ordinary."""
        if self.has_id:
            return self.fill_with_id(body, 0, model_name, model_version)
        if not body.startswith(self.start):
            return None
        return self.fill(body, len(self.start), "", model_name, model_version)

    def fill_with_id(
        self, data: bytes, at: int, model_name: str, model_version: str
    ) -> InferRequest | None:
        """`data` holds the body from `at` on."""
        found = ID_AT_START.match(data, at)
        if found is None or not data.startswith(self.start, found.end()):
            return None
        return self.fill(
            data, found.end() + len(self.start), found[1].decode(), model_name, model_version
        )

    def fill(
        self, data: bytes, at: int, id: str, model_name: str, model_version: str
    ) -> InferRequest | None:
        """The data of the first tensor begins at `at`."""
        tensors: list[Tensor] = []
        try:
            for name, datatype, shape, brackets, decode, pack, text in self.inputs:
                end = data.find(brackets, at) + len(brackets)
                if not data.startswith(text, end):
                    return None
                tensors.append(Tensor(name, datatype, shape, pack(*decode(data[at:end]))))
                at = end + len(text)
        except (msgspec.MsgspecError, struct.error, OverflowError, UnicodeError):
            return None
        if at != len(data):
            return None
        return InferRequest(
            model_name,
            tensors,
            model_version,
            id,
            self.requested_outputs,
            form=self,
            batch_size=self.batch_size,
        )


def recognise(
    body: Buffer, data: Sequence[Buffer], request: InferRequest, forms: OutputForms
) -> OutputForms:
    """Of a request that was decoded, `data` being the JSON of its tensors: gives it the form that
    it has, where one can be told.

    Returns the forms of its answer, which are the same object for all requests of a form.
    """
    if body.__class__ is not bytes or len(body) > _MAX_BODY_BYTES:
        return forms
    assert isinstance(body, bytes)
    texts = _texts_around(body, data)
    if texts is None:
        return forms
    start = ID_AT_START.match(texts[0])
    id = "" if start is None else start[1].decode()
    if start is not None:
        texts[0] = texts[0][start.end() :]
    key = b"\0".join(texts)
    if len(key) > MAX_TEMPLATE_BYTES or not is_sure_of_id(id, request.id, key):
        return forms
    name = request.model_name
    form = _forms.get((name, key))
    if form is None or form.has_id != bool(id):
        form = _new_form(texts, data, bool(id), request, forms)
        if form is None:
            return forms
        if len(_forms) >= _MAX_FORMS:
            _forms.clear()
        _forms[name, key] = form
    request.form = form
    return form.forms


def _texts_around(body: bytes, data: Sequence[Buffer]) -> list[bytes] | None:
    """None when it is not sure where the data is: a key that is escaped or comes twice, a string
    that looks like one."""
    found = list(_DATA.finditer(body))
    if len(found) != len(data) or b"\\" in body:
        return None
    texts: list[bytes] = []
    at = 0
    for key, value in zip(found, data, strict=True):
        texts.append(body[at : key.end()])
        at = key.end() + len(value)
        if body[key.end() : at] != bytes(value):
            return None
    texts.append(body[at:])
    return texts


def _new_form(
    texts: list[bytes],
    data: Sequence[Buffer],
    has_id: bool,
    request: InferRequest,
    forms: OutputForms,
) -> JsonForm | None:
    inputs: list[tuple[str, str, list[int], bytes, Decode, Pack, bytes]] = []
    for tensor, value, text in zip(request.inputs, data, texts[1:], strict=True):
        ways = numbers_from_json(tensor.datatype, tensor.element_count(), nesting(value))
        closing = _CLOSING.search(bytes(value))
        if ways is None or closing is None:
            return None
        inputs.append((tensor.name, tensor.datatype, tensor.shape, closing[0], *ways, text))
    kept = OutputForms(forms.default, forms.by_name, is_kept=True)
    return JsonForm(
        start=texts[0],
        has_id=has_id,
        inputs=inputs,
        requested_outputs=request.requested_outputs,
        forms=kept,
    )
