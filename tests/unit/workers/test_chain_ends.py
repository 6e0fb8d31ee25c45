from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from naiad.core.tensor import Tensor
from naiad.core.tensor_form import TensorForm
from naiad.core.work import WorkError, WorkRequest, WorkResponse
from naiad.workers.chain_ends import Inlet, Outlet
from naiad.workers.direct_calls import MAX_PACKET_BYTES

FORM = TensorForm([("A", "UINT8", [1, 2], 2), ("B", "UINT8", [1, 1], 1)], ["Q", "P"], [1, 0], 1)


class Ends:
    def __init__(self, form: TensorForm = FORM) -> None:
        self.reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.outlet = Outlet(form, ["Y"], writer.detach())
        self.inlet = Inlet(7, self.reader.dup().detach())

    def close(self) -> None:
        self.reader.close()
        self.outlet.close()
        self.inlet.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def answer(a: bytes = b"ab", b: bytes = b"c") -> WorkResponse:
    return WorkResponse([Tensor("A", "UINT8", [1, len(a)], a), Tensor("B", "UINT8", [1, len(b)], b)])


def names(response: WorkResponse) -> list[str]:
    return [tensor.name for tensor in response.outputs]


def test_answers_arrive_as_requests_for_the_next_step(ends: Ends) -> None:
    requests = [WorkRequest(3, "one", [], ["A"], {"p": 1}, "sequence", 1, 5, 6), WorkRequest(4, "two", [], ["A"])]
    assert ends.outlet.send(2, [(1, 2, 3)], requests, [answer(), answer(b"xy", b"z")])
    passed = ends.inlet.read()
    assert passed is not None
    assert (passed.batch, passed.legs) == (2, [(1, 2, 3)])
    first, second = passed.requests
    assert (first.handle, first.id, first.parameters, first.correlation_id, first.flags) == (3, "one", {"p": 1}, "sequence", 1)
    assert (first.timeout_us, first.priority, first.requested_outputs) == (5, 6, ["Y"])
    assert [(tensor.name, bytes(tensor.data)) for tensor in first.inputs] == [("Q", b"c"), ("P", b"ab")]
    assert (second.handle, second.id, [bytes(tensor.data) for tensor in second.inputs]) == (4, "two", [b"z", b"xy"])
    first.inputs[1].data[0] = 0  # type: ignore[index]  # models may write to what they are given


@pytest.mark.parametrize(
    "odd",
    [
        None,
        WorkResponse(error=WorkError("INTERNAL", "no")),
        WorkResponse(answer().outputs, parameters={"mark": 1}),
        WorkResponse(is_rescheduled=True),
        answer(b"abc"),
        WorkResponse(answer().outputs[:1]),
    ],
)
def test_what_is_out_of_the_ordinary_is_not_sent_nor_touched(ends: Ends, odd: WorkResponse | None) -> None:
    good = answer()
    assert not ends.outlet.send(1, [], [WorkRequest(1, "", []), WorkRequest(2, "", [])], [good, odd])
    assert names(good) == ["A", "B"]
    assert ends.outlet.send(2, [], [WorkRequest(1, "", [])], [good])
    passed = ends.inlet.read()
    assert passed is not None
    assert passed.batch == 2


def test_once_it_is_recalled_nothing_can_be_sent_and_what_was_is_read(ends: Ends) -> None:
    assert ends.outlet.send(1, [], [WorkRequest(1, "", [])], [answer()])
    ends.reader.shutdown(socket.SHUT_RD)
    late = answer()
    assert not ends.outlet.send(2, [], [WorkRequest(2, "", [])], [late])
    assert names(late) == ["A", "B"]
    passed = ends.inlet.read()
    assert passed is not None
    assert passed.batch == 1
    assert ends.inlet.read() is None


def test_it_never_waits_for_a_reader() -> None:
    ends = Ends(TensorForm([("A", "UINT8", [1, 50_000], 50_000)], ["P"], None, 1))
    count = 0
    while True:
        large = WorkResponse([Tensor("A", "UINT8", [1, 50_000], bytes(50_000))])
        if not ends.outlet.send(count, [], [WorkRequest(1, "", [])], [large]):
            break
        count += 1
        assert count < 1000
    assert names(large) == ["A"]
    for number in range(count):
        passed = ends.inlet.read()
        assert passed is not None
        assert passed.batch == number
    ends.close()


def test_more_than_a_packet_is_the_servers_to_carry() -> None:
    size = MAX_PACKET_BYTES + 1
    ends = Ends(TensorForm([("A", "UINT8", [1, size], size)], ["P"], None, 1))
    large = WorkResponse([Tensor("A", "UINT8", [1, size], bytes(size))])
    assert not ends.outlet.send(1, [], [WorkRequest(1, "", [])], [large])
    assert names(large) == ["A"]
    ends.close()


def test_a_worker_before_that_is_gone_or_talks_nonsense_ends_it(ends: Ends) -> None:
    ends.outlet.close()
    assert ends.inlet.read() is None
    other = Ends()
    other.outlet._sock.send(b"\xc1")
    assert other.inlet.read() is None
    other.close()
