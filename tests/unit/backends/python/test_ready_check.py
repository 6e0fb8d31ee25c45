"""A model's `is_ready`: sync and async hooks, and wrong results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from naiad.backends.python.instance import Instance
from naiad.backends.python.ready_check import ReadyCheck
from tests.unit.backends.fake_runtime import FakeRuntime


def sync(result: Any) -> Callable[[], Any]:
    return lambda: result


def awaited(result: Any) -> Callable[[], Any]:
    async def hook() -> Any:
        await asyncio.sleep(0)
        return result

    return hook


@pytest.mark.parametrize("kind", [sync, awaited])
@pytest.mark.parametrize(
    ("result", "expected"), [(True, True), (False, False), (1, False), (None, False)]
)
def test_returns_the_result_of_the_hook(
    instance: Instance, runtime: FakeRuntime, kind: Any, result: Any, expected: bool
) -> None:
    check = ReadyCheck(kind(result), instance)
    assert check.check() is expected
    assert asyncio.run(check.check_async()) is expected
    wrong = not isinstance(result, bool)
    assert [("must return a boolean value" in message) for _, message, _, _ in runtime.logged] == [
        True,
        True,
    ] * wrong


def raising() -> bool:
    raise ValueError("engine died")


async def raising_async() -> bool:
    return raising()


@pytest.mark.parametrize("hook", [raising, raising_async])
def test_an_exception_means_not_ready(instance: Instance, runtime: FakeRuntime, hook: Any) -> None:
    check = ReadyCheck(hook, instance)
    assert check.check() is False
    assert asyncio.run(check.check_async()) is False
    assert all(
        "ValueError: engine died" in message and file == "test_ready_check.py"
        for _, message, file, _ in runtime.logged
    )
    assert len(runtime.logged) == 2
