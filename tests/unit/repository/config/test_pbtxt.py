"""The text parser: what users of Triton write, the position of each field, and the messages for
texts that cannot be parsed."""

from __future__ import annotations

import math

import pytest

from naiad.errors import Code
from naiad.pb.model_config_pb2 import TYPE_FP32, ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError, Problem
from naiad.repository.config.source_map import Position


def parse(text: str) -> ModelConfig:
    return parse_text(text, ModelConfig, "m/config.pbtxt").message


def problems(text: str) -> list[Problem]:
    with pytest.raises(InvalidConfigError) as raised:
        parse(text)
    assert raised.value.code is Code.INVALID_ARG
    return raised.value.problems


def problem(text: str) -> Problem:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


TENSORRT_LLM_STYLE = """
name: "ensemble"   # a comment
platform: "ensemble"
max_batch_size: 0x8
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] },
  {
    name: 'end' '_id',
    data_type: TYPE_INT32;
    dims: 1
    optional: true
  }
]
output: < name: "text_output" data_type: 13 dims: [ -1, - 1 ] >
output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
ensemble_scheduling {
  step [
    {
      model_name: "preprocessing"
      model_version: -1
      input_map { key: "QUERY" value: "text_input" },
      input_map { key: "END_ID" value: "end_id" },
      output_map { key: "OUT" value: "text_output" }
    }
  ]
}
parameters: { key: "gpt_model_path" value: { string_value: "${engine_dir}" } }
parameters [ { key: "a" value { string_value: "1" } }, { key: "b" value { string_value: "2" } } ]
"""


def test_configurations_from_real_repositories() -> None:
    config = parse(TENSORRT_LLM_STYLE)
    assert [i.name for i in config.input] == ["text_input", "end_id"]
    assert config.max_batch_size == 8
    assert list(config.output[0].dims) == [-1, -1]
    assert len(config.output) == 2
    assert dict(config.ensemble_scheduling.step[0].input_map) == {
        "QUERY": "text_input",
        "END_ID": "end_id",
    }
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "gpt_model_path": "${engine_dir}",
        "a": "1",
        "b": "2",
    }


def test_every_field_has_a_position() -> None:
    lines = parse_text(TENSORRT_LLM_STYLE, ModelConfig, "m/config.pbtxt").lines
    assert lines.position("max_batch_size") == Position(4, 1)
    assert lines.position("input[1]") == Position(7, 3)
    assert lines.position("input[1].dims[0]") == Position(10, 11)
    assert lines.position("output[0].dims[1]") == Position(14, 57)
    assert lines.position("output[1].name") == Position(15, 10)
    assert lines.position('ensemble_scheduling.step[0].input_map["END_ID"]') == Position(22, 17)
    assert lines.position('parameters["b"].string_value') == Position(28, 75)


def test_a_missing_field_has_the_position_of_the_message_around_it() -> None:
    lines = parse_text(TENSORRT_LLM_STYLE, ModelConfig, "m/config.pbtxt").lines
    assert lines.position("input[1].reshape.shape[0]") == lines.position("input[1]")
    assert lines.position('ensemble_scheduling.step[0].output_map["a.b\\"]["]') == lines.position(
        "ensemble_scheduling.step[0].output_map"
    )
    assert lines.position("dynamic_batching.preferred_batch_size[0]") is None
    assert "input[1].reshape" not in lines
    assert "input[1].name" in lines


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("-inf", -math.inf),
        ("INFINITY", math.inf),
        ("1.5f", 1.5),
        ("3", 3.0),
        (".5e1", 5.0),
        ("1e39", math.inf),
    ],
)
def test_floats(literal: str, value: float) -> None:
    config = parse(f"sequence_batching {{ direct {{ minimum_slot_utilization: {literal} }} }}")
    assert config.sequence_batching.direct.minimum_slot_utilization == value


def test_nan_is_read() -> None:
    assert math.isnan(
        parse(
            "sequence_batching { direct { minimum_slot_utilization: nan } }"
        ).sequence_batching.direct.minimum_slot_utilization
    )


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r'"\n\r\t\a\b\f\v\?\\\'\""', "\n\r\t\a\b\f\v?\\'\""),
        (r'"\101\x42\x4"', "AB\x04"),
        (r"'\u00e9\U0001F600'", "é😀"),
        (r'"\303\251"', "é"),
        ("\"it's\" # joined over lines and comments\n  'two'", "it'stwo"),
        ('""', ""),
    ],
)
def test_strings(literal: str, value: str) -> None:
    assert parse(f"name: {literal}").name == value


