"""load_model, unload_model, is_model_ready, get_model_dir."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.backends.python import pb_utils
from naiad.backends.python.error import TritonModelException
from naiad.backends.python.instance import Instance
from naiad.errors import unavailable
from naiad.ipc.work import ControlOperation
from tests.unit.backends.fake_runtime import FakeRuntime


def test_operations(instance: Instance, runtime: FakeRuntime) -> None:
    pb_utils.load_model("a")
    pb_utils.load_model(model_name="b", config="{}", files={"file:1/model.py": b"x"})
    pb_utils.unload_model("a", unload_dependents=True)
    assert pb_utils.is_model_ready("a", "3") is True
    runtime.is_model_ready = False
    assert pb_utils.is_model_ready(model_name="a") is False
    assert runtime.controls == [
        ControlOperation("load_model", "a"),
        ControlOperation("load_model", "b", config="{}", files={"file:1/model.py": b"x"}),
        ControlOperation("unload_model", "a", unload_dependents=True),
        ControlOperation("is_model_ready", "a", model_version="3"),
        ControlOperation("is_model_ready", "a"),
    ]


def test_text_may_be_utf8_bytes(instance: Instance, runtime: FakeRuntime) -> None:
    pb_utils.load_model("grün".encode(), config=b"{}", files={b"file:1/model.py": b"x"})
    pb_utils.unload_model(b"a")
    pb_utils.is_model_ready(b"a", bytearray(b"3"))  # type: ignore[arg-type]
    assert runtime.controls == [
        ControlOperation("load_model", "grün", config="{}", files={"file:1/model.py": b"x"}),
        ControlOperation("unload_model", "a"),
        ControlOperation("is_model_ready", "a", model_version="3"),
    ]
    with pytest.raises(UnicodeDecodeError):
        pb_utils.load_model(b"\xff")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("load_model", "Failed to load model"),
        ("unload_model", "Failed to unload model"),
        ("is_model_ready", "Failed to check model readiness"),
    ],
)
def test_reports_errors_of_the_server(
    instance: Instance, runtime: FakeRuntime, function: str, message: str
) -> None:
    runtime.rejection = unavailable("not now")
    with pytest.raises(TritonModelException) as caught:
        getattr(pb_utils, function)("a")
    assert (
        str(caught.value)
        == f"{message}: Failed to process the request for model 'm_0', message: not now"
    )


def test_rejects_wrong_arguments(instance: Instance) -> None:
    with pytest.raises(TritonModelException) as caught:
        pb_utils.load_model("a", files=5)
    assert (
        str(caught.value)
        == "failed to load model 'a', files should be a dictionary of file paths and file contents"
    )
    with pytest.raises(TypeError, match="Object of type 'str' is not an instance of 'bytes'"):
        pb_utils.load_model("a", files={"file:x": "text"})
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        ("load_model", (5,)),
        ("unload_model", (5,)),
        ("is_model_ready", ("a", 1)),
    ]
    for function, arguments in wrong:
        with pytest.raises(TypeError, match=rf"{function}\(\): incompatible function arguments"):
            getattr(pb_utils, function)(*arguments)


def test_model_dir(instance: Instance) -> None:
    assert pb_utils.get_model_dir() == "/models/m/1"


def test_rejects_operations_before_an_instance_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(TritonModelException, match="the model instance is not loaded"):
        pb_utils.load_model("a")
    with pytest.raises(TritonModelException, match="the model instance is not loaded"):
        pb_utils.MetricFamily("a", "b", pb_utils.MetricFamily.COUNTER)
    pb_utils.Logger.log_warn("early")
    assert capsys.readouterr().err.endswith("] early\n")
