"""The `wire` of a test: it runs once for each way to reach the server."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import AsyncIterator

import pytest

from naiad.metrics.loop_lag import LoopLag
from tests.wire.wire import Wire, open_wire

NETWORK_WIRES = ("http-json", "http-binary", "grpc", "grpc-stream")


MAX_BUSY_S = 0.25
"""The client and the test itself run on the same loop, and allocate and compare."""


@pytest.fixture(autouse=True)
async def loop_never_stalls(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fails a test in which the event loop computed for long without a pause. Only the processor
    time of the loop's own thread counts, so a busy machine does not matter."""
    if not inspect.iscoroutinefunction(request.function):
        yield  # the test has loops of its own
        return
    lag, collections = LoopLag(asyncio.get_running_loop()), Collections()
    gc.callbacks.append(collections.note)
    lag.start()
    yield
    lag.stop()
    gc.callbacks.remove(collections.note)
    busy_s = lag.max_busy_s - collections.longest_s
    if busy_s > MAX_BUSY_S:
        pytest.fail(f"the event loop computed for {busy_s:.3f} s without a pause")


class Collections:
    """The longest garbage collection: that of a process full of tests is no fault of a server."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._start_s = 0.0

    def note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start_s = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._start_s)


@pytest.fixture(params=[*NETWORK_WIRES, "in-process"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """For behaviour of the core: every way to ask for an inference."""
    async with open_wire(request.param) as opened:
        yield opened


@pytest.fixture(params=NETWORK_WIRES)
async def network_wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """For behaviour of the protocols that the core knows nothing of."""
    async with open_wire(request.param) as opened:
        yield opened


@pytest.fixture(params=NETWORK_WIRES)
def network_wire_name(request: pytest.FixtureRequest) -> str:
    """For tests that open a wire with options of their own (tests.wire.wire.open_wire)."""
    return str(request.param)
