"""Where batches of this worker go on: to the worker of the next step, while they are of a chain (chain.py) that has one here.

In:  batches that the backend has answered. Out: the same as work of the next worker (chain_ends.py); its requests are closed here.
"""

from __future__ import annotations

import time

from naiad.core.work import WorkRequest, WorkResponse
from naiad.workers.chain_ends import Outlet
from naiad.workers.messages import Onward, Returned
from naiad.workers.worker_channel import WorkerChannel
from naiad.workers.worker_runtime import WorkerRuntime


class Outlets:
    def __init__(self, channel: WorkerChannel, runtime: WorkerRuntime) -> None:
        self._channel = channel
        self._calls = runtime.calls
        self._close_request = runtime.close
        self._by_chain: dict[int, Outlet] = {}

    def open(self, message: Onward) -> None:
        self._by_chain[message.chain] = Outlet(message.form, message.outputs, self._channel.onward_fds.pop(message.chain))

    def close(self, chain: int) -> None:
        """Also of a chain that ends here: the server waits for this word."""
        outlet = self._by_chain.pop(chain, None)
        if outlet is not None:
            outlet.close()
        self._channel.send(Returned(chain))

    def send(
        self,
        chain: int,
        batch: int,
        legs: list[tuple[int, int, int]],
        requests: list[WorkRequest],
        handles: list[int],
        input_end_ns: int,
        responses: list[WorkResponse | None],
    ) -> bool:
        """To the worker of the next step. False: there is none, or it is not for it."""
        outlet = self._by_chain.get(chain)
        if outlet is None:
            return False
        output_start_ns = time.monotonic_ns()
        if self._calls.untold:
            self._calls.tell()
        if not outlet.send(batch, [*legs, (input_end_ns, output_start_ns, time.monotonic_ns())], requests, responses):
            return False
        for handle in handles:
            self._close_request(handle)
        return True
