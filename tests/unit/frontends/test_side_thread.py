"""The thread for work that would hold the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from naiad.errors import NaiadError, internal, invalid_arg
from naiad.frontends.side_thread import SideThread, client_error


async def outcome(side: SideThread, work: Any) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    side.run(work, done.set_result, done.set_result)
    return await asyncio.wait_for(done, 10)


async def test_returns_results_and_errors_on_the_loop() -> None:
    side = SideThread()
    assert await outcome(side, threading.get_ident) != threading.get_ident()

    def fail() -> None:
        raise invalid_arg("no")

    error = await outcome(side, fail)
    assert isinstance(error, NaiadError)
    assert error.message == "no"
    assert error.__traceback__ is None, "a traceback would keep the request"
    side.stop()


async def test_keeps_the_order() -> None:
    side = SideThread()
    seen: list[Any] = []
    for number in range(20):
        side.run(lambda number=number: number, seen.append, seen.append)  # type: ignore[misc]
    await outcome(side, lambda: None)
    assert seen == list(range(20))
    side.stop()


async def test_calls_nobody_after_stop() -> None:
    side = SideThread()
    seen: list[Any] = []
    started, go_on = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go_on.wait(10)
        return "late"

    side.run(work, seen.append, seen.append)
    await asyncio.to_thread(started.wait, 10)
    side.stop()
    go_on.set()
    await asyncio.to_thread(side.join, 10)
    await asyncio.sleep(0)
    assert seen == []


async def test_a_callback_that_fails_does_not_end_the_thread() -> None:
    side = SideThread()

    def fail(_: object) -> None:
        raise ValueError("a bug")

    side.run(lambda: 1, fail, fail)
    assert await outcome(side, lambda: 2) == 2
    side.stop()


def test_clients_do_not_see_errors_of_the_codec_itself() -> None:
    assert client_error(invalid_arg("bad"), "x").message == "bad"
    assert client_error(KeyError("secret"), "x").message == internal("internal error").message


@pytest.fixture(autouse=True)
def quiet_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naiad.log.error", lambda message: None)
