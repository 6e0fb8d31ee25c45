"""When a batch closes and which waiting jobs are in it: the arithmetic of Triton's dynamic batcher,
free of time and I/O.

In:  the waiting requests in order, and the age of the oldest. Out: how many to execute now, or how
     long to wait.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from naiad.core.bundle import Queued


class BatchRule(msgspec.Struct, frozen=True):
    max_batch_size: int
    """The limit for the sum of the jobs' batch sizes; 1 where jobs are never merged."""
    preferred_batch_sizes: frozenset[int] = frozenset()
    max_queue_delay_ns: int = 0
    equal_inputs: frozenset[str] = frozenset()
    """Inputs whose shape must be the same in all jobs of a batch: inputs of variable size that are
    not ragged."""
    has_optional_inputs: bool = False

    @property
    def max_preferred(self) -> int:
        return max(self.preferred_batch_sizes, default=self.max_batch_size)

    @property
    def is_checked(self) -> bool:
        """Jobs may differ in a way that keeps them out of one batch."""
        return bool(self.equal_inputs) or self.has_optional_inputs

    @property
    def is_by_size(self) -> bool:
        """A batch holds as many waiting requests as fit, and never waits for more."""
        return not (self.preferred_batch_sizes or self.max_queue_delay_ns or self.is_checked)

    def choose(self, jobs: Iterable[Queued], oldest_age_ns: int) -> tuple[int, int]:
        """Returns (number of jobs to execute, 0) or (0, nanoseconds to wait for more). `jobs` is
        not empty. A bundle comes once for each of its requests."""
        size = count = 0
        best_count = 0
        is_full = False
        signature: object = None
        is_checked = self.is_checked
        max_preferred = self.max_preferred
        for job in jobs:
            if count:
                grown = size + job.batch_size
                if grown > max_preferred and not best_count:
                    best_count = count
                if grown > self.max_batch_size or (is_checked and self.signature(job) != signature):
                    is_full = True
                    break
            elif is_checked:
                signature = self.signature(job)
            size += job.batch_size
            count += 1
            if size in self.preferred_batch_sizes:
                best_count = count
        is_overdue = self.max_queue_delay_ns == 0 or oldest_age_ns >= self.max_queue_delay_ns
        if best_count and (self.max_queue_delay_ns == 0 or not is_overdue):
            return best_count, 0
        if is_full or size >= max_preferred or is_overdue:
            return count, 0
        return 0, self.max_queue_delay_ns - oldest_age_ns

    def signature(self, job: Queued) -> object:
        """What must be equal within a batch: the set of inputs, and the shapes (without the batch
        dimension) of those in `equal_inputs`."""
        equal = self.equal_inputs
        return tuple(
            sorted(
                (tensor.name, tuple(tensor.shape[1:]) if tensor.name in equal else ())
                for tensor in job.request.inputs
            )
        )
