"""One request on the fast path, over HTTP or gRPC: from the decoded request to its response.

In:  a request that a plan decoded, and the model that serves it. Out: `Wire.send` with the parts of
     a response that matches the plan; otherwise the full path's responder takes over.
Rule: the fast path is left before anything has been sent, so the full path can always do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.trace.tracing import Tracing

if TYPE_CHECKING:
    from naiad.repository.model import Model


class FastInference(Protocol):
    """What the fast path needs of the inference core."""

    @property
    def tracing(self) -> Tracing: ...
    def model(self, name: str, version: str = "") -> Model: ...
    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream: ...
    def infer_validated(self, request: InferRequest, model: Model) -> ResponseStream: ...
    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None: ...


class Plan(Protocol):
    """What requests with one signature, in one wire format, have in common."""

    model_name: str
    model_version: str
    """As the client wrote them."""
    model: Model | None
    """The model that accepts such requests whatever their data is. None: each request is validated,
    because no model has accepted one yet or the model's check reads the data."""
    is_retired: bool

    def encode(self, response: InferResponse) -> Sequence[Buffer] | None:
        """The parts of the response that `Wire.send` needs. None: use the full path."""
        ...

    def accept(self, model: Model) -> None:
        """The model has just validated a request of this plan."""
        ...


class Responder(Protocol):
    """The full path's way to respond to one request."""

    def on_response(self, response: InferResponse | None, is_final: bool) -> None: ...
    def fail(self, error: NaiadError) -> None: ...


class Wire(Protocol):
    """The place in a transport where the response goes."""

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Sends the whole response. False: nothing has happened, use the full path."""
        ...

    def fall_back(self, request: InferRequest, model: Model) -> Responder:
        """From here on the request is one of the full path's."""
        ...


def serving_model(core: FastInference, plan: Plan) -> Model | None:
    """The model that serves a request of this plan now. None: use the full path, which traces,
    validates and reports errors."""
    if core.tracing.is_on:
        return None
    try:
        model = core.model(plan.model_name, plan.model_version)
    except NaiadError:
        return None
    if model is plan.model:
        return model
    if plan.model is not None or plan.is_retired:
        return None
    if model.spec.is_decoupled or model.spec.shows_api_key:
        return None
    return model


class FastCall:
    """HTTP uses one call for all requests of a connection, one after the other; gRPC makes one for
    each request."""

    __slots__ = ("_core", "_model", "_plan", "_request", "_responder", "_stream", "_wire")

    def __init__(self, core: FastInference, plan: Plan, wire: Wire) -> None:
        self._core = core
        self._plan = plan
        self._wire = wire
        self._request: InferRequest | None = None
        """None before the start and after the end."""
        self._model: Model | None = None
        self._stream: ResponseStream | None = None
        self._responder: Responder | None = None
        """Set once the call has left the fast path."""

    def start(self, request: InferRequest, model: Model) -> None:
        """`model` is what `serving_model` returned, or what serves now where time has passed since
        then."""
        self._request = request
        self._model = model
        plan = self._plan
        try:
            if model is plan.model:
                stream = self._core.infer_validated(request, model)
            else:
                stream = self._core.infer(request, model)
                plan.accept(model)
        except NaiadError as error:
            self._release()
            self._wire.fall_back(request, model).fail(error)
        else:
            self._stream = stream
            stream.deliver_to(self.on_response)

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if is_final and response is not None and self._responder is None:
            parts = self._plan.encode(response)
            if parts is not None and self._wire.send(parts):
                self._request = self._model = self._stream = None
                return
        self._continue_on_full_path(response, is_final)

    def cancel(self) -> None:
        """Nobody waits for the response any more."""
        stream = self._stream
        self._release()
        if stream is not None:
            stream.cancel()

    def _continue_on_full_path(self, response: InferResponse | None, is_final: bool) -> None:
        responder = self._responder
        if responder is None:
            request, model = self._request, self._model
            if request is None or model is None:
                return  # cancelled
            responder = self._responder = self._wire.fall_back(request, model)
        if is_final:
            self._release()
        responder.on_response(response, is_final)

    def _release(self) -> None:
        """The request refers to its stream and the stream to this call: without this, the tensors
        would wait for the garbage collector."""
        self._request = self._model = self._stream = self._responder = None
