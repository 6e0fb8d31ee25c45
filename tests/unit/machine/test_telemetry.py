"""Reports of libraries are switched off, unless the operator has chosen."""

from __future__ import annotations

import sys

import pytest

from naiad.machine.telemetry import OFF, OPENVINO, switch_off_telemetry


def test_every_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OPENVINO, raising=False)
    environ: dict[str, str] = {}
    switch_off_telemetry(environ)
    assert environ == OFF
    with pytest.raises(ModuleNotFoundError):
        __import__(OPENVINO)


def test_what_the_operator_has_set_stays() -> None:
    environ = {"ORT_DISABLE_TELEMETRY": "0"}
    switch_off_telemetry(environ)
    assert environ == {**OFF, "ORT_DISABLE_TELEMETRY": "0"}
