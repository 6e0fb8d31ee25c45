"""The rate limiter: which models execute at the same time if there are two units of resource R.

Rule: while a request waits for resources, a scenario sends no other request. The genuine Triton
      delays all later requests, even those that need no resources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.scenarios.control import load, unload
from tests.scenarios.scene import Scene


def held_back(scene: Scene) -> None:
    """A request whose resource is in use waits until the resource is released."""
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_half", x=2, on="waits")
    scene.wait_pending("limit_half", 1)
    scene.record("meanwhile", scene.batches("limit_half"))
    gate.open()
    scene.record("holder", scene.response("holder", "holder"))
    scene.record("waits", scene.response("waits", "waits"))


def side_by_side(scene: Scene) -> None:
    """Two instances of one model use half of R each."""
    gates = [scene.gate(), scene.gate()]
    for number, gate in enumerate(gates):
        scene.send(str(number), "limit_half", x=number, go=gate, on=str(number))
    for gate in gates:
        gate.wait_entered()
    scene.send("after", "limit_holder", x=9, on="after")
    scene.wait_pending("limit_holder", 1)
    for number, gate in enumerate(gates):
        scene.record("meanwhile", scene.batches("limit_holder"))
        gate.open()
        scene.record(str(number), scene.response(str(number), str(number)))
    scene.record("after", scene.response("after", "after"))


def refused(scene: Scene) -> None:
    """A model that needs more than there is cannot be loaded. Neither can a model that declares a
    per-device resource as global."""
    for model in ("limit_greedy", "limit_global"):
        scene.record(model, load(scene, model))


def comes_and_goes(scene: Scene) -> list[list[Any]]:
    """Not one of SCENARIOS, because the genuine Triton never finishes unloading a model whose
    request waits for resources."""
    load(scene, "limit_often")
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_often", x=2, on="waits")
    scene.wait_pending("limit_often", 1)
    scene.server.post("/v2/repository/models/limit_often/unload", {})
    gate.open()
    response = scene.response("waits", "waits")
    scene.wait_state("limit_often", "UNAVAILABLE")
    return [response, scene.ask("half", "limit_half", x=3, on="half")]


def order(scene: Scene) -> list[str]:
    """Not one of SCENARIOS, because the genuine Triton hands out resources before it considers the
    instance that has just released them."""
    path = Path(scene.folder) / "order"
    for model in ("limit_often", "limit_seldom"):
        load(scene, model)
        scene.ask("first", model, x=0, on=model)
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    path.write_text("")
    for model, count in (("limit_often", 3), ("limit_seldom", 2)):
        for number in range(count):
            scene.send(str(number), model, x=0, on=model)
        scene.wait_submitted(model)
    gate.open()
    for model, count in (("limit_often", 3), ("limit_seldom", 2)):
        for number in range(count):
            scene.response(str(number), model)
        unload(scene, model)
    return path.read_text().split()


SCENARIOS = [held_back, side_by_side, refused]
