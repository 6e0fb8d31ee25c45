"""The response cache in memory: which requests are hits, and how they are counted."""

from __future__ import annotations

import json
from typing import Any

from tests.scenarios.scene import Scene


def ask(scene: Scene, model: str, x: list[int], **fields: Any) -> list[Any]:
    """Sends a request over HTTP. Returns the status and the outputs by name, or the error."""
    inputs = [{"name": "X", "datatype": "INT32", "shape": [1, len(x)], "data": x}]
    status, body = scene.server.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})
    response = json.loads(body)
    if status != 200:
        return [status, response]
    return [status, {output["name"]: output["data"] for output in response["outputs"]}]


def counted(scene: Scene) -> None:
    """A hit counts as a successful request, but not as an execution."""
    for number, x in enumerate(([1], [1], [2], [1])):
        scene.record(f"{number}: {x}", ask(scene, "cached", x, id=str(number)))
    scene.record_statistics("cached", 4)


def of_an_ensemble(scene: Scene) -> None:
    """A hit of the ensemble runs no step. After a miss of the ensemble, its first step may be a
    hit."""
    scene.record("miss, the step hits", ask(scene, "cached_ensemble", [1]))
    scene.record("hit", ask(scene, "cached_ensemble", [1]))
    scene.record("all miss", ask(scene, "cached_ensemble", [50]))
    scene.record_statistics("cached_ensemble", 3)
    scene.record_statistics("uncached", 2)
    scene.record_statistics("cached", 6)


SCENARIOS = [counted, of_an_ensemble]
