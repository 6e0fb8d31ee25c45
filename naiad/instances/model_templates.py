"""The template from which all instances of one copy of a model are forked, after the imports of the
model. Eight instances then import PyTorch once, and share its memory.

In:  the first instance's load arguments. Out: forked workers.
Rule: if the imports fail, or leave behind what a fork cannot share, the workers are forked from
      the backend's own template instead, and import for themselves. A template that dies is
      replaced, as the backend's own is; a reload has a new one.
"""

from __future__ import annotations

import asyncio
import socket

from naiad import log
from naiad.errors import NaiadError
from naiad.instances.template_process import OnExit, TemplateProcess, Templates
from naiad.ipc.work import LoadArguments


class ModelTemplates(Templates):
    def __init__(self, plain: Templates, arguments: LoadArguments, *, owns_plain: bool) -> None:
        """`plain` are the templates without the model's imports, which are started in the same way.
        They are closed with this one if it owns them."""
        super().__init__(plain._loop, plain._setup, plain._launch, plain._orphans)
        self._arguments = arguments
        self._plain = plain
        self._owns_plain = owns_plain
        self._lock = asyncio.Lock()
        self._process: TemplateProcess | None = None
        """The process that has imported what the model imports."""
        self._is_given_up = False

    async def fork(self, backend: str, title: str, sock: socket.socket, on_exit: OnExit) -> None:
        try:
            process = await self._prepared(backend)
        except BaseException:
            sock.close()
            raise
        if process is None:
            await self._plain.fork(backend, title, sock, on_exit)
        else:
            await process.fork(title, sock, on_exit)

    async def _prepared(self, backend: str) -> TemplateProcess | None:
        """Returns the process with the model's imports, or None if there cannot be one."""
        async with self._lock:
            if self._is_given_up:
                return None
            process = self.get(backend)
            if process is self._process:
                return process
            try:
                problem = await process.import_ahead(self._arguments)
            except NaiadError as error:
                problem = error.message
            except BaseException:
                process.close()
                raise
            if not problem:
                self._process = process
                return process
            self._is_given_up = True
            process.close()
            log.verbose(
                1, f"instances of '{self._arguments.model_name}' import for themselves: {problem}"
            )
            return None

    def restart_delay_s(self, backend: str) -> float:
        return max(super().restart_delay_s(backend), self._plain.restart_delay_s(backend))

    def close(self) -> None:
        super().close()
        if self._owns_plain:
            self._plain.close()
