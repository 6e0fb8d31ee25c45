"""Sequence batching: which slot and batch a request gets, and with which control inputs."""

from __future__ import annotations

from tests.scenarios.scene import Scene


def direct_slots(scene: Scene) -> None:
    """A sequence stays in its slot. Idle slots before it are filled with null requests."""
    model = "sequence_direct"
    for id, sequence, flags in (
        ("a1", 1, "s"),
        ("b1", 2, "s"),
        ("c1", 3, "s"),
        ("b2", 2, ""),
        ("a2", 1, "e"),
        ("c2", 3, "e"),
    ):
        scene.record(id, scene.ask(id, model, sequence, flags, x=sequence))
    scene.record(" d takes the first slot", scene.ask("d1", model, 4, "se"))
    scene.ask("b3", model, 2, "e")
    scene.record_batches(model)


def direct_together(scene: Scene) -> None:
    """While the instance is busy, requests of several sequences wait; each slot adds one to the
    next batch."""
    model = "sequence_direct"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s")
    gate = scene.gate()
    scene.send("busy", model, 1, go=gate)
    gate.wait_entered()
    for id, sequence, flags in (
        ("d2", 4, "e"),
        ("b2", 2, ""),
        ("b3", 2, "e"),
        ("a2", 1, "e"),
        ("c2", 3, "e"),
    ):
        scene.send(id, model, sequence, flags)
    scene.wait_submitted()
    gate.open()
    scene.record_responses("busy", "d2", "b2", "b3", "a2", "c2")
    scene.record_batches(model)


def direct_backlog(scene: Scene) -> None:
    """All requests of a fifth sequence wait until a slot is free."""
    model = "sequence_direct"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s")
    for id, sequence, flags in (("e1", 5, "s"), ("e2", 5, "")):
        scene.send(id, model, sequence, flags, on="e")
    scene.wait_submitted(on="e")
    scene.send("f1", model, 6, "s", on="f")
    scene.wait_submitted(on="f")
    scene.record_batches(model, "before")
    scene.record("c2", scene.ask("c2", model, 3, "e"))
    scene.record("e1", scene.response("e1", on="e"))
    scene.record("e2", scene.response("e2", on="e"))
    scene.record("a2", scene.ask("a2", model, 1, "e"))
    scene.record("f1", scene.response("f1", on="f"))
    for sequence in (2, 4, 5, 6):
        scene.ask(f"end {sequence}", model, sequence, "e")
    scene.record_batches(model)


def direct_two_instances(scene: Scene) -> None:
    """Lower slots are used first, on either instance. Which instance is first is not recorded."""
    model = "sequence_direct_two"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s")
    scene.record("sizes", sorted(len(batch) for batch in scene.batches(model)))
    scene.send("e1", model, 5, "s", on="backlog")
    scene.wait_submitted(on="backlog")
    scene.record("d2", scene.ask("d2", model, 4, "e"))
    scene.record("e1", scene.response("e1", on="backlog"))
    scene.record("sizes with backlog", sorted(len(batch) for batch in scene.batches(model)))
    for number in (1, 2, 3, 5):
        scene.ask(f"end {number}", model, number, "e")
    scene.record_statistics(model, 10)


def direct_delay(scene: Scene) -> None:
    """With three of four slots filled, a batch starts at once. A single request waits for the
    delay."""
    model = "sequence_direct_delay"
    for number in (1, 2, 3):
        scene.send(f"start {number}", model, number, "s")
    scene.record_responses("start 1", "start 2", "start 3")
    scene.record("alone", scene.ask("end 1", model, 1, "e"))
    scene.record("alone again", scene.ask("end 2", model, 2, "e"))
    scene.record("and again", scene.ask("end 3", model, 3, "e"))
    scene.record("sizes", [len(batch) for batch in scene.batches(model)][-3:])


def unbatched(scene: Scene) -> None:
    model = "sequence_unbatched"
    scene.record("a1", scene.ask("a1", model, 1, "s", x=5, is_unbatched=True))
    scene.send("b1", model, 2, "se", x=6, is_unbatched=True, on="backlog")
    scene.wait_submitted(on="backlog")
    scene.record_batches(model, "before")
    scene.record("a2", scene.ask("a2", model, 1, "e", x=7, is_unbatched=True))
    scene.record("b1", scene.response("b1", on="backlog"))
    scene.record_batches(model)


