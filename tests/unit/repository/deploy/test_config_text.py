"""Tests that an edit of a config.pbtxt changes only what was asked for."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.deploy.config_text import edit_text, render_fields, unified_diff
from naiad.repository.deploy.spec import (
    BatchingSpec,
    GroupSpec,
    Source,
    Spec,
    TensorSpec,
    apply_spec,
)

TEXT = """\
# A classifier.
backend: "onnxruntime"  # the only one
max_batch_size: 32
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 32, 32 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
parameters { key: "a" value: { string_value: "1" } }
# Between.
parameters { key: "b" value: { string_value: "2" } }
model_warmup [ { name: "w" batch_size: 1 } ]
"""
SOURCE = Source("repository")


def edited(spec: Spec, text: str = TEXT) -> str:
    old = parse_text(text, ModelConfig, "m/config.pbtxt").message
    new = ModelConfig()
    new.CopyFrom(old)
    apply_spec(spec, new)
    result = edit_text(text, old, new)
    assert parse_text(result, ModelConfig, "m/config.pbtxt").message == new
    return result


def test_a_spec_that_says_nothing_changes_nothing() -> None:
    assert edited(Spec(source=SOURCE)) == TEXT


def test_one_field_is_replaced_in_its_line() -> None:
    assert edited(Spec(source=SOURCE, max_batch_size=4)) == TEXT.replace(
        "max_batch_size: 32", "max_batch_size: 4"
    )


def test_a_tensor_keeps_what_the_form_does_not_show() -> None:
    outputs = [TensorSpec("scores", "FP16", [5, -1])]
    assert edited(Spec(source=SOURCE, outputs=outputs)) == TEXT.replace(
        "TYPE_FP32 dims: [ 10 ]", "TYPE_FP16 dims: [ 5, -1 ]"
    )


def test_new_fields_go_to_the_end_and_removed_ones_leave_no_empty_line() -> None:
    text = edited(
        Spec(
            source=SOURCE,
            batching=BatchingSpec(100, [4, 8]),
            instances=[GroupSpec(2, "KIND_CPU")],
            parameters={"b": "2"},
        )
    )
    assert text == TEXT.replace(
        'parameters { key: "a" value: { string_value: "1" } }\n# Between.\nparameters { key: "b"',
        'parameters { key: "b"',
    ).replace('"2" } }\n', '"2" } }\n# Between.\n') + (
        "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n"
    )


def test_batching_can_be_switched_off() -> None:
    text = edited(Spec(source=SOURCE, batching=False), TEXT + "dynamic_batching { }\n")
    assert text == TEXT


def test_values_that_need_escapes_survive() -> None:
    text = edited(Spec(source=SOURCE, parameters={'k"': 'a\\b\n"c" ä'}))
    assert 'key: "k\\""' in text


def test_a_new_config_is_in_the_order_of_people() -> None:
    config = ModelConfig(backend="python", max_batch_size=8)
    apply_spec(Spec(source=SOURCE, inputs=[TensorSpec("x", "FP32", [])]), config)
    assert render_fields(config) == (
        'backend: "python"\nmax_batch_size: 8\n'
        'input [\n  { name: "x" data_type: TYPE_FP32 dims: [ ] }\n]\n'
    )


def test_the_diff_names_the_file() -> None:
    diff = unified_diff("a: 1\n", "a: 2\n", "m/config.pbtxt")
    assert diff == "--- a/m/config.pbtxt\n+++ b/m/config.pbtxt\n@@ -1 +1 @@\n-a: 1\n+a: 2\n"
