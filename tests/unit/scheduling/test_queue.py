"""The queue of one model. A job of an ensemble goes through the queues of several models."""

from __future__ import annotations

import pytest

from naiad.core.job import Job
from naiad.errors import NaiadError
from naiad.scheduling.queue import JobQueue, QueuePolicy
from tests.fakes import FakeClock, fake_job


@pytest.mark.parametrize("is_delay", [False, True])
@pytest.mark.parametrize("is_same", [False, True])
def test_a_timeout_ends_when_the_job_leaves_the_queue(is_delay: bool, is_same: bool) -> None:
    clock = FakeClock()
    removed: list[Job] = []

    def note(job: Job, error: NaiadError) -> None:
        removed.append(job)

    first = JobQueue(clock, note, QueuePolicy(is_delay=is_delay, default_timeout_us=100))
    second = first if is_same else JobQueue(clock, note, QueuePolicy(default_timeout_us=1000))
    job = fake_job(queue_start_ns=clock.now_ns())
    first.push(job)
    clock.advance(60_000)
    assert first.pop(1) == [job]
    job.queue_start_ns = clock.now_ns()
    second.push(job)
    clock.advance(60_000)  # past the first time, not past the second
    assert removed == []
    assert len(second) == 1
    assert second.first() is job
    assert len(first) == (1 if is_same else 0)
    clock.advance(1_000_000)
    assert removed == ([] if is_same and is_delay else [job])
