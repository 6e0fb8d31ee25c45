"""Triton's key is asked for in a thread, once, and known when the block ends."""

from __future__ import annotations

import sys
import threading
import types

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")

import torch

from naiad.llm.start.kernel_key import computed_meanwhile


def install(monkeypatch: pytest.MonkeyPatch, **members: object) -> None:
    for name in ("triton", "triton.runtime", "triton.runtime.cache"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules["triton.runtime.cache"]).update(members)


def test_the_key_is_computed_while_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def triton_key() -> str:
        threads.append(threading.current_thread())
        asked.set()
        assert goes_on.wait(30)
        return "key"

    install(monkeypatch, triton_key=triton_key)
    with computed_meanwhile(torch.device("cuda")):
        assert asked.wait(30)
        goes_on.set()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


def test_the_loading_thread_imports_triton_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads that import it at once find it half done."""
    threads: list[threading.Thread] = []

    def import_module(name: str) -> types.ModuleType:
        threads.append(threading.current_thread())
        return sys.modules[name]

    install(monkeypatch, triton_key=lambda: "key")
    monkeypatch.setattr("naiad.llm.start.kernel_key.importlib.import_module", import_module)
    with computed_meanwhile(torch.device("cuda")):
        assert threads == [threading.current_thread()]
    assert len(threads) == 1


def test_without_a_gpu_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    install(monkeypatch, triton_key=lambda: asked.append(1))
    with computed_meanwhile(torch.device("cpu")):
        pass
    assert not asked


def test_ignores_a_triton_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with computed_meanwhile(torch.device("cuda")):
        pass


def test_a_failing_load_waits_for_the_thread_and_keeps_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, triton_key=lambda: "key")
    with pytest.raises(ValueError, match="no weights"), computed_meanwhile(torch.device("cuda")):
        raise ValueError("no weights")
    assert not any(thread.name == "triton-key" for thread in threading.enumerate())
