"""The place of a tensor in a client's shared memory, given by the name of a registered region.

In:  protocol decoders build a slice from the request, without looking up or checking anything.
Out: naiad.shm.region_table resolves it, once per request, before the request is validated.
"""

from __future__ import annotations

import msgspec


class RegionSlice(msgspec.Struct, frozen=True):
    region: str
    offset: int
    byte_size: int


class RegionUse(msgspec.Struct, frozen=True):
    """All tensors of a request that are in clients' regions.

    Requests that repeat each other share one RegionUse.
    """

    inputs: list[tuple[int, RegionSlice]]
    """(index among the request's inputs, place). The input has no data until it has been read."""
    outputs: dict[str, RegionSlice] = {}
    """Output name -> the place to write it to."""
