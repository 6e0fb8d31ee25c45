"""A region: memory of a client that was registered by name, to hold tensors of its requests.

Rule: the server never maps it. What is read is copied first and checked afterwards, so a client
      that changes, truncates or frees its memory meanwhile can spoil its own request, and nothing
      else.
"""

from __future__ import annotations

from typing import Any, Protocol

from naiad.core.tensor import Buffer

SYSTEM, CUDA = "system", "cuda"


class Region(Protocol):
    """Offsets are relative to the region and have been checked against `byte_size`. `read` and
    `write` are called in any thread."""

    name: str
    kind: str
    byte_size: int
    is_slow: bool
    """Another process has to be asked: never on the event loop."""

    def describe(self) -> dict[str, Any]:
        """What the status of the extension shows, in Triton's order."""
        ...

    def read(self, offset: int, num_bytes: int) -> bytes: ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills the buffer. Raises NaiadError when the memory is not there any more."""
        ...

    def write(self, offset: int, data: Buffer) -> None: ...

    def close(self) -> None: ...
