"""Where a tensor lies in a client's shared memory: by the name of a registered region, never by an
address.

In:  built by protocol decoders from what a request says; nothing is looked up or checked there.
Out: resolved by naiad.shm.region_table, once per request, before the request is checked.
"""

from __future__ import annotations

import msgspec


class RegionSlice(msgspec.Struct, frozen=True):
    region: str
    offset: int
    byte_size: int


class RegionUse(msgspec.Struct, frozen=True):
    """All that one request has in clients' regions. Shared by requests that repeat each other."""

    inputs: list[tuple[int, RegionSlice]]
    """Position among the request's inputs, whose `data` is empty until the region has been read."""
    outputs: dict[str, RegionSlice] = {}
    """By the name of the output that is to be written there."""
