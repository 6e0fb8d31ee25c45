"""The message for the client and the lines for the log after an exception."""

from __future__ import annotations

import sys

import pytest

from naiad.backends.python.model_fault import client_message, log_lines, place


def failing(message: object) -> Exception:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def line_of(error: BaseException) -> int:
    assert error.__traceback__ is not None
    return error.__traceback__.tb_lineno


def test_message_for_the_client() -> None:
    error = failing("bad")
    assert (
        client_message(error)
        == f"ValueError: bad\n\nAt:\n  test_model_fault.py({line_of(error)}): failing\n"
    )
    assert client_message(KeyError("x")) == "KeyError: 'x'"
    assert client_message(KeyboardInterrupt()) == "KeyboardInterrupt: <EMPTY MESSAGE>"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no file /srv/models/m/1/weights.bin", "no file weights.bin"),
        ("in /srv/models/m", "in m"),
        (f"cannot import {sys.prefix}/lib/x.so", "cannot import lib/x.so"),
        ("<object at 0x7f50aceda570>", "<object>"),
        ("status 0x1f, path /v2/models", "status 0x1f, path /v2/models"),
        ("undecodable \udc80", "undecodable ?"),
    ],
)
def test_removes_paths_and_addresses_of_the_server(message: str, shown: str) -> None:
    assert (
        client_message(ValueError(message), ("/srv/models/m/1", "/srv/models/m", ""))
        == f"ValueError: {shown}"
    )


def test_message_of_an_exception_without_text() -> None:
    class Odd(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    assert client_message(Odd()) == "Odd: <MESSAGE UNAVAILABLE>"


def test_the_log_gets_the_traceback() -> None:
    error = failing("bad")
    lines = log_lines(error)
    assert lines.startswith("Traceback (most recent call last):")
    assert __file__ in lines
    assert lines.endswith("ValueError: bad")
    assert place(error) == ("test_model_fault.py", line_of(error))
    assert place(ValueError()) == ("backend.py", 0)


def test_long_tracebacks_keep_their_end() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("at the bottom")
        deeper(levels - 1)

    def deeper(levels: int) -> None:
        deep(levels)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        deep(50)
    lines = log_lines(caught.value).splitlines()
    assert len(lines) == 20
    assert lines[-1] == "ValueError: at the bottom"
