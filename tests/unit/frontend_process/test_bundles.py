"""Bundles: requests that travel as one through the server process, with the fate of each of them
exactly as if it had come alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from naiad.errors import unavailable
from naiad.frontend_process.remote_core import to_message
from naiad.ipc.framing import BrokenLinkError
from naiad.ipc.messages import Response
from naiad.scheduling.queue import QueuePolicy
from tests.unit.frontend_process.server_side import ServerSide, bad, good

CANCELLED = "request was cancelled while it was waiting"
FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"


@pytest.fixture
def open_sides() -> Iterator[list[ServerSide]]:
    opened: list[ServerSide] = []
    yield opened
    for side in opened:
        side.close()


@pytest.fixture
def make(open_sides: list[ServerSide]) -> Any:
    def make(*arguments: Any, **options: Any) -> ServerSide:
        open_sides.append(ServerSide(*arguments, **options))
        return open_sides[-1]

    return make


def inputs_of(side: ServerSide, batch: int = 0) -> list[int]:
    return [request.inputs[0].data[0] for request in side.instance.channel.batches[batch][1]]


async def test_a_bundle_is_executed_and_comes_back_as_one(make: Any) -> None:
    side = make()
    side.send(1, 2, 3)
    await side.turn()
    number, requests = side.instance.channel.batches[0]
    assert [(request.handle, request.id) for request in requests] == [
        (number, "id1"), (number + 1, "id2"), (number + 2, "id3"),
    ]  # fmt: skip
    assert inputs_of(side) == [1, 2, 3]
    assert side.scheduler.inflight() == 3
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2, 3: 3}
    assert [bundle.handles for bundle in side.bundles] == [[1, 2, 3]]
    statistics = side.statistics
    assert (statistics.success.count, statistics.inference_count) == (3, 3)
    assert (statistics.queue.count, statistics.compute_infer.count) == (3, 3)
    assert (statistics.execution_count, list(statistics.batch)) == (1, [3])
    assert sum(statistics.request_histogram.counts) == 3
    assert sum(statistics.queue_histogram.counts) == 3
    assert sum(statistics.first_response_histogram_ms.counts) == 3
    assert side.is_at_rest


async def test_batch_sizes_of_requests_count(make: Any) -> None:
    side = make(max_batch_size=8)
    side.send_message(to_message([side.request(handle, batch_size=3) for handle in (1, 2, 3)]))
    await side.turn()
    assert inputs_of(side) == [1, 2]
    side.instance.respond_all()
    await side.turn()
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2, 3: 3}
    assert side.statistics.inference_count == 9
    assert sorted(side.statistics.batch) == [3, 6]


async def test_a_large_bundle_is_split_among_batches_and_instances(make: Any) -> None:
    side = make(max_batch_size=4, num_instances=2)
    side.send(*range(1, 11))
    await side.turn()
    assert [len(one.channel.batches[0][1]) for one in side.instances] == [4, 4]
    assert side.statistics.pending_request_count == 2
    for instance in side.instances:
        instance.respond_all()
    await side.turn()
    assert inputs_of(side) == [9, 10]
    side.instance.respond_all()
    assert await side.responses() == {handle: handle for handle in range(1, 11)}
    assert [bundle.handles for bundle in side.bundles] == [
        [1, 2, 3, 4], [5, 6, 7, 8], [9, 10],
    ]  # fmt: skip
    assert side.statistics.execution_count == 3
    assert side.is_at_rest


async def test_jobs_and_bundles_share_batches(make: Any) -> None:
    side = make(max_batch_size=8)
    side.send(1, 2)
    side.send(3)
    side.send(4, parameters={"color": "red"})
    side.send(5, 6)
    await side.turn()
    assert sorted(inputs_of(side)) == [1, 2, 3, 4, 5, 6]
    assert len(side.instance.channel.batches) == 1
    side.instance.respond_all()
    assert await side.responses() == {handle: handle for handle in range(1, 7)}
    assert side.statistics.success.count == 6
    assert side.is_at_rest


async def test_waiting_requests_keep_their_order(make: Any) -> None:
    side = make(max_batch_size=2)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4, 5)
    side.send(6)
    side.send(7, 8, 9)
    order = []
    for _ in range(5):
        order.append(inputs_of(side))
        side.instance.respond_all()
        await side.turn()
    # Within a batch, requests that came alone are first.
    assert order == [[1, 2], [3, 4], [6, 5], [7, 8], [9]]


async def test_a_cancelled_request_leaves_a_waiting_bundle(make: Any) -> None:
    side = make(max_batch_size=4)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4, 5)
    side.abandon(4)
    assert await side.responses() == {4: CANCELLED}
    assert side.statistics.pending_request_count == 2
    assert side.statistics.failures["CANCELED"] == 1
    side.instance.respond_all()
    await side.turn()
    assert inputs_of(side) == [3, 5]
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2, 3: 3, 5: 5}
    assert (side.statistics.success.count, side.statistics.fail.count) == (4, 1)
    assert side.is_at_rest


async def test_a_request_of_a_split_bundle_is_cancelled_where_it_is(make: Any) -> None:
    side = make(max_batch_size=2)
    side.send(1, 2, 3, 4, 5)
    await side.turn()
    assert inputs_of(side) == [1, 2]
    side.abandon(2, 5)
    assert await side.responses() == {5: CANCELLED}
    number, _ = side.instance.channel.batches[0]
    assert side.instance.channel.cancelled == [number + 1]
    assert side.scheduler.inflight() == 3  # nobody waits for 2 any more
    side.instance.respond_all()
    await side.turn()
    assert inputs_of(side) == [3, 4]
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2, 3: 3, 4: 4}
    assert side.is_at_rest


async def test_cancelling_every_waiting_request_leaves_nothing_behind(make: Any) -> None:
    side = make(max_batch_size=64)
    side.send(1, 2)
    await side.turn()
    for first in range(3, 2003, 20):
        side.send(*range(first, first + 20))
    side.abandon(*range(3, 2003))
    assert len(await side.responses()) == 2000
    queue = side.scheduler._queue
    assert len(queue) == 0
    assert len(queue._levels[0].waiting) < 100
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2}
    assert side.statistics.failures["CANCELED"] == 2000
    assert side.is_at_rest


@pytest.mark.parametrize("option", ["max_queue_size", "policy"])
async def test_the_limit_of_the_queue_is_met_in_the_middle_of_a_bundle(
    make: Any, option: str
) -> None:
    limit = (
        {"max_queue_size": 5}
        if option == "max_queue_size"
        else {"default_policy": QueuePolicy(max_queue_size=5)}
    )
    side = make(max_batch_size=2, **limit)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4, 5)
    side.send(6, 7, 8, 9)
    assert await side.responses() == {8: FULL, 9: FULL}
    assert side.statistics.failures["REJECTED"] == 2
    assert side.statistics.pending_request_count == 5
    seen = []
    for _ in range(4):
        seen.append(inputs_of(side))
        side.instance.respond_all()
        await side.turn()
    assert seen == [[1, 2], [3, 4], [5, 6] if seen[2] == [5, 6] else [6, 5], [7]]
    assert await side.responses() == {handle: handle for handle in range(1, 8)}
    assert side.is_at_rest


async def test_the_limit_on_waiting_time_is_met_in_the_middle_of_a_bundle(make: Any) -> None:
    side = make(max_batch_size=2, max_queue_wait_s=1.0)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4)
    await side.turn()
    assert side.scheduler._wait_limit is not None
    side.scheduler._wait_limit.max_waiting = lambda num_running: 4
    side.scheduler._wait_limit.refuse = lambda num_waiting: unavailable(f"{num_waiting} wait")
    side.send(5, 6, 7, 8)
    assert await side.responses() == {7: "4 wait", 8: "4 wait"}
    assert side.statistics.failures["REJECTED"] == 2


async def test_requests_of_a_bundle_time_out(make: Any) -> None:
    side = make(max_batch_size=2, default_policy=QueuePolicy(default_timeout_us=1000))
    side.send(1, 2)
    await side.turn()
    side.send(3, 4, 5)
    side.scheduler._queue._clock.now_ns = lambda: 1 << 62
    side.scheduler._queue._on_timer()
    assert await side.responses() == {3: EXPIRED, 4: EXPIRED, 5: EXPIRED}
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2}
    assert side.is_at_rest


async def test_a_request_with_its_own_timeout_expires_between_bundles(make: Any) -> None:
    policy = QueuePolicy(allow_timeout_override=True)
    side = make(max_batch_size=2, default_policy=policy)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4)
    side.send(5, timeout_us=1000)
    side.send(6, 7)
    side.scheduler._queue._clock.now_ns = lambda: 1 << 62
    side.scheduler._queue._on_timer()
    assert await side.responses() == {5: EXPIRED}
    side.instance.respond_all()
    await side.turn()
    assert inputs_of(side) == [3, 4]


async def test_a_request_with_a_higher_priority_overtakes_a_bundle(make: Any) -> None:
    side = make(max_batch_size=2, priority_levels=2, default_priority_level=2)
    side.send(1, 2)
    await side.turn()
    side.send(3, 4)
    side.send(5, priority=1)
    side.instance.respond_all()
    await side.turn()
    assert sorted(inputs_of(side)) == [3, 5]


async def test_a_request_that_fails_does_not_fail_its_bundle(make: Any) -> None:
    side = make()
    side.send(1, 2, 3)
    await side.turn()
    side.instance.respond_all(good(1), bad("no"), good(3))
    assert await side.responses() == {1: 1, 2: "no", 3: 3}
    assert side.statistics.failures["BACKEND"] == 1
    assert (side.statistics.success.count, side.statistics.fail.count) == (2, 1)
    assert side.statistics.execution_count == 1
    assert side.is_at_rest


async def test_large_outputs_of_one_request_do_not_lose_the_others(make: Any) -> None:
    side = make()
    side.send(1, 2)
    await side.turn()
    side.instance.respond_all(good(1), good(2), is_inline=False)
    assert await side.responses() == {1: 1, 2: 2}
    assert side.is_at_rest


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_response_sender_may_respond_to_one_request_of_a_bundle(
    make: Any, is_before: bool
) -> None:
    side = make()
    side.send(1, 2, 3)
    await side.turn()
    handle = side.instance.channel.batches[0][0] + 1
    if is_before:
        side.instance.responses.on_response(Response(handle, good(22), True))
    side.instance.respond_all(good(1), None, good(3))
    if not is_before:
        assert await side.responses() == {1: 1, 3: 3}
        side.instance.responses.on_response(Response(handle, good(22), True))
        assert await side.responses() == {2: 22}
    else:
        assert await side.responses() == {1: 1, 2: 22, 3: 3}
    assert side.statistics.success.count == 3
    assert side.is_at_rest


async def test_a_dead_worker_fails_every_request_of_its_bundles_once(make: Any) -> None:
    side = make(max_batch_size=4, num_instances=2)
    side.send(*range(1, 11))
    await side.turn()
    side.abandon(2)
    side.instance.die()
    message = "its worker process ended"
    assert await side.responses() == dict.fromkeys((1, 2, 3, 4), message)
    assert side.statistics.failures["BACKEND"] == 4
    side.instance = side.instances[1]
    side.instance.respond_all()
    await side.turn()
    side.instance.respond_all()
    assert await side.responses() == {handle: handle for handle in range(5, 11)}
    assert (side.statistics.success.count, side.statistics.fail.count) == (6, 4)
    assert side.is_at_rest


async def test_waiting_bundles_fail_when_no_instance_can_serve(make: Any) -> None:
    side = make(max_batch_size=2)
    side.send(1, 2, 3, 4, 5)
    await side.turn()
    side.instance.die(outage="worker of 'm_0' crashes in a loop")
    responses = await side.responses()
    assert responses[1] == responses[2] == "its worker process ended"
    assert len(responses) == 5
    assert side.statistics.fail.count == 5
    assert side.is_at_rest


async def test_a_worker_that_breaks_the_protocol_loses_no_request(make: Any) -> None:
    side = make()
    side.send(1, 2, 3)
    await side.turn()
    with pytest.raises(BrokenLinkError):
        side.instance.respond_all(good(1), good(2))
    side.instance.die()
    assert await side.responses() == dict.fromkeys((1, 2, 3), "its worker process ended")
    assert side.is_at_rest


async def test_the_requests_of_a_dead_frontend_are_cancelled(make: Any) -> None:
    side = make(max_batch_size=2)
    side.send(1, 2, 3, 4, 5)
    await side.turn()
    number, _ = side.instance.channel.batches[0]
    side.session.close("killed")
    assert sorted(side.instance.channel.cancelled) == [number, number + 1]
    assert side.statistics.failures["CANCELED"] == 3
    assert side.statistics.pending_request_count == 0
    assert side.scheduler.inflight() == 0
    side.instance.respond_all()
    assert side.statistics.success.count == 2
    assert side.is_at_rest


async def test_a_scheduler_that_stops_refuses_each_request(make: Any) -> None:
    side = make(max_batch_size=4)
    side.send(1, 2)
    await side.turn()
    side.scheduler._is_stopping = True
    side.send(3, 4)
    responses = await side.responses()
    assert sorted(responses) == [3, 4]
    assert all("stopped accepting" in str(text) for text in responses.values())
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2}


async def test_a_server_that_exits_refuses_each_request(make: Any) -> None:
    side = make()
    side.core.is_exiting = True
    side.send(1, 2)
    assert await side.responses() == {1: "Server exiting", 2: "Server exiting"}


@pytest.mark.parametrize("options", [{"preserve_ordering": True}, {"max_batch_size": 1}])
async def test_models_whose_requests_have_different_fates_get_no_bundles(
    make: Any, options: dict[str, Any]
) -> None:
    side = make(**options)
    assert side.models.served.bundle_scheduler is None
    side.send(1, 2, 3)
    await side.turn()
    while side.instance.channel.batches:
        side.instance.respond_all()
        await side.turn()
    assert await side.responses() == {1: 1, 2: 2, 3: 3}
    assert side.bundles == []


async def test_a_frontend_makes_bundles_in_the_order_of_arrival(make: Any) -> None:
    side = make()
    one, two, three, four = (side.request(handle) for handle in (1, 2, 3, 4))
    three.batch_size = 2
    message = to_message([one, two, three, four])
    assert message.requests == []
    assert [bundle.handles for bundle in message.bundles] == [[1, 2], [3], [4]]
    two.copy = 2
    assert [bundle.handles for bundle in to_message([one, two, four]).bundles] == [[1, 4], [2]]
    one.id = two.id = four.id = ""
    assert to_message([one, four]).bundles[0].ids == []


async def test_requests_for_the_same_version_and_outputs_are_a_bundle(make: Any) -> None:
    side = make(max_batch_size=4)
    named = [
        side.request(handle, model_version="1", requested_outputs=["OUTPUT0"])
        for handle in (1, 2, 3)
    ]
    other = side.request(4, requested_outputs=["OUTPUT1"])
    message = to_message([*named, other, side.request(5)])
    assert message.requests == []
    assert [bundle.handles for bundle in message.bundles] == [[1, 2, 3], [4], [5]]
    side.send_message(to_message(named))
    await side.turn()
    _, requests = side.instance.channel.batches[0]
    assert [request.requested_outputs for request in requests] == [["OUTPUT0"]] * 3
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: 2, 3: 3}
    side.send_message(to_message(named))
    side.abandon(2)
    await side.turn()
    _, requests = side.instance.channel.batches[0]
    assert [request.requested_outputs for request in requests] == [["OUTPUT0"]] * 2
    side.instance.respond_all()
    assert await side.responses() == {1: 1, 2: CANCELLED, 3: 3}
    assert side.is_at_rest


@pytest.mark.parametrize(
    "details",
    [{"priority": 1}, {"timeout_us": 5}, {"deadline_ns": 5}, {"sequence_id": 5},
     {"sequence_end": True}, {"parameters": {"a": 1}}],
)  # fmt: skip
async def test_requests_with_more_details_are_not_in_a_bundle(
    make: Any, details: dict[str, Any]
) -> None:
    side = make()
    message = to_message([side.request(handle, **details) for handle in (1, 2)])
    assert (len(message.requests), message.bundles) == (2, [])
