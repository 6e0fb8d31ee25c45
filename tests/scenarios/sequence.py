"""Sequence batching: which request goes where, with whom, and with which controls."""

from __future__ import annotations

from tests.scenarios.scene import Scene


def direct_slots(scene: Scene) -> None:
    """A sequence stays in its slot; slots before it that have nothing to do are null requests."""
    model = "sequence_direct"
    for id, sequence, flags in (
        ("a1", 1, "s"),
        ("b1", 2, "s"),
        ("c1", 3, "s"),
        ("b2", 2, ""),
        ("a2", 1, "e"),
        ("c2", 3, "e"),
    ):
        scene.tell(id, scene.ask(id, model, sequence, flags, x=sequence))
    scene.tell(" d takes the first slot", scene.ask("d1", model, 4, "se"))
    scene.ask("b3", model, 2, "e")
    scene.tell_batches(model)


def direct_together(scene: Scene) -> None:
    """While the instance is busy, requests of several sequences gather; each slot gives one to the
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
    scene.submitted()
    gate.open()
    scene.tell_answers("busy", "d2", "b2", "b3", "a2", "c2")
    scene.tell_batches(model)


def direct_backlog(scene: Scene) -> None:
    """A fifth sequence waits for a slot, all of it, and takes the one that ends."""
    model = "sequence_direct"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s")
    for id, sequence, flags in (("e1", 5, "s"), ("e2", 5, "")):
        scene.send(id, model, sequence, flags, on="e")
    scene.submitted(on="e")
    scene.send("f1", model, 6, "s", on="f")
    scene.submitted(on="f")
    scene.tell_batches(model, "before")
    scene.tell("c2", scene.ask("c2", model, 3, "e"))
    scene.tell("e1", scene.answer("e1", on="e"))
    scene.tell("e2", scene.answer("e2", on="e"))
    scene.tell("a2", scene.ask("a2", model, 1, "e"))
    scene.tell("f1", scene.answer("f1", on="f"))
    for sequence in (2, 4, 5, 6):
        scene.ask(f"end {sequence}", model, sequence, "e")
    scene.tell_batches(model)


def direct_two_instances(scene: Scene) -> None:
    """Lower slots first, on either instance: which one comes first is not told."""
    model = "sequence_direct_two"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s")
    scene.tell("sizes", sorted(len(batch) for batch in scene.batches(model)))
    scene.send("e1", model, 5, "s", on="backlog")
    scene.submitted(on="backlog")
    scene.tell("d2", scene.ask("d2", model, 4, "e"))
    scene.tell("e1", scene.answer("e1", on="backlog"))
    scene.tell("sizes with backlog", sorted(len(batch) for batch in scene.batches(model)))
    for number in (1, 2, 3, 5):
        scene.ask(f"end {number}", model, number, "e")
    scene.tell_statistics(model, 10)


def direct_delay(scene: Scene) -> None:
    """With three of four slots there is no waiting; alone, a request waits for its delay."""
    model = "sequence_direct_delay"
    for number in (1, 2, 3):
        scene.send(f"start {number}", model, number, "s")
    scene.tell_answers("start 1", "start 2", "start 3")
    scene.tell("alone", scene.ask("end 1", model, 1, "e"))
    scene.tell("alone again", scene.ask("end 2", model, 2, "e"))
    scene.tell("and again", scene.ask("end 3", model, 3, "e"))
    scene.tell("sizes", [len(batch) for batch in scene.batches(model)][-3:])


def unbatched(scene: Scene) -> None:
    model = "sequence_unbatched"
    scene.tell("a1", scene.ask("a1", model, 1, "s", x=5, is_unbatched=True))
    scene.send("b1", model, 2, "se", x=6, is_unbatched=True, on="backlog")
    scene.submitted(on="backlog")
    scene.tell_batches(model, "before")
    scene.tell("a2", scene.ask("a2", model, 1, "e", x=7, is_unbatched=True))
    scene.tell("b1", scene.answer("b1", on="backlog"))
    scene.tell_batches(model)


def oldest(scene: Scene) -> None:
    """Candidates stand in line in the order in which they have something to do; a sequence is in a
    batch once."""
    model = "sequence_oldest"
    for number in (1, 2, 3):
        scene.ask(f"start {number}", model, number, "s")
    scene.send("d1", model, 4, "s", on="backlog")
    scene.submitted(on="backlog")
    gate = scene.gate()
    scene.send("busy", model, 1, go=gate)
    gate.wait_entered()
    for id, sequence in (("c2", 3), ("b2", 2), ("c3", 3)):
        scene.send(id, model, sequence)
    scene.submitted()
    gate.open()
    scene.tell_answers("busy", "c2", "b2", "c3")
    scene.tell("a2", scene.ask("a2", model, 1, "e"))
    scene.tell("d1", scene.answer("d1", on="backlog"))
    for sequence in (2, 3, 4):
        scene.ask(f"end {sequence}", model, sequence, "e")
    scene.tell_batches(model)


def oldest_delay(scene: Scene) -> None:
    """Preferred sizes 2 and 4: two go at once, a third waits for its delay, and so does a single
    request."""
    model = "sequence_oldest_delay"
    for number in (1, 2, 3):
        scene.send(f"start {number}", model, number, "s")
    scene.tell_answers("start 1", "start 2", "start 3")
    scene.tell_batches(model)
    scene.tell("a2", scene.ask("a2", model, 1, "e"))
    scene.tell_batches(model)
    scene.send("b2", model, 2, "e")
    scene.send("c2", model, 3, "e")
    scene.tell_answers("b2", "c2")
    scene.tell_batches(model)


def controls(scene: Scene) -> None:
    """Every data type, and values other than 0 and 1; the id is cut to 32 bits."""
    model = "sequence_types"
    scene.ask("a1", model, 2**40 + 3, "s")
    scene.ask("b1", model, 7, "s")
    scene.ask("a2", model, 2**40 + 3, "e")
    scene.ask("b2", model, 7, "e")
    scene.tell("batches", scene.batches(model)[0])
    scene.batches(model)


def no_controls(scene: Scene) -> None:
    """Ids of both kinds beside each other; null requests look like any other."""
    model = "sequence_plain"
    scene.ask("a1", model, 1, "s")
    scene.ask("b1", model, "one", "s")
    scene.ask("b2", model, "one", "e")
    scene.ask("a2", model, 1, "e")
    scene.tell_batches(model)


def refused(scene: Scene) -> None:
    model = "sequence_direct"
    scene.tell("no id", scene.ask("a", model, 0))
    scene.tell("no start", scene.ask("b", model, 9))
    scene.tell("no start, end", scene.ask("c", model, 9, "e"))
    scene.tell("batch", scene.ask("d", model, 9, "s", batch_size=2))
    scene.tell("long id", scene.ask("e", model, "x" * 129, "s"))
    scene.tell("alone", scene.ask("f", model, 9, "se"))
    scene.tell("after its end", scene.ask("g", model, 9))
    scene.tell_batches(model)


def start_again(scene: Scene) -> None:
    """START on an open sequence begins it anew in its slot; after END its id is free at once, also
    while that waits."""
    model = "sequence_direct"
    scene.ask("a1", model, 1, "s")
    scene.ask("b1", model, 2, "s")
    scene.tell("again", scene.ask("b2", model, 2, "s"))
    gate = scene.gate()
    scene.send("busy", model, 1, go=gate)
    gate.wait_entered()
    for id, flags in (("a2", "e"), ("a3", "s"), ("a4", "e")):
        scene.send(id, model, 1, flags)
    scene.submitted()
    gate.open()
    scene.tell_answers("busy", "a2", "a3", "a4")
    scene.ask("b3", model, 2, "e")
    scene.tell_batches(model)


def variable_shapes(scene: Scene) -> None:
    """What does not fit the first slot's shape, or has other optional inputs, waits; its slot is
    null meanwhile."""
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
    scene.submitted()
    gate.open()
    scene.tell_answers("busy", "a2", "b2", "c2", "d2")
    scene.tell_batches(model)


def variable_shapes_oldest(scene: Scene) -> None:
    """In line: a batch ends where the next one does not fit."""
    model = "sequence_variable_oldest"
    for number in (1, 2, 3, 4):
        scene.ask(f"start {number}", model, number, "s", x=[number, number])
    gate = scene.gate()
    scene.send("busy", model, 1, x=[1, 1], go=gate)
    gate.wait_entered()
    scene.send("b2", model, 2, "e", x=[1, 1, 1])
    scene.send("d2", model, 4, "e", x=[1, 1, 1])
    scene.send("c2", model, 3, "e", x=[1, 1], go=None)
    scene.submitted()
    gate.open()
    scene.tell_answers("busy", "b2", "c2", "d2")
    scene.tell("a2", scene.ask("a2", model, 1, "e", x=[1, 1]))
    scene.tell_batches(model)


def idle(scene: Scene) -> None:
    """An idle sequence is forgotten, and its slot goes to the backlog."""
    for model in ("sequence_one_slot", "sequence_one_candidate"):
        scene.ask("a1", model, 1, "s")
        scene.tell("backlog", scene.ask("b1", model, 2, "se"))
        scene.tell("forgotten", scene.ask("a2", model, 1))
        scene.tell_batches(model)


def backlog_timeout(scene: Scene) -> None:
    """The shortest `timeout` among its requests ends a sequence that has no slot yet; in a slot it
    means nothing."""
    for model in ("sequence_one_slot", "sequence_one_candidate"):
        gate = scene.gate()
        scene.send("a1", model, 1, "s", go=gate)
        gate.wait_entered()
        scene.send("a2", model, 1, "e", timeout=50_000)
        scene.send("b1", model, 2, "s", on="backlog")
        scene.send("b2", model, 2, timeout=100_000, on="backlog")
        scene.tell("first", scene.answer("b1", on="backlog"))
        scene.tell("second", scene.answer("b2", on="backlog"))
        scene.tell("gone", scene.ask("b3", model, 2, on="backlog"))
        gate.open()
        scene.tell_answers("a1", "a2")
        scene.tell_batches(model)


def decoupled(scene: Scene) -> None:
    """The next request goes when `execute` has returned, not when the answers are over; so does the
    next sequence."""
    for model in ("sequence_decoupled", "sequence_decoupled_direct"):
        scene.count_from_here(model)
        gate = scene.gate()
        scene.send("a1", model, 1, "s", x=2, go=gate)
        gate.wait_entered()
        scene.tell("overtakes", scene.ask("a2", model, 1, x=1))
        scene.tell("ends", scene.ask("a3", model, 1, "e", x=0))
        scene.wait_executions(model, 3)
        scene.tell("the same id", scene.ask("b1", model, 1, "se", x=1))
        gate.open()
        scene.tell_answers("a1")
        scene.tell_batches(model)


def iterative(scene: Scene) -> None:
    """One request is a whole sequence: the model asks for it again."""
    for model in ("sequence_iterative", "sequence_iterative_decoupled"):
        scene.count_from_here(model)
        scene.tell("without an id", scene.ask("a", model, x=3))
        scene.wait_executions(model, 3)
        scene.tell("with an id", scene.ask("b", model, 5, "s", x=2))
        scene.wait_executions(model, 5)
        scene.tell("at once", scene.ask("d", model, x=1))
        scene.wait_executions(model, 6)
        scene.tell_batches(model)


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
