from __future__ import annotations

import socket

import pytest

from naiad.core.statistics import ModelStatistics
from naiad.instances.lease import IDLE_HEARTBEATS, Lease, LeaseNumbers
from naiad.ipc.work import DirectCall
from tests.fakes import FakeBorrower


def make_lease(
    statistics: ModelStatistics, batch_size: int = 1
) -> tuple[Lease, socket.socket, list[Lease]]:
    """The lease, the borrower's end, and the leases whose end the borrower was told."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    borrower = FakeBorrower()
    return Lease(7, "m", ours, statistics, batch_size, borrower), theirs, borrower.ended


def test_calls_are_counted_as_executions_of_the_lender() -> None:
    statistics = ModelStatistics("m", 1)
    lease, theirs, over = make_lease(statistics, 4)
    lease.count(DirectCall(lease.id, 100, 110, 150, 170))
    lease.count(DirectCall(lease.id, 200, 200, 260, 260, "INVALID_ARG"))
    assert (statistics.inference_count, statistics.execution_count, lease.num_calls) == (4, 2, 2)
    assert (
        statistics.success.count,
        statistics.success.ns,
        statistics.fail.count,
        statistics.fail.ns,
    ) == (1, 70, 1, 60)
    assert (
        statistics.queue.ns,
        statistics.compute_input.ns,
        statistics.compute_infer.ns,
        statistics.compute_output.ns,
    ) == (0, 10, 40, 20)
    assert statistics.failures["BACKEND"] == 1
    assert sum(statistics.request_histogram.counts) == 1
    lease.end()
    assert over == [lease]
    theirs.close()


def test_it_is_idle_when_no_calls_are_told_of_for_a_while() -> None:
    lease, theirs, _ = make_lease(ModelStatistics("m", 1))
    assert not any(lease.is_idle() for _ in range(IDLE_HEARTBEATS))
    lease.count(DirectCall(lease.id, 1, 2, 3, 4))
    assert not any(lease.is_idle() for _ in range(IDLE_HEARTBEATS))
    assert lease.is_idle()
    lease.end()
    theirs.close()


def test_from_the_recall_on_nothing_can_be_sent_and_it_is_over_later() -> None:
    lease, theirs, over = make_lease(ModelStatistics("m", 1))
    theirs.send(b"before")
    lease.recall(is_wanted=True)
    lease.recall(is_wanted=False)
    assert lease.is_wanted
    with pytest.raises(BrokenPipeError):
        theirs.send(b"after")
    assert over == []
    lease.end()
    assert over == [lease]
    theirs.close()


def test_no_two_leases_of_a_server_share_a_number() -> None:
    numbers = LeaseNumbers()
    assert len({numbers.next() for _ in range(3)}) == 3
