"""Runs a request with tensors in clients' regions: reads the inputs, infers, writes the outputs.

In:  InferRequest whose `regions` is set, and `infer`, which runs it without regions.
Out: the ResponseStream for the endpoint.
Small tensors are copied on the event loop. A thread copies large ones, so that they do not delay
other requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from naiad import log
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.errors import NaiadError, cancelled, internal
from naiad.shm.region_lease import Allocate, RegionLease
from naiad.shm.region_table import RegionTable, owner_of

MAX_INLINE_BYTES = 2 << 20
"""Up to this size, tensors are copied on the event loop.

Such a copy takes about as long as decoding a large request.
"""

MAX_INLINE_STRING_BYTES = 64 << 10
"""The limit for requests with strings, which are counted one by one."""

T = TypeVar("T")
Infer = Callable[[InferRequest], ResponseStream]


def infer_with_regions(
    request: InferRequest,
    table: RegionTable,
    infer: Infer,
    allocate: Allocate,
    check_strings: Callable[[InferRequest], None] = lambda request: None,
    on_lost: Callable[[InferRequest], None] = lambda request: None,
) -> ResponseStream:
    """Raises NaiadError as `infer` does. `check_strings` counts the elements of BYTES inputs; it
    runs in a thread where that takes long. `on_lost` is called when the request fails after this
    function has returned."""
    use, request.regions = request.regions, None
    assert use is not None
    lease = table.lease(use, owner_of(request.identity))
    try:
        lease.allocate_inputs(request, allocate)
        has_strings = any(tensor.datatype == "BYTES" for tensor in request.inputs)
        limit = MAX_INLINE_STRING_BYTES if has_strings else MAX_INLINE_BYTES
        if lease.has_slow_inputs or lease.input_bytes > limit:
            return _RegionStream(lease, table).start_later(request, infer, check_strings, on_lost)
        lease.read_inputs(request)
        stream = infer(request)
    except BaseException:
        lease.close()
        raise
    return _RegionStream(lease, table).follow(stream)


class _RegionStream:
    """Passes responses from the model's stream to the endpoint's stream, in order.

    It writes the outputs to their regions, and closes the lease after the last response.
    """

    def __init__(self, lease: RegionLease, table: RegionTable) -> None:
        self._lease = lease
        self._table = table
        self._outer = ResponseStream()
        self._events: deque[tuple[InferResponse | None, bool]] = deque()
        self._is_writing = False

    def follow(self, inner: ResponseStream) -> ResponseStream:
        self._outer.on_cancel(inner.cancel)
        self._outer.on_flow(inner.pause)
        inner.deliver_to(self._on_response)
        return self._outer

    # Large inputs.

    def start_later(
        self,
        request: InferRequest,
        infer: Infer,
        check_strings: Callable[[InferRequest], None],
        on_lost: Callable[[InferRequest], None],
    ) -> ResponseStream:
        self._in_thread(
            partial(self._read, request, check_strings),
            partial(self._on_read, request, infer, on_lost),
            lambda error: error,
        )
        return self._outer

    def _read(
        self, request: InferRequest, check_strings: Callable[[InferRequest], None]
    ) -> NaiadError | None:
        try:
            self._lease.read_inputs(request)
            check_strings(request)
        except NaiadError as error:
            return error
        return None

    def _on_read(
        self,
        request: InferRequest,
        infer: Infer,
        on_lost: Callable[[InferRequest], None],
        error: NaiadError | None,
    ) -> None:
        try:
            if self._outer.is_cancelled:
                raise cancelled("request was cancelled while its inputs were read")
            if error is not None:
                raise error
            inner = infer(request)
        except NaiadError as failure:
            self._lease.close()
            on_lost(request)
            self._outer.fail(failure, request.model_name, request.model_version, request.id)
        else:
            self.follow(inner)

    # Outputs.

    def _on_response(self, response: InferResponse | None, is_final: bool) -> None:
        self._events.append((response, is_final))
        if not self._is_writing:
            self._advance()

    def _advance(self) -> None:
        while self._events:
            response, is_final = self._events.popleft()
            if response is None or response.error is not None:
                self._put(response, is_final)
            elif (
                self._lease.has_slow_outputs
                or self._lease.output_bytes(response.outputs) > MAX_INLINE_BYTES
            ):
                self._is_writing = True
                self._in_thread(
                    partial(self._write, response),
                    partial(self._on_written, is_final),
                    partial(_failed, response),
                )
                return
            else:
                self._put(self._write(response), is_final)

    def _write(self, response: InferResponse) -> InferResponse:
        try:
            outputs = self._lease.write_outputs(response.outputs)
        except NaiadError as error:
            return _failed(response, error)
        return msgspec.structs.replace(response, outputs=outputs)

    def _on_written(self, is_final: bool, response: InferResponse) -> None:
        self._is_writing = False
        self._put(response, is_final)
        self._advance()

    def _put(self, response: InferResponse | None, is_final: bool) -> None:
        if is_final:
            self._lease.close()
        self._outer.put(response, is_final)

    def _in_thread(
        self, work: Callable[[], T], on_done: Callable[[T], None], failed: Callable[[NaiadError], T]
    ) -> None:
        def finish(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                on_done(failed(cancelled("the server is shutting down")))
            elif (error := future.exception()) is not None:
                log.error(f"copying from or to shared memory failed: {error!r}")
                on_done(failed(internal("the shared memory of the request could not be copied")))
            else:
                on_done(future.result())

        asyncio.get_running_loop().run_in_executor(self._table.threads, work).add_done_callback(
            finish
        )


def _failed(response: InferResponse, error: NaiadError) -> InferResponse:
    return InferResponse(response.model_name, response.model_version, response.id, [], error=error)
