"""A scheduler in front of a model's own: requests whose response is known get it from the response
cache.

In:  jobs of a model whose config enables `response_cache`. Out: the cached response, or the job, to
     the model's own scheduler.
Rule: a response is kept only if it is the one successful response of its request. A hit counts as a
      request that succeeded, not as an inference.
"""

from __future__ import annotations

import asyncio
from functools import partial

from naiad.core.clock import Clock
from naiad.core.job import Job
from naiad.core.model_spec import ModelSpec
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError
from naiad.scheduling.cache.cache import CachedResponse, Key, ResponseCache, cache_key, keep
from naiad.scheduling.scheduler import Resizable, Scheduler, stopping_error


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
        self._num_lookups = 0
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None

    # Scheduler.

    def enqueue(self, job: Job) -> ResponseStream:
        if self._is_stopping and not job.is_inner:
            raise stopping_error()
        stream = ResponseStream()
        start_ns = job.queue_start_ns = self._clock.now_ns()
        key = cache_key(job.request, self._spec)
        self._num_lookups += 1
        self._cache.look_up(key, partial(self._on_lookup, job, stream, key, start_ns))
        return stream

    def inflight(self) -> int:
        return self._num_lookups + self._inner.inflight()

    async def stop(self) -> None:
        self._is_stopping = True
        while self._num_lookups:
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

    def _on_lookup(
        self,
        job: Job,
        stream: ResponseStream,
        key: Key,
        start_ns: int,
        cached: CachedResponse | None,
    ) -> None:
        now_ns = self._clock.now_ns()
        requested = job.request.requested_outputs or list(self._spec.outputs)
        outputs = None if cached is None else cached.select(requested)
        if cached is not None and outputs is not None:
            self._statistics.record_cache_hit(job.start_ns, now_ns - start_ns, now_ns)
            response = InferResponse(
                self._spec.name, self._version, job.request.id, outputs, cached.parameters
            )
            stream.put(response, True)
        elif not stream.is_cancelled:
            self._pass_on(job, stream, key, requested, now_ns - start_ns)
        else:
            self._statistics.record_failure(job.start_ns, now_ns, "CANCELED")
            stream.close()
        self._num_lookups -= 1
        if self._stopped is not None and not self._stopped.done() and not self._num_lookups:
            self._stopped.set_result(None)

    def _pass_on(
        self,
        job: Job,
        stream: ResponseStream,
        key: Key,
        requested: list[str],
        lookup_ns: int,
    ) -> None:
        try:
            inner = self._inner.enqueue(job)
        except NaiadError as error:
            stream.fail(error, self._spec.name, self._version, job.request.id)
            return
        stream.on_cancel(inner.cancel)
        inner.deliver_to(partial(self._on_response, stream, key, requested, lookup_ns))

    def _on_response(
        self,
        stream: ResponseStream,
        key: Key,
        requested: list[str],
        lookup_ns: int,
        response: InferResponse | None,
        is_final: bool,
    ) -> None:
        start_ns = self._clock.now_ns()
        if response is not None and response.error is None and is_final:
            self._cache.insert(key, keep(response, requested))
        if is_final:
            self._statistics.cache_miss.add(lookup_ns + self._clock.now_ns() - start_ns)
        stream.put(response, is_final)
