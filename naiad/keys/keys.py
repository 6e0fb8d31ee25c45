"""Everything about API keys that the running server owns: the guard, and what keeps it up to date.

Rule: the server starts and stops it as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from naiad.keys.audit import AuditLog
from naiad.keys.guard import Guard
from naiad.keys.key_watch import KeyWatch
from naiad.keys.token.key_set_watch import KeySetWatch
from naiad.keys.usage_file import SAVE_INTERVAL_S, UsageFile


class Keys:
    def __init__(
        self,
        guard: Guard,
        watch: KeyWatch | None = None,
        usage: UsageFile | None = None,
        audit: AuditLog | None = None,
        key_set: KeySetWatch | None = None,
    ) -> None:
        """`watch` and `usage` are None where all keys are on the command line. `key_set` are the
        keys of an identity provider, and None where there is none."""
        self.guard = guard
        self.watch = watch
        self.usage = usage
        self.audit = audit
        self.key_set = key_set

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks: list[asyncio.Future[None]] = []
        if self.watch is not None:
            tasks.append(asyncio.ensure_future(self.watch.run()))
        if self.key_set is not None:
            tasks.append(asyncio.ensure_future(self.key_set.run()))
        if self.usage is not None:
            tasks.append(asyncio.ensure_future(self._save_usage(self.usage)))
        if self.audit is not None:
            self.audit.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.usage is not None:
                self.usage.save()
            if self.audit is not None:
                await asyncio.get_running_loop().run_in_executor(None, self.audit.stop)

    async def _save_usage(self, usage: UsageFile) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            data = usage.encode()
            if data is not None:
                await asyncio.get_running_loop().run_in_executor(None, usage.write, data)

    def reread(self) -> None:
        """For SIGHUP: reads the key file and the key set again and opens the audit log again."""
        if self.watch is not None:
            self.watch.reread()
        if self.key_set is not None:
            self.key_set.reread()
        if self.audit is not None:
            self.audit.reopen()
