"""The response cache in memory: what is a hit, and what is counted of it."""

from __future__ import annotations

import json
from typing import Any

from tests.scenarios.scene import Scene


def ask(scene: Scene, model: str, x: list[int], **fields: Any) -> list[Any]:
    """By HTTP: outputs by name, or the words of an error."""
    inputs = [{"name": "X", "datatype": "INT32", "shape": [1, len(x)], "data": x}]
    status, body = scene.server.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})
    answer = json.loads(body)
    return [
        status,
        answer
        if status != 200
        else {output["name"]: output["data"] for output in answer["outputs"]},
    ]


def counted(scene: Scene) -> None:
    """A hit is a request that succeeded, and no execution."""
    for number, x in enumerate(([1], [1], [2], [1])):
        scene.tell(f"{number}: {x}", ask(scene, "cached", x, id=str(number)))
    scene.tell_statistics("cached", 4)


def of_an_ensemble(scene: Scene) -> None:
    """A hit of the whole asks no step; a miss of the whole may be a hit of its first step."""
    scene.tell("miss, the step hits", ask(scene, "cached_ensemble", [1]))
    scene.tell("hit", ask(scene, "cached_ensemble", [1]))
    scene.tell("all miss", ask(scene, "cached_ensemble", [50]))
    scene.tell_statistics("cached_ensemble", 3)
    scene.tell_statistics("uncached", 2)
    scene.tell_statistics("cached", 6)


SCENARIOS = [counted, of_an_ensemble]
