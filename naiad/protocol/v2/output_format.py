"""How a client wants its outputs: as JSON, as binary data, as classes, or in its shared memory.

The request decides; the response encoder obeys.
"""

from __future__ import annotations

import msgspec


class OutputFormat(msgspec.Struct, frozen=True):
    is_binary: bool = False
    classification: int = 0
    """The number of top classes to return; 0 returns the tensor itself."""
    is_shared: bool = False
    """The data goes to the client's shared memory; the response only describes it."""


JSON_FORMAT = OutputFormat()
BINARY_FORMAT = OutputFormat(is_binary=True)
SHARED_FORMAT = OutputFormat(is_shared=True)


class OutputFormats(msgspec.Struct, frozen=True):
    default: OutputFormat = JSON_FORMAT
    """The format of every output while `by_name` is None."""
    by_name: dict[str, OutputFormat] | None = None
    """The requested outputs, in order; None requests all of them."""

    def of(self, name: str) -> OutputFormat | None:
        """None for an output that was not requested."""
        return self.default if self.by_name is None else self.by_name.get(name)


ALL_JSON = OutputFormats()
ALL_BINARY = OutputFormats(BINARY_FORMAT)
