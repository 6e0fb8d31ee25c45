"""Both ends of a lease, on a real socket pair, without processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from naiad.core.tensor import Tensor
from naiad.ipc.work import (
    CallRequest,
    DirectCall,
    WorkError,
    WorkRequest,
    WorkResponse,
)
from naiad.worker import direct_calls
from naiad.worker.direct_calls import (
    MAX_DATA_BYTES,
    MAX_PACKET_BYTES,
    BorrowedInstance,
    LentInstance,
    signature_of,
)


def call(
    data: bytes = b"1234", datatype: str = "INT32", shape: list[int] | None = None, **fields: Any
) -> CallRequest:
    return CallRequest(
        "m",
        -1,
        WorkRequest(0, "id", [Tensor("X", datatype, shape or [1], data)], ["Y"], **fields),
        is_repeatable=True,
    )


@pytest.fixture
def ends() -> Iterator[tuple[LentInstance, BorrowedInstance]]:
    lender, borrower = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lent, borrowed = LentInstance(7, lender.detach()), BorrowedInstance(7, "m_0", borrower.detach())
    yield lent, borrowed
    lent.sock.close()
    borrowed.close()


def serve(lent: LentInstance, *responses: WorkResponse | None) -> threading.Thread:
    def answer() -> None:
        for response in responses:
            assert lent.read() is not None
            lent.respond(response, 3)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def ask(borrowed: BorrowedInstance) -> tuple[WorkResponse, DirectCall]:
    answered = borrowed.call(call().request)
    assert answered is not None
    return answered


def test_a_direct_request_gets_its_response(ends: tuple[LentInstance, BorrowedInstance]) -> None:
    lent, borrowed = ends
    lent.input_end_ns = 2
    thread = serve(
        lent,
        WorkResponse([Tensor("Y", "INT32", [1], b"abcd")]),
        WorkResponse(error=WorkError("INVALID_ARG", "no")),
        None,
    )
    response, told = ask(borrowed)
    assert (response.outputs[0].name, response.outputs[0].data) == ("Y", bytearray(b"abcd"))
    assert (told.lease, told.input_end_ns, told.output_start_ns, told.error_code) == (7, 2, 3, "")
    response, told = ask(borrowed)
    assert (response.error, told.error_code) == (WorkError("INVALID_ARG", "no"), "INVALID_ARG")
    assert ask(borrowed)[1].error_code == "INTERNAL"
    thread.join()
    assert not borrowed.is_over()
    assert not borrowed.is_unfit


@pytest.mark.parametrize(
    "size", [MAX_PACKET_BYTES - 1, MAX_PACKET_BYTES, 5 * MAX_PACKET_BYTES, 1_000_000]
)
def test_a_response_in_many_packets(ends: tuple[LentInstance, BorrowedInstance], size: int) -> None:
    lent, borrowed = ends
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    thread = serve(lent, WorkResponse([Tensor("Y", "UINT8", [size], data)]))
    assert ask(borrowed)[0].outputs[0].data == data
    thread.join()
    assert borrowed.is_unfit


def test_requests_sent_before_the_recall_are_read_and_none_after_it(
    ends: tuple[LentInstance, BorrowedInstance],
) -> None:
    lent, borrowed = ends
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(borrowed.call(call().request)))
    thread.start()
    assert lent.sock.recv(1, socket.MSG_PEEK)
    lent.sock.shutdown(socket.SHUT_RD)  # as the server does
    last = lent.read()
    assert last is not None
    assert last.id == "id"
    assert lent.read() is None
    lent.end()
    lent.respond(WorkResponse(), 3)
    thread.join()
    assert answers[0][0] == WorkResponse()
    assert borrowed.call(call().request) is None
    assert borrowed.is_over()


def test_nothing_was_sent_before_the_end(ends: tuple[LentInstance, BorrowedInstance]) -> None:
    lent, borrowed = ends
    lent.sock.shutdown(socket.SHUT_RD)
    assert lent.read() is None
    lent.end()
    assert borrowed.is_over()
    assert borrowed.call(call().request) is None


def test_the_lender_dies_over_a_request(ends: tuple[LentInstance, BorrowedInstance]) -> None:
    lent, borrowed = ends

    def die() -> None:
        lent.read()
        lent.sock.close()

    thread = threading.Thread(target=die)
    thread.start()
    response, told = ask(borrowed)
    thread.join()
    assert response.error is not None
    assert (
        response.error.message
        == "Failed to process the request(s) for model instance 'm_0', message: its worker "
        "process ended"
    )
    assert told.error_code == "INTERNAL"
    assert borrowed.is_over()


def test_the_borrower_is_gone(ends: tuple[LentInstance, BorrowedInstance]) -> None:
    lent, borrowed = ends
    borrowed.close()
    assert lent.read() is None
    lent.respond(WorkResponse(), 0)


def test_nonsense_from_the_borrower_ends_the_lease(
    ends: tuple[LentInstance, BorrowedInstance],
) -> None:
    lent, borrowed = ends
    borrowed._sock.send(b"\xc1 nonsense")
    assert lent.read() is None


def test_which_calls_have_the_same_signature() -> None:
    assert signature_of(call()) == signature_of(call(b"abcd"))
    assert signature_of(call()) != signature_of(call(shape=[1, 1]))
    assert signature_of(call()) != signature_of(call(datatype="FP32"))
    other_outputs = call()
    other_outputs.request.requested_outputs = ["Z"]
    assert signature_of(call()) != signature_of(other_outputs)
    special: list[dict[str, Any]] = [
        {"correlation_id": 3},
        {"flags": 1},
        {"timeout_us": 5},
        {"priority": 1},
        {"trace_id": 9},
    ]
    for field in special:
        assert signature_of(call(**field)) is None
    assert signature_of(call(datatype="BYTES")) is None
    assert signature_of(call(bytes(MAX_DATA_BYTES), "UINT8", [MAX_DATA_BYTES])) is not None
    assert signature_of(call(bytes(MAX_DATA_BYTES + 1), "UINT8", [MAX_DATA_BYTES + 1])) is None


@pytest.mark.parametrize(
    "packets",
    [
        [b"\1part of a response, and no more"],
        [b"\0no response"],
        [b"\1no ", b"\0response"],
        [b"\0"],
    ],
)
def test_a_response_that_does_not_go_on_or_is_none_ends_the_call(
    ends: tuple[LentInstance, BorrowedInstance],
    packets: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library of the lender's model may write to the socket."""
    monkeypatch.setattr(direct_calls, "REST_LIMIT_MS", 10)
    lent, borrowed = ends
    for packet in packets:
        lent.sock.send(packet)
    response, report = ask(borrowed)
    assert response.error is not None
    assert "its worker process ended" in response.error.message
    assert report.error_code == "INTERNAL"
    assert borrowed.is_over()
