"""ModelInfer: one request message, one response, no task in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from naiad import log
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Allocate, has_larger, move_larger
from naiad.errors import NaiadError, internal
from naiad.fastpath.grpc_plan import MessagePlan
from naiad.frontends.core import Inference
from naiad.frontends.grpc.response import fail
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.lost_sequence import lose
from naiad.frontends.side_thread import (
    INLINE_COPY_BYTES,
    INLINE_STRING_BYTES,
    INLINE_VALUE_BYTES,
    SideThread,
    client_error,
)
from naiad.frontends.submit import submit
from naiad.protocol.v2 import grpc_codec
from naiad.protocol.v2.grpc_codec import RequestIdentity
from naiad.protocol.v2.grpc_request import RequestOptions, decoupled_error
from naiad.repository.request_check import check_strings, has_long_strings
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.status import Status

if TYPE_CHECKING:
    from naiad.repository.model import Model

Decoded: TypeAlias = tuple[InferRequest, RequestOptions]
Decode: TypeAlias = Callable[[Buffer], Decoded | None]
"""grpc_codec.decode_small_request, or the fast path's decoder, which parses a repeated head only
once."""

_ALIGNMENT = 64


class ModelInfer:
    def __init__(
        self,
        core: Inference,
        headers: HeaderForward,
        side_thread: SideThread,
        decode: Decode = grpc_codec.decode_small_request,
    ) -> None:
        self._side_thread = side_thread
        self._core = core
        self._decode = decode
        self._headers = headers

    def infer(self, call: Call, message: Buffer) -> None:
        try:
            decoded = self._decode(message)
            if decoded is None or takes_long(call, decoded[0]):
                self._side_thread.run(
                    prepare_aside(call, decoded, message, self._side_thread, self._core),
                    partial(self._submit, call),
                    lambda error: self._refuse(
                        call, message, client_error(error, "a gRPC request could not be decoded")
                    ),
                )
                return
        except NaiadError as error:
            self._refuse(call, message, error)
        else:
            self._submit(call, decoded)

    def _refuse(self, call: Call, message: Buffer, error: NaiadError) -> None:
        call.lose(message)
        fail(call, first_fault(self._core, grpc_codec.identify(message), error))

    def _submit(self, call: Call, decoded: Decoded) -> None:
        request, options = decoded
        if call.is_done:
            lose(self._core, [request], call.identity)
            return
        try:
            model = self._core.model(request.model_name, request.model_version)
            if model.spec.is_decoupled:
                raise decoupled_error()
            self._headers.apply(request, call.head.metadata)
            request.deadline_ns = call.deadline_ns
            consumer = InferResponder(
                call, request, options, model.spec, side_thread=self._side_thread
            ).on_response
            submit(self._core, request, consumer, call, model=model)
        except NaiadError as error:
            lose(self._core, [request], call.identity)
            fail(call, error)

    def allocate(self, first_bytes: bytes, num_bytes: int) -> memoryview:
        """Memory for a large request that the model's workers share, so that its tensors need no
        further copy.

        The buffer starts so that the first raw tensor of the message is aligned: numpy and the
        backends read it in place.
        """
        name, raw_offset = grpc_codec.model_of(first_bytes)
        memory = self._core.input_buffer(name, num_bytes + _ALIGNMENT) if name else None
        if memory is None:
            memory = np.empty(num_bytes + _ALIGNMENT, np.uint8).data
        address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        start = -(address + max(raw_offset, 0)) % _ALIGNMENT
        return memory[start : start + num_bytes]


def fast_path_responder(
    call: Call, request: InferRequest, plan: MessagePlan, model: Model
) -> InferResponder:
    """The responder of a request that has left the fast path."""
    return InferResponder(call, request, plan.layout.options, model.spec, plan)


def takes_long(call: Call, request: InferRequest) -> bool:
    """The request needs `prepare_aside`."""
    return has_long_strings(request, INLINE_STRING_BYTES) or (
        _may_be_compressed(call) and has_larger(request.inputs, INLINE_COPY_BYTES)
    )


def _may_be_compressed(call: Call) -> bool:
    return call.head.encoding != "identity"


def prepare_aside(
    call: Call,
    decoded: Decoded | None,
    message: Buffer,
    side_thread: SideThread,
    core: Inference,
) -> Callable[[], Decoded]:
    """The work for the side thread that a message needs. Typed contents and decompressed tensors
    are copied straight into memory that is shared with the workers."""
    loop = asyncio.get_running_loop()

    def allocate(model_name: str) -> Allocate:
        return partial(side_thread.ask, loop, partial(core.input_buffer, model_name))

    return partial(_decode_aside, decoded, message, allocate, is_copied=_may_be_compressed(call))


def _decode_aside(
    decoded: Decoded | None,
    message: Buffer,
    allocate: Callable[[str], Allocate],
    *,
    is_copied: bool,
) -> Decoded:
    """Raises NaiadError."""
    if decoded is None:
        decoded = grpc_codec.decode_large_request(message, allocate)
    request = decoded[0]
    check_strings(request, request.model_name)
    if is_copied:
        move_larger(request.inputs, INLINE_COPY_BYTES, allocate(request.model_name))
    return decoded


def first_fault(core: Inference, identity: RequestIdentity | None, error: NaiadError) -> NaiadError:
    """Triton looks up the model before it validates the inputs: when both are wrong, its error
    names the model."""
    if identity is not None:
        try:
            core.model(identity.model_name, identity.model_version)
        except NaiadError as model_error:
            return model_error
    return error


class _Job(NamedTuple):
    call: Call
    request: InferRequest
    options: RequestOptions
    spec: ModelSpec
    plan: MessagePlan | None


class InferResponder:
    """Waits for the single response to a request and sends it.

    The job is released at the end: the request refers to its stream and the stream to this
    responder, and such a cycle would keep the request's tensors until the garbage collector runs.
    """

    __slots__ = ("_count", "_job", "_response", "_side_thread")

    def __init__(
        self,
        call: Call,
        request: InferRequest,
        options: RequestOptions,
        spec: ModelSpec,
        plan: MessagePlan | None = None,
        side_thread: SideThread | None = None,
    ) -> None:
        """`plan` learns from the response. `side_thread` sorts the classes of large outputs."""
        self._side_thread = side_thread
        self._job: _Job | None = _Job(call, request, options, spec, plan)
        self._response: InferResponse | None = None
        self._count = 0

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._count += 1
            self._response = response
        if not is_final or self._job is None:
            return
        call, request, options, spec, plan = self._job
        response, self._response, self._job = self._response, None, None
        if call.is_done:
            return
        fault = response_error(response, self._count)
        if fault is not None or response is None:
            fail(call, fault or internal("received an unexpected null response"))
            return
        if (
            options.classification
            and self._side_thread is not None
            and grpc_codec.is_slow_response(response, options, INLINE_VALUE_BYTES)
        ):
            self._side_thread.run(
                partial(grpc_codec.encode_response, response, request, options, spec),
                lambda encoded: call.reply(*encoded),
                lambda error: fail(call, client_error(error, "a response could not be encoded")),
            )
            return
        try:
            pieces, num_bytes = grpc_codec.encode_response(response, request, options, spec)
        except NaiadError as error:
            fail(call, error)
        except Exception as error:
            log.error(
                f"gRPC: the response of model '{request.model_name}' could not be encoded: "
                f"{error!r}"
            )
            call.finish(Status.INTERNAL, "the response could not be encoded")
        else:
            call.reply(pieces, num_bytes)
            if plan is not None:
                plan.learn(response, request)

    def fail(self, error: NaiadError) -> None:
        job, self._job = self._job, None
        if job is not None:
            fail(job.call, error)


def response_error(response: InferResponse | None, count: int) -> NaiadError | None:
    """The fault in the responses of a model without decoupled policy, or None.

    The error is returned, not raised: a raised error refers to the frames that it passed, and the
    response refers to the error.
    """
    if count == 1 and response is not None:
        return response.error
    return internal(
        f"expected a single response, got {count}"
        if count
        else "received an unexpected null response"
    )
