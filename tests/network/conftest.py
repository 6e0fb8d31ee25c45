from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network.hosts import Network, NoNamespacesError


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Three hosts: server, client, other."""
    try:
        with Network("server", "client", "other") as network:
            yield network
    except NoNamespacesError as error:
        pytest.skip(f"network namespaces cannot be made here, which needs root: {error}")