def oldest(scene: Scene) -> None:
    """Candidates queue in the order in which they get requests. A batch has at most one request of
    a sequence."""
    model = "sequence_oldest"
    for number in (1, 2, 3):
        scene.ask(f"start {number}", model, number, "s")
    scene.send("d1", model, 4, "s", on="backlog")
    scene.wait_submitted(on="backlog")
    gate = scene.gate()
    scene.send("busy", model, 1, go=gate)
    gate.wait_entered()
    for id, sequence in (("c2", 3), ("b2", 2), ("c3", 3)):
        scene.send(id, model, sequence)
    scene.wait_submitted()
    gate.open()
    scene.record_responses("busy", "c2", "b2", "c3")
    scene.record("a2", scene.ask("a2", model, 1, "e"))
    scene.record("d1", scene.response("d1", on="backlog"))
    for sequence in (2, 3, 4):
        scene.ask(f"end {sequence}", model, sequence, "e")
    scene.record_batches(model)


def oldest_delay(scene: Scene) -> None:
    """The preferred sizes are 2 and 4: two requests start at once, a third one waits for the delay,
    and so does a single request."""
    model = "sequence_oldest_delay"
    for number in (1, 2, 3):
        scene.send(f"start {number}", model, number, "s")
    scene.record_responses("start 1", "start 2", "start 3")
    scene.record_batches(model)
    scene.record("a2", scene.ask("a2", model, 1, "e"))
    scene.record_batches(model)
    scene.send("b2", model, 2, "e")
    scene.send("c2", model, 3, "e")
    scene.record_responses("b2", "c2")
    scene.record_batches(model)


def controls(scene: Scene) -> None:
    """Control inputs may have any data type, and values other than 0 and 1. The id is truncated to
    32 bits."""
    model = "sequence_types"
    scene.ask("a1", model, 2**40 + 3, "s")
    scene.ask("b1", model, 7, "s")
    scene.ask("a2", model, 2**40 + 3, "e")
    scene.ask("b2", model, 7, "e")
    scene.record("batches", scene.batches(model)[0])
    scene.batches(model)


def no_controls(scene: Scene) -> None:
    """Ids of both kinds share a model. Null requests look like other requests."""
    model = "sequence_plain"
    scene.ask("a1", model, 1, "s")
    scene.ask("b1", model, "one", "s")
    scene.ask("b2", model, "one", "e")
    scene.ask("a2", model, 1, "e")
    scene.record_batches(model)


def refused(scene: Scene) -> None:
    model = "sequence_direct"
    scene.record("no id", scene.ask("a", model, 0))
    scene.record("no start", scene.ask("b", model, 9))
    scene.record("no start, end", scene.ask("c", model, 9, "e"))
    scene.record("batch", scene.ask("d", model, 9, "s", batch_size=2))
    scene.record("long id", scene.ask("e", model, "x" * 129, "s"))
    scene.record("alone", scene.ask("f", model, 9, "se"))
    scene.record("after its end", scene.ask("g", model, 9))
    scene.record_batches(model)


def start_again(scene: Scene) -> None:
    """START on an open sequence restarts it in its slot. After END, its id can be used again at
    once, even while the END request waits."""
    model = "sequence_direct"
    scene.ask("a1", model, 1, "s")
    scene.ask("b1", model, 2, "s")
    scene.record("again", scene.ask("b2", model, 2, "s"))
    gate = scene.gate()
    scene.send("busy", model, 1, go=gate)
    gate.wait_entered()
    for id, flags in (("a2", "e"), ("a3", "s"), ("a4", "e")):
        scene.send(id, model, 1, flags)
    scene.wait_submitted()
    gate.open()
    scene.record_responses("busy", "a2", "a3", "a4")
    scene.ask("b3", model, 2, "e")
    scene.record_batches(model)


