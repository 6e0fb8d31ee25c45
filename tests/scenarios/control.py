"""Loading, reloading and unloading, seen from a model's own notes: warm-up, statistics,
instances."""

from __future__ import annotations

import json
from typing import Any

from tests.scenarios.scene import LIMIT_S, Scene


def load(scene: Scene, model: str, **config: Any) -> list[Any]:
    body = {"parameters": {"config": json.dumps(config)}} if config else {}
    status, answer = scene.server.post(f"/v2/repository/models/{model}/load", body)
    return [status, json.loads(answer) if answer else None]


def unload(scene: Scene, model: str) -> list[Any]:
    """Returns when it is gone."""
    status, answer = scene.server.post(f"/v2/repository/models/{model}/unload", {})
    scene.wait_state(model, "UNAVAILABLE", LIMIT_S)
    return [status, json.loads(answer) if answer else None]


def config_of(scene: Scene, model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(scene.server.get(f"/v2/models/{model}/config")[1])
    return config


def _tell_samples(scene: Scene, model: str) -> None:
    for batch in scene.batches(model):
        scene.tell("sample", [request["inputs"] for request in batch])


def warm_up(scene: Scene) -> None:
    """What the model gets before it is ready, each time it is loaded; and what is counted of it."""
    scene.tell("load", load(scene, "warm"))
    _tell_samples(scene, "warm")
    scene.tell_statistics("warm", 0)
    scene.ask("one", "warm", x=1)
    scene.tell_statistics("warm", 1)
    scene.batches("warm")
    changed = config_of(scene, "warm")
    changed["metric_tags"] = {"a": "b"}
    scene.tell("reload", load(scene, "warm", **changed))
    _tell_samples(scene, "warm")
    scene.tell("unload", unload(scene, "warm"))


def every_instance_is_warmed_up(scene: Scene) -> None:
    scene.tell("load", load(scene, "warm_twice"))
    scene.tell("batches", len(scene.batches("warm_twice")))
    changed = config_of(scene, "warm_twice")
    changed["instance_group"][0]["count"] = 3
    scene.tell("one more", load(scene, "warm_twice", **changed))
    scene.tell("batches", len(scene.batches("warm_twice")))
    scene.tell("unload", unload(scene, "warm_twice"))


def warm_up_that_fails(scene: Scene) -> None:
    """Such a model is not served. (Of a file that is too short, Triton 2.73 tells in other words
    than 2.51.)"""
    scene.tell("warm_fails", load(scene, "warm_fails"))
    scene.tell("warm_short", load(scene, "warm_short")[0])
    for model in ("warm_fails", "warm_short"):
        scene.tell("ready", scene.server.get(f"/v2/models/{model}/ready")[0])


def statistics(scene: Scene) -> None:
    """What becomes of the counts when a model is loaded again unchanged, changed, and after it was
    unloaded."""
    scene.tell("load", load(scene, "plain"))
    for number in range(3):
        scene.ask(str(number), "plain", x=number)
    scene.tell_statistics("plain", 3)
    scene.tell("unchanged", load(scene, "plain"))
    scene.tell_statistics("plain", 0)
    changed = config_of(scene, "plain")
    changed["instance_group"][0]["count"] = 2
    scene.tell("an instance more", load(scene, "plain", **changed))
    scene.tell_statistics("plain", 0)
    changed["metric_tags"] = {"a": "b"}
    scene.tell("changed", load(scene, "plain", **changed))
    scene.tell_statistics("plain", 0)
    scene.ask("more", "plain", x=1)
    scene.tell_statistics("plain", 1)
    scene.tell("unload", unload(scene, "plain"))
    scene.tell("gone", scene.server.get("/v2/models/plain/stats")[0])
    scene.tell("load", load(scene, "plain"))
    scene.tell_statistics("plain", 0)
    scene.tell("unload", unload(scene, "plain"))


SCENARIOS = [warm_up, every_instance_is_warmed_up, warm_up_that_fails, statistics]
