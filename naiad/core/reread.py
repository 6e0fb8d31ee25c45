"""What the server reads again while it runs: SIGHUP runs every subscriber.

In:  `subscribe` from the parts that own files: the log, certificates, keys. Out: a log line per
     subscriber.
Rule: a file that cannot be read again changes nothing and does not keep the others from being read:
      the subscriber raises before it replaces anything.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad import log


class Reread:
    def __init__(self) -> None:
        self._subscribers: dict[str, Callable[[], object]] = {}

    def subscribe(self, what: str, read: Callable[[], object]) -> None:
        """`what` names the files in the log. `read` is called on the event loop, so it must be
        quick."""
        self._subscribers[what] = read

    def run(self) -> None:
        log.info(f"SIGHUP: reading {', '.join(self._subscribers) or 'nothing'} again")
        for what, read in self._subscribers.items():
            try:
                read()
            except Exception as error:
                log.error(f"cannot read {what} again, the old state stays: {error}")
