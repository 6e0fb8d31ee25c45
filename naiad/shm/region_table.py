"""The table of registered regions, by name.

In:  registrations, removals and status queries of the shared memory extension; `RegionUse` of
     decoded requests.
Out: RegionLease.
Rule: a region belongs to the API key that registered it: other keys neither see nor use it, and may
      use the same name. A region stays open until the last request that uses it has its
      response. Nothing is mapped (region.py).
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from naiad.core.identity import Identity
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.errors import Code, NaiadError, invalid_arg, not_found, unavailable, unsupported
from naiad.shm.region import CUDA, SYSTEM, Region, cannot_open
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
"""Maximum size of the inputs copied for requests in flight, at most half of the machine's memory.

A region may claim any size, but the memory for its copy is real.
"""
_TITLE = {SYSTEM: "system", CUDA: "CUDA"}

OpenCuda = Callable[[str, bytes, int, int], Region]
"""(name, raw handle, device, bytes) -> region; raises NaiadError. Called in a thread."""


class RegionTable:
    def __init__(self, *, is_allowed: bool = False, open_cuda: OpenCuda | None = None) -> None:
        """`open_cuda` is None if there are no GPUs."""
        self._is_allowed = is_allowed
        self._open_cuda = open_cuda
        self._entries: dict[tuple[str, str], RegionEntry] = {}
        """Keyed by owner and name."""
        self._threads: ThreadPoolExecutor | None = None
        self._max_read_bytes = min(
            MAX_READ_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        )
        self._read_bytes = 0
        # Each region holds a descriptor. Clients must not use up those that connections and
        # workers need.
        self._max_regions = max(
            64, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20) // 4
        )

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that copy tensors too large to be copied on the event loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, "naiad-region")
        return self._threads

    def check_allowed(self) -> None:
        if not self._is_allowed:
            raise unsupported(DISABLED)

    # The extension.

    def register_system(
        self, name: str, key: str, offset: int, byte_size: int, owner: str = ""
    ) -> None:
        """Raises NaiadError."""
        self.check_allowed()
        check_key(name, key)
        self._check_new(name, owner)
        self._add(open_system_region(name, key, offset, byte_size), owner)

    async def register_cuda(
        self, name: str, raw_handle: bytes, device_id: int, byte_size: int, owner: str = ""
    ) -> None:
        """Raises NaiadError. The driver may need a long time."""
        self.check_allowed()
        if not name or not raw_handle:
            raise invalid_arg("failed to register shared memory region: invalid args")
        self._check_new(name, owner)
        if self._open_cuda is None:
            raise invalid_arg(
                f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
            )
        if len(raw_handle) != HANDLE_BYTES or not 0 <= device_id < MAX_DEVICES:
            raise cannot_open()
        opening = asyncio.get_running_loop().run_in_executor(
            self.threads, self._open_cuda, name, raw_handle, device_id, byte_size
        )
        region = await opening
        try:
            self._check_new(name, owner)  # the name may have been registered in the meantime
        except NaiadError:
            region.close()
            raise
        self._add(region, owner)

    def unregister(self, kind: str, name: str = "", owner: str = "") -> None:
        """Unregisters one region of this owner, or all of this kind if `name` is empty.

        As in Triton, a name that is unknown or of the other kind is not an error. Raises NaiadError
        if clients may not use shared memory.
        """
        self.check_allowed()
        for entry in list(self._entries.values()):
            is_meant = entry.owner == owner and name in ("", entry.region.name)
            if is_meant and entry.region.kind == kind:
                entry.is_leaving = True
                self._drop_if_unused(entry)

    def status(self, kind: str, name: str = "", owner: str = "") -> list[Region]:
        """Returns one region of this owner, or all of this kind if `name` is empty.

        Raises NaiadError for a name that is not registered as this kind.
        """
        if not name:
            return [
                entry.region
                for _, entry in sorted(self._entries.items())
                if entry.region.kind == kind and entry.owner == owner
            ]
        entry = self._entries.get((owner, name))
        if entry is None:
            raise not_found(f"Unable to find {kind} shared memory region: '{name}'")
        if entry.region.kind != kind:
            raise not_found(
                f"The region named '{name}' is registered as {_TITLE[entry.region.kind]} shared "
                f"memory, not {_TITLE[kind]} shared memory"
            )
        return [entry.region]

    # Requests.

    def lease(self, use: RegionUse, owner: str = "") -> RegionLease:
        """Raises NaiadError, with Triton's messages. No region is in use then."""
        self.check_allowed()
        inputs = [(index, self._find(piece, owner), piece) for index, piece in use.inputs]
        outputs = {name: (self._find(piece, owner), piece) for name, piece in use.outputs.items()}
        lease = RegionLease(inputs, outputs, self._on_lease_closed)
        if self._read_bytes + lease.input_bytes > self._max_read_bytes:
            raise unavailable(
                f"requests in flight have read {self._read_bytes} bytes of shared memory, "
                f"{lease.input_bytes} more are too many"
            )
        self._read_bytes += lease.input_bytes
        for entry in lease.entries:
            entry.num_uses += 1
        return lease

    def _on_lease_closed(self, lease: RegionLease) -> None:
        self._read_bytes -= lease.input_bytes
        for entry in lease.entries:
            entry.num_uses -= 1
            self._drop_if_unused(entry)

    def close(self) -> None:
        """Closes all regions when the server stops."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for entry in self._entries.values():
            entry.region.close()
        self._entries.clear()

    def _find(self, piece: RegionSlice, owner: str) -> RegionEntry:
        name, offset, byte_size = piece.region, piece.offset, piece.byte_size
        entry = self._entries.get((owner, name))
        if entry is None:
            raise not_found(f"Unable to find shared memory region: '{name}'")
        if offset >= entry.region.byte_size:
            raise invalid_arg(f"Invalid offset for shared memory region: '{name}'")
        if byte_size > SIZE_MAX - offset:
            raise invalid_arg(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds "
                f"maximum value ({SIZE_MAX}) for region '{name}'"
            )
        if offset + byte_size > entry.region.byte_size:
            raise invalid_arg(f"Invalid offset + byte size for shared memory region: '{name}'")
        return entry

    def _check_new(self, name: str, owner: str) -> None:
        self.check_allowed()
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise invalid_arg(
                f"the name of a shared memory region must have 1 to {MAX_NAME_CHARS} characters"
            )
        if (owner, name) in self._entries:
            raise NaiadError(
                Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager"
            )
        if len(self._entries) >= self._max_regions:
            raise unavailable(
                f"{self._max_regions} shared memory regions are registered already, "
                "no more are possible"
            )

    def _add(self, region: Region, owner: str) -> None:
        self._entries[owner, region.name] = RegionEntry(region, owner)

    def _drop_if_unused(self, entry: RegionEntry) -> None:
        place = entry.owner, entry.region.name
        if entry.is_leaving and entry.num_uses == 0 and self._entries.get(place) is entry:
            del self._entries[place]
            entry.region.close()


def owner_of(identity: Identity | None) -> str:
    return "" if identity is None else identity.key_id
