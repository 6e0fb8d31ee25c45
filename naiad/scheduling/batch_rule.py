"""When a batch closes and which waiting requests are in it: the arithmetic of Triton's dynamic
batcher, free of time and I/O.

In:  the waiting requests in order, and the age of the oldest. Out: how many to take now, or how
     long to wait.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from naiad.core.request import InferRequest


class BatchRule(msgspec.Struct, frozen=True):
    max_batch_size: int
    """Sum of the requests' batch sizes; 1 where requests are never merged."""
    preferred_batch_sizes: frozenset[int] = frozenset()
    max_queue_delay_ns: int = 0
    equal_inputs: frozenset[str] = frozenset()
    """Inputs whose shape must be the same in all requests of a batch: those of variable size that
    are not ragged."""
    has_optional_inputs: bool = False

    @property
    def max_preferred(self) -> int:
        return max(self.preferred_batch_sizes, default=self.max_batch_size)

    @property
    def is_checked(self) -> bool:
        """Requests may differ in a way that keeps them out of one batch."""
        return bool(self.equal_inputs) or self.has_optional_inputs

    def choose(self, requests: Iterable[InferRequest], oldest_age_ns: int) -> tuple[int, int]:
        """(number of requests to take, 0) or (0, nanoseconds to wait for more). `requests` is not
        empty."""
        size = count = 0
        best_count = 0
        is_full = False
        signature: object = None
        is_checked = self.is_checked
        max_preferred = self.max_preferred
        for request in requests:
            if count:
                grown = size + request.batch_size
                if grown > max_preferred and not best_count:
                    best_count = count
                if grown > self.max_batch_size or (
                    is_checked and self.signature(request) != signature
                ):
                    is_full = True
                    break
            elif is_checked:
                signature = self.signature(request)
            size += request.batch_size
            count += 1
            if size in self.preferred_batch_sizes:
                best_count = count
        is_overdue = self.max_queue_delay_ns == 0 or oldest_age_ns >= self.max_queue_delay_ns
        if best_count and (self.max_queue_delay_ns == 0 or not is_overdue):
            return best_count, 0
        if is_full or size >= max_preferred or is_overdue:
            return count, 0
        return 0, self.max_queue_delay_ns - oldest_age_ns

    def signature(self, request: InferRequest) -> object:
        """What must be equal within a batch: the set of inputs, and the shapes (without the batch
        dimension) of those that vary."""
        equal = self.equal_inputs
        return tuple(
            sorted(
                (tensor.name, tuple(tensor.shape[1:]) if tensor.name in equal else ())
                for tensor in request.inputs
            )
        )
