from __future__ import annotations

import asyncio

import pytest

from naiad.core.job import Job
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, internal
from naiad.instances.warmup import WarmupSample, run_sample

SAMPLE = WarmupSample("s", [Tensor("X", "UINT8", [1], b"\0")], batch_size=2, count=2)


def respond(job: Job, error: NaiadError | None = None, is_final: bool = True) -> None:
    job.stream.put(InferResponse("m", "1", "", [], error=error), is_final)


async def test_each_run_is_one_batch_of_single_requests() -> None:
    batches: list[list[Job]] = []

    def execute(jobs: list[Job]) -> None:
        batches.append(jobs)
        for job in jobs:
            respond(job)

    await run_sample(SAMPLE, "m", 5, execute)
    assert [len(batch) for batch in batches] == [2, 2]
    assert batches[0][0].request.inputs == SAMPLE.inputs
    assert batches[0][0].start_ns == 5


async def test_the_next_run_waits_for_the_last_response_of_a_decoupled_model() -> None:
    batches: list[list[Job]] = []
    running = asyncio.ensure_future(run_sample(SAMPLE, "m", 0, batches.append))
    await asyncio.sleep(0)
    for job in batches[0]:
        respond(job, is_final=False)
    await asyncio.sleep(0)
    assert len(batches) == 1
    for job in batches[0]:
        job.stream.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(batches) == 2
    for job in batches[1]:
        respond(job)
    await running


async def test_a_failure_names_the_sample() -> None:
    def execute(jobs: list[Job]) -> None:
        respond(jobs[0])
        respond(jobs[1], internal("too cold"))

    with pytest.raises(NaiadError) as caught:
        await run_sample(SAMPLE, "m", 0, execute)
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "failed to run warmup sample 's': too cold; ",
    )
