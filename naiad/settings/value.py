"""Parsers for options with a single value: numbers, choices and strings.

In:  the text after `--flag=`.
Out: the value, or ValueError with Triton's message.

naiad.settings.compound parses options that consist of several parts, such as
`<name>,<setting>=<value>`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=float)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class BadValueError(ValueError):
    """The message is Triton's; `expected` says which values there are."""

    def __init__(self, message: str, expected: str) -> None:
        super().__init__(message)
        self.expected = expected


def string(text: str) -> str:
    return text


def boolean(text: str) -> bool:
    word = text.lower()
    if word in ("true", "on", "1"):
        return True
    if word in ("false", "off", "0"):
        return False
    raise BadValueError(f"invalid value for bool option: {text}", "true, on, 1, false, off or 0")


def integer(text: str, largest: int = INT32_MAX) -> int:
    try:
        value = int(text) if "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise BadValueError(f"Invalid option value. Got {text}", "a whole number")
    if not -largest - 1 <= value <= largest:
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return value


def byte_count(text: str) -> int:
    return integer(text, INT64_MAX)


def real(text: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadValueError(f"Invalid option value. Got {text}", "a number")
    return value


def verbose_level(text: str) -> int:
    """Parses a verbose level. Like Triton, accepts `true` for 1."""
    return 1 if text.lower() == "true" else integer(text)


def port(text: str) -> int:
    """Parses a port. With 0 the system chooses a free port; the `Started ... at` log line shows
    it."""
    return between(0, 65535, integer)(text)


def between(low: float, high: float, parse: Callable[[str], T]) -> Callable[[str], T]:
    def parse_bounded(text: str) -> T:
        value = parse(text)
        if not low <= value <= high:
            expected = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ValueError(
                f"Provided option value is out of bound. Got {text}, expected {expected}"
            )
        return value

    return parse_bounded


def at_least(low: float, parse: Callable[[str], T]) -> Callable[[str], T]:
    return between(low, math.inf, parse)


def above_zero(text: str) -> float:
    value = real(text)
    if value <= 0:
        raise ValueError(f"Provided option value is out of bound. Got {text}, expected more than 0")
    return value


def choice(flag: str, *values: str) -> Callable[[str], str]:
    """Returns a parser that accepts one of `values`.

    `flag` is the name in Triton's error message, which has underscores for one of the flags.
    """

    def parse_choice(text: str) -> str:
        if text.lower() not in values:
            raise BadValueError(f"invalid argument for --{flag}", f"one of {', '.join(values)}")
        return text.lower()

    return parse_choice


def log_format(text: str) -> str:
    if text not in ("default", "ISO8601"):
        raise BadValueError("invalid argument for --log-format", "default or ISO8601")
    return text


def model_config_name(text: str) -> str:
    if not text:
        raise ValueError("Error: empty argument for --model-config-name")
    return text


def http_max_input_size(text: str) -> int:
    value = byte_count(text)
    if value <= 0:
        raise ValueError("Error: --http-max-input-size must be greater than 0.")
    return value


def grpc_infer_thread_count(text: str) -> int:
    value = integer(text)
    if not 2 <= value <= 128:
        raise ValueError(
            "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
        )
    return value


def pattern(text: str) -> str:
    """Checks a regular expression. As in RE2, the prefix `(?-i)` makes it case-sensitive."""
    try:
        re.compile(text.removeprefix("(?-i)"))
    except re.error as failure:
        raise ValueError(f"Invalid regular expression: {failure}. Got {text}") from None
    return text


def trace_level(text: str) -> str:
    word = text.upper()
    if word in ("MIN", "MAX"):
        return "TIMESTAMPS"
    if word not in ("OFF", "TIMESTAMPS", "TENSORS"):
        raise BadValueError(
            f"invalid value for trace level option: {text.lower()}", "OFF, TIMESTAMPS or TENSORS"
        )
    return word


def secret(text: str) -> str:
    """The text is never shown in a message."""
    if not text or len(text) > 4096 or not text.isprintable() or text != text.strip():
        raise ValueError("expected 1 to 4096 printable characters without spaces around them")
    return text


def header_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}", text) is None:
        raise BadValueError(f"invalid name of a header: {text}", "a name such as x-goog-api-key")
    return text.lower()


def origin(text: str) -> str:
    if re.fullmatch(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._\[\]:-]{1,260}", text) is None:
        raise BadValueError(
            f"invalid origin: {text}", "an origin such as https://app.example.com, without a path"
        )
    return text.lower()


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise BadValueError(
            f"invalid address or network: {error}", "an address or a network such as 10.0.0.0/8"
        ) from None


def host_name(text: str) -> str:
    if re.fullmatch(r"\*|[A-Za-z0-9._-]{1,253}", text) is None:
        raise BadValueError(f"invalid name of a host: {text}", "a name such as api.example.com")
    return text.lower().rstrip(".")
