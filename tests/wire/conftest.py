"""The `wire` of a test: it runs once for each way to reach the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.wire.wire import Wire, open_wire

NETWORK_WIRES = ("http-json", "http-binary", "grpc", "grpc-stream")


@pytest.fixture(params=[*NETWORK_WIRES, "in-process"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """For behaviour of the core: every way to ask for an inference."""
    async with open_wire(request.param) as opened:
        yield opened


@pytest.fixture(params=NETWORK_WIRES)
async def network_wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """For behaviour of the protocols that the core knows nothing of."""
    async with open_wire(request.param) as opened:
        yield opened


@pytest.fixture(params=NETWORK_WIRES)
def network_wire_name(request: pytest.FixtureRequest) -> str:
    """For tests that open a wire with options of their own (tests.wire.wire.open_wire)."""
    return str(request.param)
