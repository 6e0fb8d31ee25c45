"""The plans of one gRPC endpoint: ModelInfer messages with one layout, and the layout of their
responses.

Plans are shared by connections; what depends on a connection, the frames around the message, is in
grpc_frames.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.fastpath.call import FastInference
from naiad.fastpath.grpc_frames import ResponseFrames
from naiad.fastpath.grpc_layout import MessageLayout, ResponseLayout, learn_message, learn_response
from naiad.fastpath.plan_cache import PlanCache
from naiad.protocol.v2 import grpc_codec
from naiad.protocol.v2.grpc_request import RequestOptions

if TYPE_CHECKING:
    from naiad.repository.model import Model

_MISMATCHES_PER_LEARNING = 16
"""A response layout is learned again only after this many responses that did not match it: some
models return a new shape every time."""
_MAX_TEMPLATES = 256


class MessagePlan:
    __slots__ = (
        "_mismatches_left",
        "_response",
        "decode",
        "frames",
        "is_retired",
        "layout",
        "model",
        "model_name",
        "model_version",
    )

    def __init__(self, layout: MessageLayout) -> None:
        self.layout = layout
        self.decode = layout.decode
        self.model_name = layout.prototype.model_name
        self.model_version = layout.prototype.model_version
        self.model: Model | None = None
        self.is_retired = False
        self.frames: ResponseFrames | None = None
        """The frames that the parts from `encode` fill; set together with `_response`."""
        self._response: ResponseLayout | None = None
        self._mismatches_left = 0

    def encode(self, response: InferResponse) -> Sequence[Buffer] | None:
        layout = self._response
        return None if layout is None else layout.encode(response)

    def learn(self, response: InferResponse, request: InferRequest) -> None:
        """The full path has encoded a response that `encode` did not know."""
        self._mismatches_left -= 1
        outputs, wanted = response.outputs, request.requested_outputs
        if (
            self._mismatches_left < 0
            and outputs
            and not response.parameters
            and not (wanted and len(wanted) < len(outputs))
        ):
            self._mismatches_left = _MISMATCHES_PER_LEARNING
            self._response = learn_response(response)
            self.frames = ResponseFrames(self._response.pieces)

    def accept(self, model: Model) -> None:
        if self.layout.signature.accepted_by is not None and not self.is_retired:
            self.model = model

    def retire(self) -> None:
        self.model = None
        self.is_retired = True
        self.layout.signature.accepted_by = None


class MessagePlans:
    def __init__(self, core: FastInference) -> None:
        self.core = core
        self.cache: PlanCache[MessagePlan] = PlanCache()
        self._read_template = lru_cache(_MAX_TEMPLATES)(grpc_codec.read_template)
        """Templates hold no model, so they may outlive one; the least recently used ones go."""

    def decode(self, message: Buffer) -> tuple[InferRequest, RequestOptions] | None:
        """The full path's decoder, which parses a repeated head only once. Returns None for a
        message that takes long to decode. Raises NaiadError."""
        return grpc_codec.decode_small_request(message, self._read_template)

    def learn(self, message: bytes, num_bytes: int) -> MessagePlan | None:
        """The plan for messages that differ from this one only in id and data; None where there is
        none. The beginning of a large message is enough: up to the data of its last tensor."""
        layout = learn_message(message, num_bytes, self._read_template)
        if layout is None:
            return None
        prototype = layout.prototype
        try:
            model = self.core.model(prototype.model_name, prototype.model_version)
        except NaiadError:
            return None
        key = tuple(layout.pieces)
        plan = self.cache.get(model, key)
        if plan is None and self.cache.is_worth(model, key, num_bytes):
            plan = MessagePlan(layout)
            self.cache.add(model, key, plan)
        return plan
