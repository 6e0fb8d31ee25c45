"""Null jobs: what fills a slot of a direct sequence batch whose sequence has nothing to do.

In:  the inputs of another job of that batch. Out: a job with the same shapes, all zeros and empty
     strings, whose READY control is false. Nobody waits for its response; `is_null` keeps it out of
     the statistics.
"""

from __future__ import annotations

from naiad.core.datatype import DATATYPES
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.scheduling.sequence.controls import SequenceControls
from naiad.scheduling.sequence.implicit_state import ImplicitState


class NullJobs:
    def __init__(self, controls: SequenceControls, state: ImplicitState) -> None:
        self._added = [
            *controls.tensors(0, is_start=False, is_ready=False, is_end=False),
            *(tensor.initial for tensor in state.tensors),
        ]
        self._zeros = memoryview(b"")

    def make(self, like: list[Tensor], now_ns: int) -> Job:
        stream = ResponseStream()
        stream.deliver_to(_drop)
        inputs = [
            Tensor(tensor.name, tensor.datatype, tensor.shape, self._zero_data(tensor))
            for tensor in like
        ]
        request = InferRequest("", inputs + self._added)
        return Job(request, stream, start_ns=now_ns, queue_start_ns=now_ns, is_null=True)

    def _zero_data(self, tensor: Tensor) -> memoryview:
        """Four zero bytes are also an empty string."""
        size = tensor.element_count() * (DATATYPES[tensor.datatype].byte_size or 4)
        if size > len(self._zeros):
            self._zeros = memoryview(bytes(size))
        return self._zeros[:size]


def _drop(response: InferResponse | None, is_final: bool) -> None:
    pass
