"""Backends by name: our own, and those of installed packages, whatever they inherit from."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from naiad.backends.backend import Backend
from naiad.ipc.work import LoadArguments
from naiad.worker.import_backend import import_backend

ARGUMENTS = LoadArguments("m", 1, "/nowhere", "m_0", "CPU", 0, b'{"name": "m"}')


def test_a_framework_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "naiad.backends.openvino.backend", raising=False)
    with pytest.raises(
        ModuleNotFoundError, match=r"openvino is not installed: pip install '.*\[openvino\]'"
    ):
        import_backend("openvino")


class PlainBackend:
    """As a package may have written it before `Backend` was a class: it inherits from nothing."""

    def load(self, arguments: LoadArguments, runtime: Any) -> None:
        self.arguments = arguments

    def execute(self, requests: list[Any]) -> list[Any]:
        return [None for _ in requests]

    def unload(self) -> None:
        pass


class AsyncPlainBackend(PlainBackend):
    is_async = True
    has_ready_hook = True

    def complete_config(self, arguments: LoadArguments) -> bytes:
        return b"{}"

    def is_ready(self) -> bool:
        return False


class Unfinished:
    def load(self, arguments: LoadArguments, runtime: Any) -> None:
        pass


not_a_class = PlainBackend()


def installed(monkeypatch: pytest.MonkeyPatch, name: str) -> type[Backend]:
    monkeypatch.setattr(
        "naiad.worker.import_backend.installed_backends", lambda: {"theirs": f"{__name__}:{name}"}
    )
    return import_backend("theirs")


def test_a_backend_that_inherits_from_nothing_gets_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = installed(monkeypatch, "PlainBackend")()
    assert isinstance(backend, PlainBackend)
    assert (backend.is_async, backend.has_ready_hook) == (False, False)
    assert backend.complete_config(ARGUMENTS) == ARGUMENTS.model_config
    assert backend.complete_by_example(ARGUMENTS, []) == ARGUMENTS.model_config
    assert backend.is_ready()
    assert asyncio.run(backend.is_ready_async())
    assert backend.execute([]) == []


def test_the_hooks_of_a_backend_that_inherits_from_nothing_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = installed(monkeypatch, "AsyncPlainBackend")()
    assert (backend.is_async, backend.has_ready_hook) == (True, True)
    assert backend.complete_config(ARGUMENTS) == b"{}"
    assert backend.complete_by_example(ARGUMENTS, []) == b"{}"
    assert not backend.is_ready()
    assert not asyncio.run(backend.is_ready_async())


def test_a_backend_without_execute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"abstract.*execute"):
        installed(monkeypatch, "Unfinished")()


def test_an_entry_point_that_is_no_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"backend 'theirs': .*:not_a_class is not a class"):
        installed(monkeypatch, "not_a_class")
