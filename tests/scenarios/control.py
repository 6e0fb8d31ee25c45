"""Loading, reloading and unloading, as the model records it: warm-up, statistics, instances."""

from __future__ import annotations

import json
from typing import Any

from tests.scenarios.scene import LIMIT_S, Scene


def load(scene: Scene, model: str, **config: Any) -> list[Any]:
    body = {"parameters": {"config": json.dumps(config)}} if config else {}
    status, response = scene.server.post(f"/v2/repository/models/{model}/load", body)
    return [status, json.loads(response) if response else None]


def unload(scene: Scene, model: str) -> list[Any]:
    """Unloads a model and waits until it is unloaded."""
    status, response = scene.server.post(f"/v2/repository/models/{model}/unload", {})
    scene.wait_state(model, "UNAVAILABLE", LIMIT_S)
    return [status, json.loads(response) if response else None]


def config_of(scene: Scene, model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(scene.server.get(f"/v2/models/{model}/config")[1])
    return config


def _record_samples(scene: Scene, model: str) -> None:
    for batch in scene.batches(model):
        scene.record("sample", [request["inputs"] for request in batch])


def warm_up(scene: Scene) -> None:
    """The model gets its warm-up samples before it is ready, each time it is loaded. They are not
    counted."""
    scene.record("load", load(scene, "warm"))
    _record_samples(scene, "warm")
    scene.record_statistics("warm", 0)
    scene.ask("one", "warm", x=1)
    scene.record_statistics("warm", 1)
    scene.batches("warm")
    changed = config_of(scene, "warm")
    changed["metric_tags"] = {"a": "b"}
    scene.record("reload", load(scene, "warm", **changed))
    _record_samples(scene, "warm")
    scene.record("unload", unload(scene, "warm"))


def every_instance_is_warmed_up(scene: Scene) -> None:
    scene.record("load", load(scene, "warm_twice"))
    scene.record("batches", len(scene.batches("warm_twice")))
    changed = config_of(scene, "warm_twice")
    changed["instance_group"][0]["count"] = 3
    scene.record("one more", load(scene, "warm_twice", **changed))
    scene.record("batches", len(scene.batches("warm_twice")))
    scene.record("unload", unload(scene, "warm_twice"))


def warm_up_that_fails(scene: Scene) -> None:
    """A model whose warm-up fails is not served. For a file that is too short, only the status is
    recorded: Triton 2.73 has another message than 2.51."""
    scene.record("warm_fails", load(scene, "warm_fails"))
    scene.record("warm_short", load(scene, "warm_short")[0])
    for model in ("warm_fails", "warm_short"):
        scene.record("ready", scene.server.get(f"/v2/models/{model}/ready")[0])


def statistics(scene: Scene) -> None:
    """Records the counts after the model was reloaded unchanged, reloaded with changes, and
    unloaded."""
    scene.record("load", load(scene, "plain"))
    for number in range(3):
        scene.ask(str(number), "plain", x=number)
    scene.record_statistics("plain", 3)
    scene.record("unchanged", load(scene, "plain"))
    scene.record_statistics("plain", 0)
    changed = config_of(scene, "plain")
    changed["instance_group"][0]["count"] = 2
    scene.record("an instance more", load(scene, "plain", **changed))
    scene.record_statistics("plain", 0)
    changed["metric_tags"] = {"a": "b"}
    scene.record("changed", load(scene, "plain", **changed))
    scene.record_statistics("plain", 0)
    scene.ask("more", "plain", x=1)
    scene.record_statistics("plain", 1)
    scene.record("unload", unload(scene, "plain"))
    scene.record("gone", scene.server.get("/v2/models/plain/stats")[0])
    scene.record("load", load(scene, "plain"))
    scene.record_statistics("plain", 0)
    scene.record("unload", unload(scene, "plain"))


SCENARIOS = [warm_up, every_instance_is_warmed_up, warm_up_that_fails, statistics]