def variable_shapes(scene: Scene) -> None:
    """A request with another shape than the first slot's, or with other optional inputs, waits. Its
    slot gets a null request in the meantime."""
    model = "sequence_variable"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s", x=[number, number])
    gate = scene.gate()
    scene.send("busy", model, 1, x=[1, 1], go=gate)
    gate.wait_entered()
    scene.send("a2", model, 1, "e", x=[1, 1])
    scene.send("b2", model, 2, "e", x=[1, 1, 1])
    scene.send("c2", model, 3, "e", x=[1, 1], go=None)
    scene.send("d2", model, 4, "e", x=[1, 1, 1])
    scene.wait_submitted()
    gate.open()
    scene.record_responses("busy", "a2", "b2", "c2", "d2")
    scene.record_batches(model)


def variable_shapes_oldest(scene: Scene) -> None:
    """A batch ends before the first candidate that does not fit."""
    model = "sequence_variable_oldest"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s", x=[number, number])
    gate = scene.gate()
    scene.send("busy", model, 1, x=[1, 1], go=gate)
    gate.wait_entered()
    scene.send("b2", model, 2, "e", x=[1, 1, 1])
    scene.send("d2", model, 4, "e", x=[1, 1, 1])
    scene.send("c2", model, 3, "e", x=[1, 1], go=None)
    scene.wait_submitted()
    gate.open()
    scene.record_responses("busy", "b2", "c2", "d2")
    scene.record("a2", scene.ask("a2", model, 1, "e", x=[1, 1]))
    scene.record_batches(model)


def idle(scene: Scene) -> None:
    """An idle sequence is forgotten, and its slot goes to the backlog."""
    for model in ("sequence_one_slot", "sequence_one_candidate"):
        scene.ask("a1", model, 1, "s")
        scene.record("backlog", scene.ask("b1", model, 2, "se"))
        scene.record("forgotten", scene.ask("a2", model, 1))
        scene.record_batches(model)


def backlog_timeout(scene: Scene) -> None:
    """The shortest `timeout` among its requests ends a sequence that waits for a slot. In a slot,
    `timeout` has no effect."""
    for model in ("sequence_one_slot", "sequence_one_candidate"):
        gate = scene.gate()
        scene.send("a1", model, 1, "s", go=gate)
        gate.wait_entered()
        scene.send("a2", model, 1, "e", timeout=50_000)
        scene.send("b1", model, 2, "s", on="backlog")
        scene.send("b2", model, 2, timeout=100_000, on="backlog")
        scene.record("first", scene.response("b1", on="backlog"))
        scene.record("second", scene.response("b2", on="backlog"))
        scene.record("gone", scene.ask("b3", model, 2, on="backlog"))
        gate.open()
        scene.record_responses("a1", "a2")
        scene.record_batches(model)


def decoupled(scene: Scene) -> None:
    """The next request starts when `execute` has returned, even if responses are still missing. So
    does the next sequence."""
    for model in ("sequence_decoupled", "sequence_decoupled_direct"):
        scene.count_from_here(model)
        gate = scene.gate()
        scene.send("a1", model, 1, "s", x=2, go=gate)
        gate.wait_entered()
        scene.record("overtakes", scene.ask("a2", model, 1, x=1))
        scene.record("ends", scene.ask("a3", model, 1, "e", x=0))
        scene.wait_executions(model, 3)
        scene.record("the same id", scene.ask("b1", model, 1, "se", x=1))
        gate.open()
        scene.record_responses("a1")
        scene.record_batches(model)


def iterative(scene: Scene) -> None:
    """One request is a whole sequence: the model reschedules it."""
    for model in ("sequence_iterative", "sequence_iterative_decoupled"):
        scene.count_from_here(model)
        scene.record("without an id", scene.ask("a", model, x=3))
        scene.wait_executions(model, 3)
        scene.record("with an id", scene.ask("b", model, 5, "s", x=2))
        scene.wait_executions(model, 5)
        scene.record("at once", scene.ask("d", model, x=1))
        scene.wait_executions(model, 6)
        scene.record_batches(model)


SCENARIOS = [
    direct_slots,
    direct_together,
    direct_backlog,
    direct_two_instances,
    direct_delay,
    unbatched,
    oldest,
    oldest_delay,
    controls,
    no_controls,
    refused,
    start_again,
    variable_shapes,
    variable_shapes_oldest,
    idle,
    backlog_timeout,
    decoupled,
    iterative,
]
