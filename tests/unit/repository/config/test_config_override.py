"""The configuration of a load request: protobuf's JSON, with all problems reported at once."""

from __future__ import annotations

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.pb.model_config_pb2 import TYPE_FP32, ModelConfig, ModelInstanceGroup
from naiad.repository.config.config_override import parse_override, parse_override_dict
from naiad.repository.config.problem import InvalidConfigError, Problem


def problems(text: str) -> list[Problem]:
    with pytest.raises(InvalidConfigError) as raised:
        parse_override(text)
    assert raised.value.message.startswith("Invalid config override: ")
    return raised.value.problems


def test_numbers_may_be_strings_and_enums_any_case() -> None:
    config = parse_override(
        '{"max_batch_size":"8","input":[{"name":"x","data_type":"type_fp32","dims":["16",4.0,-1]}],'
        '"instance_group":[{"kind":2,"count":"1"}],"dynamic_batching":{"maxQueueDelayMicroseconds":"18446744073709551615"},'
        '"version_policy":null,"parameters":{"a":{"string_value":"b"}},"metric_tags":{"k":"v"}}'
    )
    assert config.max_batch_size == 8
    assert config.input[0].data_type == TYPE_FP32
    assert list(config.input[0].dims) == [16, 4, -1]
    assert config.instance_group[0].kind == ModelInstanceGroup.KIND_CPU
    assert config.dynamic_batching.max_queue_delay_microseconds == 2**64 - 1
    assert not config.HasField("version_policy")
    assert config.parameters["a"].string_value == "b"
    assert dict(config.metric_tags) == {"k": "v"}


def test_integer_map_keys_and_floats() -> None:
    config = parse_override_dict(
        {
            "dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": 3}}},
            "model_metrics": {
                "metric_control": [{"histogram_options": {"buckets": [1, "2.5", "Infinity"]}}]
            },
        }
    )
    assert config.dynamic_batching.priority_queue_policy[1].max_queue_size == 3
    assert list(config.model_metrics.metric_control[0].histogram_options.buckets) == [
        1,
        2.5,
        float("inf"),
    ]


@pytest.mark.parametrize(
    ("text", "code", "path", "fix"),
    [
        (
            '{"max_batchsize": 1}',
            "unknown-field",
            "max_batchsize",
            "did you mean 'max_batch_size'?",
        ),
        ('{"input": [{"shape": [1]}]}', "unknown-field", "input[0].shape", "did you mean 'dims'?"),
        ('{"max_batch_size": "eight"}', "wrong-type", "max_batch_size", ""),
        ('{"max_batch_size": 1.5}', "wrong-type", "max_batch_size", ""),
        ('{"max_batch_size": true}', "wrong-type", "max_batch_size", ""),
        ('{"max_batch_size": "1_0"}', "wrong-type", "max_batch_size", ""),
        ('{"max_batch_size": "NaN"}', "wrong-type", "max_batch_size", ""),
        ('{"max_batch_size": 4294967296}', "out-of-range", "max_batch_size", ""),
        ('{"name": 1}', "wrong-type", "name", ""),
        ('{"input": {"name": "x"}}', "wrong-type", "input", 'write [{"name":"x"}]'),
        ('{"input": ["x"]}', "wrong-type", "input[0]", ""),
        ('{"dynamic_batching": true}', "wrong-type", "dynamic_batching", ""),
        (
            '{"input": [{"data_type": "TYPE_FLOAT"}]}',
            "unknown-value",
            "input[0].data_type",
            "did you mean TYPE_FP32?",
        ),
        ('{"input": [{"optional": "true"}]}', "wrong-type", "input[0].optional", ""),
        ('{"parameters": []}', "wrong-type", "parameters", ""),
        ('{"parameters": {"a": "b"}}', "wrong-type", 'parameters["a"]', ""),
        ('{"metric_tags": {"a": 1}}', "wrong-type", 'metric_tags["a"]', ""),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}',
            "wrong-type",
            'dynamic_batching.priority_queue_policy["x"]',
            "",
        ),
        (
            '{"dynamic_batching": {}, "sequence_batching": {}}',
            "oneof",
            "sequence_batching",
            "remove one of the two",
        ),
        ("[]", "wrong-type", "", ""),
    ],
)
def test_wrong_values(text: str, code: str, path: str, fix: str) -> None:
    (reported,) = problems(text)
    assert (reported.code, reported.path, reported.fix) == (code, path, fix)
    assert reported.found
    assert reported.expected


@pytest.mark.parametrize(
    "text", ["", "{", "{'a': 1}", '{"name": "\\ud800"}', "\x00", "[" * 100_000]
)
def test_invalid_json_is_refused(text: str) -> None:
    assert problems(text)[0].code == "bad-json"


def test_all_problems_are_reported() -> None:
    assert [
        reported.code
        for reported in problems('{"x": 1, "max_batch_size": "a", "input": [{"dims": ["b"]}]}')
    ] == [
        "unknown-field",
        "wrong-type",
        "wrong-type",
    ]


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": NAMES,
            "max_batch_size": st.integers(-(2**31), 2**31 - 1),
            "input": st.lists(
                st.fixed_dictionaries(
                    {"name": NAMES},
                    optional={
                        "dims": st.lists(st.integers(-(2**63), 2**63 - 1)),
                        "data_type": st.just(3),
                    },
                )
            ),
            "parameters": st.dictionaries(NAMES, st.fixed_dictionaries({"string_value": NAMES})),
            "dynamic_batching": st.fixed_dictionaries(
                {"max_queue_delay_microseconds": st.integers(0, 2**64 - 1)}
            ),
            "optimization": st.fixed_dictionaries(
                {"cuda": st.fixed_dictionaries({"graphs": st.booleans()})}
            ),
        },
    )
)
def test_reads_as_protobufs_own_json(document: dict[str, object]) -> None:
    expected = json_format.ParseDict(document, ModelConfig())
    assert parse_override_dict(document) == expected


def test_the_number_of_reported_problems_is_limited() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse_override_dict({f"oops{i}": 1 for i in range(10_000)})
    assert len(raised.value.problems) == 100


def test_rejects_text_that_is_not_unicode() -> None:
    with pytest.raises(InvalidConfigError, match="not valid JSON"):
        parse_override('{"name": "\ud800"}')
