"""The limit on the time that a worker may take until its model can serve."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from naiad.errors import unavailable

LOAD_TIMEOUT = "LOAD_TIMEOUT_SECS"
"""Parameter of a model's config; it overrides `--model-load-timeout-secs`."""


@contextlib.asynccontextmanager
async def limit_load(instance_name: str, limit_s: float) -> AsyncIterator[None]:
    """Raises NaiadError if the block takes longer than `limit_s`; 0 means no limit. The caller ends
    the worker, as for every failed load."""
    try:
        async with asyncio.timeout(limit_s or None) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise unavailable(
            f"instance '{instance_name}' did not load within {limit_s:g} s; "
            f"--model-load-timeout-secs or the model's parameter {LOAD_TIMEOUT} sets the limit"
        ) from None
