from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.settings import value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("TRUE", True),
        ("On", True),
        ("1", True),
        ("false", False),
        ("OFF", False),
        ("0", False),
    ],
)
def test_booleans(text: str, expected: bool) -> None:
    assert value.boolean(text) is expected


@pytest.mark.parametrize("text", ["", "yes", "2", " true"])
def test_rejects_text_that_is_not_a_boolean(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid value for bool option: {text}$"):
        value.boolean(text)


@settings(deadline=None)
@given(st.integers(-(2**31), 2**31 - 1))
def test_integers(number: int) -> None:
    assert value.integer(str(number)) == number


@pytest.mark.parametrize("text", ["", "abc", "on", "1.5", "3x", "1_000", "0x10"])
def test_rejects_text_that_is_not_an_integer(text: str) -> None:
    with pytest.raises(ValueError, match=f"^Invalid option value. Got {text}$"):
        value.integer(text)


def test_rejects_an_integer_out_of_bounds() -> None:
    with pytest.raises(
        ValueError, match=r"^Provided option value is out of bound. Got 99999999999$"
    ):
        value.integer("99999999999")
    assert value.byte_count("99999999999") == 99_999_999_999


@pytest.mark.parametrize("text", ["nan", "inf", "x", "", "1_0"])
def test_rejects_text_that_is_not_a_finite_number(text: str) -> None:
    with pytest.raises(ValueError, match=f"^Invalid option value. Got {text}$"):
        value.real(text)


def test_verbose_level_accepts_true_like_triton() -> None:
    assert value.verbose_level("true") == 1
    assert value.verbose_level("3") == 3
    with pytest.raises(ValueError, match="Got on"):
        value.verbose_level("on")


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (
            value.port,
            "70000",
            "Provided option value is out of bound. Got 70000, expected from 0 to 65535",
        ),
        (
            value.port,
            "-5",
            "Provided option value is out of bound. Got -5, expected from 0 to 65535",
        ),
        (
            value.at_least(1, value.integer),
            "0",
            "Provided option value is out of bound. Got 0, expected at least 1",
        ),
        (
            value.above_zero,
            "0",
            "Provided option value is out of bound. Got 0, expected more than 0",
        ),
        (value.log_format, "iso8601", "invalid argument for --log-format"),
        (value.choice("rate-limit", "off"), "on", "invalid argument for --rate-limit"),
        (value.model_config_name, "", "Error: empty argument for --model-config-name"),
        (value.http_max_input_size, "0", "Error: --http-max-input-size must be greater than 0."),
        (
            value.grpc_infer_thread_count,
            "1",
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        ),
        (
            value.pattern,
            "[",
            "Invalid regular expression: unterminated character set at position 0. Got [",
        ),
        (value.trace_level, "FOO", "invalid value for trace level option: foo"),
    ],
)
def test_error_messages(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        parse(text)
    assert str(failure.value) == message


def test_choices_are_case_insensitive() -> None:
    assert value.choice("model-control-mode", "explicit")("EXPLICIT") == "explicit"
    assert value.trace_level("min") == "TIMESTAMPS"


@pytest.mark.parametrize("text", ["", "x-.*", "(?-i)X-.*"])
def test_patterns(text: str) -> None:
    assert value.pattern(text) == text
