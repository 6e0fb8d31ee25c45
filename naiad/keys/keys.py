"""Everything about API keys that the running server owns: the guard, and what keeps it up to date.

Rule: the server starts and stops it as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from naiad.keys.guard import Guard
from naiad.keys.key_watch import KeyWatch


class Keys:
    def __init__(self, guard: Guard, watch: KeyWatch | None) -> None:
        """`watch` is None where all keys are on the command line."""
        self.guard = guard
        self.watch = watch

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [] if self.watch is None else [asyncio.ensure_future(self.watch.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def reread(self) -> None:
        if self.watch is not None:
            self.watch.reread()
