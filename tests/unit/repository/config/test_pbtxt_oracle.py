"""Compares our text parser with protobuf's own: both accept the same texts and give equal messages.

Where protobuf's Python parser accepts more than its C++ parser (which Triton uses), ours follows
C++: see test_pbtxt.py.
"""

from __future__ import annotations

import warnings

from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from tests.unit.repository.config.text_strategies import config_texts, damaged_texts

LARGE = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def protobufs_answer(text: str) -> ModelConfig | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return text_format.Parse(text, ModelConfig())
        except (text_format.ParseError, ValueError):
            return None


def our_result(text: str) -> ModelConfig | None:
    try:
        return parse_text(text, ModelConfig, "m/config.pbtxt").message
    except InvalidConfigError as error:
        problems = error.problems
    assert all(problem.position and problem.found and problem.expected for problem in problems), (
        problems
    )
    return None


def assert_same(text: str) -> None:
    expected, got = protobufs_answer(text), our_result(text)
    if expected is None or got is None:
        assert got is expected
    else:
        # Deterministic bytes instead of ==: NaN is not equal to itself.
        assert got.SerializeToString(deterministic=True) == expected.SerializeToString(
            deterministic=True
        )


@LARGE
@given(config_texts())
def test_every_style_of_writing_gives_the_same_message(text: str) -> None:
    assert_same(text)


@LARGE
@given(damaged_texts())
def test_damaged_texts_give_the_same_result(text: str) -> None:
    assert_same(text)


@LARGE
@given(st.text(st.sampled_from(list("{}<>[]:,; \n#\"'\\-x1.")), max_size=30))
def test_random_text_never_crashes_the_parser(text: str) -> None:
    our_result(text)


@LARGE
@given(config_texts())
def test_text_that_protobuf_prints_is_read_back(text: str) -> None:
    config = our_result(text)
    if config is not None:
        for printed in (
            text_format.MessageToString(config),
            text_format.MessageToString(config, as_one_line=True, as_utf8=True),
        ):
            again = our_result(printed)
            assert again is not None
            assert again.SerializeToString(deterministic=True) == config.SerializeToString(
                deterministic=True
            )
