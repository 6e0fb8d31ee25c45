"""In front of a model's scheduler: requests that were answered before are answered from the
response cache.

In:  requests of a model whose config enables `response_cache`. Out: the cached answer, or the
     request on its way to the scheduler.
Rule: only the one successful answer of a request is kept. A hit counts as a request that succeeded,
      not as an inference.
"""

from __future__ import annotations

import asyncio
from functools import partial

from naiad.core.clock import Clock
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, unavailable
from naiad.instances.executor import Executor
from naiad.scheduling.cache.cache import CachedResponse, Key, ResponseCache, cache_key, keep
from naiad.scheduling.queue import RETRY_AFTER_S
from naiad.scheduling.scheduler import Resizable, Scheduler


class CachingScheduler:
    def __init__(
        self,
        inner: Scheduler,
        cache: ResponseCache,
        spec: ModelSpec,
        clock: Clock,
        statistics: ModelStatistics,
    ) -> None:
        self._inner = inner
        self._cache = cache
        self._spec = spec
        self._version = str(spec.version)
        self._clock = clock
        self._statistics = statistics
        self._num_looking = 0
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None

    # Scheduler.

    def enqueue(self, request: InferRequest) -> ResponseStream:
        if self._is_stopping and not request.is_inner:
            raise unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
                RETRY_AFTER_S,
            )
        stream = ResponseStream()
        start_ns = request.queue_start_ns = self._clock.now_ns()
        key = cache_key(request, self._spec)
        self._num_looking += 1
        self._cache.look_up(key, partial(self._on_found, request, stream, key, start_ns))
        return stream

    def inflight(self) -> int:
        return self._num_looking + self._inner.inflight()

    async def stop(self) -> None:
        self._is_stopping = True
        while self._num_looking:
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped
        await self._inner.stop()

    @property
    def resizable(self) -> Resizable | None:
        return self._inner.resizable

    @property
    def sequences(self) -> None:
        """Always None: a config with both a response cache and sequences is refused."""
        return None

    # Hits and misses.

    def _on_found(
        self,
        request: InferRequest,
        stream: ResponseStream,
        key: Key,
        start_ns: int,
        found: CachedResponse | None,
    ) -> None:
        now_ns = self._clock.now_ns()
        wanted = request.requested_outputs or list(self._spec.outputs)
        outputs = None if found is None else found.pick(wanted)
        if found is not None and outputs is not None:
            self._statistics.record_cache_hit(request.start_ns, now_ns - start_ns, now_ns)
            response = InferResponse(
                self._spec.name, self._version, request.id, outputs, found.parameters
            )
            stream.put(response, True)
        elif not stream.is_cancelled:
            self._pass_on(request, stream, key, wanted, now_ns - start_ns)
        else:
            self._statistics.record_failure(request.start_ns, now_ns, "CANCELED")
            stream.close()
        self._num_looking -= 1
        if self._stopped is not None and not self._stopped.done() and not self._num_looking:
            self._stopped.set_result(None)

    def _pass_on(
        self,
        request: InferRequest,
        stream: ResponseStream,
        key: Key,
        wanted: list[str],
        look_up_ns: int,
    ) -> None:
        try:
            inner = self._inner.enqueue(request)
        except NaiadError as error:
            stream.fail(error, self._spec.name, self._version, request.id)
            return
        stream.on_cancel(inner.cancel)
        inner.deliver_to(partial(self._on_response, stream, key, wanted, look_up_ns))

    def _on_response(
        self,
        stream: ResponseStream,
        key: Key,
        wanted: list[str],
        look_up_ns: int,
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        start_ns = self._clock.now_ns()
        if response is not None and response.error is None and is_final:
            self._cache.insert(key, keep(response, wanted))
        if is_final:
            self._statistics.cache_miss.add(look_up_ns + self._clock.now_ns() - start_ns)
        stream.put(response, is_final)
