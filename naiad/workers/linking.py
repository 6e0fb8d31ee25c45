"""An instance's part in chains (naiad.workers.chain): batches that leave it for another instance, and those that come from one.

The chain knows who is in it; here is what each of them does to its own open work and statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes, ModelStatistics
from naiad.core.work import Way
from naiad.errors import NaiadError
from naiad.workers.chain import Chain, ChainLink
from naiad.workers.execution import Execution
from naiad.workers.messages import EndChain, Message
from naiad.workers.open_work import Batch, OpenRequest, OpenWork

if TYPE_CHECKING:
    from naiad.workers.instance import Instance


class Linking:
    def __init__(self, instance: Instance, work: OpenWork, execution: Execution, statistics: ModelStatistics) -> None:
        self._instance = instance
        self._work = work
        self._execution = execution
        self._statistics = statistics
        self._led: dict[int, Chain] = {}
        """Chains that it has led and whose end its worker has not confirmed."""
        self.makes_calls = False
        """Its model calls others: who waits for whom is the server's to know."""

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        if self._instance.process is not None:
            self._instance.process.channel.send(message, fds)

    def on_call(self) -> None:
        if not self.makes_calls:
            self.makes_calls = True
            if self._instance.chain is not None or isinstance(self._instance.lease, ChainLink):
                self._instance.recall()

    # As the first of a chain.

    def release(self, number: int, batch: Batch, *, is_counted: bool) -> dict[int, OpenRequest]:
        """It has gone on to another instance."""
        instance = self._instance
        del self._work.batches[number]
        if is_counted:
            instance.num_batches -= 1
            instance.on_free(instance)  # the next one goes out first, as after any other answer
        return self._work.take(batch.handles)

    def take(self, batch: Batch) -> list[InferRequest]:
        return [entry.request for entry in self._work.take(batch.handles).values()]

    def uncount(self, num_batches: int) -> None:
        """They are with others."""
        if num_batches:
            self._execution.keep_batches(self._instance.num_batches - num_batches)

    def end_leading(self, chain: Chain) -> None:
        self._led[chain.id] = chain
        self.send(EndChain(chain.id))

    def on_returned(self, id: int) -> bool:
        """True when it was a chain that this one has led."""
        chain = self._led.pop(id, None)
        if chain is None:
            return False
        chain.on_head_back()
        self._instance.on_free(self._instance)
        return True

    # As any of them.

    def move(self, number: int, way: Way, took_ns: int = 0) -> None:
        """A batch has come as far as here, where it has been executed for so long."""
        link = self._instance.lease
        if isinstance(link, ChainLink) and link.id == way.chain:
            link.chain.move(number, way, link, took_ns)

    def count(self, requests: list[InferRequest], batch_size: int, times: BatchTimes) -> None:
        """A batch that was executed here and went on."""
        statistics = self._statistics
        statistics.record_execution(batch_size, times)
        if requests:
            statistics.record_compute(len(requests), times)
            statistics.record_answers(requests, times.compute_start_ns, times.compute_end_ns)

    def adopt(self, number: int, batch: Batch, open_requests: dict[int, OpenRequest], *, is_counted: bool) -> None:
        self._execution.adopt(number, batch, open_requests, is_counted=is_counted)

    def fail(self, requests: list[InferRequest], error: NaiadError) -> None:
        self._execution.fail_all(requests, error)

    def on_process_end(self, error: NaiadError) -> None:
        instance = self._instance
        if isinstance(instance.lease, ChainLink):
            instance.lease.chain.fail(instance, error)
        if instance.chain is not None:
            instance.chain.recall(is_wanted=False)
        for chain in list(self._led.values()):
            del self._led[chain.id]
            chain.fail(instance, error)
            chain.on_head_back()
