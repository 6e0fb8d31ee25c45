"""How an ensemble fits its models, beyond the cases of tests/repositories/broken: optional inputs,
reshapes, decoupled chains, cycles."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.ensemble_fit import (
    cycle_message,
    find_cycle,
    is_decoupled_ensemble,
    validate_ensemble,
)
from naiad.repository.config.pbtxt import parse_text

IO = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "y" data_type: '
    "TYPE_FP32 dims: [ 16 ] } ]"
)


def config(text: str) -> ModelConfig:
    return parse_text(text, ModelConfig, "").message


def step(model: str, inputs: str, outputs: str) -> str:
    def entries(kind: str, text: str) -> str:
        return " ".join(
            f'{kind} {{ key: "{e.split("=")[0]}" value: "{e.split("=")[1]}" }}'
            for e in text.split()
        )

    return (
        f'step {{ model_name: "{model}" model_version: -1 {entries("input_map", inputs)} '
        f"{entries('output_map', outputs)} }}"
    )


def ensemble(*steps: str, max_batch_size: int = 8, io: str = IO) -> ModelConfig:
    return config(
        f'name: "e" platform: "ensemble" max_batch_size: {max_batch_size} {io} '
        f"ensemble_scheduling {{ {' '.join(steps)} }}"
    )


def model(name: str, max_batch_size: int = 8, io: str = IO, decoupled: bool = False) -> ModelConfig:
    return config(
        f'name: "{name}" max_batch_size: {max_batch_size} {io} model_transaction_policy {{ '
        f"decoupled: {str(decoupled).lower()} }}"
    )


def errors(e: ModelConfig, *models: ModelConfig) -> list[str]:
    return [problem.code for problem in validate_ensemble(e, {m.name: m for m in models}).errors]


CHAIN = ensemble(step("a", "x=x", "y=mid"), step("b", "x=mid", "y=y"))


def test_a_valid_ensemble_fits_its_models() -> None:
    fit = validate_ensemble(CHAIN, {"a": model("a"), "b": model("b")})
    assert (fit.errors, fit.doubts) == ([], [])


def test_a_model_that_does_not_batch_may_write_the_batch_dimension_itself() -> None:
    full = IO.replace("[ 16 ]", "[ -1, 16 ]")
    fit = validate_ensemble(CHAIN, {"a": model("a"), "b": model("b", 0, full)})
    assert (fit.errors, fit.doubts) == ([], [])


def test_a_variable_dimension_agrees_with_any() -> None:
    assert errors(CHAIN, model("a"), model("b", io=IO.replace("[ 16 ]", "[ -1 ]"))) == []
    assert errors(CHAIN, model("a"), model("b", io=IO.replace("[ 16 ]", "[ -1, 1 ]"))) == [
        "ensemble-shape",
        "ensemble-shape",
    ]


def test_models_see_the_ensembles_reshape() -> None:
    reshaped = ensemble(
        step("a", "x=x", "y=y"),
        io=IO.replace(
            'x" data_type: TYPE_FP32 dims: [ 16 ]',
            'x" data_type: TYPE_FP32 dims: [ 16 ] reshape { shape: [ 4, 4 ] }',
        ),
    )
    square = IO.replace("[ 16 ]", "[ 4, 4 ]", 1)
    assert errors(reshaped, model("a", io=square)) == []
    assert errors(reshaped, model("a")) == ["ensemble-shape"]


def test_optional_inputs_need_no_tensor() -> None:
    extra = IO + ' input { name: "seed" data_type: TYPE_INT32 dims: 1 optional: true }'
    assert errors(CHAIN, model("a", io=extra), model("b")) == []
    assert errors(CHAIN, model("a", io=extra.replace("optional: true", "")), model("b")) == [
        "ensemble-unmapped"
    ]


def test_missing_models_are_reported_together() -> None:
    (problem,) = validate_ensemble(CHAIN, {"bb": model("bb")}).errors
    assert problem.message == "ensemble e contains models that are not available or ambiguous: a, b"


def test_a_decoupled_step_makes_the_ensemble_decoupled() -> None:
    assert not is_decoupled_ensemble(CHAIN, {"a": model("a"), "b": model("b")})
    assert is_decoupled_ensemble(CHAIN, {"a": model("a"), "b": model("b", decoupled=True)})
    assert errors(CHAIN, model("a", decoupled=True), model("b", decoupled=True)) == []


JOIN = (
    'input [ { name: "p" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "q" data_type: TYPE_FP32 '
    "dims: [ 16 ] } ]"
)
JOIN += ' output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]'


def test_a_step_may_join_two_outputs_of_one_decoupled_step() -> None:
    two = IO + ' output { name: "z" data_type: TYPE_FP32 dims: [ 16 ] }'
    joined = ensemble(step("a", "x=x", "y=p z=q"), step("c", "p=p q=q", "y=y"))
    assert errors(joined, model("a", io=two, decoupled=True), model("c", io=JOIN)) == []


def test_a_step_may_not_join_a_decoupled_step_with_the_request() -> None:
    joined = ensemble(step("a", "x=x", "y=p"), step("c", "p=p q=x", "y=y"))
    assert errors(joined, model("a", decoupled=True), model("c", io=JOIN)) == ["ensemble-decoupled"]
    assert errors(joined, model("a"), model("c", io=JOIN)) == []


def circle(**calls: str) -> dict[str, ModelConfig]:
    return {
        name: ensemble(*(step(called, "x=x", "y=y") for called in calls[name].split()))
        for name in calls
    }


def test_cycles_of_ensembles_are_found() -> None:
    assert find_cycle(circle(a="b", b="c", c="model")) == []
    assert find_cycle(circle(a="b c", b="c", c="m")) == []
    assert find_cycle(circle(a="a")) == ["a"]
    cycle = find_cycle(circle(start="a", a="m b", b="c", c="a"))
    assert cycle == ["a", "b", "c"]
    assert cycle_message(cycle) == "circular dependency between ensembles: a -> ... -> c -> a"


def test_outputs_of_decoupled_and_other_steps_cannot_be_combined() -> None:
    two = IO + ' output { name: "mid" data_type: TYPE_FP32 dims: [ 16 ] }'
    e = ensemble(step("a", "x=x", "y=mid"), step("b", "x=mid", "y=y"), io=two)
    assert errors(e, model("a"), model("b")) == []
    assert errors(e, model("a"), model("b", decoupled=True)) == ["ensemble-decoupled"]
