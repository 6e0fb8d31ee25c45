"""Instances with real worker processes, on the built-in identity backend: what the tests of their
parts share."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from naiad.core.clock import LoopClock
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.instances.instance import Instance
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.restart import RestartPolicy
from naiad.instances.template_process import Templates
from naiad.ipc.work import LoadArguments
from naiad.shm.arena import Arena
from tests.fakes import FakeServices


def make_instance(
    templates: Templates, *, execution_timeout_ns: int = 0, **parameters: str
) -> Instance:
    config = {
        "input": [{"name": "INPUT0"}],
        "output": [{"name": "OUTPUT0"}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }

    arguments = LoadArguments("m", 1, "/nowhere", "m_0", "CPU", 0, msgspec.json.encode(config))
    plan = InstancePlan("identity", "m", "1", False, execution_timeout_ns, RestartPolicy())
    return Instance(
        LoopClock(asyncio.get_running_loop()),
        templates,
        plan,
        arguments,
        Arena(),
        ModelStatistics("m", 1),
        FakeServices(),
    )


def make_job(array: np.ndarray[Any, Any], data: memoryview | None = None) -> Job:
    tensor = Tensor("INPUT0", "FP32", list(array.shape), array.tobytes() if data is None else data)
    return Job(InferRequest("m", [tensor]), ResponseStream())


async def infer(instance: Instance, *jobs: Job) -> list[np.ndarray[Any, Any]]:
    instance.execute(list(jobs))
    responses = await asyncio.gather(*(job.stream.single() for job in jobs))
    return [response.outputs[0].as_numpy() for response in responses]
