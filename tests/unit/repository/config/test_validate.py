"""Validation rules beyond the cases of tests/repositories/broken, which contain the exact
messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.config.validate import require_valid, validate_config
from naiad.repository.model import build_spec
from naiad.repository.model_source import ModelSources, Override
from naiad.repository.store import LocalStore

GOOD = """
name: "m" backend: "python" max_batch_size: 8 version_policy { latest { num_versions: 1 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ 2, 2, -1 ] } } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } } ]
instance_group [ { name: "g" kind: KIND_CPU count: 1 } ]
"""


def messages(text: str, options: ConfigOptions | None = None) -> list[str]:
    parsed = parse_text(GOOD + text, ModelConfig, "m/config.pbtxt")
    return [
        problem.message
        for problem in validate_config(parsed.message, lines=parsed.lines, options=options)
    ]


def test_a_valid_configuration_has_no_problems() -> None:
    assert messages("") == []


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { preferred_batch_size: [ 1, 8 ] preserve_ordering: true "
        "priority_levels: 1 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: "
        "DELAY } }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
        "priority_queue_policy { key: 1 } }",
        "sequence_batching { direct { minimum_slot_utilization: 1.0 } }",
        'sequence_batching { control_input { name: "c" control { kind: '
        "CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }",
        'batch_input { kind: BATCH_ITEM_SHAPE target_name: "t" data_type: TYPE_FP32 '
        'source_input: "x" }',
        'batch_output { target_name: "y" source_input: "x" }',
        'model_metrics { metric_control { metric_identifier { family: "f" } '
        "histogram_options { buckets: 1 } } }",
        'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: '
        "TYPE_FP32 dims: [ 4, 1 ] zero_data: true } } }",
        "response_cache { enable: true }",
        'output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }',
    ],
)
def test_unusual_but_valid_configurations(text: str) -> None:
    assert messages(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'instance_group { name: "h" kind: KIND_GPU }',
            "instance group h of model m has kind KIND_GPU but specifies no GPUs",
        ),
        (
            'instance_group { name: "h" kind: KIND_GPU gpus: [ 0, 5 ] }',
            "instance group h of model m specifies invalid or unsupported gpu id 5. GPUs "
            "with at least the minimum required CUDA compute "
            "compatibility of 6.000000 are: 0, 1",
        ),
        (
            'instance_group { name: "h" kind: KIND_MODEL gpus: 0 }',
            "instance group h of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            'instance_group { name: "h" kind: KIND_CPU profile: "1" }',
            "instance group h of model m and platform specifies profile field which is only "
            "supported for TensorRT models",
        ),
        (
            "output { name: 'z' data_type: 77 dims: 1 }",
            "model output 'z' must specify 'data_type' for m",
        ),
        (
            "output { name: 'z' data_type: TYPE_BOOL dims: 2 reshape { } }",
            "model output 'z' has different size for dims and reshape for m",
        ),
        (
            "output { name: 'z' data_type: TYPE_BOOL dims: [ 4 ] reshape { shape: [ -1 ] } }",
            "model output 'z' has different size for dims and reshape for m",
        ),
        (
            "output { name: 'z' data_type: TYPE_BOOL dims: [ 2, -1, 3 ] reshape { shape: [ "
            "3, -1, 2 ] } }",
            "model output 'z' has different size for dims and reshape for m",
        ),
        (
            "output { name: 'z' data_type: TYPE_BOOL dims: 1 reshape { shape: 0 } }",
            "model output 'z' reshape dimensions must be integer >= 1, or -1 to indicate a "
            "variable-size dimension for m",
        ),
        (
            "output { name: 'z' data_type: TYPE_BOOL dims: 1 is_non_linear_format_io: true }",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
        (
            "sequence_batching { oldest { preferred_batch_size: 9 } }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            "sequence_batching { oldest { preferred_batch_size: 0 } }",
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "sequence_batching { control_input { } }",
            "sequence batching control tensor must have a name for m",
        ),
        (
            "sequence_batching { control_input { name: 'c' } control_input { name: 'c' } }",
            "sequence batching control tensor 'c' is specified for multiple control kinds for m",
        ),
        (
            "sequence_batching { control_input { name: 'c' control { kind: "
            "CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 "
            "int32_false_true: [ 0, 1 ] } } }",
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
            "or 'bool_false_true' "
            "for CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            "sequence_batching { state { input_name: 's' data_type: TYPE_FP32 dims: -1 "
            "initial_state { name: 'i' data_type: TYPE_FP32 dims: -1 zero_data: true } } }",
            "'initial_state' field for state input name 's' contains variable dimensions.",
        ),
        (
            "sequence_batching { state { input_name: 's' initial_state { name: 'i' } "
            "initial_state { name: 'j' } } }",
            "initial_state field for state input 's' must contain exactly one or zero "
            "element. Found '2' elements.",
        ),
        (
            "sequence_batching { state { input_name: 's' initial_state { name: 'i' } } "
            "state { input_name: 's' initial_state { name: 'i' } } }",
            "State input name 's' specified more than once.",
        ),
        (
            "model_metrics { metric_control { metric_identifier { } } }",
            "metric identifier must specify non-empty 'family'",
        ),
    ],
)
def test_rules(text: str, message: str) -> None:
    assert message in messages(text, ConfigOptions(gpus=(0, 1)))


def test_a_bare_configuration() -> None:
    assert [problem.message for problem in validate_config(ModelConfig())] == [
        "model configuration must specify 'name'",
        "unexpected platform type '' for ",
        "must specify 'version policy' for ",
        "must specify one or more 'instance group's for ",
    ]


def test_an_ensemble_has_no_backend() -> None:
    config = parse_text('name: "e" platform: "ensemble" backend: "python"', ModelConfig, "").message
    assert (
        validate_config(config)[0].message
        == "Ensemble model 'e' must have platform type 'ensemble' and empty backend type"
    )


def test_a_failed_load_begins_with_tritons_message(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").touch()
    (tmp_path / "m" / "config.pbtxt").write_text(
        "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [ 8, 0 ] }"
    )
    options = ConfigOptions()
    file = read_model_config(tmp_path / "m", options=options)
    with pytest.raises(InvalidConfigError) as raised:
        require_valid(file, options)
    assert raised.value.message == (
        "dynamic batching preferred size must be <= max batch size for m (m/config.pbtxt:2; "
        "raise max_batch_size to 8 or remove 8 here); "
        "and 1 more"
    )


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/labels.txt", "1/../../labels.txt"])
def test_rejects_files_outside_the_models_folder(name: str) -> None:
    expected = [f"'{name}' is not inside the folder of model 'm'"]
    assert messages(f'default_model_filename: "{name}"') == expected
    assert messages(f'cc_model_filenames {{ key: "8.0" value: "{name}" }}') == expected
    labels = f'output [ {{ name: "z" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "{name}" }} ]'
    assert messages(labels) == expected


def test_accepts_files_in_folders_of_the_model() -> None:
    assert messages('default_model_filename: "weights/model.py"') == []


def test_file_names_are_checked_before_the_model_completes_its_config(tmp_path: Path) -> None:
    """A Python model may complete its config, so all other rules wait until its code has run."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "python" default_model_filename: "../../../evil.py"'
    )
    sources = ModelSources([LocalStore(tmp_path)], ConfigOptions())
    with pytest.raises(InvalidConfigError, match=r"'\.\./\.\./\.\./evil\.py' is not inside"):
        sources.read("m", sources.stores[0], Override(None, None))


