"""pb_utils.Logger: severity, and the caller's file and line."""

from __future__ import annotations

import inspect

import pytest

from naiad.backends.python.instance import Instance
from naiad.backends.python.log import Logger
from tests.unit.backends.fake_runtime import FakeRuntime


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_logs_severity_file_and_line(instance: Instance, runtime: FakeRuntime) -> None:
    line = here()
    Logger.log("plain")
    Logger.log("chosen", Logger.WARNING)
    Logger.log_info("i")
    Logger.log_warn("w")
    Logger.log_error("e")
    Logger.log_verbose("v")
    assert runtime.logged == [
        ("INFO", "plain", "test_log.py", line + 1),
        ("WARNING", "chosen", "test_log.py", line + 2),
        ("INFO", "i", "test_log.py", line + 3),
        ("WARNING", "w", "test_log.py", line + 4),
        ("ERROR", "e", "test_log.py", line + 5),
        ("VERBOSE", "v", "test_log.py", line + 6),
    ]


def test_a_message_may_be_utf8_bytes(instance: Instance, runtime: FakeRuntime) -> None:
    Logger.log("grün".encode(), Logger.ERROR)
    Logger.log_info(b"plain")
    assert [entry[:2] for entry in runtime.logged] == [("ERROR", "grün"), ("INFO", "plain")]


def test_rejects_wrong_arguments(instance: Instance) -> None:
    with pytest.raises(TypeError, match=r"log_info\(\): incompatible function arguments"):
        Logger.log_info(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"log\(\): incompatible function arguments"):
        Logger.log("x", 2)  # type: ignore[arg-type]
