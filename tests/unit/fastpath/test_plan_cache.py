"""Plans belong to a model of one endpoint, and go with the model."""

from __future__ import annotations

import json

import msgspec

from naiad.fastpath import plan_cache
from naiad.fastpath.http_plan import HttpPlan
from naiad.fastpath.plan_cache import PlanCache
from tests.unit.fastpath.planned import Decoder, PlannedModel

TENSOR = {"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}


class FakePlan:
    is_retired = False

    def retire(self) -> None:
        self.is_retired = True


def test_plans_are_dropped_when_their_model_stops() -> None:
    cache: PlanCache[FakePlan] = PlanCache()
    models = [PlannedModel(), PlannedModel()]
    plans = [[FakePlan(), FakePlan()] for _ in models]
    for model, own in zip(models, plans, strict=True):
        for key, plan in enumerate(own):
            cache.add(model, key, plan)  # type: ignore[arg-type]
    assert len(cache) == 4
    models[0].stop()
    assert [plan.is_retired for own in plans for plan in own] == [True, True, False, False]
    assert cache.get(models[0], 0) is None  # type: ignore[arg-type]
    assert cache.get(models[1], 0) is plans[1][0]  # type: ignore[arg-type]
    assert len(cache) == 2


def test_a_plan_that_takes_the_place_of_another() -> None:
    cache: PlanCache[FakePlan] = PlanCache()
    model, old, new = PlannedModel(), FakePlan(), FakePlan()
    cache.add(model, "key", old)  # type: ignore[arg-type]
    cache.add(model, "key", new)  # type: ignore[arg-type]
    assert (len(cache), old.is_retired, new.is_retired) == (1, True, False)


def test_a_full_cache_starts_again() -> None:
    cache: PlanCache[FakePlan] = PlanCache()
    model, first = PlannedModel(), FakePlan()
    cache.add(model, -1, first)  # type: ignore[arg-type]
    for key in range(3 * plan_cache.MAX_PLANS):
        cache.add(model, key, FakePlan())  # type: ignore[arg-type]
        assert len(cache) <= plan_cache.MAX_PLANS
    assert first.is_retired
    assert len(model.on_stopped) == 1, "the model is asked only once to tell when it stops"
    model.stop()
    assert len(cache) == 0


def binary(num_elements: int) -> tuple[bytes, int]:
    """A request with one binary tensor, and the length of its JSON header."""
    tensor = {
        "name": "A",
        "datatype": "UINT8",
        "shape": [num_elements],
        "parameters": {"binary_data_size": num_elements},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    return header + bytes(num_elements), len(header)


def test_large_requests_of_ever_new_shapes_leave_no_plans() -> None:
    decoder = Decoder()
    for number in range(50):
        assert decoder.decode(*binary(plan_cache.LARGE_BYTES + number))[1] is None
    assert len(decoder.plans.cache) == 0


def test_a_large_request_that_comes_again_gets_a_plan() -> None:
    decoder = Decoder()
    plans = [decoder.decode(*binary(plan_cache.LARGE_BYTES))[1] for _ in range(3)]
    assert plans[0] is None
    assert plans[1] is not None
    assert plans[2] is plans[1]
    assert len(decoder.plans.cache) == 1


def test_a_retired_plan_keeps_nothing_of_its_model() -> None:
    decoder = Decoder()
    body = json.dumps({"inputs": [TENSOR]}).encode()
    plan = decoder.decode(body)[1]
    assert isinstance(plan, HttpPlan)
    plan.signature.accepted_by = decoder.model
    decoder.model.stop()
    assert plan.is_retired
    assert plan.model is None
    assert msgspec.structs.asdict(plan.signature)["accepted_by"] is None
    decoder.model = PlannedModel()
    fresh = decoder.decode(body)[1]
    assert fresh is not None
    assert fresh is not plan
    assert fresh.model is decoder.model  # type: ignore[comparison-overlap]