def test_enums_by_name_and_number() -> None:
    assert parse("input { data_type: 11 }").input[0].data_type == TYPE_FP32
    assert parse("input { data_type: 0xb }").input[0].data_type == TYPE_FP32


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    parsed = parse_text('\ufeffname: "x"\r\nbackend: "python"\r\n', ModelConfig, "m/config.pbtxt")
    assert parsed.message.backend == "python"
    assert parsed.lines.position("backend") == Position(2, 1)


def test_bytes_that_are_not_utf8_are_allowed_in_comments_only() -> None:
    assert parse(b'# caf\xe9\nname: "x"'.decode("utf-8", "surrogateescape")).name == "x"
    assert problem(b'name: "caf\xe9"'.decode("utf-8", "surrogateescape")).code == "bad-string"


def test_a_default_given_twice_passes_as_in_protobuf() -> None:
    assert parse("max_batch_size: 0 max_batch_size: 4").max_batch_size == 4


def test_a_repeated_map_key_is_noted() -> None:
    parsed = parse_text(
        'metric_tags { key: "a" value: "1" }\nmetric_tags { key: "a" value: "2" }',
        ModelConfig,
        "m/config.pbtxt",
    )
    assert dict(parsed.message.metric_tags) == {"a": "2"}
    (note,) = parsed.notes
    assert (note.code, note.position) == ("duplicate-key", Position(2, 13))


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "found", "fix"),
    [
        (
            "max_batchsize: 8",
            "unknown-field",
            1,
            1,
            "max_batchsize",
            "did you mean 'max_batch_size'?",
        ),
        ("\n  inputs [ { name: 'x' } ]", "unknown-field", 2, 3, "inputs", "did you mean 'input'?"),
        ("input { shape: [1] }", "unknown-field", 1, 9, "shape", "did you mean 'dims'?"),
        (
            "max_queue_delay_microseconds: 100",
            "unknown-field",
            1,
            1,
            "max_queue_delay_microseconds",
            "'max_queue_delay_microseconds' belongs in dynamic_batching { } or "
            "sequence_batching.direct { } "
            "or sequence_batching.oldest { }",
        ),
        (
            "decoupled: true",
            "unknown-field",
            1,
            1,
            "decoupled",
            "'decoupled' belongs in model_transaction_policy { }",
        ),
        ("name: resnet", "wrong-type", 1, 7, "resnet", 'write "resnet"'),
        ('max_batch_size: "8"', "wrong-type", 1, 17, '"8"', "leave out the quotes"),
        ("max_batch_size: 8.0", "wrong-type", 1, 17, "8.0", ""),
        ("max_batch_size: 2147483648", "out-of-range", 1, 17, "2147483648", ""),
        ("version_policy { latest { num_versions: -1 } }", "out-of-range", 1, 41, "-1", ""),
        ("max_batch_size: 08", "wrong-type", 1, 17, "08", "write 8"),
        (
            "input { data_type: TYPE_FLOAT32 }",
            "unknown-value",
            1,
            20,
            "TYPE_FLOAT32",
            "did you mean TYPE_FP32?",
        ),
        ("input { data_type: FP16 }", "unknown-value", 1, 20, "FP16", "did you mean TYPE_FP16?"),
        (
            'input { data_type: "TYPE_FP32" }',
            "unknown-value",
            1,
            20,
            '"TYPE_FP32"',
            "write TYPE_FP32 without quotes",
        ),
        ("input { optional: yes }", "wrong-type", 1, 19, "yes", ""),
        ('input { optional: "true" }', "wrong-type", 1, 19, '"true"', "write true without quotes"),
        (r'name: "\q"', "bad-string", 1, 7, r"the escape \q", r"write \\ for a backslash"),
        ("name: ['x']", "not-a-list", 1, 7, "a list", "leave out the brackets"),
        ("dynamic_batching: true", "not-a-value", 1, 19, "'true'", "write dynamic_batching { }"),
        (
            "backend: 'a'\nbackend: 'b'",
            "given-twice",
            2,
            1,
            "a second value",
            "remove one of the two (the first is on line 1)",
        ),
        (
            "dynamic_batching {}\nsequence_batching {}",
            "oneof",
            2,
            1,
            "dynamic_batching and sequence_batching",
            "remove one of the two ('dynamic_batching' is on line 1)",
        ),
    ],
)
def test_wrong_values(text: str, code: str, line: int, column: int, found: str, fix: str) -> None:
    reported = problem(text)
    assert (reported.code, reported.position, reported.found, reported.fix) == (
        code,
        Position(line, column),
        found,
        fix,
    )
    assert reported.expected
    assert reported.message.startswith("failed to read text proto from m/config.pbtxt: ")


