"""ModelInfer the short way (naiad.transport.grpc.repeat): requests that differ from an earlier one
in nothing but their data and id.

In:  the parts of a message that are new. Out: what ModelInfer.infer (grpc_infer.py) makes of the
     whole message; an answer that is not like the last one goes the way of all answers. The model
     is looked up for each request: another one, or a new copy, checks it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.errors import NaiadError
from naiad.frontends.core import Inference
from naiad.frontends.grpc.infer import Answer, decoupled_error
from naiad.frontends.grpc.response import fail
from naiad.frontends.header_forward import HeaderForward
from naiad.protocol.v2.grpc_repeat import AnswerLayout, RequestLayout, learn_answer, learn_request
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import RequestHead
from naiad.transport.grpc.repeat import Repeats
from naiad.transport.grpc.repeat_call import AnswerFrames, RepeatedCall

if TYPE_CHECKING:
    from naiad.repository.model import Model

_ANSWERS_PER_LEARNING = 16
"""That are not like the last one, until the next is learnt: a model may have a new shape for
each."""


class RepeatedInfers:
    def __init__(self, core: Inference, headers: HeaderForward) -> None:
        self.core = core
        self._headers = headers

    def learn(self, message: bytes, num_bytes: int, head: RequestHead) -> InferForm | None:
        request = None if self._headers.is_on else learn_request(message, num_bytes)
        return None if request is None else InferForm(self.core, head, request)


class InferForm:
    """What is known of requests that repeat, on one connection."""

    __slots__ = (
        "_batch_size",
        "_tracing",
        "_until_learning",
        "answer",
        "core",
        "frames",
        "head",
        "layout",
        "model",
        "request",
    )

    def __init__(self, core: Inference, head: RequestHead, request: RequestLayout) -> None:
        self.core = core
        self.head = head
        self.request = request
        self.layout = request.layout
        self.answer: AnswerLayout | None = None
        self.frames: AnswerFrames | None = None
        self._tracing = core.tracing
        self.model: Model | None = None
        """That accepted the last request and would have done so with any data."""
        self._batch_size = 1
        self._until_learning = 0

    def call(
        self, repeats: Repeats, stream_id: int, send_window: int, parts: tuple[Buffer, ...]
    ) -> RepeatedInfer | None:
        if self._tracing.is_on:
            return None
        try:
            request = self.request.request(parts)
            model = self.core.model(request.model_name, request.model_version)
        except (NaiadError, UnicodeDecodeError):
            return None
        if model is self.model:
            request.batch_size = self._batch_size
        elif model.spec.is_decoupled:
            return None
        return RepeatedInfer(
            stream_id, send_window, repeats=repeats, form=self, request=request, model=model
        )

    def memory(self, num_bytes: int) -> memoryview | None:
        return self.core.input_buffer(self.request.prototype.model_name, num_bytes)

    def prepare(self, request: InferRequest) -> Model:
        """The model that serves a request now that all of it has come. Raises NaiadError."""
        model = self.core.model(request.model_name, request.model_version)
        if model is self.model:
            request.batch_size = self._batch_size
            return model
        if model.spec.is_decoupled:
            raise decoupled_error()
        # the model may have been another one when the request was made, and one without batches
        # sets none
        request.batch_size = 1
        return model

    def infer(self, request: InferRequest, model: Model) -> ResponseStream:
        """Of a model that has not seen such a request. Raises NaiadError."""
        stream = self.core.infer(request, model)
        self.model = model if self.request.form.accepted_by is not None else None
        self._batch_size = request.batch_size
        return stream

    def learn_answer(self, request: InferRequest) -> None:
        """After an answer to the request was encoded."""
        self._until_learning -= 1
        if (
            self._until_learning < 0
            and request.form is not None
            and request.form.answer is not None
        ):
            self._until_learning = _ANSWERS_PER_LEARNING
            self.answer = learn_answer(request.form.answer, request.id)
            self.frames = AnswerFrames(self.answer.layout)


class RepeatedInfer(RepeatedCall):
    """It lets go of everything at the end, as Answer does and for the same reason."""

    request: InferRequest | None = None
    model: Any = None
    stream: ResponseStream | None = None
    answer: Answer | None = None
    """Of a call that has become one like any other."""

    def start(self) -> None:
        form: InferForm = self.form
        request = self.request
        assert request is not None
        try:
            model: Model = self.model
            stream = self.stream = (
                form.core.infer_again(request, model)
                if model is form.model
                else form.infer(request, model)
            )
        except NaiadError as error:
            fail(self.as_call(), error)
            self.request = None
        else:
            stream.deliver_to(self.take)

    def start_late(self) -> None:
        request = self.request
        assert request is not None
        try:
            self.model = self.form.prepare(request)
        except NaiadError as error:
            fail(self.as_call(), error)
            self.request = None
        else:
            self.start()

    def stop(self) -> None:
        stream, self.stream, self.request = self.stream, None, None
        if stream is not None:
            stream.cancel()

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        form: InferForm = self.form
        answer = form.answer
        if (
            is_final
            and answer is not None
            and response is not None
            and self.context is self
            and (parts := answer.parts(response)) is not None
            and form.frames is not None
            and self.reply(form.frames, parts)
        ):
            self.stream = self.request = None
        else:
            self._take_long(form, response, is_final)

    def _take_long(self, form: InferForm, response: InferResponse | None, is_final: bool) -> None:
        request, self.request = self.request, None
        if request is not None and self.context is self:
            self.answer = Answer(self.as_call(), request, form.request.options, self.model.spec)
        answer = self.answer
        if answer is None:
            return
        if is_final:
            self.stream = self.answer = None
        answer.take(response, is_final)
        if request is not None:
            form.learn_answer(request)
