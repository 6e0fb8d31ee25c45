"""Ensembles: which steps run with which inputs, missing tensors, failures, and several
responses."""

from __future__ import annotations

import json

from tests.scenarios.scene import Scene

STEPS = ("step_a", "step_b", "step_c")


def _record_steps(scene: Scene, *steps: str) -> None:
    for step in steps or STEPS:
        scene.record_batches(step, step)


def fork(scene: Scene) -> None:
    """Steps get the request's id, parameters and timeout. A step is asked only for the outputs that
    the ensemble uses."""
    scene.record(
        "two", scene.ask("r1", "ensemble_fork", x=5, batch_size=2, input_name="IN", go=None)
    )
    _record_steps(scene)
    scene.ask(
        "r2",
        "ensemble_fork",
        x=5,
        input_name="IN",
        go=None,
        timeout=9_000_000,
        priority=3,
        parameters={"note": "v", "n": 7},
    )
    for step in STEPS:
        ((request,),) = scene.batches(step)
        scene.record(
            step, [request["id"], request["timeout"], request["parameters"], request["wanted"]]
        )


def some_outputs(scene: Scene) -> None:
    """Only the steps that the requested outputs need are run."""
    for output in ("OUT", "TENFOLD"):
        scene.record(
            output,
            scene.ask(output, "ensemble_fork", x=5, input_name="IN", go=None, outputs=[output]),
        )
        _record_steps(scene)


def failures(scene: Scene) -> None:
    for step in STEPS:
        scene.record(
            step,
            scene.ask(
                step, "ensemble_fork", x=1, input_name="IN", go=None, parameters={"fail": step}
            ),
        )
    scene.record(
        "nested",
        scene.ask(
            "nested",
            "ensemble_nested",
            x=1,
            input_name="IN",
            go=None,
            parameters={"fail": "step_b"},
        ),
    )
    for step in STEPS:
        scene.batches(step)


def left_out(scene: Scene) -> None:
    """If a step omits an output, the response lacks it. A later step that requires it fails; a
    later step to which it is optional runs."""
    scene.record(
        "of the answer",
        scene.ask(
            "a", "ensemble_fork", x=1, input_name="IN", go=None, parameters={"skip": "step_b"}
        ),
    )
    scene.record(
        "of a step",
        scene.ask(
            "b", "ensemble_fork", x=1, input_name="IN", go=None, parameters={"skip": "step_a"}
        ),
    )
    scene.record("all there", scene.ask("c", "ensemble_absent", x=1, input_name="IN", go=None))
    scene.record(
        "optional",
        scene.ask(
            "d", "ensemble_absent", x=1, input_name="IN", go=None, parameters={"skip": "step_b"}
        ),
    )
    scene.record_batches("step_optional")


def optional_inputs(scene: Scene) -> None:
    scene.record("without", scene.ask("a", "ensemble_optional", x=1, input_name="IN", go=None))
    scene.record(
        "with",
        scene.ask("b", "ensemble_optional", x=1, input_name="IN", go=None, more={"EXTRA": 50}),
    )
    scene.record_batches("step_optional")


def nested(scene: Scene) -> None:
    scene.record("answer", scene.ask("n", "ensemble_nested", x=1, input_name="IN", go=None))
    _record_steps(scene)


def reshaped(scene: Scene) -> None:
    scene.send("r", "ensemble_reshaped", x=[1, 2, 3, 4], input_name="IN", go=None)
    scene.record("answer", scene.response("r"))
    scene.record_batches("step_reshaped")
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    (output,) = json.loads(scene.server.post("/v2/models/ensemble_reshaped/infer", body)[1])[
        "outputs"
    ]
    scene.record("shape", output["shape"])
    scene.batches("step_reshaped")


def sequences(scene: Scene) -> None:
    """Steps get the sequence of the ensemble's request."""
    for id, flags in (("a1", "s"), ("a2", "e"), ("a3", "")):
        scene.record(
            id, scene.ask(id, "ensemble_sequence", 7, flags, x=1, input_name="IN", go=None)
        )
    scene.record("no id", scene.ask("b", "ensemble_sequence", x=1, input_name="IN", go=None))
    scene.record_batches("step_sequence")
    body = {
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
        "parameters": {"sequence_id": 8, "sequence_start": True, "sequence_end": True},
    }
    response = json.loads(scene.server.post("/v2/models/ensemble_sequence/infer", body)[1])
    scene.record("parameters", response["parameters"])


def many(scene: Scene) -> None:
    """Each response of a decoupled step runs the steps after it."""
    for id, count, parameters in (("a", 2, {}), ("b", 0, {}), ("c", 2, {"together": True})):
        scene.record(
            id,
            scene.ask(
                id, "ensemble_many", x=count - 1, input_name="IN", go=None, parameters=parameters
            ),
        )
    scene.record("nothing", scene.ask("d", "ensemble_many", x=-1, input_name="IN", go=None))
    scene.record("twice", scene.ask("e", "ensemble_many_twice", x=4, input_name="IN", go=None))
    scene.record(
        "fails",
        scene.ask("f", "ensemble_many", x=0, input_name="IN", go=None, parameters={"fail_at": 0}),
    )
    scene.record(
        "fails later",
        scene.ask(
            "g", "ensemble_many", x=0, input_name="IN", go=None, parameters={"fail": "step_b"}
        ),
    )


def statistics(scene: Scene) -> None:
    """An ensemble has its own statistics, and so does each step."""
    model = "ensemble_gated"
    scene.count_from_here(model, "step_gated")
    for number in range(3):
        scene.ask(str(number), model, x=1, batch_size=1 + number % 2, input_name="IN")
    scene.record_statistics(model, 3)
    scene.record_statistics("step_gated", 3)


SCENARIOS = [
    fork,
    some_outputs,
    failures,
    left_out,
    optional_inputs,
    nested,
    reshaped,
    sequences,
    many,
    statistics,
]
