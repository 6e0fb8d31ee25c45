"""Inference requests that repeat the last one of their connection but for the tensors' data, and
the id: one short way in and out.

In:  the bytes of a whole request, from its connection. Out: what InferRoute and InferAnswer would have made of it: a request with the
     head, JSON and sizes of one that was accepted goes to the core without being taken apart, and an answer like the last one leaves
     with its data alone put in.
Rule: whatever is out of the ordinary takes the long way, before anything has happened here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from naiad.core.request import InferRequest, RequestForm
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError
from naiad.frontends.core import Inference
from naiad.frontends.http.infer_response import InferAnswer
from naiad.frontends.http.response import respond_error
from naiad.protocol.compression import IDENTITY
from naiad.protocol.v2.json_codec import JSON_HEADERS, is_repeated
from naiad.protocol.v2.json_template import ID_AT_START, MAX_COPIED_BYTES, Template
from naiad.protocol.v2.output_format import OutputForms
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import render_head
from naiad.transport.http1.response_queue import AnswerQueue

if TYPE_CHECKING:
    from naiad.repository.model import Model


def may_be_repeated(head: Head, form: RequestForm, response_encoding: str) -> bool:
    """Of a request that has just been accepted: it would be with any data; its answer is nothing
    special."""
    return (
        form.accepted_by is not None
        and head.is_plain
        and head.is_inline
        and b"traceparent" not in head.headers  # which is new with every request
        and response_encoding == IDENTITY
    )


def is_small_and_here(template: Template) -> bool:
    """Nothing of such requests lies elsewhere, and copies of their data are cheap."""
    return template.regions is None and template.binary_bytes <= MAX_COPIED_BYTES


class Repeatable(Protocol):
    """What the requests of a form have in common, however it is told that they do."""

    core: Inference
    head: Head
    model: Model
    model_name: str
    model_version: str
    forms: OutputForms
    size: int

    def read(self, data: bytes) -> InferRequest | None:
        """None when it is another request."""
        ...

    def is_head(self, data: bytes) -> bool:
        """As of `Repeated`."""
        ...


class RepeatedForm:
    """All that such requests have in common; shared by the connections of a route."""

    __slots__ = (
        "batch_size",
        "body_at",
        "core",
        "form",
        "forms",
        "head",
        "id_end",
        "inputs",
        "model",
        "model_name",
        "model_version",
        "size",
        "start",
        "template",
    )

    def __init__(
        self,
        core: Inference,
        head: Head,
        model: Model,
        asked: tuple[str, str],
        template: Template,
        header_length: int,
    ) -> None:
        self.core = core
        self.head = head
        self.model = model
        self.model_name, self.model_version = asked
        """As the client wrote them."""
        self.template = template
        self.form = template.form
        self.forms = template.forms
        self.batch_size = template.form.batch_size
        self.body_at = at = len(head.text)
        self.size = at + head.content_length
        self.start = head.text if template.has_id else head.text + template.text
        self.id_end = at + header_length - len(template.text)
        at += header_length
        self.inputs: list[tuple[str, str, list[int], int, int]] = []
        """(name, datatype, shape, start, end)"""
        for name, datatype, shape, size in template.inputs:
            self.inputs.append((name, datatype, shape, at, at + size))
            at += size

    def read(self, data: bytes) -> InferRequest | None:
        """None when it is another request."""
        if not data.startswith(self.start):
            return None
        template = self.template
        id = ""
        if template.has_id:
            found = ID_AT_START.match(data, self.body_at)
            if (
                found is None
                or found.end() != self.id_end
                or not data.startswith(template.text, self.id_end)
            ):
                return None
            id = found[1].decode()
        return InferRequest(
            self.model_name,
            [
                Tensor(name, datatype, shape, data[start:end])
                for name, datatype, shape, start, end in self.inputs
            ],
            self.model_version,
            id,
            template.requested_outputs,
            form=self.form,
            batch_size=self.batch_size,
        )

    def is_head(self, data: bytes) -> bool:
        return data == self.head.text


class RepeatedInfer(Exchange):
    """One per connection, used again for each of its requests: they come one after the other."""

    __slots__ = ("_form", "_response", "_stream", "size")

    def __init__(self, form: Repeatable) -> None:
        super().__init__(None, form.head, b"")
        self._form = form
        self._stream: ResponseStream | None = None
        self._response: InferResponse | None = None
        """That has come before the final flag."""
        self.size = form.size

    def begin(self, answers: AnswerQueue, data: bytes) -> bool:
        form = self._form
        core, model = form.core, form.model
        try:
            if core.model(form.model_name, form.model_version) is not model or core.tracing.is_on:
                return False
        except NaiadError:
            return False
        request = form.read(data)
        if request is None:
            return False
        self.is_started = self.is_ended = False
        self._answers = answers
        answers.exchanges.append(self)
        try:
            self._stream = stream = core.infer_again(request, model)
        except NaiadError as error:
            respond_error(self, error)
        else:
            stream.deliver_to(self.take)
        return True

    def is_head(self, data: bytes) -> bool:
        form = self._form
        return form.is_head(data) and not form.head.expects_continue and not form.core.tracing.is_on

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        forms = self._form.forms
        if is_final and response is not None and response.error is None:
            answers = self._answers
            if answers is not None and not answers.is_stopping:
                whole = _like_the_last(response, forms)
                if whole is not None:
                    self.is_started = self.is_ended = True
                    answers.send_whole(self, whole)
                    return
        if response is None:
            response = self._response
        if is_final:
            InferAnswer(self, forms, self._form.model.spec, IDENTITY).take(response, True)
        else:
            self._response = response

    # What the connection calls.

    def detach(self) -> None:
        self._answers = self._stream = self._response = None

    def disconnect(self) -> None:
        stream, self._stream = self._stream, None
        self._response = None
        super().disconnect()
        if stream is not None and not self.is_ended:
            stream.cancel()


def _like_the_last(response: InferResponse, forms: OutputForms) -> bytes | None:
    """The answer, head and all."""
    if forms.json_answer is not None:
        text = forms.json_answer.fill(response)
        return None if text is None else render_head(200, JSON_HEADERS, len(text)) + text
    last = forms.answers.get(len(response.id))
    if last is None or not last.start or not is_repeated(response, last):
        return None
    parts: list[Buffer] = (
        [last.start, response.id.encode(), last.text] if last.id_bytes else [last.start]
    )
    parts += [tensor.data for tensor in response.outputs]
    return b"".join(parts)
