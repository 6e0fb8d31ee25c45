"""The clients' registered regions, by name: register, unregister, status, and the lookup that every
request in shared memory begins with.

In:  what the shared memory extension's routes and RPCs ask for; `RegionUse` from decoded requests.
Out: RegionLease. Rule: a region that requests in flight use stays until the last of them is
     answered; nothing is mapped (region.py).
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.errors import Code, NaiadError, invalid_arg, not_found, unavailable, unsupported
from naiad.shm.region import CUDA, SYSTEM, Region
from naiad.shm.region_lease import RegionEntry, RegionLease
from naiad.shm.system_region import check_key, open_system_region

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
MAX_NAME_CHARS = 1024
SIZE_MAX = (1 << 64) - 1
HANDLE_BYTES = 64
MAX_DEVICES = 1024
NUM_THREADS = 4
MAX_READ_BYTES = 8 << 30
"""Of inputs of requests in flight: a region may claim any size, the memory that it is copied to is
real. At most half of the machine's."""
_TITLE = {SYSTEM: "system", CUDA: "CUDA"}

OpenCuda = Callable[[str, bytes, int, int], Region]
"""(name, raw handle, device, bytes) -> region; raises NaiadError. Called in a thread."""


class RegionTable:
    def __init__(self, *, is_allowed: bool = False, open_cuda: OpenCuda | None = None) -> None:
        """`open_cuda`: None where there are no GPUs."""
        self._is_allowed = is_allowed
        self._open_cuda = open_cuda
        self._entries: dict[str, RegionEntry] = {}
        self._threads: ThreadPoolExecutor | None = None
        # Each region holds a descriptor: clients must not take those that connections and workers
        # need.
        self._max_read_bytes = min(
            MAX_READ_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        )
        self._read_bytes = 0
        self._max_regions = max(
            64, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20) // 4
        )

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Copy what is too large to be copied on the event loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, "naiad-region")
        return self._threads

    def check_allowed(self) -> None:
        if not self._is_allowed:
            raise unsupported(DISABLED)

    # The extension.

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises NaiadError."""
        self.check_allowed()
        check_key(name, key)
        self._check_new(name)
        self._add(open_system_region(name, key, offset, byte_size))

    async def register_cuda(
        self, name: str, raw_handle: bytes, device_id: int, byte_size: int
    ) -> None:
        """Raises NaiadError. Takes as long as the driver needs."""
        self._check_new(name)
        if self._open_cuda is None:
            raise invalid_arg(
                f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
            )
        if len(raw_handle) != HANDLE_BYTES or not 0 <= device_id < MAX_DEVICES:
            raise invalid_arg(f"failed to register shared memory region '{name}': invalid args")
        opening = asyncio.get_running_loop().run_in_executor(
            self.threads, self._open_cuda, name, raw_handle, device_id, byte_size
        )
        region = await opening
        try:
            self._check_new(name)  # another registration may have taken the name meanwhile
        except NaiadError:
            region.close()
            raise
        self._add(region)

    def unregister(self, kind: str, name: str = "") -> None:
        """All of this kind without a name. A region that is unknown or of the other kind is left
        alone, and that is no error."""
        entries = (
            list(self._entries.values())
            if not name
            else [self._entries[name]]
            if name in self._entries
            else []
        )
        for entry in entries:
            if entry.region.kind == kind:
                entry.is_leaving = True
                self._drop_if_unused(entry)

    def status(self, kind: str, name: str = "") -> list[Region]:
        """Raises NaiadError for a name that is not registered, or not as this kind."""
        if not name:
            return [
                entry.region
                for _, entry in sorted(self._entries.items())
                if entry.region.kind == kind
            ]
        entry = self._entries.get(name)
        if entry is None:
            raise not_found(f"Unable to find {kind} shared memory region: '{name}'")
        found = entry.region.kind
        if found != kind:
            raise not_found(
                f"The region named '{name}' is registered as {_TITLE[found]} shared memory, not {_TITLE[kind]} shared memory"
            )
        return [entry.region]

    # Requests.

    def lease(self, use: RegionUse) -> RegionLease:
        """Raises NaiadError in Triton's words; nothing is held then."""
        self.check_allowed()
        inputs = [(at, self._find(piece), piece) for at, piece in use.inputs]
        outputs = {name: (self._find(piece), piece) for name, piece in use.outputs.items()}
        lease = RegionLease(inputs, outputs, self._take_back)
        if self._read_bytes + lease.input_bytes > self._max_read_bytes:
            raise unavailable(
                f"requests in flight have read {self._read_bytes} bytes of shared memory, {lease.input_bytes} more are too many"
            )
        self._read_bytes += lease.input_bytes
        for entry in lease.entries:
            entry.num_uses += 1
        return lease

    def _take_back(self, lease: RegionLease) -> None:
        self._read_bytes -= lease.input_bytes
        for entry in lease.entries:
            entry.num_uses -= 1
            self._drop_if_unused(entry)

    def close(self) -> None:
        """At the end of the server."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for entry in self._entries.values():
            entry.region.close()
        self._entries.clear()

    def _find(self, piece: RegionSlice) -> RegionEntry:
        name, offset, byte_size = piece.region, piece.offset, piece.byte_size
        entry = self._entries.get(name)
        if entry is None:
            raise not_found(f"Unable to find shared memory region: '{name}'")
        if offset >= entry.region.byte_size:
            raise invalid_arg(f"Invalid offset for shared memory region: '{name}'")
        if byte_size > SIZE_MAX - offset:
            raise invalid_arg(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value ({SIZE_MAX}) "
                f"for region '{name}'"
            )
        if offset + byte_size > entry.region.byte_size:
            raise invalid_arg(f"Invalid offset + byte size for shared memory region: '{name}'")
        return entry

    def _check_new(self, name: str) -> None:
        self.check_allowed()
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise invalid_arg(
                f"the name of a shared memory region must have 1 to {MAX_NAME_CHARS} characters"
            )
        if name in self._entries:
            raise NaiadError(
                Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager"
            )
        if len(self._entries) >= self._max_regions:
            raise unavailable(
                f"{self._max_regions} shared memory regions are registered already, no more are possible"
            )

    def _add(self, region: Region) -> None:
        self._entries[region.name] = RegionEntry(region)

    def _drop_if_unused(self, entry: RegionEntry) -> None:
        if (
            entry.is_leaving
            and entry.num_uses == 0
            and self._entries.get(entry.region.name) is entry
        ):
            del self._entries[entry.region.name]
            entry.region.close()
