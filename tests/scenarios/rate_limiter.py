"""The rate limiter: who executes while whom, when two units of R are all there is.

Rule: while somebody waits for resources, nobody else is asked: the genuine Triton holds up all that
      come later, whatever they need.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.scenarios.control import load, unload
from tests.scenarios.scene import Scene


def held_back(scene: Scene) -> None:
    """One that needs what is taken waits until it is given back."""
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_half", x=2, on="waits")
    scene.wait_pending("limit_half", 1)
    scene.tell("meanwhile", scene.batches("limit_half"))
    gate.open()
    scene.tell("holder", scene.answer("holder", "holder"))
    scene.tell("waits", scene.answer("waits", "waits"))


def side_by_side(scene: Scene) -> None:
    """Two instances of one model, half of R each."""
    gates = [scene.gate(), scene.gate()]
    for number, gate in enumerate(gates):
        scene.send(str(number), "limit_half", x=number, go=gate, on=str(number))
    for gate in gates:
        gate.wait_entered()
    scene.send("after", "limit_holder", x=9, on="after")
    scene.wait_pending("limit_holder", 1)
    for number, gate in enumerate(gates):
        scene.tell("meanwhile", scene.batches("limit_holder"))
        gate.open()
        scene.tell(str(number), scene.answer(str(number), str(number)))
    scene.tell("after", scene.answer("after", "after"))


def refused(scene: Scene) -> None:
    """What could never run is not loaded; neither is what calls a resource of each device a global
    one."""
    for model in ("limit_greedy", "limit_global"):
        scene.tell(model, load(scene, model))


def comes_and_goes(scene: Scene) -> list[list[Any]]:
    """Not among the scenarios: the genuine Triton never ends the unload of a model whose request
    waits for resources."""
    load(scene, "limit_often")
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_often", x=2, on="waits")
    scene.wait_pending("limit_often", 1)
    scene.server.post("/v2/repository/models/limit_often/unload", {})
    gate.open()
    answers = [scene.answer("waits", "waits")]
    scene.wait_state("limit_often", "UNAVAILABLE")
    return [*answers, scene.ask("half", "limit_half", x=3, on="half")]


def order(scene: Scene) -> list[str]:
    """Not among the scenarios: the genuine Triton hands resources on before it looks at what has
    just come back."""
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
        scene.submitted(model)
    gate.open()
    for model, count in (("limit_often", 3), ("limit_seldom", 2)):
        for number in range(count):
            scene.answer(str(number), model)
        unload(scene, model)
    return path.read_text().split()


SCENARIOS = [held_back, side_by_side, refused]
