"""ModelInfer: one request message, one answer, no task in between."""

from __future__ import annotations

import numpy as np

from naiad import log
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.errors import NaiadError, internal, unsupported
from naiad.frontends.core import Inference
from naiad.frontends.grpc.response import fail
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.submit import submit
from naiad.protocol.v2 import grpc_codec
from naiad.protocol.v2.grpc_codec import RequestIdentity
from naiad.protocol.v2.grpc_request import RequestOptions
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.status import Status

_ALIGNMENT = 64


class ModelInfer:
    def __init__(self, core: Inference, headers: HeaderForward) -> None:
        self._core = core
        self._headers = headers

    def infer(self, call: Call, message: Buffer) -> None:
        try:
            request, options = grpc_codec.decode_request(message)
        except NaiadError as error:
            fail(call, first_fault(self._core, grpc_codec.identify(message), error))
            return
        try:
            model = self._core.model(request.model_name, request.model_version)
            if model.spec.is_decoupled:
                raise decoupled_error()
            self._headers.apply(request, call.head.metadata)
            request.deadline_ns = call.deadline_ns
            take = Answer(call, request, options, model.spec).take
            submit(self._core, request, take, call, model=model)
        except NaiadError as error:
            fail(call, error)

    def allocate(self, first_bytes: bytes, num_bytes: int) -> memoryview:
        """Where a large request is received: memory that the model's workers share, so that its
        tensors need not be copied there.

        The buffer starts where the first raw tensor of the message is aligned: numpy and the
        backends read it in place.
        """
        name, raw_at = grpc_codec.model_of(first_bytes)
        memory = self._core.input_buffer(name, num_bytes + _ALIGNMENT) if name else None
        if memory is None:
            memory = np.empty(num_bytes + _ALIGNMENT, np.uint8).data
        address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        start = -(address + max(raw_at, 0)) % _ALIGNMENT
        return memory[start : start + num_bytes]


def decoupled_error() -> NaiadError:
    return unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


def first_fault(core: Inference, identity: RequestIdentity | None, error: NaiadError) -> NaiadError:
    """Triton looks for the model before it looks at the inputs: when both are wrong, it speaks of
    the model."""
    if identity is not None:
        try:
            core.model(identity.model_name, identity.model_version)
        except NaiadError as model_error:
            return model_error
    return error


class Answer:
    """Waits for the one response of a request.

    It lets go of everything at the end: the request knows its stream and the stream knows us, and
    such a circle would keep the request's tensors until the garbage collector comes by.
    """

    __slots__ = ("_count", "_job", "_response")

    def __init__(
        self, call: Call, request: InferRequest, options: RequestOptions, spec: ModelSpec
    ) -> None:
        self._job: tuple[Call, InferRequest, RequestOptions, ModelSpec] | None = (
            call,
            request,
            options,
            spec,
        )
        self._response: InferResponse | None = None
        self._count = 0

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._count += 1
            self._response = response
        if not is_final or self._job is None:
            return
        call, request, options, spec = self._job
        response, self._response, self._job = self._response, None, None
        if call.is_done:
            return
        fault = response_error(response, self._count)
        if fault is not None or response is None:
            fail(call, fault or internal("received an unexpected null response"))
            return
        try:
            pieces, num_bytes = grpc_codec.encode_response(response, request, options, spec)
        except NaiadError as error:
            fail(call, error)
        except Exception as error:
            log.error(
                f"gRPC: answer of model '{request.model_name}' could not be encoded: {error!r}"
            )
            call.finish(Status.INTERNAL, "the response could not be encoded")
        else:
            call.reply(pieces, num_bytes)


def response_error(response: InferResponse | None, count: int) -> NaiadError | None:
    """What is wrong with the answer of a model without decoupled policy.

    Returned, not raised: a raised error knows the frames it passed, and the response knows the
    error.
    """
    if count == 1 and response is not None:
        return response.error
    return internal(
        f"expected a single response, got {count}"
        if count
        else "received an unexpected null response"
    )
