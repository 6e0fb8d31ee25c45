"""ModelInfer: one request message, one answer, no task in between."""

from __future__ import annotations

from naiad import log
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.errors import NaiadError, internal, unsupported
from naiad.frontends.grpc_error import fail
from naiad.frontends.grpc_header_forward import HeaderForward
from naiad.inference import InferenceCore
from naiad.protocol import v2_grpc
from naiad.protocol.v2_grpc import RequestIdentity
from naiad.protocol.v2_grpc_request import RequestOptions
from naiad.transport.grpc_call import Call
from naiad.transport.grpc_message import Buffer
from naiad.transport.grpc_status import Status


class ModelInfer:
    def __init__(self, core: InferenceCore, headers: HeaderForward) -> None:
        self._core = core
        self._headers = headers

    def infer(self, call: Call, message: Buffer) -> None:
        try:
            request, options = v2_grpc.decode_request(message)
        except NaiadError as error:
            fail(call, first_fault(self._core, v2_grpc.identify(message), error))
            return
        try:
            model = self._core.model(request.model_name, request.model_version)
            if model.spec.is_decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            self._headers.apply(request, call.head.metadata)
            request.deadline_ns = call.deadline_ns
            stream = self._core.infer(request)
        except NaiadError as error:
            fail(call, error)
            return
        call.on_cancel = stream.cancel
        stream.deliver_to(_Answer(call, request, options, model.spec).take)


def first_fault(core: InferenceCore, identity: RequestIdentity | None, error: NaiadError) -> NaiadError:
    """Triton looks for the model before it looks at the inputs: when both are wrong, it speaks of the model."""
    if identity is not None:
        try:
            core.model(identity.model_name, identity.model_version)
        except NaiadError as model_error:
            return model_error
    return error


class _Answer:
    """Waits for the one response of a request."""

    __slots__ = ("_call", "_count", "_options", "_request", "_response", "_spec")

    def __init__(self, call: Call, request: InferRequest, options: RequestOptions, spec: ModelSpec) -> None:
        self._call = call
        self._request = request
        self._options = options
        self._spec = spec
        self._response: InferResponse | None = None
        self._count = 0

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._count += 1
            self._response = response
        if is_final and not self._call.is_done:
            try:
                self._reply()
            except NaiadError as error:
                fail(self._call, error)
            except Exception as error:
                log.error(f"gRPC: answer of model '{self._request.model_name}' could not be encoded: {error!r}")
                self._call.finish(Status.INTERNAL, "the response could not be encoded")

    def _reply(self) -> None:
        response = single_response(self._response, self._count)
        pieces, num_bytes = v2_grpc.encode_response(response, self._request, self._options, self._spec)
        self._call.reply(pieces, num_bytes)


def single_response(response: InferResponse | None, count: int) -> InferResponse:
    """What a model without decoupled policy answered. Raises its error, or that it was not one answer."""
    if count != 1 or response is None:
        raise internal(f"expected a single response, got {count}" if count else "received an unexpected null response")
    if response.error is not None:
        raise response.error
    return response
