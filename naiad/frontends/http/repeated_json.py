"""What inference requests in JSON have in common that repeat the last one of their connection but
for the numbers in it, and the id.

Numbers are as long as they are, so the sizes of such requests differ, and with them one field of
their heads: Content-Length.
Rule: as in http_repeated.py, whatever is out of the ordinary takes the long way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.frontends.core import Inference
from naiad.protocol.v2.json_form import JsonForm
from naiad.transport.http1.head import Head

if TYPE_CHECKING:
    from naiad.repository.model import Model

_CONTENT_LENGTH = re.compile(rb"\r\nContent-Length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)


class RepeatedJsonForm:
    """Shared by the connections of a route."""

    __slots__ = (
        "_after",
        "_before",
        "_behind",
        "_fixed_bytes",
        "_max_length",
        "_min_length",
        "core",
        "form",
        "forms",
        "head",
        "model",
        "model_name",
        "model_version",
        "size",
    )

    def __init__(
        self,
        core: Inference,
        head: Head,
        model: Model,
        asked: tuple[str, str],
        form: JsonForm,
        length: tuple[int, int],
        max_bytes: int,
    ) -> None:
        """`length` is where in the head the body's length is, as `length_in` found it."""
        self.core = core
        self.head = head
        self.model = model
        self.model_name, self.model_version = asked
        """As the client wrote them."""
        self.form = form
        self.forms = form.forms
        self.size = 0
        start, end = length
        self._before = head.text[:start]
        self._after = head.text[end:]
        self._behind = self._after if form.has_id else self._after + form.start
        self._fixed_bytes = len(head.text)
        self._min_length, self._max_length = (
            10 ** (end - start - 1),
            min(10 ** (end - start) - 1, max_bytes),
        )
        """Of a body whose length is written with as many digits."""

    def read(self, data: bytes) -> InferRequest | None:
        """None when it is another request."""
        length = len(data) - self._fixed_bytes
        if not self._min_length <= length <= self._max_length:
            return None
        start = b"%b%d%b" % (self._before, length, self._behind)
        if not data.startswith(start):
            return None
        form = self.form
        if form.has_id:
            return form.fill_with_id(data, len(start), self.model_name, self.model_version)
        return form.fill(data, len(start), "", self.model_name, self.model_version)

    def is_head(self, data: bytes) -> bool:
        start, end = len(self._before), len(data) - len(self._after)
        if (
            len(data) != self._fixed_bytes
            or not data.startswith(self._before)
            or not data.endswith(self._after)
        ):
            return False
        return (
            data[start:end].isdigit()
            and self._min_length <= int(data[start:end]) <= self._max_length
        )


def length_in(head: Head) -> tuple[int, int] | None:
    """Where in the text of a head the length of the body is; all the rest of the head says the same
    of a body of another length."""
    found = _CONTENT_LENGTH.search(head.text)
    return None if found is None else found.span(1)
