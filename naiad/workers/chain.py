"""Instances of an ensemble's steps in a row: a batch goes from worker to worker, and the server sees it again at the end.

Each way through the server costs a wake-up and cold caches, and all it does there is to be renamed. So while an ensemble keeps sending
batches of one form, the instances of its later steps are lent to it: the first worker sends its answers to the second as requests, the
last one answers. The server forms a chain (naiad.scheduling.ensemble_chain) and recalls it the moment anybody else wants one of them.
Until a batch comes back it is the first instance's; then it is moved to the one that has it, with what happened on the way, and goes on
as if it had been sent there by the server. So a worker answers whatever is out of the ordinary to the server, which takes it from there.
Invariants: an instance is in one chain, leading or following; a request of a chain is open at exactly one instance; when a process of
a chain ends, all that is under way in the chain is failed at once, since only the workers knew where it was.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from naiad import log
from naiad.core.request import InferRequest, Relay
from naiad.core.statistics import BatchTimes
from naiad.core.tensor_form import TensorForm
from naiad.core.work import Way
from naiad.errors import NaiadError, internal
from naiad.workers.lease import IDLE_HEARTBEATS, next_lease_id
from naiad.workers.messages import Cancel, Feed, Onward

if TYPE_CHECKING:
    from naiad.workers.instance import Instance

MAX_STEP_NS = 500_000
"""Where a model takes longer than that for a batch, the way between steps does not matter."""
MAX_UNFIT = 8
"""Batches in a row that were slow, or did not go all the way."""
STUCK_NS = 1_000_000_000
LOST = "the batch was lost between the workers of an ensemble's steps"


class Follower(msgspec.Struct, eq=False):
    """A step after the first."""

    instance: Instance
    form: TensorForm
    """Of the answers that it takes as its requests."""
    outputs: list[str]
    relay: Relay
    """Of the step: a request that stands there may come from the server as well."""
    advance: Callable[[list[InferRequest], int, BatchTimes], None]
    """(requests, size of each, what the step before took): they stand at this step now."""


class ChainLink:
    """What a following instance is lent by (`Instance.lease`)."""

    __slots__ = ("_sock", "chain", "id", "number", "relay")

    def __init__(self, chain: Chain, number: int, relay: Relay, sock: socket.socket) -> None:
        """`sock` is the reading end, shared with the instance's worker."""
        self.chain = chain
        self.id = chain.id
        self.number = number
        self.relay = relay
        self._sock = sock

    @property
    def is_recalled(self) -> bool:
        return self.chain.is_recalled

    def recall(self, *, is_wanted: bool) -> None:
        self.chain.recall(is_wanted=is_wanted)

    def fileno(self) -> int:
        return self._sock.fileno()

    def shut(self) -> None:
        """Nothing can be sent any more; what had been is still read."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def end(self) -> None:
        """The instance is back, or its process is gone."""
        self.shut()
        self._sock.close()
        self.chain.on_link_end(self)

    def is_idle(self) -> bool:
        return False  # the first instance looks after that

    def is_at_rest(self) -> bool:
        return not self.chain.has_batches


class Chain:
    def __init__(
        self, head: Instance, relay: Relay, followers: list[Follower], max_requests: int, on_over: Callable[[Chain], None]
    ) -> None:
        """`relay`: of the first step. `max_requests`: that each of the followers takes as one batch. `on_over`: when all instances are
        back."""
        self.id = next_lease_id()
        self.head = head
        self.is_recalled = False
        self.is_wanted = False
        """Recalled because others wait for one of its instances."""
        self.num_batches = 0
        """So far."""
        self._relay = relay
        self._batches = head.work.batches
        self._followers = followers
        self._max_requests = max_requests
        self._on_over = on_over
        self._links: list[ChainLink] = []
        self._is_head_back = False
        self._num_unfit = 0
        self.max_batches = max(2, min(1 + len(followers), len(os.sched_getaffinity(0))))
        """Under way at once. Each worker can have one, if there are CPUs for all: more would only be smaller. Fewer than two, and the
        workers would wait while the server reads and writes."""
        self._seen_batches = 0
        self._num_idle = 0

    def start(self) -> bool:
        """False when there are no descriptors left: nothing has happened then."""
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self._followers)
        except OSError:
            for pair in pairs:
                for sock in pair:
                    sock.close()
            return False
        readers = enumerate(zip(self._followers, pairs, strict=True), 1)
        links = [ChainLink(self, number, follower.relay, reader) for number, (follower, (reader, _)) in readers]
        self.head.chain = self
        self._links += links
        for follower, link in zip(self._followers, links, strict=True):
            follower.instance.lease = link
        log.verbose(1, self._words)
        senders = [self.head, *(follower.instance for follower in self._followers)]
        # From the end: before anything comes to a worker, it knows where that goes on. One that turns out to be gone recalls them all.
        for sender, follower, link, (_, writer) in reversed(list(zip(senders, self._followers, links, pairs, strict=False))):
            with writer:
                if link in self._links:
                    follower.instance.linking.send(Feed(self.id), [link.fileno()])
                if not self.is_recalled:
                    sender.linking.send(Onward(self.id, follower.form, follower.outputs), [writer.fileno()])
        return True

    @property
    def _words(self) -> str:
        names = " -> ".join(instance.name for instance in (self.head, *(follower.instance for follower in self._followers)))
        return f"batches go from worker to worker: {names}"

    # Batches.

    @property
    def has_batches(self) -> bool:
        return any(batch.chain is self for batch in self._batches.values())

    def takes_one(self, request: InferRequest) -> bool:
        part = request.part
        return part is not None and part.relay is self._relay and request.trace is None

    def takes(self, requests: list[InferRequest]) -> bool:
        """All of these go the whole way."""
        if len(requests) > self._max_requests:
            return False
        relay = self._relay
        for request in requests:
            part = request.part
            if part is None or part.relay is not relay or request.trace is not None:
                return False
        self.num_batches += 1
        return True

    def move(self, number: int, way: Way, link: ChainLink, took_ns: int) -> None:
        """A batch has come as far as this link's instance, which has taken so long for it until now, and is open there from now on. One
        that has been failed is not known here."""
        batch = self._batches.get(number)
        if batch is None or batch.chain is not self or len(way.legs) != link.number:
            return
        open_requests = self.head.linking.release(number, batch, is_counted=not self._is_head_back)
        requests = [entry.request for entry in open_requests.values()]
        instance, start_ns = self.head, batch.compute_start_ns
        for follower, (input_end_ns, output_start_ns, end_ns) in zip(self._followers, way.legs, strict=False):
            times = BatchTimes(start_ns, input_end_ns, output_start_ns, end_ns)
            instance.linking.count(requests, batch.batch_size, times)
            follower.advance(requests, follower.form.batch_size, times)
            batch.batch_size = follower.form.batch_size * len(batch.handles)
            instance, start_ns = follower.instance, end_ns
        batch.compute_start_ns, batch.chain = start_ns, None
        instance.linking.adopt(number, batch, open_requests, is_counted=not self._is_head_back)
        if not self.head.inflight:
            self.head.on_idle(self.head)
        self.look_at(way.legs, took_ns)

    def look_at(self, legs: list[tuple[int, int, int]], took_ns: int) -> None:
        """What came of a batch. A chain is for steps that are quick, also the last one, and for batches that go all the way."""
        is_fit = len(legs) == len(self._followers) and took_ns <= MAX_STEP_NS
        for input_end_ns, output_start_ns, _ in legs:
            is_fit = is_fit and output_start_ns - input_end_ns <= MAX_STEP_NS
        self._num_unfit = 0 if is_fit else self._num_unfit + 1
        if self._num_unfit > MAX_UNFIT:
            self.recall(is_wanted=True)

    def cancel(self, handle: int) -> None:
        """At whoever has it."""
        for follower in self._followers:
            follower.instance.linking.send(Cancel([handle]))

    def beat(self, now_ns: int) -> None:
        if self._seen_batches != self.num_batches:
            self._seen_batches = self.num_batches
            self._num_idle = 0
        self._num_idle += 1
        oldest_ns = min((batch.compute_start_ns for batch in self._batches.values()), default=now_ns)
        if self._num_idle > IDLE_HEARTBEATS or now_ns - oldest_ns > STUCK_NS:
            self.recall(is_wanted=False)  # so that the first instance need not wait for one that does not go on

    # The end.

    def recall(self, *, is_wanted: bool) -> None:
        """Nothing can be sent from worker to worker any more. It is over when each has executed what it had, and said so."""
        if self.is_recalled:
            return
        self.is_recalled = True
        self.is_wanted = is_wanted
        log.verbose(1, f"{self._words}: no more, after {self.num_batches} of them")
        self.head.chain = None
        for link in self._links:
            link.shut()
        self.head.linking.end_leading(self)

    def fail(self, instance: Instance, error: NaiadError) -> None:
        """The process of this instance is gone."""
        self.recall(is_wanted=False)
        for batch in list(self._batches.values()):
            if batch.chain is self:
                instance.linking.fail(self.head.linking.take(batch), error)
        self.head.on_idle(self.head)

    def on_head_back(self) -> None:
        """It has executed all that it had, and what it did not answer has gone on; or its process is gone."""
        self._is_head_back = True
        self.head.linking.uncount(sum(batch.chain is self for batch in self._batches.values()))
        self._end_if_all_back()

    def on_link_end(self, link: ChainLink) -> None:
        self.recall(is_wanted=False)
        self._links.remove(link)
        self._end_if_all_back()

    def _end_if_all_back(self) -> None:
        if not self._is_head_back or self._links:
            return
        for number, batch in list(self._batches.items()):
            if batch.chain is self:  # what nobody has answered was lost on the way
                del self._batches[number]
                self.head.linking.fail(self.head.linking.take(batch), internal(LOST))
        self._on_over(self)
        self.head.on_idle(self.head)