@pytest.mark.parametrize(
    ("text", "code", "line", "fix"),
    [
        ("input [ { dims: [ 1, ] } ]", "trailing-comma", 1, "remove the ','"),
        ("input { dims [ 1 ] }", "missing-symbol", 1, "write dims: ..."),
        ("name = 'x'", "bad-character", 1, "write ':' between a field's name and its value"),
        ("// comment", "bad-character", 1, "comments start with '#'"),
        ("name: \u201cx\u201d", "bad-character", 1, "replace typographic quotes by \" or '"),
        (
            "max_batch_size: ${triton_max_batch_size}",
            "bad-character",
            1,
            "this looks like a template: fill in its ${variables} first",
        ),
        ("max_batch_size: +1", "bad-character", 1, "remove the '+'"),
        ("name:\u00a0'x'", "bad-character", 1, "replace this special space by an ordinary one"),
        (
            'name: "x',
            "unterminated-string",
            1,
            "close the string; a second quoted string on the next line continues it",
        ),
        ("input {\n\n", "not-closed", 1, "add '}'"),
        ("name: 'x' }", "no-name", 1, "remove this '}', or add the bracket that opens it"),
        ("'name': 'x'", "no-name", 1, "field names are written without quotes, as in name: value"),
        ("name: 'x',,", "no-name", 1, "remove this ','"),
        (
            "input [ {} {} ]",
            "missing-symbol",
            1,
            "put a ',' between two elements, or a ']' at the end",
        ),
        ("max_batch_size:\n", "no-value", 2, ""),
        ("input:\n", "no-value", 2, ""),
        ("max_batch_size: 1x", "bad-number", 1, ""),
        ("nonsense { a: [ }", "missing-symbol", 1, ""),
        ("nonsense { a: [", "not-closed", 1, ""),
    ],
)
def test_syntax_errors(text: str, code: str, line: int, fix: str) -> None:
    reported = problems(text)[-1]
    assert reported.position
    assert (reported.code, reported.position.line, reported.fix) == (code, line, fix)
    assert reported.found
    assert reported.expected


def test_all_wrong_values_are_reported_at_once() -> None:
    found = problems(
        "nme: 'x'\nunknown { a: [1, <b: 'c' 'd'>] } max_batch_size: 1.5\ninput { data_type: "
        "X dims: [1, 'a'] }\n="
    )
    assert [(p.code, p.position.line) for p in found if p.position] == [
        ("unknown-field", 1),
        ("unknown-field", 2),
        ("wrong-type", 2),
        ("unknown-value", 3),
        ("wrong-type", 3),
        ("bad-character", 4),
    ]


def test_the_error_has_the_first_problem_and_the_number_of_others() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse("nme: 'x' foo: 1")
    assert (
        str(raised.value)
        == "failed to read text proto from m/config.pbtxt: ModelConfig has no field named 'nme' "
        "(line 1; did you mean 'name'?); and 1 more"
    )


def test_the_number_of_reported_problems_is_limited() -> None:
    assert len(problems("oops: 1\n" * 10_000)) == 100


def test_long_strings_comments_and_lines_are_read() -> None:
    long = "x" * 1_000_000
    assert parse(f'# {long}\nname: "{long}"').name == long
    (reported,) = problems(f'name: "{long}')
    assert (reported.code, len(reported.found), len(reported.source)) == (
        "unterminated-string",
        60,
        200,
    )
