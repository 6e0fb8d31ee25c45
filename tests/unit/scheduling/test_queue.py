"""The queue of one model. A job of an ensemble goes through the queues of several models."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from naiad.core.bundle import Bundle, Queued
from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, unavailable
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.queue import MAX_LEFTOVERS, JobQueue, QueuePolicy
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


def queue_of(
    clock: FakeClock,
    policy: QueuePolicy = QueuePolicy(),  # noqa: B008 - frozen
    max_queue_size: int = 0,
) -> JobQueue:
    def refuse(job: Job, error: NaiadError) -> None:
        job.stream.fail(error)

    return JobQueue(clock, refuse, policy, max_queue_size=max_queue_size)


def watched_job(clock: FakeClock) -> tuple[Job, weakref.ref[Any]]:
    """A job, and a reference that shows whether its tensor is still in memory."""
    array = np.zeros(1000, np.uint8)
    job = fake_job(queue_start_ns=clock.now_ns())
    job.request.inputs = [Tensor("IN", "UINT8", [1000], array.data)]
    return job, weakref.ref(array)


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
class TestMemory:
    """Reference counts alone free them: tensors must not wait for the garbage collector."""

    def test_a_cancelled_job_is_forgotten_at_once(self) -> None:
        clock = FakeClock()
        queue = queue_of(clock)
        first = fake_job(queue_start_ns=clock.now_ns())
        queue.push(first)
        job, tensor = watched_job(clock)
        queue.push(job)
        stream = job.stream
        stream.deliver_to(lambda response, is_final: None)
        del job
        stream.cancel()
        assert tensor() is None  # although the stream lives, and the job was not the first
        assert len(queue) == 1

    def test_a_job_that_times_out_is_forgotten_at_once(self) -> None:
        clock = FakeClock()
        queue = queue_of(clock, QueuePolicy(default_timeout_us=100))
        job, tensor = watched_job(clock)
        queue.push(job)
        stream = job.stream
        del job
        clock.advance(200_000)
        assert tensor() is None
        assert stream.is_closed

    def test_a_job_that_was_executed_does_not_wait_for_its_timeout(self) -> None:
        clock = FakeClock()
        queue = queue_of(clock, QueuePolicy(default_timeout_us=60_000_000))
        job, tensor = watched_job(clock)
        queue.push(job)
        assert queue.pop(1) == [job]
        job.stream.close()
        del job
        assert tensor() is None

    def test_timeouts_of_executed_jobs_do_not_pile_up(self) -> None:
        clock = FakeClock()
        queue = queue_of(clock, QueuePolicy(default_timeout_us=60_000_000))
        for _ in range(1000):
            queue.push(fake_job(queue_start_ns=clock.now_ns()))
            queue.pop(1)
        assert len(queue._expiries) <= MAX_LEFTOVERS + 1


class TestDefaultLimit:
    def test_refuses_what_is_too_much(self) -> None:
        queue = queue_of(FakeClock(), max_queue_size=2)
        queue.push(fake_job())
        queue.push(fake_job())
        with pytest.raises(NaiadError, match="Exceeds maximum queue size") as caught:
            queue.push(fake_job())
        assert caught.value.retry_after_s == 1
        assert len(queue) == 2

    def test_a_config_overrides_it(self) -> None:
        queue = queue_of(FakeClock(), QueuePolicy(max_queue_size=3), max_queue_size=2)
        for _ in range(3):
            queue.push(fake_job())
        with pytest.raises(NaiadError):
            queue.push(fake_job())

    def test_accepts_what_belongs_to_requests_under_way(self) -> None:
        queue = queue_of(FakeClock(), max_queue_size=1)
        queue.push(fake_job())
        queue.push(fake_job(), is_admitted=True)
        call = fake_job()
        call.caller = object()  # type: ignore[assignment]
        queue.push(call)
        assert len(queue) == 3


# API keys take turns.

ALICE, BOB, CAROL = Identity("alice"), Identity("bob"), Identity("carol", priority=2)


def ignore(job: Job, error: NaiadError) -> None:
    pass


def keyed(queue: JobQueue, identity: Identity | None, count: int = 1) -> list[Job]:
    jobs = [fake_job(identity=identity) for _ in range(count)]
    for job in jobs:
        queue.push(job)
    return jobs


def owners(jobs: Sequence[Queued]) -> str:
    return "".join(
        "-" if job.request.identity is None else job.request.identity.key_id[0] for job in jobs
    )


def test_a_flood_of_one_key_does_not_delay_another() -> None:
    queue = JobQueue(FakeClock(), ignore)
    keyed(queue, ALICE, 64)
    queue.pop(10)
    keyed(queue, BOB)
    assert "b" in owners(queue.pop(2))
    keyed(queue, BOB, 3)
    assert owners(list(queue.in_order())).index("b") <= 2
    assert sorted(owners(queue.pop(6))) == list("aaabbb")
    assert len(queue) == 64 - 10 - 1 - 3
    assert queue.first() is next(queue.in_order())


def test_keys_share_by_weight() -> None:
    queue = JobQueue(FakeClock(), ignore)
    keyed(queue, ALICE, 40)
    keyed(queue, CAROL, 40)
    assert owners(queue.pop(40)).count("c") == pytest.approx(30, abs=1)


def test_the_jobs_of_a_key_keep_their_order() -> None:
    queue = JobQueue(FakeClock(), ignore)
    first, second, none = keyed(queue, ALICE, 5), keyed(queue, BOB, 5), keyed(queue, None, 5)
    first += keyed(queue, ALICE, 5)
    popped = queue.pop(20)
    for jobs in (first, second, none):
        assert [job for job in popped if job in jobs] == jobs


def test_a_key_that_was_idle_has_no_credit() -> None:
    queue = JobQueue(FakeClock(), ignore)
    keyed(queue, ALICE, 100)
    keyed(queue, CAROL)
    queue.pop(60)
    keyed(queue, BOB, 40)
    assert owners(queue.pop(20)).count("b") == pytest.approx(10, abs=1)


def test_turns_survive_cancellation_and_a_key_file_that_is_read_again() -> None:
    queue = JobQueue(FakeClock(), ignore)
    jobs = keyed(queue, ALICE, 10) + keyed(queue, Identity("alice"), 10)
    assert queue.pop(1) == jobs[:1]
    for job in jobs[1:15]:
        job.stream.cancel()
    (one,) = keyed(queue, BOB)
    assert one in queue.pop(2)
    assert queue.pop(20) == jobs[16:]
    assert len(queue) == 0
    assert queue.first() is None
    (alone,) = keyed(queue, BOB)
    assert queue.pop(2) == [alone]


def test_a_full_queue_has_room_for_another_key() -> None:
    """The key with most jobs gives up its last ones, so that the queue never exceeds its limit."""
    removed: list[tuple[Job, NaiadError]] = []
    queue = JobQueue(
        FakeClock(),
        lambda job, error: removed.append((job, error)),
        QueuePolicy(max_queue_size=10),
    )
    flood = keyed(queue, ALICE, 10)
    keyed(queue, BOB, 5)
    assert [job for job, _ in removed] == flood[:4:-1]
    assert {error.message for _, error in removed} == {"Exceeds maximum queue size"}
    for identity in (ALICE, BOB):
        with pytest.raises(NaiadError, match="Exceeds maximum queue size"):
            keyed(queue, identity)
    keyed(queue, CAROL, 3)
    with pytest.raises(NaiadError, match="Exceeds maximum queue size"):
        keyed(queue, CAROL)
    assert len(queue) == 10
    left = Counter(owners(queue.pop(10)))
    assert left["c"] == 3
    assert {left["a"], left["b"]} == {3, 4}
    keyed(queue, BOB, 10)
    with pytest.raises(NaiadError, match="Exceeds maximum queue size"):
        keyed(queue, BOB)


def test_without_keys_a_full_queue_is_full() -> None:
    queue = JobQueue(FakeClock(), ignore, QueuePolicy(max_queue_size=2))
    keyed(queue, None, 2)
    with pytest.raises(NaiadError, match="Exceeds maximum queue size"):
        keyed(queue, None)


def test_no_key_gives_up_what_a_model_waits_for() -> None:
    queue = JobQueue(FakeClock(), ignore, QueuePolicy(max_queue_size=2))
    for _ in range(2):
        job = fake_job(identity=ALICE)
        job.is_inner = True
        queue.push(job)
    with pytest.raises(NaiadError, match="Exceeds maximum queue size"):
        keyed(queue, BOB)
    assert len(queue) == 2


# Bundles.


class Source:
    def on_split(self, part: Bundle) -> None:
        pass

    def on_divided(self, bundle: Bundle, jobs: list[Job]) -> None:
        pass

    def on_responses(self, *arguments: object) -> None:
        raise AssertionError


def bundle_of(count: int) -> Bundle:
    inputs = [msgspec.Raw(b"\x90")] * count
    ids = [str(number) for number in range(count)]
    return Bundle(Source(), InferRequest("m", []), list(range(count)), [0] * count, ids, inputs)


def test_keys_divide_a_waiting_bundle() -> None:
    queue = JobQueue(FakeClock(), ignore)
    bundle = bundle_of(4)
    assert queue.push_bundle(bundle)
    (job,) = keyed(queue, ALICE)
    assert bundle.jobs is not None
    assert not queue.push_bundle(bundle_of(2))
    assert len(queue) == 5
    assert owners(queue.pop(5)) == "-a---"
    assert job.queued_in is None
    keyed(queue, ALICE)
    assert not queue.push_bundle(bundle_of(2))
    keyed(queue, None)
    queue.pop(2)
    keyed(queue, None)
    assert queue.push_bundle(bundle_of(2))


def test_a_bundle_gives_up_requests_for_another_key() -> None:
    removed: list[str] = []
    queue = JobQueue(
        FakeClock(),
        lambda job, error: removed.append(job.request.id),
        QueuePolicy(max_queue_size=4),
    )
    assert queue.push_bundle(bundle_of(4))
    keyed(queue, ALICE, 2)
    assert removed == ["3", "2"]
    assert len(queue) == 4


def test_a_queue_counts_the_requests_of_bundles() -> None:
    queue = JobQueue(FakeClock(), ignore, max_queue_size=5)
    assert queue.push_bundle(bundle_of(3))
    assert not queue.push_bundle(bundle_of(3))
    (last,) = keyed(queue, None)
    assert len(queue) == 4
    assert len(list(queue.in_order())) == 4
    (head,) = queue.pop(2)
    assert isinstance(head, Bundle)
    assert head.ids == ["0", "1"]
    rest = queue.first()
    assert isinstance(rest, Bundle)
    jobs = rest.divide()
    assert [job.request.id for job in jobs] == ["2"]
    assert list(queue.in_order()) == [*jobs, last]
    jobs[0].stream.cancel()
    assert list(queue.in_order()) == [last]
    assert queue.first() is last
    assert queue.pop(9) == [last]
    assert len(queue) == 0


def test_all_requests_of_waiting_bundles_are_removed() -> None:
    removed: list[str] = []
    queue = JobQueue(FakeClock(), lambda job, error: removed.append(job.request.id))
    assert queue.push_bundle(bundle_of(3))
    divided = bundle_of(2)
    assert queue.push_bundle(divided)
    divided.divide()
    queue.remove_all(unavailable("no"))
    assert removed == ["0", "1", "2", "0", "1"]
    assert len(queue) == 0


@pytest.mark.parametrize("seed", range(20))
def test_requests_that_fit_are_those_that_the_rule_chooses(seed: int) -> None:
    """`pop_size` is the short form of the rule for models without preferred sizes and delay."""
    numbers = random.Random(seed)
    rule = BatchRule(8)
    assert rule.is_by_size
    sizes = [numbers.randint(1, 9) for _ in range(12)]
    counts = [numbers.randint(0, 6) for _ in sizes]
    queues = []
    for _ in range(2):
        queue = JobQueue(FakeClock(), ignore)
        for size, count in zip(sizes, counts, strict=True):
            if count > 1:
                bundle = bundle_of(count)
                bundle.batch_size = size
                assert queue.push_bundle(bundle)
                if count == 5:
                    bundle.divide()[2].stream.cancel()
            else:
                queue.push(fake_job(batch_size=size))
        queues.append(queue)
    one, other = queues
    while one:
        chosen, _ = rule.choose(one.in_order(), 0)
        assert shapes(one.pop(chosen)) == shapes(other.pop_size(8))
        assert len(one) == len(other)
    assert other.pop_size(8) == []


def shapes(entries: Sequence[Queued]) -> list[tuple[int, list[str]]]:
    return [
        (entry.batch_size, entry.ids if isinstance(entry, Bundle) else [entry.request.id])
        for entry in entries
    ]