def test_reads_no_labels_outside_the_models_folder(tmp_path: Path) -> None:
    text = (
        GOOD
        + 'output [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "/etc/passwd" } ]'
    )
    config = parse_text(text, ModelConfig, "m/config.pbtxt").message
    with pytest.raises(NaiadError, match="not inside the model's folder"):
        build_spec(config, 1, [1], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dynamic_batching { priority_levels: 10001 default_priority_level: 1 }",
            "dynamic batching has 10001 priority levels for m; the server keeps a queue for each, "
            "and allows 10000",
        ),
        (
            "sequence_batching { oldest { max_candidate_sequences: 1048577 } }",
            "an instance of m would hold 1048577 sequences; the server allows 1048576",
        ),
        (
            "sequence_batching { oldest { max_candidate_sequences: -1 } }",
            "an instance of m would hold -1 sequences; the server allows 1048576",
        ),
    ],
)
def test_numbers_that_would_fill_the_memory_are_refused(text: str, message: str) -> None:
    assert messages(text) == [message]


def test_the_slots_of_a_direct_model_are_its_batch_size() -> None:
    text = GOOD.replace("max_batch_size: 8", "max_batch_size: 2000000")
    parsed = parse_text(text + "sequence_batching { direct { } }", ModelConfig, "m/config.pbtxt")
    (problem,) = validate_config(parsed.message, lines=parsed.lines)
    assert problem.path == "max_batch_size"
    assert problem.message.startswith("an instance of m would hold 2000000 sequences")
