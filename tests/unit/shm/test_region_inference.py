"""Requests with tensors in regions, from the lookup to the response: small and large tensors,
rejected, cancelled and failed requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from naiad import log
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.shm.region import SYSTEM
from naiad.shm.region_inference import MAX_INLINE_BYTES, infer_with_regions
from naiad.shm.region_table import RegionTable
from tests.unit.shm.shared_object import SharedObject, shared_object

LARGE = MAX_INLINE_BYTES + 1
SIZE = 4 * LARGE


class Rig:
    def __init__(self, memory: SharedObject) -> None:
        self.memory = memory
        self.table = RegionTable(is_allowed=True)
        self.table.register_system("r", memory.key, 0, SIZE)
        self.requests: list[InferRequest] = []
        self.inner = ResponseStream()
        self.rejection: NaiadError | None = None
        self.events: list[tuple[InferResponse | None, bool]] = []
        self.is_final = asyncio.Event()

    def infer(self, request: InferRequest) -> ResponseStream:
        self.requests.append(request)
        if self.rejection is not None:
            raise self.rejection
        return self.inner

    def start(self, input_bytes: int, output_bytes: int = 0) -> ResponseStream:
        outputs = {"OUT": RegionSlice("r", 2 * LARGE, output_bytes)} if output_bytes else {}
        request = InferRequest("m", [Tensor("IN", "UINT8", [input_bytes], b"")], id="7")
        request.regions = RegionUse([(0, RegionSlice("r", 0, input_bytes))], outputs)
        stream = infer_with_regions(request, self.table, self.infer, self.allocate)
        stream.deliver_to(self.take)
        return stream

    def allocate(self, num_bytes: int) -> memoryview | None:
        return memoryview(bytearray(num_bytes)) if num_bytes > 100 else None

    def take(self, response: InferResponse | None, is_final: bool) -> None:
        self.events.append((response, is_final))
        if is_final:
            self.is_final.set()

    def respond(self, *tensors: Tensor, is_final: bool = True, **more: Any) -> None:
        self.inner.put(InferResponse("m", "1", "7", list(tensors), **more), is_final)

    def is_released(self) -> bool:
        self.table.unregister(SYSTEM)
        return self.table.status(SYSTEM) == []


@pytest.fixture
def rig() -> Iterator[Rig]:
    with shared_object(b"abcd" * (SIZE // 4 + 1)) as memory:
        made = Rig(memory)
        yield made
        made.table.close()


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


class TestSmall:
    async def test_copies_small_tensors_at_once(self, rig: Rig) -> None:
        rig.start(4, 8)
        assert rig.requests[0].inputs[0].data == b"abcd"
        assert rig.requests[0].regions is None
        rig.respond(Tensor("OUT", "UINT8", [3], b"xyz"), parameters={"p": 1})
        ((response, is_final),) = rig.events
        assert is_final
        assert response is not None
        assert (response.outputs[0].data, response.outputs[0].shape, response.parameters) == (
            b"",
            [3],
            {"p": 1},
        )
        assert rig.memory.read(3, 2 * LARGE) == b"xyz"
        assert rig.is_released()

    async def test_releases_the_regions_of_a_rejected_request(self, rig: Rig) -> None:
        rig.rejection = invalid_arg("no")
        with pytest.raises(NaiadError, match="no"):
            rig.start(4)
        assert rig.is_released()

    async def test_rejects_a_region_that_has_shrunk(self, rig: Rig) -> None:
        rig.memory.truncate(0)
        with pytest.raises(NaiadError, match="smaller now"):
            rig.start(4)
        assert rig.requests == []
        assert rig.is_released()

    async def test_reports_an_output_that_cannot_be_written(self, rig: Rig) -> None:
        rig.start(4, 8)
        rig.memory.truncate(0)
        rig.respond(Tensor("OUT", "UINT8", [3], b"xyz"))
        ((response, is_final),) = rig.events
        assert is_final
        assert response is not None
        assert response.error is not None
        assert response.error.code is Code.INVALID_ARG
        assert rig.is_released()

    async def test_passes_on_the_error_of_the_model(self, rig: Rig) -> None:
        rig.start(4, 8)
        rig.inner.fail(invalid_arg("broken"))
        assert rig.events[0][0] is not None
        assert rig.events[0][0].error is not None
        assert rig.is_released()

    async def test_passes_cancellation_and_pauses_to_the_model(self, rig: Rig) -> None:
        seen: list[object] = []
        stream = rig.start(4)
        rig.inner.on_cancel(seen.append, "cancelled")
        rig.inner.on_flow(seen.append)
        stream.pause()
        stream.cancel()
        assert seen == [True, "cancelled"]
        rig.inner.close()
        assert rig.events == [(None, True)]
        assert rig.is_released()


class TestLarge:
    async def test_copies_large_tensors_in_a_thread(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: set[str] = set()
        read = rig.table._entries["", "r"].region.read_into

        def read_into(*arguments: Any) -> None:
            threads.add(threading.current_thread().name)
            read(*arguments)

        monkeypatch.setattr(rig.table._entries["", "r"].region, "read_into", read_into)
        rig.start(LARGE, LARGE)
        assert rig.requests == []
        await wait_for(lambda: rig.requests)
        assert bytes(rig.requests[0].inputs[0].data[:8]) == b"abcdabcd"
        rig.respond(Tensor("OUT", "UINT8", [LARGE], b"z" * LARGE))
        assert rig.events == []
        await rig.is_final.wait()
        assert rig.memory.read(LARGE, 2 * LARGE) == b"z" * LARGE
        assert all(name.startswith("naiad-region") for name in threads)
        assert rig.is_released()

    async def test_never_copies_slow_regions_on_the_event_loop(self, rig: Rig) -> None:
        rig.table._entries["", "r"].region.is_slow = True
        rig.start(4, 4)
        assert rig.requests == []
        await wait_for(lambda: rig.requests)
        rig.respond(Tensor("OUT", "UINT8", [2], b"hi"))
        assert rig.events == []
        await rig.is_final.wait()
        assert rig.memory.read(2, 2 * LARGE) == b"hi"

    async def test_keeps_the_order_of_responses(self, rig: Rig) -> None:
        rig.start(4, LARGE)
        rig.respond(Tensor("OUT", "UINT8", [LARGE], b"1" * LARGE), is_final=False)
        rig.respond(Tensor("OUT", "UINT8", [1], b"2"), is_final=False)
        rig.inner.close()
        assert rig.events == []
        await rig.is_final.wait()
        assert [
            None if response is None else response.outputs[0].shape for response, _ in rig.events
        ] == [[LARGE], [1], None]
        assert rig.memory.read(2, 2 * LARGE) == b"21"

    async def test_does_not_run_a_request_cancelled_while_its_inputs_are_read(
        self, rig: Rig
    ) -> None:
        stream = rig.start(LARGE)
        stream.cancel()
        await rig.is_final.wait()
        assert rig.requests == []
        assert rig.events[0][0] is not None
        assert rig.events[0][0].error is not None
        assert rig.events[0][0].error.code is Code.CANCELLED
        assert rig.is_released()

    async def test_reports_a_rejection_after_the_inputs_were_read(self, rig: Rig) -> None:
        rig.rejection = invalid_arg("no")
        rig.start(LARGE)
        await rig.is_final.wait()
        assert rig.events[0][0] is not None
        assert rig.events[0][0].error is rig.rejection
        assert rig.is_released()

    async def test_rejects_a_region_that_has_shrunk(self, rig: Rig) -> None:
        rig.memory.truncate(0)
        rig.start(LARGE)
        await rig.is_final.wait()
        assert rig.events[0][0] is not None
        assert rig.events[0][0].error is not None
        assert rig.is_released()

    async def test_an_unexpected_exception_fails_only_the_request(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logged: list[str] = []
        monkeypatch.setattr(log, "error", logged.append)
        monkeypatch.setattr(rig.table._entries["", "r"].region, "read_into", lambda *a: 1 / 0)
        rig.start(LARGE)
        await rig.is_final.wait()
        assert rig.events[0][0] is not None
        assert rig.events[0][0].error is not None
        assert (
            rig.events[0][0].error.message == "the shared memory of the request could not be copied"
        )
        assert "ZeroDivisionError" in logged[0]
        assert rig.is_released()
