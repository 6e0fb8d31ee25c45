"""Requests decoded as the HTTP route does it: by a plan where there is one, and else fully, which
teaches a plan."""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.fastpath.http_plan import HttpPlan
from naiad.fastpath.http_plans import HttpPlans
from naiad.protocol.v2 import json_codec


class PlannedModel:
    def __init__(self, name: str = "m") -> None:
        self.spec = ModelSpec(name, 1, [1], "", 0, {}, {})
        self.on_stopped: list[Callable[[], None]] = []

    def stop(self) -> None:
        for callback in self.on_stopped:
            callback()


class Decoder:
    def __init__(self) -> None:
        self.plans = HttpPlans()
        self.model = PlannedModel()

    def decode(
        self, body: bytes, header_length: int | None = None, version: str = ""
    ) -> tuple[InferRequest, HttpPlan | None]:
        plan = self.plans.find(self.model, version, body, header_length)  # type: ignore[arg-type]
        request = None if plan is None else plan.decode(body, header_length)
        if request is not None:
            return request, plan
        decoded = json_codec.decode_request(
            body, header_length, self.model.spec.name, version, 1 << 20
        )
        plan = self.plans.learn(self.model, version, body, header_length, decoded)  # type: ignore[arg-type]
        return decoded.request, plan
