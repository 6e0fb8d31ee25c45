"""The regions that one request uses, from its decoding to its last response.

In:  RegionTable.lease makes a lease after it has checked the bounds.
Out: inputs as copies of the region's data; outputs copied into the region.
Invariant: `close` is called exactly once, after the last read and write. Until then no region of
           the lease is closed.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.region_slice import RegionSlice
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal
from naiad.shm.region import Region

Allocate = Callable[[int], memoryview | None]
"""Allocates memory shared with the workers of the model. Returns None if a copy is cheaper."""


class RegionEntry:
    """A region in the table."""

    __slots__ = ("is_leaving", "num_uses", "owner", "region")

    def __init__(self, region: Region, owner: str = "") -> None:
        self.region = region
        self.owner = owner
        """The id of the API key that registered it; empty where nobody needs a key."""
        self.num_uses = 0
        self.is_leaving = False
        """True once the client has unregistered it. It is closed after its last use."""


class RegionLease:
    __slots__ = (
        "_inputs",
        "_on_close",
        "_outputs",
        "has_slow_inputs",
        "has_slow_outputs",
        "input_bytes",
    )

    def __init__(
        self,
        inputs: list[tuple[int, RegionEntry, RegionSlice]],
        outputs: dict[str, tuple[RegionEntry, RegionSlice]],
        on_close: Callable[[RegionLease], None],
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._on_close = on_close
        self.input_bytes = sum(piece.byte_size for _, _, piece in inputs)
        self.has_slow_inputs = any(entry.region.is_slow for _, entry, _ in inputs)
        self.has_slow_outputs = any(entry.region.is_slow for entry, _ in outputs.values())

    @property
    def entries(self) -> list[RegionEntry]:
        """The entry of each tensor; a region may occur several times."""
        return [entry for _, entry, _ in self._inputs] + [
            entry for entry, _ in self._outputs.values()
        ]

    def output_bytes(self, outputs: list[Tensor]) -> int:
        """Returns the size of the outputs that are written to a region."""
        return sum(len(tensor.data) for tensor in outputs if tensor.name in self._outputs)

    def allocate_inputs(self, request: InferRequest, allocate: Allocate) -> None:
        """Gives large inputs memory that the worker can read, so that they are copied only once."""
        for index, _, piece in self._inputs:
            buffer = allocate(piece.byte_size)
            request.inputs[index].data = b"" if buffer is None else buffer

    def read_inputs(self, request: InferRequest) -> None:
        """Raises NaiadError. May run in any thread."""
        for index, entry, piece in self._inputs:
            tensor = request.inputs[index]
            if isinstance(tensor.data, memoryview):
                entry.region.read_into(piece.offset, tensor.data)
            else:
                tensor.data = entry.region.read(piece.offset, piece.byte_size)

    def write_outputs(self, outputs: list[Tensor]) -> list[Tensor]:
        """Returns the outputs, without the data of those that were written to a region.

        Raises NaiadError. May run in any thread.
        """
        remaining: list[Tensor] = []
        for tensor in outputs:
            target = self._outputs.get(tensor.name)
            if target is not None:
                entry, piece = target
                num_bytes = len(tensor.data)
                if num_bytes > piece.byte_size:
                    raise _too_small(tensor.name, piece.byte_size, num_bytes)
                entry.region.write(piece.offset, tensor.data)
                tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
            remaining.append(tensor)
        return remaining

    def close(self) -> None:
        self._on_close(self)


def _too_small(name: str, given_bytes: int, needed_bytes: int) -> NaiadError:
    return internal(
        f"shared memory size specified with the request for output '{name}' ({given_bytes} bytes) "
        f"should be at least {needed_bytes} bytes to hold the results"
    )
