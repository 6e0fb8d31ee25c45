"""CPU of one request in the server process when frontend processes decode and encode: from the
bytes of an `Infer` message to those of a `Respond` message, without workers.

In:  messages of 32 requests (or --requests), as a frontend sends them. Out: CPU microseconds per
     request, the minimum and the median of several rounds. The batch goes through the real session,
     scheduler, execution and responses; a fake channel stands in for the worker.
Use: `python -m bench.scheduler_loop [--typed | --single] [--requests 8]`. With --typed the server
     decodes all tensors, as it does for models whose requests it must look at; with --single it
     gets no bundles.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import socket
import statistics
import time
from typing import Any, cast

import msgspec
import uvloop

from naiad.core.clock import LoopClock
from naiad.core.model_spec import ModelSpec, ServerMetadata, TensorSpec
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.frontend_process.messages import FromFrontend, Infer, RemoteRequest
from naiad.frontend_process.outbox import MAX_TURNS
from naiad.frontend_process.remote_core import to_message
from naiad.frontend_process.served_models import Served
from naiad.frontend_process.session import FrontendSession
from naiad.inference import InferenceCore
from naiad.instances.execution import Execution
from naiad.instances.in_flight import InFlight
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.instances.responses import Responses
from naiad.instances.restart import RestartPolicy
from naiad.ipc.framing import Link
from naiad.ipc.messages import Executed, ToEncodingServer
from naiad.ipc.work import WorkResponse
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.shm.arena import Arena

REQUESTS = 32
TURNS = 40
ROUNDS = 40


class Loan:
    is_allowed = False
    is_active = False

    def recall(self, *, is_wanted: bool = False) -> None:
        pass


class WorkerChannel:
    """Keeps the batch that was sent; `respond` returns the message of a worker that has executed
    it."""

    def __init__(self) -> None:
        self.link: Link[Any] = Link(msgspec.msgpack.Decoder(ToEncodingServer), Arena())
        self.link.keep_encoded(msgspec.msgpack.Decoder(ToEncodingServer))
        self._out = bytearray()
        self._sent: list[tuple[int, int]] = []
        outputs = [Tensor(f"OUTPUT{n}", "FP32", [1, 16], bytes(64)) for n in range(2)]
        self._response = WorkResponse(outputs)
        self._worker: Link[Any] = Link(msgspec.msgpack.Decoder(ToEncodingServer), Arena())
        self._messages: dict[int, bytes] = {}

    def send(self, message: Any) -> None:
        self.link.pack(message, self._out)
        num_bundled = sum(len(bundle.inputs) for bundle in message.bundles)
        self._sent.append((message.batch, len(message.requests) + num_bundled))

    def prepare(self) -> list[bytes]:
        """Made outside of the measured time."""
        found = []
        for batch, size in self._sent:
            out = bytearray()
            self._worker.pack(Executed(batch, 1, 2, [self._response] * size, True), out)
            found.append(bytes(out))
        self._sent.clear()
        return found


class Instance:
    is_free = True
    max_batches = 1
    outage = ""
    is_serving = True

    def __init__(self, loop: asyncio.AbstractEventLoop, statistics_: ModelStatistics) -> None:
        self.channel = WorkerChannel()
        self.loan = Loan()
        self._observers = Observers(cast(Any, self))
        self._in_flight = InFlight()
        plan = InstancePlan("python", "add_sub", "1", False, 0, RestartPolicy())
        process = cast(Any, self)
        self.name = "add_sub_0"
        self._execution = Execution(
            process, plan, self._in_flight, self._observers, statistics_, LoopClock(loop)
        )
        self.responses = Responses(
            cast(Any, self.channel), plan, self._in_flight, self._observers, statistics_
        )

    @property
    def inflight(self) -> int:
        return self._in_flight.num_awaited

    def attach(self, scheduler: Any) -> None:
        self._observers.attach(scheduler)

    def execute(self, jobs: list[Any], on_executed: Any = None) -> None:
        self._execution.execute(jobs, on_executed)


class Models:
    def __init__(self, served: Served) -> None:
        self._served = served

    def current(self, item: Any) -> Served:
        return self._served

    def name_of(self, item: Any) -> str:
        return "add_sub"


async def measure(*, is_opaque: bool, is_bundled: bool, num_requests: int, profile: bool) -> None:
    loop = asyncio.get_running_loop()
    counters = ModelStatistics("add_sub", 1)
    instance = Instance(loop, counters)
    scheduler = DynamicScheduler([cast(Any, instance)], BatchRule(64), LoopClock(loop), counters)
    tensors = {name: TensorSpec(name, "FP32", [16], [-1, 16]) for name in ("INPUT0", "INPUT1")}
    spec = ModelSpec("add_sub", 1, [1], "python", 64, tensors, {})
    model = Model(spec, ModelConfig(), counters, [], scheduler, Arena())
    core = InferenceCore(cast(Any, None), ServerMetadata("", "", []))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    session = FrontendSession(
        loop,
        ours,
        1,
        core,
        cast(
            Any,
            Models(Served(model, "add_sub", is_opaque, scheduler if is_bundled else None)),
        ),
        {},
        Arena(),
        cast(Any, None),
        cast(Any, None),
        cast(Any, None),
        lambda *_: None,
    )
    frontend: Link[Any] = Link(msgspec.msgpack.Decoder(FromFrontend), Arena())
    inputs = [Tensor(f"INPUT{n}", "FP32", [1, 16], bytes(64)) for n in range(2)]
    message = bytearray()
    requests = [
        RemoteRequest(handle, 1, 1, time.monotonic_ns(), False, True, "", inputs)
        for handle in range(num_requests)
    ]
    frontend.pack(to_message(requests) if is_bundled else Infer(requests), message)
    theirs_buffer = bytearray(1 << 20)
    results = []
    profiler = cProfile.Profile()
    for _ in range(ROUNDS):
        used_s = 0.0
        for _ in range(TURNS):
            theirs.send(message)
            start_s = time.thread_time()
            if profile:
                profiler.enable()
            session._channel._on_readable()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            profiler.disable()
            used_s += time.thread_time() - start_s
            for data in instance.channel.prepare():
                view = memoryview(bytearray(data))
                start_s = time.thread_time()
                if profile:
                    profiler.enable()
                for executed in instance.channel.link.feed(view):
                    instance.responses.on_encoded(executed)
                await asyncio.sleep(0)
                profiler.disable()
                used_s += time.thread_time() - start_s
            for _ in range(MAX_TURNS):
                await asyncio.sleep(0)
            theirs.recv_into(theirs_buffer)
        results.append(used_s / TURNS / num_requests * 1e6)
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    kind = "bundled" if is_bundled else "encoded" if is_opaque else "typed"
    print(f"{kind}: min {min(results):.2f} us, median {statistics.median(results):.2f} us")
    session.close("done")
    theirs.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--typed", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    gc.freeze()
    uvloop.run(
        measure(
            is_opaque=not options.typed,
            is_bundled=not (options.typed or options.single),
            num_requests=options.requests,
            profile=options.profile,
        )
    )


if __name__ == "__main__":
    main()
