"""The plans of one HTTP endpoint: found for a request body, or learned from a request that the full
path has decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.tensor import Buffer
from naiad.fastpath.http_binary import BinaryPlan
from naiad.fastpath.http_json import JsonPlan, json_inputs, texts_around
from naiad.fastpath.http_plan import HttpPlan
from naiad.fastpath.plan_cache import PlanCache
from naiad.fastpath.request_id import SplitText, is_only_id, split_id
from naiad.protocol.v2.json_codec import DecodedRequest

if TYPE_CHECKING:
    from naiad.repository.model import Model

_MAX_TEXT_BYTES = 4096
"""The JSON of a request without its data. Longer texts are rare, and plans keep them."""
_MAX_JSON_BODY_BYTES = 64 * 1024
"""Reading the numbers of a larger body costs so much that the rest does not matter."""


class HttpPlans:
    def __init__(self) -> None:
        self.cache: PlanCache[HttpPlan] = PlanCache()

    def find(
        self, model: Model, model_version: str, body: Buffer, header_length: int | None
    ) -> HttpPlan | None:
        """The plan that may decode the body. Only headers without data can be looked up; a JSON
        plan is known to those that used it last."""
        text = _header(body, header_length)
        if text is None:
            return None
        split = split_id(text)
        return self.cache.get(model, (BinaryPlan, model_version, bool(split.id), split.rest))

    def learn(
        self,
        model: Model,
        model_version: str,
        body: Buffer,
        header_length: int | None,
        decoded: DecodedRequest,
    ) -> HttpPlan | None:
        """A plan for requests like the one that was decoded from the body; None where they cannot
        be recognised."""
        if decoded.json_data is None:
            return None
        if decoded.json_data:
            plan = self._learn_json(model, model_version, body, decoded)
        else:
            plan = self._learn_binary(model, model_version, body, header_length, decoded)
        if plan is not None:
            decoded.request.signature = plan.signature
        return plan

    def _learn_binary(
        self,
        model: Model,
        model_version: str,
        body: Buffer,
        header_length: int | None,
        decoded: DecodedRequest,
    ) -> HttpPlan | None:
        text = _header(body, header_length)
        if text is None:
            return None
        split = split_id(text)
        request = decoded.request
        if not is_only_id(split, request.id):
            return None
        key = BinaryPlan, model_version, bool(split.id), split.rest
        if not self.cache.is_worth(model, key, len(body)):
            return None
        plan = BinaryPlan(model, model_version, request, decoded.formats, split.rest)
        self.cache.add(model, key, plan)
        return plan

    def _learn_json(
        self, model: Model, model_version: str, body: Buffer, decoded: DecodedRequest
    ) -> HttpPlan | None:
        data = decoded.json_data
        assert data is not None
        if body.__class__ is not bytes or len(body) > _MAX_JSON_BODY_BYTES:
            return None
        assert isinstance(body, bytes)
        texts = texts_around(body, data)
        if texts is None:
            return None
        start, id = split_id(texts[0])
        # No JSON text contains a NUL.
        text = b"\0".join((start, *texts[1:]))
        request = decoded.request
        if len(text) > _MAX_TEXT_BYTES or not is_only_id(SplitText(text, id), request.id):
            return None
        key = JsonPlan, model_version, bool(id), text
        plan = self.cache.get(model, key)
        if plan is None:
            inputs = json_inputs(request.inputs, data, texts[1:])
            if inputs is None:
                return None
            plan = JsonPlan(model, model_version, request, decoded.formats, start, inputs)
            self.cache.add(model, key, plan)
        return plan


def _header(body: Buffer, header_length: int | None) -> bytes | None:
    """The JSON header where it contains no data: before binary tensors, or with all tensors in
    shared memory."""
    if header_length is not None:
        return bytes(body[:header_length]) if header_length <= _MAX_TEXT_BYTES else None
    if len(body) > _MAX_TEXT_BYTES or body.__class__ is not bytes:
        return None
    assert isinstance(body, bytes)
    return body if b"shared_memory_region" in body else None
