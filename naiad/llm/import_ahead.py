"""Imports a heavy module on a thread, meanwhile something else is loaded.

In:  the name of a module. Out: it is in sys.modules after `join`, unless its import failed.
Rule: who needs what that module imports, too, joins first. A package that replaces itself in
      sys.modules while it is imported, as transformers and its parts do, gives a second importer
      the half-filled module that it has replaced.
"""

from __future__ import annotations

import contextlib
import importlib
import threading

_threads: list[threading.Thread] = []


def start(name: str) -> None:
    thread = threading.Thread(target=_import, args=[name], name="llm-import", daemon=True)
    _threads.append(thread)
    thread.start()


def join() -> None:
    """Waits for what was started. Returns at once if nothing was."""
    for thread in _threads:
        thread.join()
    _threads.clear()


def _import(name: str) -> None:
    with contextlib.suppress(Exception):  # who needs it imports it again, and gets the error
        importlib.import_module(name)
