"""One read with much work is divided into turns of the event loop."""

from __future__ import annotations

import asyncio
import itertools

from naiad.transport.turn import MAX_TURN_S, Turn
from tests.unit.transport.http1 import http1_rig
from tests.unit.transport.http1.http1_rig import answer, echo, request
from tests.wire.grpc_rig import Rig
from tests.wire.test_grpc_infer import add_sub


def hasty() -> Turn:
    """Time passes whenever somebody asks: a turn has room for about two requests."""
    times = itertools.count(1.0, MAX_TURN_S / 2)
    return Turn(lambda: next(times))


class TestGrpc:
    async def test_calls_of_one_read_are_served_in_turns(self) -> None:
        rig = Rig()
        rig.endpoint.turn = hasty()
        calls = [rig.open("ServerLive", {"x": f"{n}" + "y" * 3000}) for n in range(20)]
        for call in calls:
            rig.send(call, b"", end=True)
        rig.to_server()
        assert 0 < rig.endpoint.counters.streams_total < 15
        assert rig.transport.is_paused
        for _ in range(50):
            await asyncio.sleep(0)
            rig.from_server()
        assert [call.status for call in calls] == [0] * 20
        assert not rig.transport.is_paused
        await rig.close()

    async def test_bytes_that_arrive_meanwhile_are_served_after_those_that_wait(self) -> None:
        rig = Rig()
        rig.endpoint.turn = hasty()
        calls = []
        for part in range(2):
            calls += [rig.open("ServerLive", {"x": f"{part} {n}" + "y" * 3000}) for n in range(20)]
            for call in calls[20 * part :]:
                rig.send(call, b"", end=True)
            rig.to_server()
        for _ in range(50):
            await asyncio.sleep(0)
            rig.from_server()
        assert [call.status for call in calls] == [0] * 40
        await rig.close()

    async def test_requests_of_the_fast_path_wait_too(self) -> None:
        rig = Rig()
        message = add_sub().SerializeToString()
        assert (await rig.unary("ModelInfer", message)).status == 0
        rig.endpoint.turn = hasty()
        calls = []
        for _ in range(3):
            for _ in range(40):
                calls.append(rig.open("ModelInfer"))
                rig.send(calls[-1], message, end=True)
            rig.to_server()
            for _ in range(20):
                await asyncio.sleep(0)
                rig.from_server()
        assert [call.status for call in calls] == [0] * 120
        assert not rig.transport.is_paused
        await rig.close()

    async def test_a_connection_may_end_while_it_waits(self) -> None:
        rig = Rig()
        rig.endpoint.turn = hasty()
        for n in range(20):
            rig.send(rig.open("ServerLive", {"x": f"{n}" + "y" * 3000}), b"", end=True)
        rig.to_server()
        assert rig.transport.is_paused
        rig.protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not rig.endpoint.connections


class TestHttp:
    async def test_pipelined_requests_are_served_in_turns(self) -> None:
        rig = http1_rig.Rig(handle=echo)
        rig.endpoint.turn = hasty()
        rig.feed(b"".join(request(body=b"%d" % n) for n in range(20)))
        written = await rig.written()
        assert 0 < written.count(b"HTTP/1.1") < 10
        for _ in range(50):
            written += await rig.written()
        assert written == b"".join(answer(b"%d" % n) for n in range(20))
        assert not rig.transport.is_paused

    async def test_bytes_that_arrive_meanwhile_are_served_after_those_that_wait(self) -> None:
        rig = http1_rig.Rig(handle=echo)
        rig.endpoint.turn = hasty()
        rig.feed(b"".join(request(body=b"%d" % n) for n in range(10)))
        rig.feed(b"".join(request(body=b"%d" % n) for n in range(10, 20)))
        written = b""
        for _ in range(50):
            written += await rig.written()
        assert written == b"".join(answer(b"%d" % n) for n in range(20))

    async def test_a_connection_may_end_while_it_waits(self) -> None:
        rig = http1_rig.Rig(handle=echo)
        rig.endpoint.turn = hasty()
        rig.feed(b"".join(request(body=b"%d" % n) for n in range(20)))
        rig.lose()
        for _ in range(5):
            await rig.turn()
