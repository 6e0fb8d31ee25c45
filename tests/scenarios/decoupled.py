"""Decoupled models with a dynamic batcher: requests of one batch get their own responses."""

from __future__ import annotations

from tests.scenarios.scene import Scene


def batched(scene: Scene) -> None:
    """Four requests share a batch. Those that do not wait at a gate end first."""
    model = "decoupled_batched"
    gate = scene.gate()
    scene.send("held", model, x=2, go=gate)
    for number in range(3):
        scene.send(f"free {number}", model, x=number + 1)
    scene.record_responses(*(f"free {number}" for number in range(3)))
    gate.wait_entered()
    gate.open()
    scene.record_responses("held")
    scene.record_batches(model)


def next_batch(scene: Scene) -> None:
    """The next batch starts when `execute` has returned, even if responses of the batch before are
    still missing."""
    model = "decoupled_batched"
    gate = scene.gate()
    for number in range(4):
        scene.send(f"held {number}", model, x=1, go=gate if number == 0 else "")
    gate.wait_entered()
    for number in range(4):
        scene.send(f"next {number}", model, x=0)
    scene.record_responses(*(f"next {number}" for number in range(4)))
    gate.open()
    scene.record_responses(*(f"held {number}" for number in range(4)))
    scene.record_batches(model)


SCENARIOS = [batched, next_batch]
