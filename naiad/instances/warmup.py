"""Warm-up: samples that an instance executes before it is ready, each time its worker starts.

A sample of batch size N is N requests of one item each in one batch, as under Triton, and counts in
the statistics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, invalid_arg


class WarmupSample(msgspec.Struct, frozen=True):
    name: str
    inputs: list[Tensor]
    batch_size: int
    count: int


class _Outcome:
    """Collects what comes of the requests of one batch."""

    def __init__(self, count: int) -> None:
        self._num_open = count
        self.errors: list[NaiadError] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_response(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None and response.error is not None:
            self.errors.append(response.error)
        self._num_open -= is_final
        if not self._num_open and not self.done.done():
            self.done.set_result(None)


async def run_sample(
    sample: WarmupSample, model_name: str, now_ns: int, execute: Callable[[list[Job]], None]
) -> None:
    """Raises NaiadError when any of the requests fails."""
    for _ in range(sample.count):
        outcome = _Outcome(sample.batch_size)
        jobs: list[Job] = []
        for _ in range(sample.batch_size):
            stream = ResponseStream()
            stream.deliver_to(outcome.on_response)
            request = InferRequest(model_name, list(sample.inputs))
            jobs.append(Job(request, stream, start_ns=now_ns, queue_start_ns=now_ns))
        execute(jobs)
        await outcome.done
        if outcome.errors:
            messages = "".join(f"{error.message}; " for error in outcome.errors)
            raise invalid_arg(f"failed to run warmup sample '{sample.name}': {messages}")
