"""Decoupled models with a dynamic batcher: what is executed together is answered by each request
for itself."""

from __future__ import annotations

from tests.scenarios.scene import Scene


def batched(scene: Scene) -> None:
    """Four requests share a batch; those with an open gate are over first."""
    model = "decoupled_batched"
    gate = scene.gate()
    scene.send("held", model, x=2, go=gate)
    for number in range(3):
        scene.send(f"free {number}", model, x=number + 1)
    scene.tell_answers(*(f"free {number}" for number in range(3)))
    gate.wait_entered()
    gate.open()
    scene.tell_answers("held")
    scene.tell_batches(model)


def next_batch(scene: Scene) -> None:
    """The next batch goes to the model when `execute` has returned, while answers of the one before
    are still to come."""
    model = "decoupled_batched"
    gate = scene.gate()
    for number in range(4):
        scene.send(f"held {number}", model, x=1, go=gate if number == 0 else "")
    gate.wait_entered()
    for number in range(4):
        scene.send(f"next {number}", model, x=0)
    scene.tell_answers(*(f"next {number}" for number in range(4)))
    gate.open()
    scene.tell_answers(*(f"held {number}" for number in range(4)))
    scene.tell_batches(model)


SCENARIOS = [batched, next_batch]
