"""The shared memory extensions over HTTP: status, register, unregister of clients' regions.

Where client shared memory is off, the table refuses registrations; status and unregister work on
the empty set of regions, because perf_analyzer and scripts call them on every server.
"""

from __future__ import annotations

import asyncio

import msgspec

from naiad.errors import NaiadError, internal, invalid_arg
from naiad.frontends.http.response import respond_error, respond_json
from naiad.frontends.http.routes import Names
from naiad.protocol.v2.extension_json import (
    CudaRegistration,
    decode_cuda_registration,
    decode_system_registration,
)
from naiad.shm.region import CUDA
from naiad.shm.region_table import RegionTable, owner_of
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE


class SharedMemoryRoutes:
    def __init__(self, regions: RegionTable) -> None:
        self._regions = regions
        self._tasks: set[asyncio.Task[None]] = set()

    def status(self, exchange: Exchange, names: Names) -> None:
        try:
            found = self._regions.status(
                names["kind"], names["region"], owner_of(exchange.identity)
            )
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            respond_json(exchange, msgspec.json.encode([region.describe() for region in found]))

    def register(self, exchange: Exchange, names: Names) -> None:
        kind, name = names["kind"], names["region"]
        try:
            self._regions.check_allowed()
            if not name:
                raise invalid_arg(
                    f"'region name' is necessary to register {kind} shared memory region"
                )
            if kind == CUDA:
                self._register_cuda(exchange, name, decode_cuda_registration(exchange.body))
                return
            wanted = decode_system_registration(exchange.body)
            owner = owner_of(exchange.identity)
            self._regions.register_system(name, wanted.key, wanted.offset, wanted.byte_size, owner)
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            exchange.respond(200, JSON_TYPE)

    def unregister(self, exchange: Exchange, names: Names) -> None:
        try:
            self._regions.unregister(names["kind"], names["region"], owner_of(exchange.identity))
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            exchange.respond(200, JSON_TYPE)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _register_cuda(self, exchange: Exchange, name: str, wanted: CudaRegistration) -> None:
        async def run() -> None:
            try:
                await self._regions.register_cuda(
                    name,
                    wanted.raw_handle,
                    wanted.device_id,
                    wanted.byte_size,
                    owner_of(exchange.identity),
                )
            except NaiadError as error:
                respond_error(exchange, error)
            except BaseException:
                respond_error(exchange, internal("the region could not be registered"))
                raise
            else:
                exchange.respond(200, JSON_TYPE)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
