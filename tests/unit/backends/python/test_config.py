"""ModelConfig: the fields that a model may complete, and the exact text of every error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from naiad.backends.python.config import ModelConfig, completed_config


def config(**more: Any) -> ModelConfig:
    return ModelConfig(
        json.dumps({"name": "m", "max_batch_size": 4, "input": [], "output": [], **more})
    )


def tensor(**more: Any) -> dict[str, Any]:
    return {"name": "X", "data_type": "TYPE_FP32", "dims": [1], **more}


def test_completing_an_empty_config() -> None:
    made = config()
    made.set_max_batch_size(8)
    made.add_input(tensor(optional=True))
    made.add_output(tensor(name="Y"))
    made.set_dynamic_batching()
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "input": [tensor(optional=True)],
        "output": [tensor(name="Y")],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }


def test_completes_missing_properties() -> None:
    made = config(
        input=[{"name": "X", "data_type": "TYPE_INVALID", "dims": [], "format": "FORMAT_NONE"}],
        dynamic_batching={"a": 1},
    )
    made.add_input(tensor())
    assert made.as_dict()["input"] == [{**tensor(), "format": "FORMAT_NONE"}]
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {"a": 1}
    made.set_model_transaction_policy({})
    assert made.as_dict()["model_transaction_policy"] == {}


IN = "in auto-complete-config function for model 'm'"
OTHER = "contains property other than 'name', 'data_type'"


@pytest.mark.parametrize(
    ("known", "change", "message"),
    [
        (
            {},
            lambda c: c.set_max_batch_size(2),
            "configuration specified max_batch_size 4, but in auto-complete-config function for "
            "model 'm' specified max_batch_size 2",
        ),
        (
            {"sequence_batching": {}},
            lambda c: c.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'sequence_batching', but "
            "auto-complete-config function for model 'm' tries to "
            "set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {},
            lambda c: c.add_input(tensor(bogus=1)),
            f"input 'X' {IN} {OTHER}, 'dims' and 'optional'.",
        ),
        ({}, lambda c: c.add_output(tensor(optional=True)), f"output 'X' {IN} {OTHER} and 'dims'."),
        (
            {},
            lambda c: c.add_input({"data_type": "TYPE_FP32", "dims": [1]}),
            f"input {IN} is missing 'name' property.",
        ),
        (
            {},
            lambda c: c.add_input({"name": "X", "dims": [1]}),
            f"input 'X' {IN} is missing 'data_type' property.",
        ),
        (
            {},
            lambda c: c.add_output({"name": "Y", "data_type": "TYPE_FP32"}),
            f"output 'Y' {IN} is missing 'dims' property.",
        ),
        (
            {"input": [tensor()]},
            lambda c: c.add_input(tensor(data_type="TYPE_INT8")),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'X', "
            "model provides TYPE_INT8",
        ),
        (
            {"output": [tensor()]},
            lambda c: c.add_output(tensor(dims=[2])),
            "model 'm', tensor 'X': the model expects dims [2] but the model configuration "
            "specifies dims [1]",
        ),
        (
            {"input": [tensor(optional=True)]},
            lambda c: c.add_input(tensor(optional=False)),
            "model 'm', tensor 'X': the model expects optional False but the model configuration "
            "specifies optional True",
        ),
        (
            {"model_transaction_policy": {"decoupled": True}},
            lambda c: c.set_model_transaction_policy({"decoupled": False}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is "
            "already set to 'True'.",
        ),
        (
            {},
            lambda c: c.set_model_transaction_policy({"x": 1}),
            f"model transaction property {IN} contains property other than 'decoupled'.",
        ),
    ],
)
def test_rejects_contradictions(
    known: dict[str, Any], change: Callable[[ModelConfig], None], message: str
) -> None:
    with pytest.raises(ValueError, match="model 'm'") as caught:
        change(config(**known))
    assert str(caught.value) == message


def test_ignores_changes_of_other_fields() -> None:
    original = json.dumps({"name": "m", "max_batch_size": 0, "parameters": {}}).encode()
    made = ModelConfig(original)
    made.as_dict().update(name="other", parameters={"a": 1}, instance_group=[1], max_batch_size=3)
    assert json.loads(completed_config(original, made)) == {
        "name": "m",
        "max_batch_size": 3,
        "parameters": {},
    }
