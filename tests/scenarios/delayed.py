"""Schedulers that wait until three requests are queued (TRITONSERVER_DELAY_SCHEDULER)."""

from __future__ import annotations

from tests.scenarios.scene import Scene


def dynamic(scene: Scene) -> None:
    """The first batch has three requests; later batches do not wait."""
    model = "step_a"
    for id in ("a", "b"):
        scene.send(id, model, go=None)
    scene.wait_submitted()
    scene.record_batches(model, "before")
    scene.send("c", model, go=None)
    scene.record_responses("a", "b", "c")
    scene.record_batches(model, "after")
    scene.record("d", scene.ask("d", model, go=None))
    scene.record_batches(model, "later")


def direct(scene: Scene) -> None:
    """Requests of one sequence count, too."""
    model = "sequence_direct"
    for id, sequence, flags in (("a1", 1, "s"), ("b1", 2, "se")):
        scene.send(id, model, sequence, flags)
    scene.wait_submitted()
    scene.record_batches(model, "before")
    scene.send("a2", model, 1, "e")
    scene.record_responses("a1", "b1", "a2")
    scene.record_batches(model, "after")
    scene.record("c1", scene.ask("c1", model, 3, "se"))
    scene.record_batches(model, "later")


def oldest(scene: Scene) -> None:
    """Only one request of each sequence counts."""
    model = "sequence_oldest"
    for id, sequence, flags in (("a1", 1, "s"), ("a2", 1, "e"), ("b1", 2, "s")):
        scene.send(id, model, sequence, flags)
    scene.wait_submitted()
    scene.record_batches(model, "before")
    scene.send("c1", model, 3, "s")
    scene.record_responses("a1", "a2", "b1", "c1")
    scene.record_batches(model, "after")
    for id, sequence in (("b2", 2), ("c2", 3)):
        scene.record(id, scene.ask(id, model, sequence, "e"))


def backlog(scene: Scene) -> None:
    """With four requests, and TRITONSERVER_BACKLOG_DELAY_SCHEDULER at two: requests that have no
    slot are counted apart."""
    model = "sequence_direct"
    for number in (1, 2, 3, 4):
        scene.send(f"{number}", model, number, "s", on=f"{number}")
        scene.wait_submitted(on=f"{number}")
    scene.send("5 a", model, 5, "s", on="5")
    scene.wait_submitted(on="5")
    scene.record_batches(model, "before")
    scene.send("5 b", model, 5, "e", on="5")
    for number in (1, 2, 3, 4):
        scene.record(f"{number}", scene.response(f"{number}", on=f"{number}"))
    scene.record_batches(model, "after")
    scene.record("1 end", scene.ask("1 end", model, 1, "e"))
    for id in ("5 a", "5 b"):
        scene.record(id, scene.response(id, on="5"))
    for number in (2, 3, 4):
        scene.ask(f"{number} end", model, number, "e")


SCENARIOS = [dynamic, direct, oldest]
BACKLOG_SCENARIOS = [backlog]
