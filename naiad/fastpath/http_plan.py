"""What the plans of both HTTP request formats share: the model, and the layouts of the responses.

The format of the request and that of the response are independent: a JSON request may ask for
binary outputs. BinaryPlan (http_binary.py) and JsonPlan (http_json.py) add how requests are
decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.signature import RequestSignature
from naiad.core.tensor import Buffer
from naiad.fastpath.http_response import (
    BinaryResponseLayout,
    JsonResponseLayout,
    learn_binary_response,
    learn_json_response,
)
from naiad.protocol.v2.json_codec import EncodedResponse
from naiad.protocol.v2.output_format import BINARY_FORMAT, JSON_FORMAT, OutputFormats

if TYPE_CHECKING:
    from naiad.repository.model import Model
    from naiad.transport.http1.head import Head


_MAX_JSON_RESPONSE_BYTES = 256 * 1024
"""A thread writes larger responses."""


class RequestLayout:
    """A whole HTTP request, head included, that a plan recognises; shared by the connections that
    send it."""

    __slots__ = ("head", "plan")

    def __init__(self, plan: HttpPlan, head: Head) -> None:
        self.plan = plan
        self.head = head

    def decode(self, data: bytes) -> InferRequest | None:
        """None for any other request."""
        raise NotImplementedError

    def is_head(self, data: bytes) -> bool:
        """`data` is the whole head of such a request and nothing of its body."""
        raise NotImplementedError


class HttpPlan:
    __slots__ = (
        "_binary_responses",
        "_json_response",
        "formats",
        "is_retired",
        "model",
        "model_name",
        "model_version",
        "requested_outputs",
        "signature",
    )

    def __init__(
        self, model: Model, model_version: str, request: InferRequest, formats: OutputFormats
    ) -> None:
        """`request` is the first of its kind; `model_version` is what the client wrote."""
        self.model: Model | None = model
        self.model_name = request.model_name
        self.model_version = model_version
        self.requested_outputs = request.requested_outputs
        self.formats = formats
        self.signature = RequestSignature()
        self.is_retired = False
        self._binary_responses: dict[int, BinaryResponseLayout] = {}
        """Keyed by the length of the request id."""
        self._json_response: JsonResponseLayout | None = None

    def decode(self, body: Buffer, header_length: int | None) -> InferRequest | None:
        """The request in a body that differs from the first one only in id and data; None for any
        other. `header_length` is Inference-Header-Content-Length, or None."""
        raise NotImplementedError

    def layout(self, head: Head, max_body_bytes: int) -> RequestLayout | None:
        """The layout of whole requests with this head; None where recognising them does not pay."""
        raise NotImplementedError

    def encode(self, response: InferResponse) -> list[Buffer] | None:
        """The whole HTTP response; None when the full path must encode it."""
        json_response = self._json_response
        if json_response is not None:
            return json_response.encode(response)
        layout = self._binary_responses.get(len(response.id))
        return None if layout is None else layout.encode(response)

    def learn(self, response: InferResponse, encoded: EncodedResponse) -> None:
        """The full path has encoded a response that `encode` did not know."""
        if response.parameters:
            return
        formats = {self.formats.of(tensor.name) for tensor in response.outputs}
        if encoded.header_length and formats == {BINARY_FORMAT}:
            layout = learn_binary_response(response, encoded)
            if layout is not None:
                self._binary_responses[len(response.id)] = layout
        elif formats == {JSON_FORMAT} and encoded.size <= _MAX_JSON_RESPONSE_BYTES:
            self._json_response = learn_json_response(response)

    def accept(self, model: Model) -> None:
        """A plan is made for one model, after the model has accepted a request."""

    def retire(self) -> None:
        self.model = None
        self.is_retired = True
        self.signature.accepted_by = None
