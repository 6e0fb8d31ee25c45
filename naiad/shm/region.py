"""A region: memory of a client, registered by name, that holds tensors of its requests.

Rule: the server never maps a region. It copies the data first and checks the copy, so a client that
      changes, truncates or frees its memory in the meantime can only spoil its own request.
"""

from __future__ import annotations

from typing import Any, Protocol

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg

SYSTEM, CUDA = "system", "cuda"


def cannot_open() -> NaiadError:
    """The error for GPU memory that cannot be opened, for whatever reason."""
    return invalid_arg("failed to register shared memory region: invalid args")


class Region(Protocol):
    """A registered region.

    Offsets are relative to the region, and callers have checked them against `byte_size`. `read`,
    `read_into` and `write` may be called in any thread.
    """

    name: str
    kind: str
    byte_size: int
    is_slow: bool
    """True if access involves another process and so must not happen on the event loop."""

    def describe(self) -> dict[str, Any]:
        """Returns the region's status, with the fields in Triton's order."""
        ...

    def read(self, offset: int, num_bytes: int) -> bytes: ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills the buffer. Raises NaiadError if the memory no longer exists."""
        ...

    def write(self, offset: int, data: Buffer) -> None: ...

    def close(self) -> None: ...
